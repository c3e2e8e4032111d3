"""Following a log: whether what was seen is a behaviour of a system, where steps that nobody recorded are filled in.

States are computed by `Concrete`, from the formulas that are proved. What a log leaves open (which of several picks it
was) is kept open: a set of states in which the run may be. Steps that nobody recorded are filled in where an event
needs them; only where that does not explain an event are they tried everywhere before it as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvproof.spec.system import Action, Concrete, Point, System
from kvproof.spec.theory import Rank, State, as_formula
from kvproof.spec.words import Words

MOST = 4096
"""States that are looked at to fill in what came before one event."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One recorded event: an action's name, the rank that took it, and what was said with it.

    values: picks of the action by name, and what a state symbol was for that rank (or was, if it is a constant) after
    the event.
    """

    action: str
    rank: int
    values: Mapping[str, Any] = field(default_factory=dict)


class Unexplained(Exception):
    """No behaviour of the system explains an event; the text says what would have had to be so."""


class Unclear(Exception):
    """It cannot be told: more states are possible than are looked at."""


@dataclass
class Follower:
    """A run that is being followed: where it may be after the events so far.

    hidden: actions that nobody recorded, which may happen between any two events. ghosts: state symbols on which
    nothing depends that can be seen, so that states which differ in them only are one. recycle: makes a state of
    another one in which what is over is forgotten, for runs without end.
    """

    system: System
    ranks: int
    size: int
    rigid: Point
    first: Point
    hidden: Sequence[str] = ()
    ghosts: frozenset[str] = frozenset()
    recycle: Callable[[Point], Point] | None = None

    def __post_init__(self) -> None:
        """Begin in the first state; raises Unexplained when that is none of the system's."""
        self.concrete = Concrete(self.system, self.ranks, self.size)
        self._words = Words(self.concrete)
        self._actions = {act.name: act for act in self.system.actions()}
        self._states = self.system.symbols(State)
        self.may_be: list[Point] = [self.first]
        self._since, self._taken = self.may_be, list[Seen]()
        view = self.system.view()
        for formula in [*self.system.axioms(view), *self.system.init(view)]:
            if not self.concrete.holds(formula, self.rigid, self.first):
                here = self.concrete.interpretation(self.rigid, self.first)
                raise Unexplained(f"no run begins so: {self._words.fails(as_formula(formula), here)}")

    def take(self, event: Seen) -> None:
        """Go on by one event. Raises Unexplained, ValueError for an event that says nonsense, and Unclear."""
        act = self._actions.get(event.action)
        if act is None:
            raise ValueError(f"there is no event {event.action!r}; there are {', '.join(self._actions)}")
        after = self._after(act, event, self.may_be)
        if not after and self.hidden:
            after = self._filled(act, event) or self._retold(act, event)
        if not after:
            raise Unexplained(self._why(act, event))
        self.may_be = after
        if self.hidden:
            self._taken.append(event)
        if self.recycle is not None and len(after) == 1:
            fresh = self.recycle(after[0])
            if fresh is not after[0]:
                self.may_be = [fresh]
                self._since, self._taken = self.may_be, []

    def _after(self, act: Action, event: Seen, states: Sequence[Point]) -> list[Point]:
        found: dict[Any, Point] = {}
        for state in states:
            for picks in self._picks(act, event):
                if not self.concrete.enabled(act.name, picks, self.rigid, state):
                    continue
                after = self.concrete.after(act.name, picks, self.rigid, state)
                if not self._differs(act, event, after):
                    found.setdefault(self._key(after), after)
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
                return f"{shown} was {value}, and is {here} in every behaviour"
        return ""

    def _filled(self, act: Action, event: Seen) -> list[Point]:
        """Return where the run may be after the event, if hidden steps came before it: as few as are needed."""
        layer, seen = list(self.may_be), list(self.may_be)
        keys = {self._key(state) for state in seen}
        while layer:
            further: list[Point] = []
            for state in layer:
                for name in self.hidden:
                    for picks in self.concrete.choices(self._actions[name]):
                        if not self.concrete.enabled(name, picks, self.rigid, state):
                            continue
                        after = self.concrete.after(name, picks, self.rigid, state)
                        key = self._key(after)
                        if key not in keys:
                            keys.add(key)
                            further.append(after)
            found = self._after(act, event, further)
            if found:
                return found
            if len(keys) > MOST:
                raise Unclear(f"more than {MOST} states are possible before {event.action} of rank {event.rank}")
            layer = further
        return []

    def _retold(self, act: Action, event: Seen) -> list[Point]:
        """Return where the run may be after the event, if hidden steps came anywhere before it; raises Unclear."""
        states: list[Point] = list(self._since)
        for each in [*self._taken, event]:
            states = self._after(self._actions[each.action], each, self._closed(states, event))
        return states

    def _closed(self, states: Sequence[Point], event: Seen) -> list[Point]:
        """Return the states, and all that hidden steps lead to from them."""
        found = {self._key(state): state for state in states}
        todo = list(states)
        while todo:
            state = todo.pop()
            for name in self.hidden:
                for picks in self.concrete.choices(self._actions[name]):
                    if self.concrete.enabled(name, picks, self.rigid, state):
                        after = self.concrete.after(name, picks, self.rigid, state)
                        if self._key(after) not in found:
                            found[self._key(after)] = after
                            todo.append(after)
            if len(found) > MOST:
                raise Unclear(f"more than {MOST} states are possible before {event.action} of rank {event.rank}")
        return list(found.values())

    def _key(self, state: Point) -> tuple[Any, ...]:
        return tuple(tuple(value.items()) if isinstance(value, dict) else value
                     for name, value in state.items() if name not in self.ghosts)

    def _why(self, act: Action, event: Seen) -> str:
        """Say what would have had to be so for the event, in the state that the run was in."""
        state = self.may_be[0]
        ways = list(self._picks(act, event))
        if not ways:
            return f"{act.name} is of values that there are not: {dict(event.values)}"
        enabled = [picks for picks in ways if self.concrete.enabled(act.name, picks, self.rigid, state)]
        if enabled:
            return self._differs(act, event, self.concrete.after(act.name, enabled[0], self.rigid, state))
        constants, here = act.constants(), self.concrete.interpretation(self.rigid, state)
        guard = act.step(self.system, self.system.view(), constants).guard
        # Of several picks the one that comes nearest.
        return min((self._words.fails(guard, here, constants, picks) for picks in ways), key=len)
