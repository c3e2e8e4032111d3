"""Mistakes of the proofs about routing, made in its policies, and those that routers of the field have made.

The latter (bug kinds H1 to H4) have a property each in tests/test_routing.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvproof.models.requests import Request
from kvproof.models.routing import BoundedHash, Fleet, LeastLoaded, PrefixAware
from tests.economics_properties import SOON, STAYS, Router


class NeverCounts(LeastLoaded):
    """H1: on this path nobody counts what was sent, so that the first replica always looks idle."""

    def choose(self, request: Request, fleet: Fleet) -> int:
        return 0


class SmallestTree(PrefixAware):
    """H2: on a miss the replica with the fewest blocks wins, however loaded it is."""

    def choose(self, request: Request, fleet: Fleet) -> int:
        if fleet.longest(request.blocks)[1]:
            return super().choose(request, fleet)
        sizes = [len(blocks) for blocks in fleet.index]
        return sizes.index(min(sizes))


class StaysAtHome(PrefixAware):
    """A prefix is never left, so that a hot one has one replica for itself."""

    def choose(self, request: Request, fleet: Fleet) -> int:
        held, count = fleet.longest(request.blocks)
        return held[0] if count else super().choose(request, fleet)


class KeepsIndex(Fleet):
    """H3: what a restarted replica had stays in the index."""

    def restarted(self, replica: int) -> None:
        self.index[replica] = set(self.index[replica])


class IgnoresPoints(BoundedHash):
    """H4: the option for the size of the ring is read and not used."""

    def __init__(self, size: int, *, points: int = 100, **options: Any) -> None:
        super().__init__(size, points=1, **options)
        self.points = points


class ModuloSize(BoundedHash):
    """The key modulo the number of replicas: nearly all keys move when one is added."""

    def preferred(self, key: tuple[int, ...]) -> tuple[int, ...]:
        first = hash(key) % self.size
        return tuple((first + step) % self.size for step in range(self.size))


class NoBound(BoundedHash):
    """The hash alone: a hot key fills one replica."""

    def bound(self, waiting: Sequence[int]) -> int:
        return 10**9


class StaleLoads(LeastLoaded):
    """Loads are read once a second, and of equals the first is taken: a burst goes to one replica."""

    _read = -1.0

    def choose(self, request: Request, fleet: Fleet) -> int:
        if fleet.now - self._read >= 1 or self._read < 0:
            self._read, self._loads = fleet.now, [fleet.load(replica) for replica in range(self.size)]
        return self._loads.index(min(self._loads))


class MovesHome(BoundedHash):
    def __init__(self, size: int, **options: Any) -> None:
        super().__init__(size, **options)
        self._moved: dict[tuple[int, ...], int] = {}

    def preferred(self, key: tuple[int, ...]) -> tuple[int, ...]:
        moved = (self._moved[key],) if key in self._moved else ()
        return moved + super().preferred(key)

    def choose(self, request: Request, fleet: Fleet) -> int:
        chosen = self._moved[request.blocks[: self.beginning]] = super().choose(request, fleet)
        return chosen


class DivertsEarly(BoundedHash):
    def choose(self, request: Request, fleet: Fleet) -> int:
        waiting = fleet.waiting
        return min(self.preferred(request.blocks[: self.beginning])[:2], key=waiting.__getitem__)


class AnyWithRoom(BoundedHash):
    def choose(self, request: Request, fleet: Fleet) -> int:
        waiting = fleet.waiting
        return waiting.index(min(waiting))


class WholePrompt(BoundedHash):
    def choose(self, request: Request, fleet: Fleet) -> int:
        self.beginning = len(request.blocks)
        return super().choose(request, fleet)


class OffByOne(BoundedHash):
    def bound(self, waiting: Sequence[int]) -> int:
        return super().bound(waiting) + 1


class NextUnasked(BoundedHash):
    def choose(self, request: Request, fleet: Fleet) -> int:
        waiting, (home, *others) = fleet.waiting, self.preferred(request.blocks[: self.beginning])
        return home if waiting[home] + 1 <= self.bound(waiting) or not others else others[0]


class Respaced(BoundedHash):
    def __init__(self, size: int, **options: Any) -> None:
        super().__init__(size, **options)
        ring = sorted((place * (2 * size + 1) % 2**64, replica)
                      for place, replica in zip(self._places, self._replicas, strict=True))
        self._places, self._replicas = [place for place, _ in ring], [replica for _, replica in ring]


MISTAKES: dict[str, Any] = {
    "routing.one-replica:moves-home": MovesHome,
    "routing.one-replica:diverts-early": DivertsEarly,
    "routing.one-replica:overfills": NoBound,
    "routing.one-replica:least-loaded": AnyWithRoom,
    "routing.one-replica:whole-prompt": WholePrompt,
    "routing.bounded:off-by-one": Router(OffByOne, STAYS),
    "routing.bounded:next-unasked": Router(NextUnasked, STAYS),
    "routing.bounded:leaves": Router(BoundedHash, SOON),
    "routing.ring:respaced": Respaced,
    "routing.ring:modulo": ModuloSize,
}
