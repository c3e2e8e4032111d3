"""The loading model as `Load`, and where ranks die and waits expire as `FailingLoad`."""

from __future__ import annotations

from typing import Any

from kvproof.models.load import Event, World
from kvproof.spec.load import Load
from kvproof.spec.load_failures import FailingLoad
from kvproof.spec.refine import Step
from kvproof.spec.system import Point, System


class LoadRefinement:
    """Everything the spec keeps is in the model, but whose failure was the least, and where a rank gave up."""

    ghosts = frozenset({"least", "abandoned"})

    def __init__(self, load: type[Load] = Load, failing: type[FailingLoad] = FailingLoad) -> None:
        """See it as these systems."""
        self._kinds = (load, failing)

    def system(self, world: World) -> System:
        """Return `Load`, or `FailingLoad` for a world in which ranks may fail."""
        return self._kinds[world.failing]()

    def size(self, world: World) -> tuple[int, int]:
        """Return the number of ranks, and of chunks in the longest list."""
        return len(world.ranks), max(plan.length for plan in world.plans)

    def rigid(self, world: World) -> Point:
        """Return lists, owners and whether all is uniform; beyond the last chunk everything is rank 0's."""
        ranks, chunks = range(len(world.ranks)), range(self.size(world)[1] + 1)
        owners = [*world.owners, *[0] * len(chunks)]
        return {
            "length": {(r,): world.plans[r].length for r in ranks},
            "fingerprint": {(r,): world.plans[r].fingerprint for r in ranks},
            "layout": {(r,): world.plans[r].layout for r in ranks},
            "owner": {(c,): owners[c] for c in chunks},
            "uniform": world.uniform,
        }

    def state(self, world: World) -> Point:
        """Return the state; a rank that knows the agreed prefix has it from the first rank with the least failure."""
        chunks = range(self.size(world)[1] + 1)
        ranks = list(enumerate(world.ranks))
        least = self._least(world)
        point: Point = {
            "entered": {(r,): rank.entered for r, rank in ranks},
            "left": {(r,): rank.left for r, rank in ranks},
            "loaded": {(r, c): c in rank.loaded for r, rank in ranks for c in chunks},
            "failure": {(r,): rank.failure for r, rank in ranks},
            "agreed": {(r,): rank.agreed for r, rank in ranks},
            "least": {(r,): least if rank.left >= 1 else r for r, rank in ranks},
            "held": {(r, c): c in rank.held for r, rank in ranks for c in chunks},
        }
        if world.failing:
            for name in ("dead", "aborted", "called", "answered"):
                point[name] = {(r,): getattr(rank, name) for r, rank in ranks}
            point["abandoned"] = {
                (r,): rank.entered + rank.left + rank.called + rank.answered if rank.aborted else 0
                for r, rank in ranks}
        return point

    def step(self, world: World, event: Event) -> Step:
        """Return the action of the same name."""
        picks: tuple[Any, ...] = (event.rank,)
        if event.name == "arrive":
            picks = (event.rank, event.chunk)
        if event.name == "leave_exchange":
            picks = (event.rank, self._least(world))
        return event.name, picks

    @staticmethod
    def _least(world: World) -> int:
        return min(range(len(world.ranks)), key=lambda r: world.ranks[r].failure)
