"""A wire log's lines, taken apart again, and what of them a sequence diagram shows in which row."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Literal

ROWS = 120
"""Rows of a diagram; of more the first few and the last ones are shown."""
_FIRST = 20
_FOLDED = 3
"""So many frames without a key that nothing was done to make one row."""

_EVENT = re.compile(r"(?:connection (\d{1,6}) )?(open|request|reply|push|close|call)(?: (.*))?")
_TAIL = re.compile(r"(?P<what>.*?)(?: ?\bby (?P<by>\w+))?(?: ?\b(?P<size>\d+) bytes)?(?P<null> ?\bnull)?"
                   r"(?: ?\((?P<detail>.*)\))?")

Kind = Literal["request", "reply", "push", "open", "close", "call", "fold", "struck", "note", "next"]


@dataclass(frozen=True)
class Row:
    """One row of a diagram.

    label: what passed, in short; did: what a fault did to it, or who closed; line: the whole of it.
    """

    kind: Kind
    connection: int
    label: str
    did: str
    line: str


@dataclass(frozen=True)
class _Event:
    line: str
    connection: int
    direction: str
    command: str = ""
    key: str = ""
    did: str = ""
    by: str = ""
    size: int = 0
    null: bool = False
    detail: str = ""


def rows(log: Sequence[str]) -> list[Row]:
    """Return the rows for the lines of a log; what is no such line is a note."""
    events = _events(log)
    short = _short([event.key for event in events if event.key])
    found: list[Row] = []
    seen: set[int] = set()
    at = 0
    while at < len(events):
        event = events[at]
        if event.direction == "open" and not event.did and event.connection in seen:
            # Ordinals begin again: what follows passed another proxy.
            seen.clear()
            found.append(Row("next", 0, "another process, behind a proxy of its own", "", ""))
        seen.add(event.connection)
        end = at
        while end < len(events) and _plain(events[end]) and events[end].connection == event.connection:
            end += 1
        if end - at >= _FOLDED:
            found.append(_folded(events[at:end]))
            at = end
        else:
            found.append(_row(event, short))
            at += 1
    if len(found) > ROWS:
        left = len(found) - ROWS
        found[_FIRST : _FIRST + left] = [Row("note", 0, f"{left} rows are left out", "", "")]
    return found


def _events(log: Sequence[str]) -> list[_Event]:
    parsed: list[tuple[str, re.Match[str] | None, re.Match[str] | None]] = []
    keys: set[str] = set()
    for line in log:
        known = _EVENT.fullmatch(line)
        tail = _TAIL.fullmatch(known[3] or "") if known else None
        if known is None or tail is None:
            parsed.append((line, None, None))
            continue
        parsed.append((line, known, tail))
        command, _, key = tail["what"].partition(" ")
        if tail["size"] and command and key:
            keys.add(key)
    return [_event(line, known, tail, keys) if known and tail else _Event(line, 0, "") for line, known, tail in parsed]


def _event(line: str, known: re.Match[str], tail: re.Match[str], keys: set[str]) -> _Event:
    direction, what = known[2], tail["what"]
    connection = int(known[1] or 0)
    rest = (tail["by"] or "", int(tail["size"] or 0), bool(tail["null"]), tail["detail"] or "")
    if direction in ("open", "call") or what == "raw":
        return _Event(line, connection, direction, "", "", what, *rest)
    command, _, after = what.partition(" ")
    if rest[1] or after in keys or direction == "close":
        return _Event(line, connection, direction, command, after, "", *rest)
    # What was done has no size. A key is a word that was seen as one, or that could not be what was done.
    key, space, did = after.partition(" ")
    if key in keys or (space and not re.fullmatch(r"[a-z-]+", key)):
        return _Event(line, connection, direction, command, key, did, *rest)
    return _Event(line, connection, direction, command, "", after, *rest)


def _plain(event: _Event) -> bool:
    return event.direction in ("request", "reply") and not event.key and not event.did and bool(event.command)


def _folded(events: Sequence[_Event]) -> Row:
    asked = [event.command for event in events if event.direction == "request"] or [events[0].command]
    counts = dict.fromkeys(asked, 0)
    for command in asked:
        counts[command] += 1
    label = ", ".join(command + (f" ({count})" if count > 1 else "") for command, count in counts.items())
    return Row("fold", events[0].connection, label, "", "\n".join(event.line for event in events))


def _row(event: _Event, short: dict[str, str]) -> Row:
    name = " ".join(word for word in (event.command, short.get(event.key, event.key)) if word)
    if event.direction == "":
        return Row("note", 0, event.line, "", event.line)
    if event.direction == "call":
        return Row("call", 0, f"the call {event.did}" if event.did else "the call ended", "", event.line)
    if event.direction == "close":
        by = f"closed by {event.by}" if event.by else "closed"
        return Row("close", event.connection, name, f"{by}{f' ({event.detail})' if event.detail else ''}", event.line)
    if event.did:
        by = f" by {event.by}" if event.by else ""
        label = f"{event.direction} {name}".strip()
        return Row("struck", event.connection, label, f"{event.did}{by}", event.line)
    if event.direction == "open":
        return Row("open", event.connection, f"connection {event.connection} opened", "", event.line)
    size = " · null" if event.null else f" · {event.size:,} B" if event.size else ""
    kind: Kind = "request" if event.direction == "request" else "push" if event.direction == "push" else "reply"
    return Row(kind, event.connection, f"{name}{size}", "", event.line)


def _common(names: Sequence[str]) -> str:
    """Return what all of them begin with."""
    return "".join(letters[0] for letters in takewhile(lambda here: len(set(here)) == 1, zip(*names, strict=False)))


def _short(keys: Sequence[str]) -> dict[str, str]:
    """Return short names of keys: without what all of them begin and end with, from a separator on."""
    names = list(dict.fromkeys(keys))
    if len(names) < 2:
        return {name: name if len(name) <= 28 else f"…{name[-27:]}" for name in names}
    begin = len(re.sub(r"[^@:/|{}]*$", "", _common(names)))
    end = len(re.sub(r"^[^@:/|{}]*", "", _common([name[begin:][::-1] for name in names])[::-1]))
    return {name: name[begin : len(name) - end] or name for name in names}
