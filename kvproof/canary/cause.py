"""Why a start failed: the first thing that went wrong, in the order in which it did, whoever said it and wherever.

Strong signs are a process that a signal has ended and a traceback; of these the earliest is the cause. Of one process's
tracebacks that is the one with which it ended, if it did so by itself, and of exceptions that came of one another the
first. Where there is no such sign, the first line that speaks of an error is, or where a hang was, then how the command
ended. What may only refer to another failure ("see root cause above") is the cause where there is nothing else.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass

from kvproof.canary import stacks
from kvproof.canary.tree import Process, Tree
from kvproof.canary.words import complains, deciding, mentions, refers, speaks, tracebacks, uncoloured

_SHOWN = 4


@dataclass(frozen=True, slots=True)
class Cause:
    """The first that went wrong: what (in a line), who said it or did it, and when (seconds), where that is known.

    kind: "signal", "traceback", "log", "line", "hang", "no service", "no start" or "exit code". place: the innermost
    frame of a traceback, or the file of a log.
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
    lines = [*_lines(tree), *(each for each in logged if each.kind == "log")]
    # What is logged has no time, but an exception says more than a signal that came of it. Of a hang a line that merely
    # speaks of an error says less than where it was.
    for found in (_strong(tree), [each for each in logged if each.kind == "traceback"],
                  [_hang(tree)] if tree.how == "hang" else lines, list(_asked(tree)), list(_referring(tree))):
        if found:
            return found[0]
    if root.status == 0:
        return Cause("no service", "it ended with exit code 0 and never served", who(root), root.ended)
    return _silent(tree)


def signs(tree: Tree) -> list[Cause]:
    """Return the signs that something went wrong, the earliest first; a start may be fine in spite of some.

    They are signals, all tracebacks, and the last line that a process itself took for an error.
    """
    said = [each for process in tree.processes.values() for each in _all_of(tree, process)]
    return sorted([*_signals(tree), *said], key=_when)


def _when(each: Cause) -> float:
    return each.at if each.at is not None else 1e18


def _strong(tree: Tree) -> list[Cause]:
    """Return what may be the cause by itself, the earliest first."""
    return sorted([*_signals(tree), *_tracebacks(tree)], key=_when)


def _signals(tree: Tree) -> Iterator[Cause]:
    for process in tree.processes.values():
        if process.killed and not _on_purpose(tree, process):
            yield Cause("signal", process.how, who(process), process.ended)


def _asked(tree: Tree) -> Iterator[Cause]:
    for process in tree.processes.values():
        if process.killed and _on_purpose(tree, process) and not _after_another(tree, process):
            yield Cause("signal", process.how, who(process), process.ended)


def _on_purpose(tree: Tree, process: Process) -> bool:
    """Whether others have ended it, as it seems, because something else had gone wrong before."""
    number = os.WTERMSIG(process.status) if process.status is not None else 0
    return number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE) or (
        number == signal.SIGKILL and _after_another(tree, process))


def _after_another(tree: Tree, process: Process) -> bool:
    """Whether, before it ended, another process of the same parent had failed, or the parent had spoken of an error."""
    end = process.ended if process.ended is not None else tree.over
    beside = [each for each in tree.processes.values() if each.parent == process.parent and each is not process]
    above = tree.processes.get(process.parent)
    return any(each.failed and process.began < _left(each) <= end for each in beside) or (
        above is not None and any(map(complains, _text(above, min(end, tree.over)).splitlines())))


def _text(process: Process, until: float) -> str:
    """Return what it printed until then, without colours."""
    return uncoloured(process.text(until))


def _tracebacks(tree: Tree) -> Iterator[Cause]:
    for process in tree.processes.values():
        text = _text(process, tree.over)
        found = deciding(text, process.failed)
        if found is not None:
            yield Cause("traceback", found[0], who(process), _time(process, found[2]), found[1])


def _all_of(tree: Tree, process: Process) -> Iterator[Cause]:
    text = _text(process, tree.over)
    for line, place, begin in tracebacks(text):
        yield Cause("traceback", line, who(process), _time(process, begin), place)
    begin, found = 0, None
    for line in text.splitlines(keepends=True):
        if complains(line):
            found = line.strip()[:500], begin
        begin += len(line)
    if found is not None and process.failed:
        yield Cause("line", found[0], who(process), _time(process, found[1]))


def _referring(tree: Tree) -> Iterator[Cause]:
    """Return what may refer to another failure, or be one of its own: all there is where nothing else is found."""
    for process in tree.processes.values():
        text, begin = _text(process, tree.over), 0
        for line, place, at in tracebacks(text):
            if not refers(line):
                yield Cause("traceback", line, who(process), _time(process, at), place)
        for line in text.splitlines(keepends=True):
            if mentions(line) and not refers(line):
                yield Cause("line", line.strip()[:500], who(process), _time(process, begin))
            begin += len(line)


def _time(process: Process, begin: int) -> float:
    """Return when the byte at `begin` of a process's output came."""
    passed = 0
    for piece in process.output:
        passed += len(uncoloured(piece.data.decode(errors="replace")))
        if passed > begin:
            return piece.at
    return process.output[-1].at if process.output else process.began


def _logged(tree: Tree) -> Iterator[Cause]:
    for path, text in tree.logs.items():
        found = deciding(uncoloured(text), tree.root.failed)
        if found is not None:
            yield Cause("traceback", found[0], f"log {path}", None, found[1])
    for path, text in tree.logs.items():
        line = next((line for line in uncoloured(text).splitlines() if speaks(line)), None)
        if line is not None:
            yield Cause("log", line.strip()[:500], f"log {path}")


def _lines(tree: Tree) -> Iterator[Cause]:
    found = []
    for process in tree.processes.values():
        begin = 0
        for line in _text(process, tree.over).splitlines(keepends=True):
            if speaks(line):
                found.append(Cause("line", line.strip()[:500], who(process), _time(process, begin)))
            begin += len(line)
    yield from sorted(found, key=lambda each: each.at or 0.0)


def _hang(tree: Tree) -> Cause:
    """Return where every process was that still ran, the one that began last first: the others may wait for it."""
    alive = sorted((tree.processes[pid] for pid in tree.stacks), key=lambda process: -process.began)
    places = [f"{stacks.place(process) or '; '.join(tree.stacks[process.pid][:1])} in process {process.pid}"
              for process in alive[:_SHOWN]]
    return Cause("hang", "it neither served nor ended in time", who(tree.root), None, "; ".join(places))


def _silent(tree: Tree) -> Cause:
    """Return the process that failed first of those of which each made the one above it fail, as far as can be seen.

    Of several that ran at the same time the first is; one after which the one above went on to another is only named.
    """
    process, above, perhaps = tree.root, 0, ""
    while True:
        below = [each for each in tree.processes.values() if each.parent == process.pid and each is not process]
        failed = [each for each in below if each.failed]
        if not failed:
            break
        last = max(failed, key=_left)
        if any(each.began >= _left(last) for each in below):
            perhaps = f"; before that {who(last)} had ended with {last.how}"
            break
        process, above = min((each for each in failed if _left(each) >= last.began), key=_left), above + 1
    said = [line for line in _text(process, tree.over).splitlines() if line.strip()]
    told = (f"and no line that it printed is known to say why; the last: {said[-1].strip()[:200]}" if said
            else "and what it said, if anything, was not seen")
    if process.dropped:
        told += f" ({process.dropped} bytes in the middle of it were not kept)"
    after = f"; {above} above it failed after it" if above else ""
    return Cause("exit code", f"{process.how}, {told}{after}{perhaps}", who(process), process.ended)


def _left(process: Process) -> float:
    return process.left if process.left is not None else process.ended or 0.0
