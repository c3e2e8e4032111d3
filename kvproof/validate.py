"""Validating a log: whether what a real run has recorded is a behaviour of the spec, and which event is none."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvproof.errors import UsageError
from kvproof.spec.follow import Follower, Unclear, Unexplained
from kvproof.spec.protocols import PROTOCOLS, NoSuchWorld, Protocol, of_system

BEGIN = "begin"
"""The event that says what world a step is in; it is no action."""
_FIELDS = ("rank", "seq", "event")


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
class Judgement:
    """What became of a log.

    verdict: "accepted", "rejected" or "unclear". line: the first that no behaviour explains; why: in words. filled: the
    kinds of events that nobody recorded, and which were filled in where they were needed.
    """

    verdict: str
    events: int
    line: Line | None = None
    why: str = ""
    filled: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """0 accepted, 1 rejected, 3 it cannot be told."""
        return {"accepted": 0, "rejected": 1, "unclear": 3}[self.verdict]


def read(path: Path) -> list[Line]:
    """Read a log; raises UsageError, in one line, for one that is none. A last line that is cut off is left out."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}; expected a log, a line of JSON for each event") from error
    whole, _, _ = data.rpartition(b"\n")
    lines = [_line(path, number, text) for number, text in enumerate(whole.splitlines(), 1) if text.strip()]
    if all(line.event == BEGIN for line in lines):
        raise UsageError(f"{path}: there is no event in it; expected a line of JSON for each")
    return lines


def _line(path: Path, number: int, text: bytes) -> Line:
    def wrong(found: str) -> UsageError:
        return UsageError(f'{path}:{number}: {found}; expected such as '
                          '{"rank": 0, "seq": 0, "event": "enter_exchange", "values": {}}')

    try:
        found = json.loads(text)
    except ValueError as error:
        raise wrong(f"no JSON ({error})") from error
    if not isinstance(found, dict):
        raise wrong(f"{type(found).__name__} instead of an object")
    missing = [name for name in _FIELDS if name not in found]
    if missing:
        raise wrong(f"no {missing[0]}")
    values, step = found.get("values", {}), found.get("step", 0)
    numbers = {"rank": found["rank"], "seq": found["seq"], "step": step}
    for name, value in numbers.items():
        if type(value) is not int or value < 0:
            raise wrong(f"{name} is {value!r}, which is no natural number")
    if not isinstance(found["event"], str) or not isinstance(values, dict):
        raise wrong("event is no string, or values is no object")
    return Line(number, found["rank"], found["seq"], step, found["event"], values)


@dataclass
class _Run:
    """A log that is being followed."""

    protocol: Callable[[], Protocol]
    lines: list[Line]
    steps: dict[int, tuple[Protocol, Follower]] = field(default_factory=dict)

    def judge(self, progress: Callable[[int], None]) -> Judgement:
        """Follow it to its end, or to the first event that no behaviour explains."""
        begun: dict[int, list[Mapping[str, Any]]] = {}
        ranks: dict[int, set[int]] = {}
        for line in self.lines:
            ranks.setdefault(line.step, set()).add(line.rank)
            if line.event == BEGIN:
                begun.setdefault(line.step, []).append({**line.values, "rank": line.rank})
        recorded = {line.event for line in self.lines if line.event != BEGIN}
        expected: dict[int, int] = {}
        for count, line in enumerate(self.lines):
            progress(count)
            why = _out_of_turn(line, expected)
            expected[line.rank] = line.seq + 1
            if why:
                return Judgement("rejected", count, line, why)
            if line.event == BEGIN:
                continue
            try:
                if line.step not in self.steps:
                    made = self.protocol()
                    self.steps[line.step] = made, made.follower(
                        begun.get(line.step, []), ranks[line.step], recorded)
                protocol, follower = self.steps[line.step]
                follower.take(protocol.seen(line.event, line.rank, line.values))
            except (Unexplained, ValueError) as error:
                return Judgement("rejected", count, line, str(error))
            except Unclear as error:
                return Judgement("unclear", count, line, str(error))
        filled = sorted({name for _, follower in self.steps.values() for name in follower.hidden})
        return Judgement("accepted", len(self.lines), filled=tuple(filled))


def _out_of_turn(line: Line, expected: Mapping[int, int]) -> str:
    """Return how an event's number shows that another of its rank is missing, or was there already."""
    due = expected.get(line.rank, 0)
    if line.seq == due:
        return ""
    if line.seq < due:
        return f"rank {line.rank} has recorded its event {line.seq} before, or out of order; the next is {due}"
    return f"of rank {line.rank} event {due} is missing before event {line.seq}"


def validate(
    path: Path, protocol: str = "load", progress: Callable[[int], None] = lambda count: None
) -> Judgement:
    """Judge a log by the protocol of that name, or by the system of a FILE.py; raises UsageError."""
    lines = read(path)
    try:
        return _Run(_protocol(protocol), lines).judge(progress)
    except NoSuchWorld as error:
        raise UsageError(f"{path}: {error}") from error


def _protocol(name: str) -> Callable[[], Protocol]:
    if name.endswith(".py"):
        return of_system(Path(name))
    if name not in PROTOCOLS:
        raise UsageError(f"no protocol is called {name!r}; expected {', '.join(PROTOCOLS)}, or a FILE.py")
    return PROTOCOLS[name]


def names() -> Iterator[str]:
    """Return the names of the protocols that a log can be validated by."""
    yield from PROTOCOLS
