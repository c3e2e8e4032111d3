"""Why a start failed: the first thing that went wrong, in the order in which it did, whoever said it and wherever.

Strong signs are a process that a signal has ended and a traceback; of these the earliest is the cause. Of one process's
tracebacks that is the one with which it ended, if it did so by itself, and of exceptions that came of one another the
first. Where there is no such sign, the first line that speaks of an error is, then where a hang was, then how the
command ended. What only refers to another failure ("see root cause above") is never the cause.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass

from kvproof.canary import stacks
from kvproof.canary.tree import Process, Tree

_SHOWN = 4
_TRACEBACK = "Traceback (most recent call last):"
_EXCEPTION = re.compile(r"^(?:[\w.]+\.)?[A-Z]\w*(?:: .*)?$")
_ERROR = re.compile(
    r"\b\w*(?:error|exception)\b|\b(?:no module named|fatal|panic(?:ked)?|critical|abort(?:ed|ing)?|"
    r"segmentation fault|out of memory|oom|cannot|could not|failed|failure|no such file|not found|permission denied|"
    r"refused|undefined symbol)\b", re.IGNORECASE)
_REFERS = re.compile(r"see (?:the )?(?:root cause|above|log|stack)|initialization failed|has died|shutting down",
                     re.IGNORECASE)
_HARMLESS = re.compile(r"^\W*(?:INFO|DEBUG|TRACE)\b|\b0 (?:errors|failures|failed)\b|\bno errors?\b|"
                       r"error[_-]?rate|errors?=0", re.IGNORECASE)
_BAR = re.compile(r"^\s*[|+] ?")
"""With what each line of an exception group begins."""
_GROUP = re.compile(r"^(?:[\w.]+\.)?\w*ExceptionGroup: ")
_LINKED = re.compile(r"During handling of the above exception|direct cause of the following exception")


@dataclass(frozen=True, slots=True)
class Cause:
    """The first that went wrong: what (in a line), who said it or did it, and when (seconds), where that is known.

    kind: "signal", "traceback", "log", "line", "hang", "no service" or "exit code". place: the innermost frame of a
    traceback, or the file of a log.
    """

    kind: str
    line: str
    who: str
    at: float | None = None
    place: str = ""

    def __str__(self) -> str:
        """Say it in a line."""
        when = f" after {self.at:.2f} s" if self.at is not None else ""
        return f"{self.line} ({self.who}{when}{f', {self.place}' if self.place else ''})"


def who(process: Process) -> str:
    """Return a process in words."""
    return f"process {process.pid}: {process.command[:120]}"


def cause(tree: Tree, serves: bool) -> Cause | None:
    """Return why a start failed; None where it has not: it serves, or, if it need not, it ended with exit code 0."""
    if tree.how == "ready":
        return None
    root = tree.root
    if tree.how == "ended" and root.status == 0 and not serves:
        return None
    logged = list(_logged(tree))
    # What is logged has no time, but an exception says more than a signal that came of it.
    for found in (signs(tree), [each for each in logged if each.kind == "traceback"], list(_lines(tree)), logged,
                  list(_asked(tree))):
        if found:
            return found[0]
    if tree.how == "hang":
        return _hang(tree)
    if root.status == 0:
        return Cause("no service", "it ended with exit code 0 and never served", who(root), root.ended)
    return _silent(tree)


def signs(tree: Tree) -> list[Cause]:
    """Return the strong signs that something went wrong, the earliest first; a start may be fine in spite of some."""
    return sorted([*_signals(tree), *_tracebacks(tree)], key=lambda each: each.at if each.at is not None else 1e18)


def _signals(tree: Tree) -> Iterator[Cause]:
    for process in tree.processes.values():
        if process.killed and not _on_purpose(process):
            yield Cause("signal", process.how, who(process), process.ended)


def _asked(tree: Tree) -> Iterator[Cause]:
    for process in tree.processes.values():
        if process.killed and _on_purpose(process):
            yield Cause("signal", process.how, who(process), process.ended)


def _on_purpose(process: Process) -> bool:
    """Whether the signal is one by which others end a process in good order: something else went wrong before."""
    return process.status is not None and os.WTERMSIG(process.status) in (
        signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE)


def _tracebacks(tree: Tree) -> Iterator[Cause]:
    for process in tree.processes.values():
        text = process.text(tree.over)
        chains = [chain for chain in _chains(text) if not _REFERS.search(chain[0])]
        if chains:
            line, place, begin = chains[-1 if process.failed else 0]
            yield Cause("traceback", line, who(process), _time(process, begin), place)


def _chains(text: str) -> list[tuple[str, str, int]]:
    """Return the first of each exceptions that came of one another."""
    found: list[tuple[str, str, int]] = []
    end = 0
    for each in tracebacks(text):
        if not (found and _LINKED.search(text, end, each[2])):
            found.append(each)
        end = each[2]
    return found


def tracebacks(text: str) -> Iterator[tuple[str, str, int]]:
    """Return each traceback of a text: its exception, its innermost frame, where it begins; the first is the root.

    Of an exception group it is that of each part.
    """
    at = text.find(_TRACEBACK)
    while at >= 0:
        lines, place = text[at:].split("\n"), ""
        indent = text[text.rfind("\n", 0, at) + 1: at]
        for line in lines[1:400]:
            # A line of a log may begin with a name or a time, as its first line did.
            plain = _BAR.sub("", line) if _BAR.match(indent) else line.removeprefix(indent)
            frame = re.match(r'\s+File "(?:.*/)?([^"/]+)", line (\d+), in (\S+)', plain)
            if frame is not None:
                place = f"{frame[3]} ({frame[1]}:{frame[2]})"
            elif plain[:1] not in (" ", "\t", "") and place and (_EXCEPTION.match(plain.strip()) or ": " in plain):
                if not _GROUP.match(plain):
                    yield plain.strip()[:500], place, at
                break
        at = text.find(_TRACEBACK, at + 1)


def _time(process: Process, begin: int) -> float:
    """Return when the byte at `begin` of a process's output came."""
    passed = 0
    for piece in process.output:
        passed += len(piece.data.decode(errors="replace"))
        if passed > begin:
            return piece.at
    return process.output[-1].at if process.output else process.began


def _logged(tree: Tree) -> Iterator[Cause]:
    for path, text in tree.logs.items():
        found = next(tracebacks(text), None)
        if found is not None:
            yield Cause("traceback", found[0], f"log {path}", None, found[1])
    for path, text in tree.logs.items():
        line = next((line for line in text.splitlines() if _speaks(line)), None)
        if line is not None:
            yield Cause("log", line.strip()[:500], f"log {path}")


def _lines(tree: Tree) -> Iterator[Cause]:
    found = []
    for process in tree.processes.values():
        begin = 0
        for line in process.text(tree.over).splitlines(keepends=True):
            if _speaks(line):
                found.append(Cause("line", line.strip()[:500], who(process), _time(process, begin)))
            begin += len(line)
    yield from sorted(found, key=lambda each: each.at or 0.0)


def _speaks(line: str) -> bool:
    """Whether a line speaks of an error of its own."""
    return bool(_ERROR.search(line)) and not _REFERS.search(line) and not _HARMLESS.search(line)


def _hang(tree: Tree) -> Cause:
    """Return where every process was that still ran, the one that began last first: the others may wait for it."""
    alive = sorted((tree.processes[pid] for pid in tree.stacks), key=lambda process: -process.began)
    places = [f"{stacks.place(process) or '; '.join(tree.stacks[process.pid][:1])} in process {process.pid}"
              for process in alive[:_SHOWN]]
    return Cause("hang", "it neither served nor ended in time", who(tree.root), None, "; ".join(places))


def _silent(tree: Tree) -> Cause:
    """Return the process that failed first of those of which each made the one above it fail, as far as can be seen."""
    process, above = tree.root, 0
    while True:
        failed = [each for each in tree.processes.values() if each.parent == process.pid and each.failed]
        if not failed:
            break
        process, above = max(failed, key=lambda each: each.ended or 0.0), above + 1
    told = "and nobody said why" if process.size else "and what it said, if anything, was not seen"
    after = f"; {above} above it failed after it" if above else ""
    return Cause("exit code", f"{process.how}, {told}{after}", who(process), process.ended)
