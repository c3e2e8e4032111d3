"""Why a start failed: the first thing that went wrong, in the order in which it did, whoever said it and wherever.

Strong signs are a process that a signal has ended and a traceback; of these the earliest is the cause. Of one process's
tracebacks that is the one with which it ended, if it did so by itself, and of exceptions that came of one another the
first. Where there is no such sign, the first line that speaks of an error is, or where a hang was, then how the command
ended. What may only refer to another failure ("see root cause above") is the cause where there is nothing else.
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
    r"refused|undefined symbol|unable to|already in use)\b", re.IGNORECASE)
_LEVEL = re.compile(r"\b(?:ERROR|FATAL|CRITICAL)\b")
"""What a line has that a program itself takes for an error."""
_QUIET = re.compile(r"^(?:(?!ERROR|FATAL|CRITICAL|WARN).){0,80}?\b(?:INFO|DEBUG|TRACE)\b")
"""With what a line begins that a program takes for none: a level, behind a name, a time or a process."""
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_SEES = re.compile(r"see (?:the )?(?:root cause|above|log|stack)|has died|shutting down", re.IGNORECASE)
_REFERS = re.compile(rf"{_SEES.pattern}|initialization failed", re.IGNORECASE)
_HARMLESS = re.compile(r"^\W*(?:INFO|DEBUG|TRACE)\b|\b0 (?:errors|failures|failed)\b|\bno errors?\b|"
                       r"error[_-]?rate|errors?=0", re.IGNORECASE)
_LONGEST = 1 << 16
"""Characters of a traceback that are read."""
_BAR = re.compile(r"^\s*[|+] ?")
"""With what each line of an exception group begins."""
_GROUP = re.compile(r"^(?:[\w.]+\.)?\w*ExceptionGroup: ")
_UNRAISABLE = re.compile(r"^.*Exception ignored (?:in|while|on)\b.*\n\Z", re.MULTILINE)
"""What Python says before the traceback of an exception that ends nothing."""
_AFTER = 3
"""Lines that may come after the traceback with which a process has ended."""
_LINKED = re.compile(r"During handling of the above exception|direct cause of the following exception")


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
        above is not None and any(_LEVEL.search(line) and _speaks(line)
                                  for line in _text(above, min(end, tree.over)).splitlines()))


def _text(process: Process, until: float) -> str:
    """Return what it printed until then, without colours."""
    return _COLOUR.sub("", process.text(until))


def _tracebacks(tree: Tree) -> Iterator[Cause]:
    for process in tree.processes.values():
        text = _text(process, tree.over)
        found = _first_of(text, process.failed)
        if found is not None:
            yield Cause("traceback", found[0], who(process), _time(process, found[2]), found[1])


def _first_of(text: str, failed: bool) -> tuple[str, str, int] | None:
    """Return the traceback that is the cause: of a process that has failed the one with which it has, if one is."""
    chains = [chain for chain in _chains(text) if not _REFERS.search(chain[0])]
    if not chains:
        return None
    last = max(each[2] for each in tracebacks(text))
    fatal = len(text[last:].rpartition("\n  ")[2].strip().splitlines()) <= 2 + _AFTER
    return chains[-1 if failed and fatal else 0]


def _all_of(tree: Tree, process: Process) -> Iterator[Cause]:
    text = _text(process, tree.over)
    for line, place, begin in tracebacks(text):
        yield Cause("traceback", line, who(process), _time(process, begin), place)
    begin, found = 0, None
    for line in text.splitlines(keepends=True):
        if _LEVEL.search(line) and _speaks(line):
            found = line.strip()[:500], begin
        begin += len(line)
    if found is not None and process.failed:
        yield Cause("line", found[0], who(process), _time(process, found[1]))


def _referring(tree: Tree) -> Iterator[Cause]:
    """Return what may refer to another failure, or be one of its own: all there is where nothing else is found."""
    for process in tree.processes.values():
        text, begin = _text(process, tree.over), 0
        for line, place, at in tracebacks(text):
            if not _SEES.search(line):
                yield Cause("traceback", line, who(process), _time(process, at), place)
        for line in text.splitlines(keepends=True):
            if _ERROR.search(line) and not _SEES.search(line) and not _harmless(line):
                yield Cause("line", line.strip()[:500], who(process), _time(process, begin))
            begin += len(line)


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

    Of an exception group it is that of each part. One that Python says it has ignored is none.
    """
    at = text.find(_TRACEBACK)
    while at >= 0:
        if _UNRAISABLE.search(text, max(0, at - 500), at):
            at = text.find(_TRACEBACK, at + 1)
            continue
        lines, place = text[at: at + _LONGEST].split("\n"), ""
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
        passed += len(_COLOUR.sub("", piece.data.decode(errors="replace")))
        if passed > begin:
            return piece.at
    return process.output[-1].at if process.output else process.began


def _logged(tree: Tree) -> Iterator[Cause]:
    for path, text in tree.logs.items():
        found = _first_of(_COLOUR.sub("", text), tree.root.failed)
        if found is not None:
            yield Cause("traceback", found[0], f"log {path}", None, found[1])
    for path, text in tree.logs.items():
        line = next((line for line in _COLOUR.sub("", text).splitlines() if _speaks(line)), None)
        if line is not None:
            yield Cause("log", line.strip()[:500], f"log {path}")


def _lines(tree: Tree) -> Iterator[Cause]:
    found = []
    for process in tree.processes.values():
        begin = 0
        for line in _text(process, tree.over).splitlines(keepends=True):
            if _speaks(line):
                found.append(Cause("line", line.strip()[:500], who(process), _time(process, begin)))
            begin += len(line)
    yield from sorted(found, key=lambda each: each.at or 0.0)


def _speaks(line: str) -> bool:
    """Whether a line speaks of an error of its own."""
    return bool(_ERROR.search(line)) and not _REFERS.search(line) and not _harmless(line)


def _harmless(line: str) -> bool:
    return bool(_HARMLESS.search(line) or _QUIET.search(line))


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
