"""The protocols that a log can be held against: how a log says which world it is in, and what its events are."""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kvproof.models.load import Plan, World
from kvproof.spec import library
from kvproof.spec.completion_designs import RegisterFirst
from kvproof.spec.follow import Follower, Seen
from kvproof.spec.ownership import Connection
from kvproof.spec.refine_load import LoadRefinement
from kvproof.spec.system import Concrete, Point, System
from kvproof.spec.theory import Rigid, State, Symbol

Begun = Sequence[Mapping[str, Any]]
"""The values of a step's `begin` events, each with the rank that recorded it."""

ENDS = frozenset({"die", "expire", "call", "answer"})
"""Events of the loading protocol that there are only where ranks may fail."""
IN_FLIGHT = 24
"""Operations or requests that are followed at once; more are taken to be a mistake in the log."""


class NoSuchWorld(Exception):
    """What `begin` says does not make a world."""


class Protocol(typing.Protocol):
    """How a log is read."""

    def follower(self, begun: Begun, ranks: set[int], recorded: set[str]) -> Follower:
        """Return the follower of one step. Raises NoSuchWorld.

        begun: what `begin` said. ranks: who has recorded anything in it. recorded: the kinds of events in the log; the
        others may be filled in.
        """

    def seen(self, event: str, rank: int, values: Mapping[str, Any]) -> Seen:
        """Return what a line says; raises ValueError."""


class Load:
    """One step of the loading protocol: each rank's `begin` says its list (length, fingerprint, layout) and the owners.

    A rank that recorded no `begin` was told what the first one was told.
    """

    def follower(self, begun: Begun, ranks: set[int], recorded: set[str]) -> Follower:
        """Make a world of what was told to each rank."""
        if not begun:
            raise NoSuchWorld('no `begin` event says what was to be loaded; expected such as {"rank": 0, "seq": 0, '
                              '"event": "begin", "values": {"world_size": 2, "length": 8, "owners": [0, 1, ...]}}')
        first = begun[0]
        told = {each["rank"]: each for each in begun}
        world_size = _natural(first, "world_size", max(ranks) + 1)
        if max(ranks) >= world_size:
            raise NoSuchWorld(f"rank {max(ranks)} has recorded events in a world of {world_size} ranks")
        plans: list[Plan] = []
        fingerprints: dict[tuple[str, int], int] = {}
        for rank in range(world_size):
            said = told.get(rank, first)
            key = str(said.get("fingerprint", "")), _natural(said, "length")
            plans.append(Plan(_natural(said, "length"), fingerprints.setdefault(key, len(fingerprints)),
                              _natural(said, "layout", 0)))
        longest = max(plan.length for plan in plans)
        owners = first.get("owners", [chunk % world_size for chunk in range(longest)])
        if not (isinstance(owners, list) and len(owners) >= longest
                and all(type(each) is int and 0 <= each < world_size for each in owners)):
            raise NoSuchWorld(f"owners is {owners!r}; expected the rank that owns each of {longest} chunks")
        world = World.begin(tuple(plans), tuple(owners[:longest]), failing=bool(recorded & ENDS))
        seen = LoadRefinement()
        system = seen.system(world)
        hidden = [act.name for act in system.actions() if act.name not in recorded]
        return Follower(system, *seen.size(world), seen.rigid(world), seen.state(world), hidden, seen.ghosts)

    def seen(self, event: str, rank: int, values: Mapping[str, Any]) -> Seen:
        """Return the event; a chunk is called `chunk` in a log."""
        picks = {"c" if name == "chunk" else name: value for name, value in values.items()}
        return Seen(event, rank, picks)


class Completion:
    """Operations of a client that registers before it submits; `operation` is its id, `worker` the one it runs on.

    An operation is a small number here, which another has when it is over.
    """

    def __init__(self) -> None:
        """Begin with nothing in flight."""
        self._slots: dict[Any, int] = {}

    def _slot(self, identity: Any) -> int:
        if identity not in self._slots:
            free = next((slot for slot in range(IN_FLIGHT) if slot not in self._slots.values()), None)
            if free is None:
                raise ValueError(f"more than {IN_FLIGHT} operations are in flight")
            self._slots[identity] = free
        return self._slots[identity]

    def follower(self, begun: Begun, ranks: set[int], recorded: set[str]) -> Follower:
        """Begin with no operation; workers complete unseen."""
        self._slots = {}
        system = RegisterFirst()
        workers = max([_natural(each, "workers", 1) for each in begun], default=1)
        self._follower = Follower(
            system, workers, IN_FLIGHT - 1, {"operations": IN_FLIGHT}, self._fresh(system, workers),
            [name for name in ("complete",) if name not in recorded], recycle=self._recycle)
        return self._follower

    def seen(self, event: str, rank: int, values: Mapping[str, Any]) -> Seen:
        """Return the event of the operation's own number."""
        said = dict(values)
        if "operation" not in said:
            return Seen(event, rank, said)
        slot = self._slot(said.pop("operation"))
        picks = {"o": slot, "w": said.pop("worker", 0)} if event == "register" else {"o": slot}
        if event == "register":
            picks["i"] = slot
        if event == "drain":
            picks["p"] = slot
        return Seen(event, rank, {**said, **picks})

    @staticmethod
    def _fresh(system: System, workers: int) -> Point:
        return _first(system, workers, IN_FLIGHT - 1, got=lambda operation: operation)

    def _recycle(self, state: Point) -> Point:
        """Forget what is over: delivered, drained, and its id given back."""
        over = [identity for identity, slot in self._slots.items() if state["place"][slot,] == "gone"
                and state["delivered"][slot,] == 1 and not state["busy"][slot,] and not state["registered"][slot,]]
        if not over:
            return state
        fresh = self._fresh(self._follower.system, self._follower.ranks)
        changed = {name: dict(value) if isinstance(value, dict) else value for name, value in state.items()}
        for identity in over:
            slot = self._slots.pop(identity)
            for name, value in changed.items():
                if isinstance(value, dict) and (slot,) in value and name not in ("dead", "reaped"):
                    value[slot,] = fresh[name][slot,]
        return changed


class Ownership:
    """Requests and replies of one connection (a step of the log): send, read, read_push, give_up, give_back, drop.

    Requests are counted from 0 again when nothing is outstanding, so that a connection may live as long as it likes.
    """

    def __init__(self) -> None:
        """Begin with no request."""
        self._base = 0

    def follower(self, begun: Begun, ranks: set[int], recorded: set[str]) -> Follower:
        """Begin with a new connection."""
        system = Connection()
        self._base = 0
        size = IN_FLIGHT - 1
        return Follower(
            system, 1, size, {"requests": IN_FLIGHT, "error": {(k,): False for k in range(IN_FLIGHT)}},
            _first(system, 1, size, got=-1, open=True), [name for name in ("push",) if name not in recorded],
            recycle=self._recycle)

    def seen(self, event: str, rank: int, values: Mapping[str, Any]) -> Seen:
        """Return the event; `request` counts those sent on this connection, from 0."""
        said = dict(values)
        if "request" in said:
            request = said.pop("request") - self._base
            # Of a reply that was read it says whose turn it was, so that the turn is now the next one's.
            said |= {"turn": request + 1} if event == "read" else {"k": request}
        return Seen(event, 0, said)

    def _recycle(self, state: Point) -> Point:
        """Count from 0 again when nothing is outstanding."""
        if state["sent"] < IN_FLIGHT // 2 or state["taken"] != state["sent"] or not state["open"]:
            return state
        self._base += state["sent"]
        size = IN_FLIGHT - 1
        return {**_first(Connection(), 1, size, got=-1, open=True), "lent": state["lent"], "pushed": state["pushed"]}


class Own:
    """A system of somebody's own: `begin` gives every rigid symbol, and an event is an action of it."""

    def __init__(self, kind: type[System]) -> None:
        """Take the system."""
        self._kind = kind

    def follower(self, begun: Begun, ranks: set[int], recorded: set[str]) -> Follower:
        """Make the world that `begin` gives: a number for a constant, a list (of lists) for a function."""
        said = dict(begun[0]) if begun else {}
        number, size = _natural(said, "ranks", max(ranks) + 1), _natural(said, "size", 8)
        system = self._kind()
        rigid: Point = {}
        for name, symbol in system.symbols(Rigid).items():
            if name not in said:
                raise NoSuchWorld(f"`begin` says nothing of {name}, which {self._kind.__name__} declares as Rigid")
            rigid[name] = _table(name, symbol, said[name])
        first = _first(system, number, size)
        for name, symbol in system.symbols(State).items():
            if name in said:
                first[name] = _table(name, symbol, said[name])
        hidden = [act.name for act in system.actions() if act.name not in recorded]
        return Follower(system, number, size, rigid, first, hidden)

    def seen(self, event: str, rank: int, values: Mapping[str, Any]) -> Seen:
        """Return the event as it is."""
        return Seen(event, rank, values)


def _natural(values: Mapping[str, Any], name: str, otherwise: int | None = None) -> int:
    value = values.get(name, otherwise)
    if type(value) is not int or value < 0:
        raise NoSuchWorld(f"`begin` of rank {values.get('rank', 0)} has {name} = {value!r}; expected a natural number")
    return value


def _table(name: str, symbol: Symbol, value: Any) -> Any:
    if not symbol.arguments:
        return value
    if not isinstance(value, list):
        raise NoSuchWorld(f"`begin` has {name} = {value!r}; expected a list, one value for each argument from 0 on")
    if len(symbol.arguments) == 1:
        return {(place,): each for place, each in enumerate(value)}
    return {(a, b): each for a, row in enumerate(value) for b, each in enumerate(row)}


def _first(system: System, ranks: int, size: int, **known: Any) -> Point:
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


PROTOCOLS: dict[str, Callable[[], Any]] = {"load": Load, "completion": Completion, "ownership": Ownership}


def of_system(path: Path) -> Callable[[], Own]:
    """Return the protocol of the first system that a file's obligations are about; raises UsageError, NoSuchWorld."""
    theories = [each.theory for each in library.of_file(path) if issubclass(each.theory, System)]
    if not theories:
        raise NoSuchWorld(f"{path} has obligations about no system, and so no events")
    return lambda: Own(theories[0])
