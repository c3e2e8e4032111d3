"""How ranks come to the exchange unseen: in one order for all that gives the same, so that a log stays to be told."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator
from typing import Any

from kvproof.spec.follow import Condition, Seen, Steps
from kvproof.spec.system import Point
from kvproof.spec.theory import Rank

_OWN = frozenset({"arrive", "look", "enter_exchange"})
_PLAIN = frozenset({"least", "abandoned"})


class Work:
    """What may have been done unrecorded before an event, where `arrive`, `look` or `enter_exchange` are not recorded.

    These steps bring their own rank on and forbid nothing to another, and a look or a chunk changes nothing but where
    its own rank comes to. So a rank takes them in one go, to an exchange that it has to enter now, at each chunk that
    it may have missed; ranks that have to enter for an event of another do so in the order of their numbers. And a
    rank leaves a collective no sooner than it has to, where nobody waits for what it would enter then.

    What a rank has not done when it dies or gives up it never does. So just before that it may do all that it can,
    and its peers what it needs for that. Nothing comes of a death or an answer, so that none is ever filled in; and a
    rank gives up unseen only where it has to be out of the step.
    """

    def __init__(self, actions: Any, hidden: Collection[str], rigid: Point, *, ours: bool = True) -> None:
        """Take the actions, those that nobody records, what is rigid, and whether all but the work is as in ours."""
        self._hidden, self._rigid, self._ours = frozenset(hidden), rigid, ours
        self._rest = [actions[name] for name in actions if name in self._hidden - _OWN]

    def unseen(self, event: Seen | Condition, state: Point) -> Iterator[Steps]:
        """Return what may help an event, from a state."""
        name, rank = event.action if isinstance(event, Seen) else "", event.rank
        if name == "look" and "arrive" in self._hidden:
            chunk = state["failure"][rank,]
            if self._misses(rank, chunk, state):
                yield [("arrive", (rank, chunk))]
        elif name == "enter_exchange":
            failure = event.values.get("failure") if isinstance(event, Seen) else None
            for steps in self._way(rank, state, failure):
                if steps:
                    yield steps
        elif name != "look" and "enter_exchange" in self._hidden:
            for enters in self._enters(name, rank, state):
                for steps in self._way(enters, state, None):
                    yield [*steps, ("enter_exchange", (enters,))]
        if name not in ("arrive", "look") and not (self._ours and name == "enter_exchange"):
            yield from self._others(name, rank, state)

    def _enters(self, name: str, rank: int, state: Point) -> list[int]:
        """Return who is the next to enter the exchange for an event of that name: its own rank before the others."""
        outside = [each for each, count in enumerate(state["entered"].values()) if not count]
        waiting = [each for each in outside if self._present(each, state)]
        if rank in waiting and name in ("", "arrive", "die", "expire"):
            return [rank]
        # One that is gone and has not entered lets nobody leave.
        return waiting[:1] if len(waiting) == len(outside) and name != "arrive" else []

    def _others(self, name: str, rank: int, state: Point) -> Iterator[Steps]:
        """Return the other steps that may help an event of that name."""
        late = "enter_broadcast" not in self._hidden and name != "answer"
        for act in self._rest:
            own = act.name.startswith("leave_") and late
            if self._ours and act.name == "call":
                if name not in ("answer", "die", "expire"):
                    continue
                own = name != "answer"
            elif self._ours and act.name == "expire":
                if name or self._done(rank, state):
                    continue
                own = True
            for picks in self._picks(list(act.picks.values()), state):
                if not own or picks[0] == rank:
                    yield [(act.name, picks)]

    @staticmethod
    def _done(rank: int, state: Point) -> bool:
        return bool(state["left"][rank,] >= 1 and state["left"][rank,] == 1 + state["agreed"][rank,])

    def _picks(self, sorts: list[Any], state: Point) -> Iterator[tuple[Any, ...]]:
        ranks, chunks = range(len(state["entered"])), range(len(self._rigid["owner"]))
        ways: list[tuple[Any, ...]] = [()]
        for sort in sorts:
            ways = [(*way, value) for way in ways for value in (ranks if sort == Rank else chunks)]
        return iter(ways)

    @staticmethod
    def _present(rank: int, state: Point) -> bool:
        return "dead" not in state or not (state["dead"][rank,] or state["aborted"][rank,])

    def _misses(self, rank: int, chunk: int, state: Point) -> bool:
        own = chunk < self._rigid["length"][rank,] and self._rigid["owner"][chunk,] == rank
        return bool(own and not state["loaded"][rank, chunk])

    def _way(self, rank: int, state: Point, failure: int | None) -> Iterator[Steps]:
        """Return the unrecorded steps of a rank after which it may enter the exchange, for each chunk it may miss.

        failure: the one that it says it misses, if it says so.
        """
        steps: list[tuple[str, tuple[Any, ...]]] = []
        length = self._rigid["length"][rank,]
        for chunk in range(state["failure"][rank,], length + 1):
            misses = self._misses(rank, chunk, state)
            if (misses or chunk == length) and failure in (None, chunk):
                yield list(steps)
            if misses and "arrive" in self._hidden:
                steps.append(("arrive", (rank, chunk)))
            elif misses:
                return
            if "look" not in self._hidden:
                return
            steps.append(("look", (rank,)))


class Visible:
    """What can still be seen of a state of ours: of the failures that were exchanged no more than the least of them."""

    def __init__(self, hidden: Collection[str], rigid: Point) -> None:
        """Take the actions that nobody records, and what is rigid."""
        self._arrivals, self._rigid = "arrive" not in hidden, rigid

    def key(self, state: Point) -> Hashable:
        """Return the same for two states only when whatever may be recorded from one may be from the other."""
        entered = state["entered"]
        inside = [rank for rank, count in enumerate(entered.values()) if count]
        chunks = state["loaded"].items()
        loaded = tuple(key for key, there in chunks if there and (self._arrivals or not entered[key[:1]]))
        failures = tuple(None if entered[key] else failure for key, failure in state["failure"].items())
        least = min((state["failure"][rank,] for rank in inside), default=None)
        rest = tuple(tuple(value.values()) for name, value in state.items()
                     if name not in _PLAIN and name not in ("loaded", "held", "failure"))
        return least, failures, loaded, rest
