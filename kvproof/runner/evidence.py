"""What can be seen of a runner from outside: its output, its stacks, its memory, and what the kernel says of it."""

from __future__ import annotations

import os
import select
import time
from dataclasses import dataclass, field
from pathlib import Path

_OUTERMOST = ("_run_module_as_main", "\n  ...\n")
"""What the dump of a runner's main thread, the last one, ends with: its first frame, or a mark that it was too deep."""
_KEPT_OUTPUT = 16 * 1024


class Stacks:
    """A file in memory into which a watchdog in another process writes stacks."""

    def __init__(self) -> None:
        """Create it."""
        self.fd = os.memfd_create("kvproof-stacks")
        self._seen = 0

    def fileno(self) -> int:
        """Return the descriptor."""
        return self.fd

    def fresh(self) -> str:
        """Return what was written since the last call of this method."""
        size = os.fstat(self.fd).st_size
        data = os.pread(self.fd, size - self._seen, self._seen)
        self._seen = size
        return data.decode(errors="replace")

    def wait(self, seconds: float) -> str:
        """Wait until the stacks of all threads were written, `seconds` at most; return what there is."""
        until = time.monotonic() + seconds
        written = self.fresh()
        while time.monotonic() < until and not any(end in written for end in _OUTERMOST):
            select.select([], [], [], 0.01)
            written += self.fresh()
        return written

    def close(self) -> None:
        """Free the memory."""
        os.close(self.fd)


@dataclass
class Output:
    """What a runner printed: the beginning and the end of it, and how much there was."""

    total: int = 0
    _head: bytearray = field(default_factory=bytearray)
    _tail: bytearray = field(default_factory=bytearray)

    def add(self, data: bytes) -> None:
        """Take in some output, keeping little."""
        self.total += len(data)
        room = _KEPT_OUTPUT - len(self._head)
        self._head += data[:room]
        self._tail += data[max(room, 0) :]
        del self._tail[:-_KEPT_OUTPUT]

    @property
    def text(self) -> str:
        """The output for a person, with a mark where the middle was dropped."""
        dropped = self.total - len(self._head) - len(self._tail)
        mark = f"\n[... {dropped} bytes ...]\n" if dropped else ""
        return self._head.decode(errors="replace") + mark + self._tail.decode(errors="replace")


def resident_bytes(pid: int) -> int:
    """Return the resident size of a process in bytes, 0 when it is gone."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")
    except (OSError, IndexError):
        return 0


def state_of(pid: int) -> str:
    """Return the kernel's state letter of a process: R, S, D, T, Z; "gone" when there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0].decode()
    except (OSError, IndexError):
        return "gone"


def kernel_view(pid: int) -> list[str]:
    """Return one line a thread: its name, state and where it waits in the kernel; native threads are here too."""
    lines = []
    for task in sorted(_listed(f"/proc/{pid}/task"), key=int):
        base = Path(f"/proc/{pid}/task/{task}")
        try:
            name = (base / "comm").read_text().strip()
            state = (base / "stat").read_text().rpartition(")")[2].split()[0]
        except (OSError, IndexError):
            continue
        try:
            where = (base / "wchan").read_text().strip()
        except OSError:
            where = ""
        lines.append(f"thread {task} {name}: state {state}" + (f", in {where}" if where not in ("", "0") else ""))
    return lines


def _listed(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []
