"""Mistakes that routers of the field have made (bug kinds H1 to H4): each is caught by a property."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvproof.models.requests import Request
from kvproof.models.routing import BoundedHash, Fleet, LeastLoaded, PrefixAware


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

    def __init__(self, size: int, *, beginning: int = 2, points: int = 100, slack: float = 0.25) -> None:
        super().__init__(size, beginning=beginning, points=1, slack=slack)
        self.points = points


class ModuloSize(BoundedHash):
    """The key modulo the number of replicas: nearly all keys move when one is added."""

    def preferred(self, key: tuple[int, ...]) -> Iterator[int]:
        first = hash(key) % self.size
        yield from ((first + step) % self.size for step in range(self.size))


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
