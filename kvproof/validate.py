"""Validating a log: whether what a real run has recorded is a behaviour of the spec, and which event is none."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from kvproof.errors import UsageError
from kvproof.spec.events import BEGIN, ENDS, complaint
from kvproof.spec.follow import Seen, Unclear, Unexplained
from kvproof.spec.protocol import NoSuchWorld, Protocol
from kvproof.spec.protocols import PROTOCOLS, of_system

_FIELDS = ("rank", "seq", "event")
_PAGE = "docs/validating-a-log.md lists what there is"
_CODES = {"accepted": 0, "accepted so far": 0, "rejected": 1, "unclear": 3, "inconclusive": 3}


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

    verdict: "accepted"; "accepted so far", when all of it is allowed and it ends unfinished, which is "inconclusive"
    where it had to be complete; "rejected"; or "unclear". line: the first that is wrong; why: in words, with the part
    of the formula that is false; means: the same in the words of the protocol, where it has any; hint: what may have
    caused it. lost: it is wrong by its number, so that a record is missing or too many. unfinished: where everybody
    stands at the end. filled: the kinds of events that nobody recorded, and that were filled in. silent: what cannot be
    told about the end. place: what a step is called.
    """

    verdict: str
    events: int
    line: Line | None = None
    why: str = ""
    means: str = ""
    hint: str = ""
    lost: bool = False
    unfinished: tuple[str, ...] = ()
    filled: tuple[str, ...] = ()
    silent: str = ""
    place: str = "step"

    @property
    def exit_code(self) -> int:
        """0 accepted, 1 rejected, 3 it cannot be told."""
        return _CODES[self.verdict]


def read(path: Path) -> list[Line]:
    """Read a log; raises UsageError, in one line, for one that is none. A last line that is cut off is left out."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}; expected a log, a line of JSON for each event") from error
    whole, _, _ = data.rpartition(b"\n")
    lines = [_line(path, number, text) for number, text in enumerate(whole.split(b"\n"), 1) if text.strip()]
    if not lines:
        raise UsageError(f"{path}: there is no event in it; expected a line of JSON for each")
    if all(line.event == BEGIN for line in lines):
        raise UsageError(f"{path}: there is nothing but `begin` in it; expected a line for each event after it")
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

    path: Path
    protocol: Callable[[], Protocol]
    lines: list[Line]
    steps: dict[int, Protocol] = field(default_factory=dict)
    expected: dict[int, int] = field(default_factory=dict)
    begun: dict[int, list[Mapping[str, Any]]] = field(default_factory=dict)
    ranks: dict[int, set[int]] = field(default_factory=dict)
    behind: dict[int, int] = field(default_factory=dict)
    begins: set[tuple[int, int]] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Find what each step is about, and which began before which."""
        for line in self.lines:
            self.ranks.setdefault(line.step, set()).add(line.rank)
            if line.event == BEGIN:
                self.begun.setdefault(line.step, []).append({**line.values, "rank": line.rank})
        self.recorded = {line.event for line in self.lines if line.event != BEGIN}
        # Chunks may come for a step before anybody turns to it.
        turned = dict.fromkeys(line.step for line in self.lines if line.event != "arrive")
        self.numbers = list({**turned, **self.ranks})
        self.order = {number: place for place, number in enumerate(self.numbers)}
        self.events, self.place = self.protocol().events, self.protocol().place

    def judge(self, progress: Callable[[int], None], *, complete: bool) -> Judgement:
        """Follow it to its end, or to the first event that no behaviour explains."""
        self.usable()
        for count, line in enumerate(self.lines):
            progress(count)
            why = _out_of_turn(line, self.expected)
            self.expected[line.rank] = line.seq + 1
            if why:
                return Judgement("rejected", count, line, why, lost=True, place=self.place)
            try:
                protocol = self.step(line.step)
                self.turns_to(line)
                if line.event != BEGIN:
                    protocol.follower.take(self.seen(line, protocol))
            except Astray as error:
                alive = "nobody records `expire` or `die` in this log, so nobody is taken to have given up or died"
                hint = "" if self.recorded & ENDS else alive
                return Judgement("rejected", count, line, str(error), hint=hint, place=self.place)
            except Unexplained as error:
                known = line.event != BEGIN and line.step in self.steps
                means = self.steps[line.step].sentence(line.event, line.rank, line.values) if known else ""
                return Judgement("rejected", count, line, str(error), means, self.hint(), place=self.place)
            except Unclear as error:
                return Judgement("unclear", count, line, str(error), place=self.place)
        return self.ended(complete=complete)

    def hint(self) -> str:
        """Return what may be the cause when the lines of each rank stand together, as files put together have them."""
        turns = [rank for rank, _ in groupby(self.lines, key=lambda line: line.rank)]
        if len(turns) < 2 or len(turns) > len(set(turns)) or len(self.lines) < 3 * len(turns):
            return ""
        return ("the lines of each rank stand together; if these are several files put together, their order is not "
                "that in which things happened")

    def usable(self) -> None:
        """Look whether each line is one of the protocol's events; raises UsageError."""
        for line in self.lines:
            wrong = complaint(self.events, line.event, line.values)
            if wrong:
                others = [name for name, made in PROTOCOLS.items() if self.recorded <= made().events.keys()]
                known = self.recorded <= self.events.keys() or not others
                hint = _PAGE if known else f"the events are those of --protocol {' or '.join(others)}"
                raise UsageError(f"{self.path}:{line.number}: {wrong}; {hint}")

    def step(self, number: int) -> Protocol:
        """Return the step of that number, begun."""
        if number not in self.steps:
            made = self.protocol()
            made.begin(self.begun.get(number, []), self.ranks[number], self.recorded)
            self.steps[number] = made
        return self.steps[number]

    @staticmethod
    def seen(line: Line, protocol: Protocol) -> Seen:
        """Return what a line says; raises NoSuchWorld with its number."""
        try:
            return protocol.seen(line.event, line.rank, line.values)
        except NoSuchWorld as error:
            raise NoSuchWorld(f"line {line.number}: {error}") from error

    def turns_to(self, line: Line) -> None:
        """Look whether a rank may turn to a step, where ranks take them one after the other; raises Astray."""
        if line.event == BEGIN:
            if (line.rank, line.step) in self.begins:
                raise NoSuchWorld(f"line {line.number}: rank {line.rank} begins {self.place} {line.step} twice; give "
                                  f"each {self.place} a number of its own")
            self.begins.add((line.rank, line.step))
        behind, here = self.behind.get(line.rank, 0), self.order[line.step]
        if here <= behind or line.event == "arrive":
            return
        self.behind[line.rank] = here
        for number in self.numbers[behind:here]:
            protocol = self.step(number)
            condition = protocol.left(line.rank) if protocol.has(line.rank) else None
            if condition is not None and not protocol.follower.reach(condition, {"die"}):
                # Who goes on is not dead, if nobody has recorded that it is.
                told = "; ".join(protocol.unfinished())
                raise Astray(f"rank {line.rank} has neither finished step {number}, nor given it up, nor died: {told}")

    def ended(self, *, complete: bool) -> Judgement:
        """Return what is to be said of a log that is all explained."""
        unfinished, silent = [], ""
        for number in self.numbers:
            protocol = self.step(number)
            silent = protocol.silent
            unfinished += [f"{protocol.place} {number}: {told}" for told in protocol.unfinished()]
        filled = sorted({name for each in self.steps.values() for name in each.follower.filled})
        verdict = "accepted"
        if unfinished or (silent and complete):
            verdict = "inconclusive" if complete else "accepted so far"
        return Judgement(verdict, len(self.lines), unfinished=tuple(unfinished), filled=tuple(filled),
                         silent=silent, place=self.place)


class Astray(Exception):
    """A rank has turned to another step although it is still in one."""


def _out_of_turn(line: Line, expected: Mapping[int, int]) -> str:
    """Return how an event's number shows that another of its rank is missing, or was there already."""
    due = expected.get(line.rank, 0)
    if line.seq == due:
        return ""
    if line.seq < due:
        again = "; was the file there from an earlier run?" if line.seq == 0 else ""
        return f"rank {line.rank} has recorded its event {line.seq} before, or out of order; the next is {due}{again}"
    return f"of rank {line.rank} event {due} is missing before event {line.seq}: a record was lost"


def validate(
    path: Path, protocol: str = "load", progress: Callable[[int], None] = lambda count: None, *,
    complete: bool = False,
) -> Judgement:
    """Judge a log by the protocol of that name, or by the system of a FILE.py; raises UsageError.

    complete: whether the log has to end finished.
    """
    lines = read(path)
    try:
        return _Run(path, _protocol(protocol), lines).judge(progress, complete=complete)
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
