"""Following a log: whether what was seen is a behaviour of a system, where steps that nobody recorded are filled in.

States are computed by `Concrete`, from the formulas that are proved. What a log leaves open (which of several picks it
was) is kept open: a set of states in which the run may be. Steps that nobody recorded are filled in where an event
needs them; only where that does not explain an event are they tried everywhere before it as well.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from kvproof.spec.evaluate import CannotEvaluate
from kvproof.spec.finite import SOMEONE, Finite
from kvproof.spec.system import Action, Point, System
from kvproof.spec.theory import Formula, Rank, View
from kvproof.spec.words import why

MOST, MOST_STEPS = 4096, 200_000
"""States, and steps to them, that are looked at to fill in what came before one event."""


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


@dataclass(frozen=True, slots=True)
class Way:
    """A state that the run may be in, the kinds of steps that were filled in on one way to it, and how many ends."""

    state: Point
    filled: frozenset[str] = frozenset()
    ends: int = 0


class Unexplained(Exception):
    """No behaviour of the system explains an event; the text says what would have had to be so."""


class Unclear(Exception):
    """It cannot be told: more states are possible than are looked at."""


Steps = Sequence[tuple[str, tuple[Any, ...]]]
"""Actions one after the other, each with its picks."""


@dataclass
class Follower:
    """A run that is being followed: where it may be after the events so far.

    hidden: actions that nobody recorded, which may happen between any two events. unseen: what of those may help an
    event, from a state: steps that are taken together; no run may be lost by what it leaves out. Each single one may,
    unless it is given. key: what can be seen of a state, now or later; of states that are alike in it one is followed.
    ends: those of the hidden that take a rank out, of which no more are filled in than the events need.
    taken: what was gone on by since the last state that is known to have been.
    """

    world: Finite
    rigid: Point
    first: Point
    hidden: Sequence[str] = ()
    unseen: Callable[[Seen | Condition, Point], Iterable[Steps]] | None = None
    key: Callable[[Point], Hashable] | None = None
    ends: Set[str] = frozenset()

    def __post_init__(self) -> None:
        """Begin in the first state, which is taken to be one; see `begins`."""
        self._tells = bool(self.hidden)
        self._never: Set[str] = frozenset()
        self._steps = self._most = 0
        self.restart([Way(self.first)])

    @property
    def system(self) -> System:
        """The system whose run it is."""
        return self.world.system

    @property
    def ranks(self) -> int:
        """How many ranks there are."""
        return self.world.ranks

    @property
    def filled(self) -> frozenset[str]:
        """The kinds of steps that were filled in, on one way that explains all events."""
        return min((way.filled for way in self.may_be), key=len)

    def restart(self, ways: list[Way]) -> None:
        """Go on from these states, whatever there was before; they may be of another `world`."""
        self.may_be = ways
        self._since, self.taken = ways, list[Seen | Condition]()

    def take(self, event: Seen) -> None:
        """Go on by one event. Raises Unexplained, ValueError for an event that says nonsense, and Unclear."""
        act = self.world.actions.get(event.action)
        if act is None:
            raise ValueError(f"there is no event {event.action!r}; there are {', '.join(self.world.actions)}")
        with _told():
            if not self._goes_on(event):
                raise Unexplained(self._why(act, event))

    def reach(self, condition: Condition, never: Set[str] = frozenset()) -> bool:
        """Return whether a condition may hold now, unrecorded steps filled in; it then does from here on.

        never: those that are not to be filled in for it. Raises Unclear.
        """
        self._never = never
        try:
            with _told():
                return self._goes_on(condition)
        finally:
            self._never = frozenset()

    def stands(self, condition: Condition) -> bool:
        """Return whether a condition may hold now with nothing filled in; it then does from here on."""
        with _told():
            after = self._after(condition, self.may_be)
        self.may_be = after or self.may_be
        return bool(after)

    def about(self, name: str, says: Callable[[View, Any], Any], rank: int) -> Condition:
        """Return the condition that a predicate, which is always called so, holds of a rank."""
        return Condition(self.world.term(name, says), rank)

    def value(self, name: str, says: Callable[[View, Any], Any], rank: int) -> Any:
        """Return what a term about a rank, which is always called so, is now, on the first of the ways."""
        return self.world.words.value(self.world.term(name, says), self._here(self.may_be[0]), [SOMEONE], [rank])

    def fails(self, condition: Condition) -> str:
        """Return in words for what a condition is false now, on the first of the ways."""
        return self.world.words.fails(condition.holds, self._here(self.may_be[0]), [SOMEONE], [condition.rank])

    def fill(self, steps: Steps) -> None:
        """Take unrecorded steps that can do no harm, and that a later event may turn out to need: see `note`."""
        ways = []
        for way in self.may_be:
            after = self._along(way, steps, frozenset())
            ways.append(way if after is None else Way(after.state, way.filled, after.ends))
        self.restart(ways)

    def note(self, kind: str) -> None:
        """Count a kind of steps as filled in."""
        self.may_be = [Way(way.state, way.filled | {kind}, way.ends) for way in self.may_be]

    def _here(self, way: Way) -> Mapping[str, Any]:
        return self.world.concrete.interpretation(self.rigid, way.state)

    def _goes_on(self, event: Seen | Condition) -> bool:
        after = self._after(event, self.may_be)
        if not after and self.hidden:
            self._steps = 0
            for most in range(1 + len(self.ends) * self.ranks):
                self._most = most
                after = self._filled(event) or self._retold(event)
                if after:
                    break
        if not after:
            return False
        self.may_be = after
        if self._tells:
            self.taken.append(event)
        return True

    def _after(self, event: Seen | Condition, ways: Sequence[Way]) -> list[Way]:
        """Return where the run may be after the event, from these."""
        if isinstance(event, Condition):
            return [way for way in ways if self.world.words.value(
                event.holds, self._here(way), [SOMEONE], [event.rank], bounded=True)]
        act, concrete, found = self.world.actions[event.action], self.world.concrete, list[Way]()
        choices = self._picks(act, event)
        for way in ways:
            for picks in choices:
                if not concrete.enabled(act.name, picks, self.rigid, way.state):
                    continue
                after = concrete.after(act.name, picks, self.rigid, way.state)
                if not self._differs(act, event, after):
                    found.append(Way(after, way.filled, way.ends))
        return found if len(found) < 2 else list({self._key(way.state): way for way in reversed(found)}.values())[::-1]

    def _picks(self, act: Action, event: Seen) -> list[tuple[Any, ...]]:
        """Return the picks that the event leaves open; the first that is a rank is the rank that took it."""
        ways: list[tuple[Any, ...]] = [()]
        taker = taken_by(act)
        for name, sort in act.picks.items():
            given = event.values.get(name, event.rank if name == taker else None)
            if given is not None and given not in self.world.among[sort]:
                return []
            values = self.world.values[sort] if given is None else [given]
            if len(ways) * len(values) > MOST_STEPS:
                raise Unclear(f"more than {MOST_STEPS} picks may be meant by {event.action} of rank {event.rank}")
            ways = [(*way, value) for way in ways for value in values]
        return ways

    def _differs(self, act: Action, event: Seen, state: Point) -> str:
        """Return which observed value differs from a state; "" when none does."""
        for name, value in event.values.items():
            if name in act.picks:
                continue
            symbol = self.world.states.get(name)
            if symbol is None or list(symbol.arguments) not in ([], [Rank]):
                known = [*act.picks, *(each for each, one in self.world.states.items()
                                       if list(one.arguments) in ([], [Rank]))]
                raise ValueError(f"{event.action} has no {name!r}; it has {', '.join(known)}")
            if (state[name][event.rank,] if symbol.arguments else state[name]) != value:
                return name
        return ""

    def _unseen(self, way: Way, event: Seen | Condition) -> Iterator[Way]:
        """Return where steps that nobody recorded, and that can help the event, may lead."""
        for steps in self.unseen(event, way.state) if self.unseen else self._single():
            after = self._along(way, steps, self._never)
            self._bounded(0, event)
            if after is not None:
                yield after

    def _single(self) -> Iterator[Steps]:
        """Return every step that may be unrecorded."""
        for name in self.hidden:
            for picks in self.world.concrete.choices(self.world.actions[name]):
                yield [(name, picks)]

    def _along(self, way: Way, steps: Steps, never: Set[str]) -> Way | None:
        """Return where steps lead; None when one of them may not be taken."""
        state, filled, ends = way.state, way.filled, way.ends
        for name, picks in steps:
            self._steps += 1
            ends += name in self.ends
            if name in never or (name in self.ends and ends > self._most):
                return None
            with _told(f"a formula of {name}, which nobody records,"):
                if not self.world.concrete.enabled(name, picks, self.rigid, state):
                    return None
                state = self.world.concrete.after(name, picks, self.rigid, state)
            if name not in filled:
                filled |= {name}
        return Way(state, filled, ends)

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
            self._bounded(len(keys), event)
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
            self._bounded(len(found), event)
        return list(found.values())

    def _bounded(self, states: int, event: Seen | Condition) -> None:
        """Raise Unclear when more was looked at for an event than is."""
        if states > MOST or self._steps > MOST_STEPS:
            what = event.action if isinstance(event, Seen) else "the end"
            much = f"{MOST} states" if states > MOST else f"{MOST_STEPS} unrecorded steps"
            raise Unclear(f"more than {much} are possible before {what} of rank {event.rank}")

    def _key(self, state: Point) -> Hashable:
        if self.key is not None:
            return self.key(state)
        return tuple(tuple(value.items()) if isinstance(value, dict) else value for value in state.values())

    def _absent(self, act: Action, event: Seen) -> Iterator[str]:
        """Return the picks that an event names and that there are not, as they were called."""
        for name, sort in act.picks.items():
            given = event.values.get(name, event.rank if name == taken_by(act) else None)
            if given is not None and given not in self.world.among[sort]:
                told = event.told.get(name)
                yield f"{told.name} {told.shown(given)}" if told else f"{name} = {given!r}"

    def _other(self, act: Action, event: Seen, name: str) -> str:
        """Say what a value was said to be, and what it is in the behaviours that there are."""
        picked = {pick: value for pick, value in event.values.items() if pick in act.picks}
        bare, symbol, ways = Seen(event.action, event.rank, picked), self.world.states[name], list[Way]()
        where = "in every behaviour"
        try:
            ways += self._retold(bare) if self.hidden else []
        except Unclear:
            where = "in the behaviours that were looked at"
        found = [way.state[name][event.rank,] if symbol.arguments else way.state[name]
                 for way in [*self._after(bare, self.may_be), *ways]]
        told = event.told.get(name, Told(f"{name}({event.rank})" if symbol.arguments else name, lambda value: value))
        values = " or ".join(dict.fromkeys(str(told.shown(value)) for value in found))
        return f"{told.name} was {told.shown(event.values[name])}, and is {values} {where}"

    def _why(self, act: Action, event: Seen) -> str:
        """Say what would have had to be so for the event, in the state that the run was in."""
        state, ways = self.may_be[0].state, self._picks(act, event)
        if not ways:
            return f"no {' and no '.join(self._absent(act, event))} can be meant here"
        enabled = [picks for picks in ways if self.world.concrete.enabled(act.name, picks, self.rigid, state)]
        if enabled:
            after = self.world.concrete.after(act.name, enabled[0], self.rigid, state)
            return self._other(act, event, self._differs(act, event, after))
        constants, here = act.constants(), self.world.concrete.interpretation(self.rigid, state)
        guard = act.step(self.system, self.system.view(), constants).guard
        # Of several picks the one that comes nearest.
        return min((self.world.words.fails(guard, here, constants, picks) for picks in ways), key=len)


def taken_by(act: Action) -> str | None:
    """Return the pick that is who takes an action: its first that is a rank."""
    return next((name for name, sort in act.picks.items() if sort == Rank), None)


@contextmanager
def _told(what: str = "a formula") -> Iterator[None]:
    """Say that it cannot be told when a formula cannot be computed in this world."""
    try:
        yield
    except (CannotEvaluate, KeyError, ZeroDivisionError) as error:
        raise Unclear(f"{what} cannot be computed: {why(error)}") from error
