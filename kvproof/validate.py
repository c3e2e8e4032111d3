"""Validating a log: whether what a real run has recorded is a behaviour of the spec, and which event is none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path

from kvproof.errors import UsageError
from kvproof.log import Line, Log, read
from kvproof.spec.events import BEGIN, ENDS, complaint
from kvproof.spec.follow import Seen, Unclear, Unexplained
from kvproof.spec.protocol import Begin, NoSuchWorld, Protocol
from kvproof.spec.protocols import PROTOCOLS, of_system

_PAGE = "docs/validating-a-log.md lists what there is"
_CODES = {"accepted": 0, "accepted so far": 0, "rejected": 1, "unclear": 3, "inconclusive": 3}


@dataclass(frozen=True, slots=True)
class Judgement:
    """What became of a log.

    verdict: "accepted"; "accepted so far", when all of it is allowed and it ends unfinished, which is "inconclusive"
    where it had to be complete; "rejected"; or "unclear". line: the first that is wrong; why: in words, with the part
    of the formula that is false; means: the same in the words of the protocol, where it has any; hint: what may have
    caused it. lost: it is wrong by its number, so that a record is missing or too many. unfinished: where everybody
    stands at the end. filled: the kinds of events that nobody recorded, and that were filled in. silent: what cannot be
    told about the end. place: what a step is called. cut: whether the last line was cut off, and left out.
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
    cut: bool = False

    @property
    def exit_code(self) -> int:
        """0 accepted, 1 rejected, 3 it cannot be told."""
        return _CODES[self.verdict]


@dataclass
class _Run:
    """A log that is being followed."""

    path: Path
    protocol: Callable[[], Protocol]
    log: Log
    steps: dict[int, Protocol] = field(default_factory=dict)
    expected: dict[int, int] = field(default_factory=dict)
    begun: dict[int, list[Begin]] = field(default_factory=dict)
    ranks: dict[int, set[int]] = field(default_factory=dict)
    behind: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Find what each step is about, and which began before which."""
        self.sample = self.protocol()
        self.events, self.place = self.sample.events, self.sample.place
        self.recorded, self.wrong = self.log.recorded, self.log.wrong
        self.lines = list(self._usable())
        for line in self.lines:
            self.ranks.setdefault(line.step, set()).add(line.rank)
            if line.event == BEGIN:
                self.begun.setdefault(line.step, []).append(Begin(line.rank, line.values))
        # Chunks may come for a step before anybody turns to it.
        turned = dict.fromkeys(line.step for line in self.lines if line.event not in self.sample.early)
        self.numbers = list({**turned, **self.ranks})
        self.order = {number: place for place, number in enumerate(self.numbers)}

    def judge(self, progress: Callable[[int], None], *, complete: bool) -> Judgement:
        """Follow it to its end, or to the first event that no behaviour explains.

        Raises UsageError for the first line that is no event, unless a line before that is explained by none.
        """
        try:
            found = self.followed(progress)
        except NoSuchWorld as error:
            raise self.wrong or error from error
        if found is None or (self.wrong and found.verdict != "rejected"):
            if self.wrong:
                raise self.wrong
            try:
                found = self.ended(complete=complete)
            except Unclear as error:
                found = Judgement("unclear", len(self.lines), self.lines[-1], str(error), place=self.place)
        return replace(found, cut=self.log.cut)

    def followed(self, progress: Callable[[int], None]) -> Judgement | None:
        """Return what is to be said of the first line that is wrong, or that cannot be told."""
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
        return None

    def hint(self) -> str:
        """Return what may be the cause when the lines of each rank stand together, as files put together have them."""
        turns = [rank for rank, _ in groupby(self.lines, key=lambda line: line.rank)]
        if len(turns) < 2 or len(turns) > len(set(turns)) or len(self.lines) < 3 * len(turns):
            return ""
        return ("the lines of each rank stand together; if these are several files put together, their order is not "
                "that in which things happened")

    def _usable(self) -> Iterator[Line]:
        """Return the lines before the first that is none of the protocol's events, or is a `begin` out of its place."""
        begins: set[tuple[int, int]] = set()
        taken: set[tuple[int, int]] = set()
        due: dict[int, int] = {}
        for line in self.log.lines:
            if _out_of_turn(line, due):
                # It is rejected there, and what follows is of no account.
                yield line
                return
            due[line.rank] = line.seq + 1
            wrong = complaint(self.events, line.event, line.rank, line.values)
            if wrong:
                others = [name for name, made in PROTOCOLS.items() if self.recorded <= made().events.keys()]
                known = self.recorded <= self.events.keys() or not others
                wrong += f"; {_PAGE}" if known else f"; the events are those of --protocol {' or '.join(others)}"
            else:
                wrong = self._misplaced(line, begins, taken)
            if wrong:
                self.wrong = UsageError(f"{self.path}:{line.number}: {wrong}")
                return
            yield line

    def _misplaced(self, line: Line, begins: set[tuple[int, int]], taken: set[tuple[int, int]]) -> str:
        """Return how a `begin` comes twice, or too late, or is missing before this line; "" when it does not."""
        protocol = self.sample
        who = (line.rank if protocol.each else -1, line.step)
        if line.event == BEGIN:
            if (line.rank, line.step) in begins:
                return (f"rank {line.rank} begins {protocol.place} {line.step} twice; give each {protocol.place} a "
                        "number of its own")
            begins |= {(line.rank, line.step), (-1, line.step)}
            whose = f"what rank {line.rank} has recorded" if protocol.each else "what was recorded"
            late = f"`begin` comes after {whose} of {protocol.place} {line.step}; record it first"
            return late if who in taken else ""
        if line.event in protocol.early:
            return ""
        taken.add(who)
        if protocol.each and (line.rank, line.step) not in begins and (-1, line.step) in begins:
            return (f"rank {line.rank} has recorded no `begin` of {protocol.place} {line.step} before this; each rank "
                    "records what it was told")
        return ""

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
        behind, here = self.behind.get(line.rank, 0), self.order[line.step]
        if here <= behind or line.event in self.sample.early:
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
    log = read(path)
    try:
        return _Run(path, _protocol(protocol), log).judge(progress, complete=complete)
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
