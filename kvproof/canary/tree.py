"""What a command and everything that it began has done: what each process printed and how it ended, and the logs."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field

KEPT = 4 << 20
"""Bytes of each process's output, and of each log, that are kept: the first quarter, and the newest of the rest."""


@dataclass
class Piece:
    """Some output: when it came (seconds since the start), "stdout" or "stderr", and the bytes."""

    at: float
    stream: str
    data: bytes


@dataclass
class Process:
    """One process of the tree.

    began, ended: seconds since the start; ended is None while it lives. left: when it began to end, before which nobody
    can have taken note of that. status: as of waitpid. stopped: the canary has ended it. output, size: what it printed
    that is kept; dropped: bytes of the rest, which came before the piece number `gap`. program: the file that it runs,
    as far as that can be seen.
    """

    pid: int
    parent: int
    command: str
    began: float
    ended: float | None = None
    status: int | None = None
    stopped: bool = False
    left: float | None = None
    output: list[Piece] = field(default_factory=list)
    size: int = 0
    dropped: int = 0
    gap: int = 0
    program: str = ""

    def take(self, piece: Piece) -> None:
        """Keep some output; of more than `KEPT` bytes the middle is dropped."""
        self.output.append(piece)
        self.size += len(piece.data)
        while self.size > KEPT and len(self.output) > 8:
            self.gap = len(self.output) // 4
            gone = self.output.pop(self.gap)
            self.size -= len(gone.data)
            self.dropped += len(gone.data)

    @property
    def how(self) -> str:
        """How it ended, in words."""
        if self.status is None:
            return "still runs" if self.ended is None else "has ended"
        if os.WIFSIGNALED(self.status):
            return f"killed by signal {os.WTERMSIG(self.status)} ({_signal(os.WTERMSIG(self.status))})"
        return f"exit code {os.WEXITSTATUS(self.status)}"

    @property
    def failed(self) -> bool:
        """Whether it ended by itself, with another exit code than 0."""
        return self.status is not None and os.WIFEXITED(self.status) and self.status != 0 and not self.stopped

    @property
    def killed(self) -> bool:
        """Whether a signal ended it that the canary did not send."""
        return self.status is not None and os.WIFSIGNALED(self.status) and not self.stopped

    def text(self, until: float = math.inf, *, marked: bool = False) -> str:
        """Return what it printed until then, both streams in the order in which it came.

        marked: with a line where something was not kept.
        """
        pieces = [piece.data for piece in self.output if piece.at <= until]
        if marked and self.dropped and self.gap <= len(pieces):
            pieces.insert(self.gap, b"\n[... %d bytes were not kept ...]\n" % self.dropped)
        return b"".join(pieces).decode(errors="replace")


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "no name"


@dataclass
class Tree:
    """What became of a command.

    how: "ready" (it serves), "ended", or "hang" (neither, in time). ready: seconds until it served. logs: the text that
    was added to each log file, by path. seconds: until everything had ended. over: when the canary began to end it;
    what is said later says nothing of the start. stacks: of a hang, what each process was doing.
    """

    command: Sequence[str]
    processes: dict[int, Process] = field(default_factory=dict)
    how: str = "ended"
    ready: float | None = None
    seconds: float = 0.0
    over: float = math.inf
    logs: dict[str, str] = field(default_factory=dict)
    stacks: dict[int, list[str]] = field(default_factory=dict)
    first: int = 0

    @property
    def root(self) -> Process:
        """The process of the command itself."""
        return self.processes[self.first]
