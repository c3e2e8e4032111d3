"""Reading a log: a line of JSON for each event, the first that is none, and a last one that was cut off."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvproof.errors import UsageError
from kvproof.spec.events import BEGIN

_FIELDS = ("rank", "seq", "event")
_MOST = 2**53
"""The largest number of a rank, an event or a step."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a log: where it stands, who recorded it as which of its events, in which step, and what it says."""

    number: int
    rank: int
    seq: int
    step: int
    event: str
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Log:
    """What a file holds: its events up to the first line that is none, and what is wrong with that one.

    recorded: the kinds of events, also of those that come later. cut: whether its last line was cut off, which is left
    out.
    """

    lines: list[Line]
    wrong: UsageError | None
    recorded: frozenset[str]
    cut: bool


def read(path: Path) -> Log:
    """Read a log; raises UsageError, in one line, for one that is none."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}; expected a log, a line of JSON for each event") from error
    texts = data.split(b"\n")
    # The last line ends without a line break when its writer was stopped, or when a person has written it.
    cut = texts[-1].lstrip().startswith(b"{") and not _whole(texts[-1])
    lines: list[Line] = []
    recorded: set[str] = set()
    wrong: UsageError | None = None
    for number, text in enumerate(texts[:-1] if cut else texts, 1):
        if not text.strip():
            continue
        try:
            line = _line(path, number, text)
        except UsageError as error:
            wrong = wrong or error
            continue
        recorded.add(line.event)
        if wrong is None:
            lines.append(line)
    if not lines:
        raise wrong or UsageError(f"{path}: there is no event in it; expected a line of JSON for each")
    if wrong is None and recorded == {BEGIN}:
        raise UsageError(f"{path}: there is nothing but `begin` in it; expected a line for each event after it")
    return Log(lines, wrong, frozenset(recorded - {BEGIN}), cut)


def _whole(text: bytes) -> bool:
    """Return whether a text begins with a whole object, whatever stands behind it."""
    try:
        json.JSONDecoder().raw_decode(text.decode(errors="replace").lstrip())
    except (ValueError, RecursionError):
        return False
    return True


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} comes twice in one object")
    return found


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant)


def _line(path: Path, number: int, text: bytes) -> Line:
    def wrong(found: str) -> UsageError:
        return UsageError(f'{path}:{number}: {found}; expected such as '
                          '{"rank": 0, "seq": 0, "event": "enter_exchange", "values": {}}')

    try:
        found = _DECODER.decode(text.decode())
    except ValueError as error:
        raise wrong(f"no JSON ({error})") from error
    except RecursionError as error:
        raise wrong("no JSON that is read (it is too deep)") from error
    if not isinstance(found, dict):
        raise wrong(f"{type(found).__name__} instead of an object")
    missing = [name for name in _FIELDS if name not in found]
    if missing:
        raise wrong(f"no {missing[0]}")
    values, step = found.get("values", {}), found.get("step", 0)
    for name, value in (("rank", found["rank"]), ("seq", found["seq"]), ("step", step)):
        if type(value) is not int or not 0 <= value <= _MOST:
            raise wrong(f"{name} is {_short(value)}, which is no natural number")
    if not isinstance(found["event"], str) or not isinstance(values, dict):
        raise wrong("event is no string, or values is no object")
    return Line(number, found["rank"], found["seq"], step, found["event"], values)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
