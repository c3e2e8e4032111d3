"""Following a log: whether what was seen is a behaviour of a system, where steps that nobody recorded are filled in.

States are computed by `Concrete`, from the formulas that are proved. What a log leaves open (which of several picks it
was) is kept open: a set of states in which the run may be. Steps that nobody recorded are filled in where an event
needs them; only where that does not explain an event are they tried everywhere before it as well.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import z3

from kvproof.spec.system import Action, Concrete, Point, System
from kvproof.spec.theory import Formula, Rank, State, View, as_formula
from kvproof.spec.words import Words

MOST = 4096
"""States that are looked at to fill in what came before one event."""
SOMEONE = z3.Const("follow.rank", Rank)
"""The rank that a `Condition` speaks of."""


@dataclass(frozen=True, slots=True)
class Told:
    """How a pick or a state was called by who recorded it: by which name, and what its value there makes of ours."""

    name: str
    shown: Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Seen:
    """One recorded event: an action's name, the rank that took it, and what was said with it.

    values: picks of the action by name, and what a state symbol was for that rank (or was, if it is a constant) after
    the event. told: how a pick or a state was called.
    """

    action: str
    rank: int
    values: Mapping[str, Any] = field(default_factory=dict)
    told: Mapping[str, Told] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Condition:
    """What must be so of a rank at a place of the log although no event says it: a formula about `SOMEONE`."""

    holds: Formula
    rank: int

    @classmethod
    def of(cls, system: System, says: Callable[[View, Any], Formula], rank: int) -> Condition:
        """Return the condition that a system's predicate of a rank holds."""
        return cls(as_formula(says(system.view(), SOMEONE)), rank)


@dataclass(frozen=True, slots=True)
class Way:
    """A state that the run may be in, and the kinds of steps that were filled in on one way to it."""

    state: Point
    filled: frozenset[str] = frozenset()


class Unexplained(Exception):
    """No behaviour of the system explains an event; the text says what would have had to be so."""


class Unclear(Exception):
    """It cannot be told: more states are possible than are looked at."""


@dataclass
class Follower:
    """A run that is being followed: where it may be after the events so far.

    hidden: actions that nobody recorded, which may happen between any two events. ghosts: state symbols on which
    nothing depends that can be seen, so that states which differ in them only are one. recycle: makes a state of
    another one in which what is over is forgotten, for runs without end. helps: whether a hidden action, with its picks
    in a state, can help an event that comes next; what does not is left for later, and no run may be lost by that.
    taken: what was gone on by since the last state that is known to have been.
    """

    system: System
    ranks: int
    size: int
    rigid: Point
    first: Point
    hidden: Sequence[str] = ()
    ghosts: frozenset[str] = frozenset()
    recycle: Callable[[Point], Point] | None = None
    helps: Callable[[Seen | Condition, str, tuple[Any, ...], Point], bool] = lambda event, name, picks, state: True

    def __post_init__(self) -> None:
        """Begin in the first state; raises Unexplained when that is none of the system's."""
        self.concrete = Concrete(self.system, self.ranks, self.size)
        self._words, self._tells = Words(self.concrete), bool(self.hidden)
        self._actions = {act.name: act for act in self.system.actions()}
        self._states = self.system.symbols(State)
        self.may_be: list[Way] = [Way(self.first)]
        self._since, self.taken = self.may_be, list[Seen | Condition]()
        view = self.system.view()
        for formula in [*self.system.axioms(view), *self.system.init(view)]:
            if not self.concrete.holds(formula, self.rigid, self.first):
                here = self.concrete.interpretation(self.rigid, self.first)
                raise Unexplained(f"no run begins so: {self._words.fails(as_formula(formula), here)}")

    @property
    def filled(self) -> frozenset[str]:
        """The kinds of steps that were filled in, on one way that explains all events."""
        return min((way.filled for way in self.may_be), key=len)

    def take(self, event: Seen) -> None:
        """Go on by one event. Raises Unexplained, ValueError for an event that says nonsense, and Unclear."""
        act = self._actions.get(event.action)
        if act is None:
            raise ValueError(f"there is no event {event.action!r}; there are {', '.join(self._actions)}")
        if not self._goes_on(event):
            raise Unexplained(self._why(act, event))
        if self.recycle is not None and len(self.may_be) == 1:
            [way] = self.may_be
            fresh = self.recycle(way.state)
            if fresh is not way.state:
                self.may_be = [Way(fresh, way.filled)]
                self._since, self.taken = self.may_be, []

    def reach(self, condition: Condition, never: Set[str] = frozenset()) -> bool:
        """Return whether a condition may hold now, unrecorded steps filled in; it then does from here on.

        never: those that are not to be filled in for it. Raises Unclear.
        """
        hidden, self.hidden = self.hidden, [name for name in self.hidden if name not in never]
        try:
            return self._goes_on(condition)
        finally:
            self.hidden = hidden

    def stands(self, condition: Condition) -> bool:
        """Return whether a condition may hold now with nothing filled in; it then does from here on."""
        after = self._after(condition, self.may_be)
        self.may_be = after or self.may_be
        return bool(after)

    def value(self, says: Callable[[View, Any], Formula], rank: int) -> Any:
        """Return what a system's term about a rank is now, on the first of the ways."""
        here = self.concrete.interpretation(self.rigid, self.may_be[0].state)
        return self._words.value(as_formula(says(self.system.view(), SOMEONE)), here, [SOMEONE], [rank])

    def fails(self, condition: Condition) -> str:
        """Return in words for what a condition is false now, on the first of the ways."""
        here = self.concrete.interpretation(self.rigid, self.may_be[0].state)
        return self._words.fails(condition.holds, here, [SOMEONE], [condition.rank])

    def _goes_on(self, event: Seen | Condition) -> bool:
        after = self._after(event, self.may_be)
        if not after and self.hidden:
            after = self._filled(event) or self._retold(event)
        if not after:
            return False
        self.may_be = after
        if self._tells:
            self.taken.append(event)
        return True

    def _after(self, event: Seen | Condition, ways: Sequence[Way]) -> list[Way]:
        """Return where the run may be after the event, from these."""
        if isinstance(event, Condition):
            return [way for way in ways if self._words.value(
                event.holds, self.concrete.interpretation(self.rigid, way.state), [SOMEONE], [event.rank])]
        act, found = self._actions[event.action], dict[Any, Way]()
        for way in ways:
            for picks in self._picks(act, event):
                if not self.concrete.enabled(act.name, picks, self.rigid, way.state):
                    continue
                after = self.concrete.after(act.name, picks, self.rigid, way.state)
                if not self._differs(act, event, after):
                    found.setdefault(self._key(after), Way(after, way.filled))
        return list(found.values())

    def _picks(self, act: Action, event: Seen) -> Iterator[tuple[Any, ...]]:
        """Return the picks that the event leaves open; the first that is a rank is the rank that took it."""
        ways: list[tuple[Any, ...]] = [()]
        taker = next((name for name, sort in act.picks.items() if sort == Rank), None)
        for name, sort in act.picks.items():
            given = event.values.get(name, event.rank if name == taker else None)
            if given is not None and given not in self.concrete.values(sort):
                return iter(())
            values = self.concrete.values(sort) if given is None else [given]
            ways = [(*way, value) for way in ways for value in values]
        return iter(ways)

    def _differs(self, act: Action, event: Seen, state: Point) -> str:
        """Return how what was observed differs from a state; "" when it does not."""
        for name, value in event.values.items():
            if name in act.picks:
                continue
            symbol = self._states.get(name)
            if symbol is None or list(symbol.arguments) not in ([], [Rank]):
                known = [*act.picks, *(each for each, one in self._states.items()
                                       if list(one.arguments) in ([], [Rank]))]
                raise ValueError(f"{event.action} has no {name!r}; it has {', '.join(known)}")
            here = state[name][event.rank,] if symbol.arguments else state[name]
            if here != value:
                shown = f"{name}({event.rank})" if symbol.arguments else name
                if name in event.told:
                    told = event.told[name]
                    shown, value, here = told.name, told.shown(value), told.shown(here)
                return f"{shown} was {value}, and is {here} in every behaviour"
        return ""

    def _unseen(self, way: Way, event: Seen | Condition) -> Iterator[Way]:
        """Return where a step that nobody recorded, and that can help the event, may lead."""
        state = way.state
        for name in self.hidden:
            for picks in self.concrete.choices(self._actions[name]):
                if self.helps(event, name, picks, state) and self.concrete.enabled(name, picks, self.rigid, state):
                    yield Way(self.concrete.after(name, picks, self.rigid, state), way.filled | {name})

    def _filled(self, event: Seen | Condition) -> list[Way]:
        """Return where the run may be after the event, if hidden steps came before it: as few as are needed."""
        layer = list(self.may_be)
        keys = {self._key(way.state) for way in layer}
        while layer:
            further: list[Way] = []
            for way in layer:
                for after in self._unseen(way, event):
                    key = self._key(after.state)
                    if key not in keys:
                        keys.add(key)
                        further.append(after)
            found = self._after(event, further)
            if found:
                return found
            if len(keys) > MOST:
                raise Unclear(_too_many(event))
            layer = further
        return []

    def _retold(self, event: Seen | Condition) -> list[Way]:
        """Return where the run may be after the event, if hidden steps came anywhere before it; raises Unclear."""
        ways: list[Way] = list(self._since)
        for each in [*self.taken, event]:
            ways = self._after(each, self._closed(ways, each))
        return ways

    def _closed(self, ways: Sequence[Way], event: Seen | Condition) -> list[Way]:
        """Return the states, and all that hidden steps lead to from them."""
        found = {self._key(way.state): way for way in ways}
        todo = deque(ways)
        while todo:
            for after in self._unseen(todo.popleft(), event):
                key = self._key(after.state)
                if key not in found:
                    found[key] = after
                    todo.append(after)
            if len(found) > MOST:
                raise Unclear(_too_many(event))
        return list(found.values())

    def _key(self, state: Point) -> tuple[Any, ...]:
        return tuple(tuple(value.items()) if isinstance(value, dict) else value
                     for name, value in state.items() if name not in self.ghosts)

    def _absent(self, act: Action, event: Seen) -> Iterator[str]:
        """Return the picks that an event names and that there are not, as they were called."""
        for name, sort in act.picks.items():
            given = event.values.get(name, event.rank if sort == Rank else None)
            if given is not None and given not in self.concrete.values(sort):
                told = event.told.get(name)
                yield f"{told.name} {told.shown(given)}" if told else f"{name} = {given!r}"

    def _why(self, act: Action, event: Seen) -> str:
        """Say what would have had to be so for the event, in the state that the run was in."""
        state = self.may_be[0].state
        ways = list(self._picks(act, event))
        if not ways:
            return f"no {' and no '.join(self._absent(act, event))} can be meant here"
        enabled = [picks for picks in ways if self.concrete.enabled(act.name, picks, self.rigid, state)]
        if enabled:
            return self._differs(act, event, self.concrete.after(act.name, enabled[0], self.rigid, state))
        constants, here = act.constants(), self.concrete.interpretation(self.rigid, state)
        guard = act.step(self.system, self.system.view(), constants).guard
        # Of several picks the one that comes nearest.
        return min((self._words.fails(guard, here, constants, picks) for picks in ways), key=len)


def _too_many(event: Seen | Condition) -> str:
    what = event.action if isinstance(event, Seen) else "the end"
    return f"more than {MOST} states are possible before {what} of rank {event.rank}"
