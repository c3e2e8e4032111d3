"""What a protocol is that a log can be held against: its events, its world, and its own words for what is wrong."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import z3

from kvproof.spec.events import Events
from kvproof.spec.follow import Condition, Follower, Seen
from kvproof.spec.system import Concrete, Point, System
from kvproof.spec.theory import Int, State, Symbol

Begun = Sequence[Mapping[str, Any]]
"""The values of a step's `begin` events, each with the rank that recorded it."""


class NoSuchWorld(Exception):
    """What `begin` says does not make a world, or a line is no event of the protocol."""


class Protocol:
    """How the log of one step is read. `begin` makes the follower, and every event is then `seen` by it.

    events: what may stand in a log. place: what a step is called. silent: what cannot be told about the end, in words.
    """

    events: Events
    place = "step"
    silent = ""
    follower: Follower

    def begin(self, begun: Begun, ranks: set[int], recorded: set[str]) -> None:
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


def natural(values: Mapping[str, Any], name: str, otherwise: int | None = None) -> int:
    """Return a number that `begin` says; raises NoSuchWorld."""
    value = values.get(name, otherwise)
    if type(value) is not int or value < 0:
        raise NoSuchWorld(f"`begin` of rank {values.get('rank', 0)} has {name} = {value!r}; expected a natural number")
    return value


def alike(begun: Begun, names: Sequence[str]) -> None:
    """Look at what is one for all ranks; raises NoSuchWorld where two are told different things."""
    for name in names:
        told = [each for each in begun if name in each]
        for each in told:
            if each[name] != told[0][name]:
                raise NoSuchWorld(f"`begin` of rank {each['rank']} has {name} = {each[name]!r}, and that of rank "
                                  f"{told[0]['rank']} has {told[0][name]!r}; expected one world for all ranks")


def table(concrete: Concrete, symbol: Symbol, value: Any) -> Any:
    """Return the meaning of a symbol as `begin` gives it: a list, of lists for two arguments; raises NoSuchWorld."""
    name, depth, point = symbol.name, len(symbol.arguments), {}
    for key in concrete.keys(symbol):
        one = value
        for place in key:
            if not isinstance(one, list) or place >= len(one):
                sizes = " of ".join(f"{len(concrete.values(sort))}" for sort in symbol.arguments)
                raise NoSuchWorld(f"`begin` has {name} = {value!r}; expected {'a list of ' * (depth - 1)}a list, one "
                                  f"value for each argument from 0 on ({sizes})")
            one = one[place]
        if not _fits(concrete, symbol.result, one):
            raise NoSuchWorld(f"`begin` has {one!r} for {name}; expected {_expected(concrete, symbol.result)}")
        point[key] = one
    return point if depth else point[()]


def _fits(concrete: Concrete, sort: z3.SortRef, value: Any) -> bool:
    if sort == Int:
        return type(value) is int
    return any(type(value) is type(each) and value == each for each in concrete.values(sort))


def _expected(concrete: Concrete, sort: z3.SortRef) -> str:
    if sort == Int:
        return "a whole number"
    return f"one of {', '.join(json.dumps(each) for each in concrete.values(sort))}"


def first(system: System, ranks: int, size: int, **known: Any) -> Point:
    """Return the state in which every symbol has the first value of its sort, but those that are given."""
    concrete = Concrete(system, ranks, size)
    point: Point = {}
    for name, symbol in system.symbols(State).items():
        value = known.get(name, concrete.values(symbol.result)[0])
        keys = concrete.keys(symbol)
        if symbol.arguments:
            point[name] = {key: value(*key) if callable(value) else value for key in keys}
        else:
            point[name] = value
    return point


def listed(numbers: Sequence[Any], one: str) -> str:
    """Return "rank 2", or "ranks 1, 2"."""
    return f"{one}{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"
