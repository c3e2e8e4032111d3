"""What a text says went wrong: its tracebacks, and the lines that speak of an error."""

from __future__ import annotations

import re
from collections.abc import Iterator

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


def deciding(text: str, failed: bool) -> tuple[str, str, int] | None:
    """Return the traceback that is the cause: of a process that has failed the one with which it has, if one is."""
    chains = [chain for chain in _chains(text) if not _REFERS.search(chain[0])]
    if not chains:
        return None
    last = max(each[2] for each in tracebacks(text))
    fatal = len(text[last:].rpartition("\n  ")[2].strip().splitlines()) <= 2 + _AFTER
    return chains[-1 if failed and fatal else 0]


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


def uncoloured(text: str) -> str:
    """Return a text without colours."""
    return _COLOUR.sub("", text)


def speaks(line: str) -> bool:
    """Whether a line speaks of an error of its own."""
    return mentions(line) and not _REFERS.search(line)


def complains(line: str) -> bool:
    """Whether whoever wrote a line takes it for an error."""
    return bool(_LEVEL.search(line)) and speaks(line)


def mentions(line: str) -> bool:
    """Whether a line speaks of an error, be it one that somebody else has to explain."""
    return bool(_ERROR.search(line)) and not _HARMLESS.search(line) and not _QUIET.search(line)


def refers(line: str) -> bool:
    """Whether a line only points to another one."""
    return bool(_SEES.search(line))
