"""The store's model as `Store` or `Replicated`, a deal as `RoundRobin`, and the queue of loads as `Backlog`.

The spec's store has one tier and nothing is taken out of it: which tier a chunk went into is no part of its state, and
an eviction is no step of it. So evictions are left out where steps are compared, and are held to change nothing.
"""

from __future__ import annotations

from kvproof.models import cost, store
from kvproof.spec.cost import Backlog
from kvproof.spec.refine import NOTHING, Step
from kvproof.spec.store import Replicated, RoundRobin, Store
from kvproof.spec.system import Point, System


class StoreRefinement:
    """Where each rank is, and how often it has stored each chunk."""

    ghosts: frozenset[str] = frozenset()

    def __init__(self, kind: type[Store] = Store) -> None:
        """See it as this system."""
        self._kind = kind

    def system(self, world: store.World) -> System:
        """Return the system."""
        return self._kind()

    def size(self, world: store.World) -> tuple[int, int]:
        """Return the number of ranks, and of chunks."""
        return len(world.ranks), world.chunks

    def rigid(self, world: store.World) -> Point:
        """Return the list and its owners; what is past its end is rank 0's, and all ranks are on one node."""
        owners = {(c,): owner for c, owner in enumerate((*world.owners, 0))}
        point: Point = {"n": world.chunks, "owner": owners}
        if issubclass(self._kind, Replicated):
            point |= {"first": 0, "local": {(r,): r for r in range(len(world.ranks))}}
        return point

    def state(self, world: store.World) -> Point:
        """Return the state."""
        chunks, ranks = range(world.chunks + 1), list(enumerate(world.ranks))
        return {
            "next": {(r,): rank.next for r, rank in ranks},
            "stored": {(r, c): rank.stored.count(c) for r, rank in ranks for c in chunks},
        }

    def step(self, world: store.World, event: store.Event) -> Step:
        """Return the step past a chunk, stored or not; an eviction is none."""
        return NOTHING if event.name == "evict" else ("store", (event.rank,))


class DealRefinement:
    """Quotient and remainder are the model's by division, and the spec's by counting."""

    ghosts: frozenset[str] = frozenset()

    def __init__(self, kind: type[RoundRobin] = RoundRobin) -> None:
        """See it as this system."""
        self._kind = kind

    def system(self, deal: store.Deal) -> System:
        """Return the system."""
        return self._kind()

    def size(self, deal: store.Deal) -> tuple[int, int]:
        """Return that there is no sort of ranks, and integers up to the last rank."""
        return 1, len(deal.shares) - 1

    def rigid(self, deal: store.Deal) -> Point:
        """Return the number of ranks."""
        return {"W": len(deal.shares)}

    def state(self, deal: store.Deal) -> Point:
        """Return the state."""
        rounds, rest = divmod(deal.dealt, len(deal.shares))
        return {
            "n": deal.dealt, "turn": deal.turn, "rounds": rounds, "rest": rest,
            "share": {(r,): len(share) for r, share in enumerate(deal.shares)},
            "kept": {(r,): len(held) for r, held in enumerate(deal.kept)},
        }

    def step(self, deal: store.Deal, event: store.Event) -> Step:
        """Return the action of the same name."""
        return event.name, ()


class BacklogRefinement:
    """The figures of the queue."""

    ghosts: frozenset[str] = frozenset()

    def __init__(self, kind: type[Backlog] = Backlog) -> None:
        """See it as this system."""
        self._kind = kind

    def system(self, queue: cost.Backlog) -> System:
        """Return the system."""
        return self._kind()

    def size(self, queue: cost.Backlog) -> tuple[int, int]:
        """Return that nothing is quantified over."""
        return 1, 0

    def rigid(self, queue: cost.Backlog) -> Point:
        """Return arrivals and services."""
        return {"A": queue.between, "S": queue.service, "start": queue.start}

    def state(self, queue: cost.Backlog) -> Point:
        """Return the state."""
        return {"w": queue.work, "steps": queue.arrivals}

    def step(self, queue: cost.Backlog, event: cost.Arrival) -> Step:
        """Return the action of the same name."""
        return event.name, ()
