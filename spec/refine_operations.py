"""The models of operations as their specs: fetches as `Reports`, blocks as `Blocks`, callers as `Ledger`, `Lease`."""

from __future__ import annotations

from itertools import accumulate

from kvproof.models import lease, ledger, lifecycle
from kvproof.spec.lease import Lease, Quiet
from kvproof.spec.ledger import Ledger
from kvproof.spec.lifecycle import Blocks, Reports
from kvproof.spec.refine import Step
from kvproof.spec.system import Point, System


class FetchRefinement:
    """Reports are counted, and whether one of them says done."""

    ghosts: frozenset[str] = frozenset()

    def __init__(self, kind: type[Reports] = Reports) -> None:
        """See it as this system."""
        self._kind = kind

    def system(self, world: lifecycle.Fetches) -> System:
        """Return the system."""
        return self._kind()

    def size(self, world: lifecycle.Fetches) -> tuple[int, int]:
        """Return the number of peers, and the last operation."""
        return world.peers, max(len(world.fetches) - 1, 0)

    def rigid(self, world: lifecycle.Fetches) -> Point:
        """Return what the operations are about; where there are none, number 0 is about nothing."""
        fetches = dict(enumerate(world.fetches or (lifecycle.Fetch(0),)))
        return {
            "operations": len(world.fetches), "wanted": {(o,): fetch.wanted for o, fetch in fetches.items()},
            "local": {(o,): fetch.local for o, fetch in fetches.items()},
            "source": {(o,): fetch.peer for o, fetch in fetches.items()},
        }

    def state(self, world: lifecycle.Fetches) -> Point:
        """Return the state."""
        fetches = dict(enumerate(world.fetches or (lifecycle.Fetch(0),)))
        return {
            "begun": {(o,): fetch.begun for o, fetch in fetches.items()},
            "moved": {(o,): fetch.came for o, fetch in fetches.items()},
            "reports": {(o,): len(fetch.reports) for o, fetch in fetches.items()},
            "done": {(o,): lifecycle.DONE in fetch.reports for o, fetch in fetches.items()},
            "dead": {(w,): w in world.dead for w in range(world.peers)},
        }

    def step(self, world: lifecycle.Fetches, event: lifecycle.Event) -> Step:
        """Return the action of the same name."""
        return event.name, (event.which,)


class BlockRefinement:
    """As many requests as transfers and blocks; a block has been freed as often as given out, but for the last time."""

    ghosts: frozenset[str] = frozenset()

    def __init__(self, kind: type[Blocks] = Blocks) -> None:
        """See it as this system."""
        self._kind = kind

    def system(self, world: lifecycle.Blocks) -> System:
        """Return the system."""
        return self._kind()

    def size(self, world: lifecycle.Blocks) -> tuple[int, int]:
        """Return one rank, of which nothing is said, and the last of each kind."""
        return 1, len(world.given) - 1

    def rigid(self, world: lifecycle.Blocks) -> Point:
        """Return whose the transfers are."""
        return {"by": {(t,): transfer.request for t, transfer in enumerate(world.transfers)}}

    def state(self, world: lifecycle.Blocks) -> Point:
        """Return the state; of the free list every place counts."""
        requests, transfers = list(enumerate(world.requests)), list(enumerate(world.transfers))
        blocks = range(len(world.given))
        return {
            "begun": {(t,): transfer.state != lifecycle.NEW for t, transfer in transfers},
            "active": {(t,): transfer.state == lifecycle.ACTIVE for t, transfer in transfers},
            "target": {(t, b): b in transfer.target for t, transfer in transfers for b in blocks},
            "listed": {(r, b): b in request.blocks for r, request in requests for b in blocks},
            "ended": {(r,): request.ended for r, request in requests},
            "allocated": {(b,): world.given[b] for b in blocks},
            "freed": {(b,): world.given[b] - 1 + world.free.count(b) for b in blocks},
        }

    def step(self, world: lifecycle.Blocks, event: lifecycle.Event) -> Step:
        """Return the action of the same name."""
        return event.name, (event.which, event.block) if event.name == "allocate" else (event.which,)


class LedgerRefinement:
    """One more key than there is has to be spoken of: that to which a caller comes after the last."""

    ghosts: frozenset[str] = frozenset()

    def __init__(self, kind: type[Ledger] = Ledger) -> None:
        """See it as this system."""
        self._kind = kind

    def system(self, world: ledger.World) -> System:
        """Return the system."""
        return self._kind()

    def size(self, world: ledger.World) -> tuple[int, int]:
        """Return the number of callers, and of keys."""
        return len(world.callers), len(world.sizes)

    def rigid(self, world: ledger.World) -> Point:
        """Return what the keys weigh, one by one and together."""
        return {
            "keys": len(world.sizes), "bytes": {(k,): size for k, size in enumerate((*world.sizes, 0))},
            "total": {(k,): total for k, total in enumerate(accumulate(world.sizes, initial=0))},
        }

    def state(self, world: ledger.World) -> Point:
        """Return the state."""
        callers, locks = list(enumerate(world.callers)), list(enumerate((*world.locks, ledger.Lock())))
        return {
            "phase": {(c,): caller.phase for c, caller in callers},
            "step": {(c,): caller.step for c, caller in callers},
            "pins": {(c, k): count for c, caller in callers for k, count in enumerate((*caller.pins, 0))},
            "usage": {(c,): caller.used for c, caller in callers},
            "locked": {(k,): lock.held for k, lock in locks},
            "holder": {(k,): lock.last for k, lock in locks},
        }

    def step(self, world: ledger.World, event: ledger.Event) -> Step:
        """Return the action of the same name."""
        return event.name, (event.caller,)


class LeaseRefinement:
    """Where nothing is stored, the system is `Quiet`; requests and chunks that there are not ask for, and are, none."""

    ghosts: frozenset[str] = frozenset()

    def __init__(self, kind: type[Lease] = Lease, quiet: type[Quiet] = Quiet) -> None:
        """See it as the first of these, or where nothing is stored as the second."""
        self._kind, self._quiet = kind, quiet

    def system(self, world: lease.World) -> System:
        """Return the system."""
        return self._kind() if world.storing else self._quiet()

    def size(self, world: lease.World) -> tuple[int, int]:
        """Return one rank, of which nothing is said, and the last request or chunk."""
        return 1, max(len(world.wants), len(world.chunks)) - 1

    def rigid(self, world: lease.World) -> Point:
        """Return who asks for what; a request that there is not asks for chunk 0."""
        wants = {(q,): world.wants[q] if q < len(world.wants) else 0 for q in range(self.size(world)[1] + 1)}
        return {"requests": len(world.wants), "chunks": len(world.chunks), "chunk": wants}

    def state(self, world: lease.World) -> Point:
        """Return the state."""
        last = self.size(world)[1]
        none = [lease.Chunk(False, False, False)] * (last + 1 - len(world.chunks))
        chunks = list(enumerate([*world.chunks, *none]))
        phases = [*world.phases, *[lease.ASKING] * (last + 1 - len(world.phases))]
        return {
            "present": {(k,): chunk.present for k, chunk in chunks},
            "intact": {(k,): chunk.intact for k, chunk in chunks},
            "verdict": {(k,): chunk.answer for k, chunk in chunks},
            "refused": {(k,): chunk.failed for k, chunk in chunks},
            "phase": {(q,): phase for q, phase in enumerate(phases)},
        }

    def step(self, world: lease.World, event: lease.Event) -> Step:
        """Return the action of the same name."""
        return event.name, (event.which,)
