"""What a protocol is that a log can be held against: its events, its world, and its own words for what is wrong."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import z3

from kvproof.spec.events import BEGIN, Events, Form, expected, fits
from kvproof.spec.finite import Finite, NotFollowed, finite
from kvproof.spec.follow import Condition, Follower, Seen, Unexplained
from kvproof.spec.system import Concrete, Point, System
from kvproof.spec.theory import Int, Rank, Symbol
from kvproof.spec.words import INCOMPUTABLE, why


@dataclass(frozen=True, slots=True)
class Begin:
    """A `begin` event of a step: who recorded it, and what it says."""

    rank: int
    values: Mapping[str, Any]


Begun = Sequence[Begin]


class NoSuchWorld(Exception):
    """What `begin` says does not make a world, or a line is no event of the protocol."""


class Protocol:
    """How the log of one step is read. `begin` makes the follower, and every event is then `seen` by it.

    events: what may stand in a log. place: what a step is called. each: whether each rank has to record a `begin` of
    its own before anything else; otherwise one comes before all events of the step. early: events that may come for a
    step before its `begin`. silent: what cannot be told about the end, in words.
    """

    events: Events
    place = "step"
    each = False
    early: Set[str] = frozenset()
    silent = ""
    follower: Follower

    def begin(self, begun: Begun, ranks: Set[int], recorded: Set[str]) -> None:
        """Make the follower of one step. Raises NoSuchWorld.

        begun: what `begin` said. ranks: who has recorded anything in it. recorded: the kinds of events in the log; the
        others may be filled in.
        """
        raise NotImplementedError

    def seen(self, event: str, rank: int, values: Mapping[str, Any]) -> Seen:
        """Return what a line says, which is an event of the protocol; raises Unclear."""
        return Seen(event, rank, values)

    def left(self, rank: int) -> Condition | None:
        """Return what is so once a rank has left the step and may begin a later one; None when it may at any time."""
        return None

    def has(self, rank: int) -> bool:
        """Return whether that rank is of the world of the step."""
        return rank < self.follower.ranks

    def unfinished(self) -> list[str]:
        """Return where everybody stands when the log ends before the step does; nothing when it is finished."""
        return []

    def sentence(self, event: str, rank: int, values: Mapping[str, Any]) -> str:
        """Return why an event cannot be, in the words of the protocol; "" where there are none for it."""
        said = {self.why(event, rank, values, way.state) for way in self.follower.may_be}
        return said.pop() if len(said) == 1 else ""

    def why(self, event: str, rank: int, values: Mapping[str, Any], state: Point) -> str:
        """Return why an event cannot be in a state, whatever was not recorded; "" where there are no words for it."""
        return ""


def natural(begin: Begin, name: str, otherwise: int | None = None) -> int:
    """Return a number that `begin` says; raises NoSuchWorld."""
    value = begin.values.get(name, otherwise)
    if type(value) is not int or value < 0:
        raise NoSuchWorld(f"`begin` of rank {begin.rank} has {name} = {value!r}; expected a natural number")
    return value


def alike(begun: Begun, names: Iterable[str]) -> dict[str, Any]:
    """Return what is one for all ranks; raises NoSuchWorld where two are told different things, or one is not told."""
    shared: dict[str, Any] = {}
    for name in names:
        for each in begun:
            said, first = (json.dumps(one.values[name]) if name in one.values else None for one in (each, begun[0]))
            if said != first:
                has = f"{name} = {_short(said)}" if said else f"no {name}"
                other = _short(first) if first else "none"
                raise NoSuchWorld(f"`begin` of rank {each.rank} has {has}, and that of rank {begun[0].rank} has "
                                  f"{other}; expected one world for all ranks")
        if begun and name in begun[0].values:
            shared[name] = begun[0].values[name]
    return shared


def sized(kind: type[System], ranks: int, size: int) -> Finite:
    """Return a system in a world of that size; raises NoSuchWorld for one that is too large."""
    try:
        return finite(kind, ranks, size)
    except NotFollowed as error:
        raise NoSuchWorld(str(error)) from error


def unloggable(kind: type[System]) -> str:
    """Return why no log can be held against a system; "" when one can."""
    for name, symbol in kind.symbols().items():
        if name in ("ranks", "size"):
            return f"{name} is the name of a symbol and of what `begin` says of the world; call it something else"
        for sort in (*symbol.arguments, symbol.result):
            if not _finite(sort):
                return f"{name} is about {sort}s, which a log cannot hold"
    for act in kind.actions():
        if act.name == BEGIN:
            return "an action is called `begin`, as the event that says what the world is; call it something else"
        for name, sort in act.picks.items():
            if not _finite(sort):
                return f"the pick {name} of {act.name} is a {sort}, which a log cannot hold"
            if name in kind.symbols():
                return f"{name} is both a symbol and a pick of {act.name}; call one of them something else"
    return ""


def _finite(sort: z3.SortRef) -> bool:
    return sort in (Rank, Int, z3.BoolSort()) or (sort.kind() == z3.Z3_DATATYPE_SORT and all(
        sort.constructor(index).arity() == 0 for index in range(sort.num_constructors())))


def form(sort: z3.SortRef) -> Form:
    """Return what a value of a sort is written as."""
    if sort == z3.BoolSort():
        return bool
    if sort.kind() == z3.Z3_DATATYPE_SORT:
        return tuple(str(sort.constructor(index).name()) for index in range(sort.num_constructors()))
    return int


def table(concrete: Concrete, symbol: Symbol, value: Any) -> Any:
    """Return the meaning of a symbol as `begin` gives it: a list, of lists for two arguments; raises NoSuchWorld."""
    name, depth, point = symbol.name, len(symbol.arguments), {}
    sizes = [len(concrete.values(sort)) for sort in symbol.arguments]
    if not _shaped(value, sizes):
        lists = f"{'a list of ' * (depth - 1)}a list, one value for each argument from 0 on"
        wanted = f"{lists} ({' of '.join(map(str, sizes))})" if depth else _expected(concrete, symbol.result)
        raise NoSuchWorld(f"`begin` has {name} = {_short(json.dumps(value))}; expected {wanted}")
    for key in concrete.keys(symbol):
        one = value
        for place in key:
            one = one[place]
        if not _fits(concrete, symbol.result, one):
            said = _short(json.dumps(one))
            raise NoSuchWorld(f"`begin` has {said} for {name}; expected {_expected(concrete, symbol.result)}")
        point[key] = one
    return point if depth else point[()]


def _fits(concrete: Concrete, sort: z3.SortRef, value: Any) -> bool:
    return fits(form(sort), value) and (sort == Int or value in concrete.values(sort))


def _expected(concrete: Concrete, sort: z3.SortRef) -> str:
    return f"a rank below {concrete.ranks}" if sort == Rank else expected(form(sort))


def _shaped(value: Any, sizes: Sequence[int]) -> bool:
    """Return whether a value is a list of lists of these lengths, and no list where there are none."""
    if not sizes:
        return not isinstance(value, list)
    return isinstance(value, list) and len(value) == sizes[0] and all(_shaped(one, sizes[1:]) for one in value)


def _short(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:77]}..."


def first(world: Finite, **known: Any) -> Point:
    """Return the state in which every symbol has the first value of its sort, but those that are given."""
    return {**world.plain, **known}


def begins(world: Finite, rigid: Point, state: Point) -> None:
    """Raise Unexplained for a state in which no run of the system begins."""
    try:
        wrong = world.no_beginning(rigid, state)
    except INCOMPUTABLE as error:
        raise NoSuchWorld(f"whether a run begins so cannot be computed: {why(error)}") from error
    if wrong:
        raise Unexplained(f"no run begins so: {wrong}")


def listed(numbers: Sequence[Any], one: str) -> str:
    """Return "rank 2", or "ranks 1, 2"."""
    return f"{one}{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"
