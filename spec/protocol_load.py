"""Logs of load steps: which world `begin` makes, where ranks stand, and why one cannot do what it recorded."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import replace
from functools import cache, lru_cache
from typing import Any

import z3

from kvproof.models.load import Plan, World
from kvproof.spec.events import BEGIN, ENDS, LOAD, Event, Events
from kvproof.spec.finite import Finite
from kvproof.spec.follow import Condition, Follower, Seen, Told, Unclear, taken_by
from kvproof.spec.load import Load
from kvproof.spec.load_failures import FailingLoad
from kvproof.spec.protocol import (
    Begun,
    NoSuchWorld,
    Protocol,
    alike,
    begins,
    first,
    form,
    listed,
    natural,
    sized,
    table,
    unloggable,
)
from kvproof.spec.protocol_work import Visible, Work
from kvproof.spec.refine_load import LoadRefinement
from kvproof.spec.system import Point
from kvproof.spec.theory import Formula, Rank, Rigid, State, View


class LoadSteps(Protocol):
    """Steps of the loading protocol, or of a system that somebody has made of it.

    Each rank's `begin` says its list (length, fingerprint, layout), how many ranks there are and the owners; a rank
    that recorded nothing but what came for it was told what the first one was told.
    """

    each, early = True, frozenset({"arrive"})

    def __init__(self, kind: Any = None) -> None:
        """Take the system; `Load`, or where ranks fail `FailingLoad`, unless there is one."""
        self._kind: Any = kind or Load
        self._ours = kind is None
        self.events = LOAD if self._ours else _events(self._kind)
        self._failures: dict[int, int] = {}
        self._agreed: set[int] = set()

    def begin(self, begun: Begun, ranks: Set[int], recorded: Set[str]) -> None:
        """Make a world of what was told to each rank."""
        if not begun:
            raise NoSuchWorld('no `begin` event says what was to be loaded; expected such as {"rank": 0, "seq": 0, '
                              '"event": "begin", "values": {"world_size": 2, "length": 8, "owners": [0, 1, ...]}}')
        more = [name for name in self.events[BEGIN].may if name not in LOAD[BEGIN].may]
        shared = alike(begun, ("world_size", "owners", *more))
        world_size = natural(begun[0], "world_size")
        if max(ranks) >= world_size:
            raise NoSuchWorld(f"rank {max(ranks)} has recorded events in a world of {world_size} ranks")
        failing = issubclass(self._kind, FailingLoad) or (self._ours and bool(recorded & ENDS))
        longest = max(natural(each, "length") for each in begun)
        sized(FailingLoad if failing else Load, world_size, longest)
        told = {each.rank: each for each in begun}
        plans: list[Plan] = []
        fingerprints: dict[tuple[str, int], int] = {}
        for rank in range(world_size):
            said = told.get(rank, begun[0])
            key = json.dumps(said.values.get("fingerprint", "")), natural(said, "length")
            plans.append(Plan(natural(said, "length"), fingerprints.setdefault(key, len(fingerprints)),
                              natural(said, "layout", 0)))
        owners = shared.get("owners", [chunk % world_size for chunk in range(longest)])
        if not (isinstance(owners, list) and len(owners) >= longest
                and all(type(each) is int and 0 <= each < world_size for each in owners)):
            raise NoSuchWorld(f"owners is {owners!r}; expected the rank that owns each of {longest} chunks")
        # What lies past the lists belongs to whom the last chunk does, so that an owner map in blocks stays one.
        beyond = [*owners, *[owners[-1] if owners else 0] * (longest + 1)][: longest + 1]
        world = World.begin(tuple(plans), tuple(beyond), failing=failing)
        made, rigid, state = _begun(self._kind, world, json.dumps({name: shared[name] for name in more
                                                                   if name in shared}))
        ours = not (_changes_work(self._kind) or _changes_ends(self._kind))
        # Nothing comes of these, where nothing was changed: no event needs them.
        hidden = [name for name in made.actions if name not in recorded and not (ours and name in ("die", "answer"))]
        unseen = None if _changes_work(self._kind) else Work(made.actions, hidden, rigid, ours=ours).unseen
        visible = Visible(hidden, rigid).key if self._ours else None
        ends = frozenset(() if ours else (ENDS - {"call"}) & set(hidden))
        self.follower = Follower(made, rigid, state, hidden, unseen, visible, ends)

    def seen(self, event: str, rank: int, values: Mapping[str, Any]) -> Seen:
        """Return the event; a broadcast is that of the chunk two below the collectives entered or left so far."""
        said = dict(values)
        if event == "enter_exchange" and "failure" in said:
            self._failures[rank] = said["failure"]
        if event == "leave_exchange" and "agreed" in said:
            self._agreed.add(rank)
        if event == "arrive":
            return Seen(event, rank, {"c": said.pop("chunk"), **said}, {"c": Told("chunk", lambda chunk: chunk)})
        if "chunk" in said and event in ("enter_broadcast", "leave_broadcast"):
            symbol = "entered" if event == "enter_broadcast" else "left"
            return Seen(event, rank, {symbol: said.pop("chunk") + 2, **said},
                        {symbol: Told("chunk", lambda count: count - 2)})
        return Seen(event, rank, said)

    def left(self, rank: int) -> Condition:
        """Return that the rank is done with the step, has given it up, or is dead."""
        return self.follower.about("left", lambda s, r: z3.Or(self._system.done(s, r), *self._out(s, r)), rank)

    @property
    def _system(self) -> Any:
        return self.follower.system

    def _out(self, s: View, r: Any) -> list[Formula]:
        """Return the ways to leave the step without being done with it."""
        return [s.dead(r), s.aborted(r)] if isinstance(self._system, FailingLoad) else []

    def _over(self, rank: int) -> Condition:
        """Return that the rank waits for nothing more: also not in a later step that it has called for."""
        def over(s: View, r: Any) -> Formula:
            failing = isinstance(self._system, FailingLoad)
            done = z3.And(self._system.done(s, r), z3.Or(z3.Not(s.called(r)), s.answered(r)) if failing else True)
            return z3.Or(done, *self._out(s, r))

        return self.follower.about("over", over, rank)

    def unfinished(self) -> list[str]:
        """Return where each rank stands, unless all are done, have given up, or are dead."""
        follower = self.follower
        left = [rank for rank in range(follower.ranks) if not follower.stands(self._over(rank))]
        if not left:
            return []
        groups: dict[str, list[int]] = {}
        for rank in range(follower.ranks):
            groups.setdefault(self._standing(rank), []).append(rank)
        told = "; ".join(f"{listed(ranks, 'rank')} {_agrees(says, len(ranks))}" for says, ranks in groups.items())
        before, filled, taken = follower.may_be, follower.filled, len(follower.taken)
        try:
            if all(follower.reach(self._over(rank), ENDS) for rank in left):
                unseen = ", ".join(sorted(follower.filled - filled)) or "what"
                told += f" (unless {unseen}, which nobody records in this log, came after)"
        except Unclear:
            pass
        follower.may_be = before
        del follower.taken[taken:]
        return [told]

    def _standing(self, rank: int) -> str:
        """Return where a rank stands, with the verb first."""
        state, system, value = self.follower.may_be[0].state, self._system, self.follower.value
        entered, left = state["entered"][rank,], state["left"][rank,]
        if isinstance(system, FailingLoad):
            if state["dead"][rank,]:
                return "is dead"
            if state["aborted"][rank,]:
                return "has given up"
            if state["called"][rank,] and not state["answered"][rank,]:
                return "waits in the first collective of a later step"
        if value("done", system.done, rank):
            return "is through"
        if left == 0:
            return "waits in the exchange" if entered else "has not entered the exchange"
        count = value("collectives", system.collectives, rank) - 1
        if entered > left:
            return f"waits in broadcast {left} of {count}"
        if left == 1:
            return f"has left the exchange and entered none of {count} broadcasts"
        return f"has left broadcast {left - 1} of {count} and not entered the next"

    def why(self, event: str, rank: int, values: Mapping[str, Any], state: Point) -> str:
        """Return why an event cannot be, where that does not depend on what was not recorded."""
        if event != "arrive" and state.get("dead", {}).get((rank,)):
            return f"rank {rank} is dead"
        if event not in ("arrive", "die") and state.get("aborted", {}).get((rank,)):
            return f"rank {rank} has given this step up"
        told: Callable[..., str] | None = getattr(self, f"_why_{event}", None)
        return told(rank, values, state) if told else ""

    def _recorded(self, *names: str) -> bool:
        return not set(names) & set(self.follower.hidden)

    def _behind(self, state: Point, ranks: Iterable[int], count: int, what: str) -> str:
        """Return which of the ranks have not entered the collective of that number, if entering is recorded."""
        absent = [rank for rank in ranks if state["entered"][rank,] < count]
        if not absent or not self._recorded("enter_exchange" if count == 1 else "enter_broadcast"):
            return ""
        return f"{listed(absent, 'rank')} {'have' if len(absent) > 1 else 'has'} not entered {what}"

    def _why_arrive(self, rank: int, values: Mapping[str, Any], state: Point) -> str:
        chunk, length = values["chunk"], self.follower.rigid["length"][rank,]
        if chunk >= length:
            return f"rank {rank} has no chunk {chunk}: its list has {length}"
        owner = self.follower.rigid["owner"][chunk,]
        if owner != rank:
            return f"chunk {chunk} is rank {owner}'s"
        return f"chunk {chunk} of rank {rank} has come before" if state["loaded"][rank, chunk] else ""

    def _why_look(self, rank: int, values: Mapping[str, Any], state: Point) -> str:
        chunk = state["failure"][rank,]
        if state["entered"][rank,]:
            return f"rank {rank} is in the exchange already, or past it"
        if chunk == self.follower.rigid["length"][rank,]:
            return f"rank {rank} is at the end of its list"
        owns = self.follower.rigid["owner"][chunk,] == rank and not state["loaded"][rank, chunk]
        return f"chunk {chunk} is rank {rank}'s own, and has not come" if owns and self._recorded("arrive") else ""

    def _why_enter_exchange(self, rank: int, values: Mapping[str, Any], state: Point) -> str:
        if state["entered"][rank,]:
            return f"rank {rank} has entered the exchange of this step before; give each load step its number"
        length, owner = self.follower.rigid["length"][rank,], self.follower.rigid["owner"]
        missed = next((chunk for chunk in range(length) if owner[chunk,] == rank and not state["loaded"][rank, chunk]),
                      length)
        if self._recorded("arrive") and values.get("failure", missed) != missed:
            return f"rank {rank} misses {f'chunk {missed} first' if missed < length else 'none of its own chunks'}"
        chunk = state["failure"][rank,]
        if self._recorded("arrive", "look") and chunk < missed:
            why = "has come" if owner[chunk,] == rank else "is not its own"
            return f"rank {rank} has not gone past chunk {chunk}, which {why}"
        return ""

    def _why_leave_exchange(self, rank: int, values: Mapping[str, Any], state: Point) -> str:
        if state["left"][rank,]:
            return f"rank {rank} has left the exchange before"
        if not state["entered"][rank,] and self._recorded("enter_exchange"):
            return f"rank {rank} has not entered the exchange"
        absent = self._behind(state, range(self.follower.ranks), 1, "the exchange")
        if absent or "agreed" not in values:
            return absent
        if not self.follower.rigid["uniform"]:
            return "the ranks were told different lists or layouts, and so agree on 0 chunks"
        failures = {(each,): failure for each, failure in self._failures.items()}
        if self._recorded("arrive", "look"):
            failures = state["failure"]
        if self._ours and len(failures) == self.follower.ranks:
            least = min(failures.values())
            who = [key[0] for key, failure in failures.items() if failure == least]
            return f"the least failure is {least}, of {listed(who, 'rank')}" if values["agreed"] != least else ""
        return ""

    def _why_enter_broadcast(self, rank: int, values: Mapping[str, Any], state: Point) -> str:
        entered, left = state["entered"][rank,], state["left"][rank,]
        if left == 0:
            return f"rank {rank} has not left the exchange" if self._recorded("leave_exchange") else ""
        if "chunk" in values and values["chunk"] != entered - 1:
            return f"the broadcast that comes next for rank {rank} is that of chunk {entered - 1}"
        if entered > left:
            return f"rank {rank} has not left broadcast {left}" if self._recorded("leave_broadcast") else ""
        sure = rank in self._agreed or self._recorded("arrive", "look", "leave_exchange")
        if self._ours and sure and entered == 1 + state["agreed"][rank,]:
            count = state["agreed"][rank,]
            if not count:
                return "no chunk was agreed on, so there is no broadcast"
            return f"{count} chunks were agreed on, and rank {rank} has been through {count} broadcasts"
        return ""

    def _why_leave_broadcast(self, rank: int, values: Mapping[str, Any], state: Point) -> str:
        entered, left = state["entered"][rank,], state["left"][rank,]
        if entered == left and self._recorded("enter_broadcast"):
            return f"rank {rank} is in no broadcast"
        if left == 0:
            return f"rank {rank} has not left the exchange" if self._recorded("leave_exchange") else ""
        owner = self.follower.rigid["owner"][left - 1,]
        absent = self._behind(state, [owner], left + 1, f"broadcast {left}")
        if absent:
            absent += ", and it owns the chunk"
        if absent or values.get("chunk", left - 1) == left - 1:
            return absent
        return f"the broadcast that rank {rank} is in is that of chunk {left - 1}"

    def _why_expire(self, rank: int, values: Mapping[str, Any], state: Point) -> str:
        waits = state["entered"][rank,] > state["left"][rank,]
        recorded = self._recorded("enter_exchange", "enter_broadcast", "call")
        return f"rank {rank} waits in no collective" if recorded and not waits else ""

    def _why_call(self, rank: int, values: Mapping[str, Any], state: Point) -> str:
        if state["called"][rank,]:
            return f"rank {rank} has called before"
        return f"rank {rank} is not done with this step: it {self._standing(rank)}" if self._recorded(
            "enter_exchange", "leave_exchange", "enter_broadcast", "leave_broadcast") else ""

    def _why_answer(self, rank: int, values: Mapping[str, Any], state: Point) -> str:
        absent = [each for (each,), called in state["called"].items() if not called]
        if not absent or not self._recorded("call"):
            return ""
        return f"{listed(absent, 'rank')} {'have' if len(absent) > 1 else 'has'} not called"


@lru_cache(maxsize=64)
def _begun(kind: type[Load], world: World, said: str) -> tuple[Finite, Point, Point]:
    """Return a system, and the state in which it begins in a world; `said` is what `begin` said besides, as JSON."""
    seen = LoadRefinement(kind, kind if issubclass(kind, FailingLoad) else FailingLoad)
    more = json.loads(said)
    made = sized(type(seen.system(world)), *seen.size(world))
    rigid, state = seen.rigid(world), first(made, **seen.state(world))
    for name, symbol in made.system.symbols(Rigid).items():
        if name not in rigid:
            if name not in more:
                raise NoSuchWorld(f"`begin` says nothing of {name}, which {kind.__name__} declares as Rigid")
            rigid[name] = table(made.concrete, symbol, more[name])
    for name in made.states.keys() & more.keys():
        state[name] = table(made.concrete, made.states[name], more[name])
    begins(made, rigid, state)
    return made, rigid, state


def _agrees(says: str, count: int) -> str:
    """Return what is said of one rank, for so many."""
    verb, _, rest = says.partition(" ")
    return says if count == 1 else f"{ {'is': 'are', 'has': 'have', 'waits': 'wait'}[verb]} {rest}"


def _own(kind: type[Load]) -> type[Load]:
    """Return which of ours a system was made of."""
    return FailingLoad if issubclass(kind, FailingLoad) else Load


@cache
def _changes_work(kind: Any) -> bool:
    """Return whether a system has states or actions besides ours, or changes one of ours."""
    ours = _own(kind)
    names = [act.name for act in ours.actions()]
    return (kind.symbols(State).keys() != ours.symbols(State).keys()
            or [act.name for act in kind.actions()] != names
            or any(getattr(kind, name) is not getattr(ours, name) for name in [*names, "missing"]))


@cache
def _changes_ends(kind: Any) -> bool:
    """Return whether a system changes what is asked of ranks elsewhere: then a death may let another rank go on."""
    ours = _own(kind)
    asked = ("outside", "collectives", "everyone", "prefix", "done", "moved", "present", "waits", "by", "all_called")
    return any(getattr(kind, name, None) is not getattr(ours, name, None) for name in asked)


@cache
def _events(kind: type[Load]) -> Events:
    """Return the events of a system that was made of ours: its own besides, with their picks and its own states."""
    wrong = unloggable(kind)
    if wrong:
        raise NoSuchWorld(f"{kind.__name__}: {wrong}")
    system, base = kind(), _own(kind)
    own = {name: form(symbol.result) for name, symbol in system.symbols(State).items()
           if list(symbol.arguments) in ([], [Rank]) and name not in base().symbols(State)}
    states = tuple(own)
    rigid = tuple(name for name in system.symbols(Rigid) if name not in Load().symbols(Rigid))
    begin = LOAD[BEGIN]
    found = {BEGIN: replace(begin, may=(*begin.may, *rigid, *(
        name for name in system.symbols(State) if name not in base().symbols(State))))}
    for act in kind.actions():
        known = LOAD.get(act.name)
        if known is None:
            picks = {name: form(sort) for name, sort in act.picks.items()}
            found[act.name] = Event((getattr(kind, act.method).__doc__ or "").strip(), (), (*act.picks, *states),
                                    {**picks, **own}, taken_by(act) or "")
        elif "broadcast" in act.name and kind.collectives is not Load.collectives:
            found[act.name] = replace(known, may=states, forms=own)
        else:
            found[act.name] = replace(known, may=(*known.may, *states), forms=own)
    return found
