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
    """

    def __init__(self, actions: Any, hidden: Collection[str], rigid: Point) -> None:
        """Take the actions, those that nobody records, and what is rigid."""
        self._hidden, self._rigid = frozenset(hidden), rigid
        self._rest = [actions[name] for name in actions if name in self._hidden - _OWN]

    def unseen(self, event: Seen | Condition, state: Point) -> Iterator[Steps]:
        """Return what may help an event, from a state."""
        name, ranks = event.action if isinstance(event, Seen) else "", range(len(state["entered"]))
        if name == "look" and "arrive" in self._hidden:
            chunk = state["failure"][event.rank,]
            if self._misses(event.rank, chunk, state):
                yield [("arrive", (event.rank, chunk))]
        elif name == "enter_exchange":
            failure = event.values.get("failure") if isinstance(event, Seen) else None
            for steps in self._way(event.rank, state, failure):
                if steps:
                    yield steps
        elif "enter_exchange" in self._hidden:
            waiting = [rank for rank in ranks if not state["entered"][rank,] and self._present(rank, state)]
            if name in ("arrive", "die", "expire"):
                waiting = [rank for rank in waiting if rank == event.rank]
            for rank in waiting[:1]:
                for steps in self._way(rank, state, None):
                    yield [*steps, ("enter_exchange", (rank,))]
        for act in self._rest if name not in ("arrive", "look") else ():
            own = act.name.startswith("leave_") and "enter_broadcast" not in self._hidden
            for picks in self._picks(list(act.picks.values()), state):
                if not own or picks[0] == event.rank:
                    yield [(act.name, picks)]

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
