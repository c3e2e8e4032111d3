"""Operations that report their end once, and blocks that are freed once, after the last transfer that writes them.

`Fetches` are operations that fetch blocks from peers, which die at any time. `Blocks` are owned by requests while
transfers write them; a request ends, or is aborted, at any time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

DONE, FAILED = "done", "failed"
"""How an operation may report its end."""
NEW, ACTIVE, OVER = "new", "active", "over"
"""What may be with a transfer."""


class Event(NamedTuple):
    """One thing that happens to an operation, peer, request or transfer, by its number; `block` is -1 for none."""

    name: str
    which: int
    block: int = -1


@dataclass(frozen=True, slots=True)
class Fetch:
    """One operation.

    wanted: how many blocks it is about. local: how many are there already, also more than it wants. peer: where the
    others come from. came: how many have come. reports: what it has said of its end, in order.
    """

    wanted: int
    local: int = 0
    peer: int = 0
    begun: bool = False
    came: int = 0
    reports: tuple[str, ...] = ()

    @property
    def needed(self) -> int:
        """How many blocks have to come."""
        return max(self.wanted - self.local, 0)

    @property
    def running(self) -> bool:
        """It has begun, and not reported its end."""
        return self.begun and not self.reports


@dataclass(frozen=True, slots=True)
class Fetches:
    """All operations and peers: a value; `after` gives the next one."""

    fetches: tuple[Fetch, ...]
    peers: int = 1
    dead: frozenset[int] = frozenset()

    def at_once(self, fetch: Fetch) -> bool:
        """Whether it is done as it begins, since nothing has to come."""
        return fetch.needed == 0

    def moves(self, fetch: Fetch) -> bool:
        """Whether a block may come for it."""
        return fetch.running and fetch.came < fetch.needed and fetch.peer not in self.dead

    def fails(self, fetch: Fetch) -> bool:
        """Whether it may fail, since its peer is dead."""
        return fetch.running and fetch.peer in self.dead

    def events(self) -> Iterator[Event]:
        """Return everything that can happen now."""
        for o, fetch in enumerate(self.fetches):
            if not fetch.begun:
                yield Event("begin", o)
            if self.moves(fetch):
                yield Event("move", o)
            if self.fails(fetch):
                yield Event("fail", o)
        yield from (Event("die", peer) for peer in range(self.peers) if peer not in self.dead)

    def after(self, event: Event) -> Fetches:
        """Return what the event makes of this world; it must be one of `events`."""
        match event.name:
            case "begin":
                begun = self.but(event.which, begun=True)
                return begun.report(event.which, DONE) if self.at_once(self.fetches[event.which]) else begun
            case "move":
                fetch = self.fetches[event.which]
                moved = self.but(event.which, came=fetch.came + 1)
                return moved.report(event.which, DONE) if fetch.came + 1 == fetch.needed else moved
            case "fail":
                return self.fail(event.which)
            case "die":
                return replace(self, dead=self.dead | {event.which})
            case name:
                raise ValueError(f"an operation has no event {name!r}")

    def fail(self, o: int) -> Fetches:
        """Return the world in which o has failed."""
        return self.report(o, FAILED)

    def report(self, o: int, end: str) -> Fetches:
        """Return the world in which o has reported its end once more."""
        return self.but(o, reports=(*self.fetches[o].reports, end))

    def but(self, o: int, **changes: object) -> Fetches:
        """Return the world in which this is different with o."""
        changed = replace(self.fetches[o], **changes)  # type: ignore[arg-type]  # typed in Fetch
        return replace(self, fetches=(*self.fetches[:o], changed, *self.fetches[o + 1 :]))


def reported_wrong(world: Fetches) -> str:
    """Say which operation reported twice, too early, falsely or not although it has everything; "" when none."""
    for o, fetch in enumerate(world.fetches):
        if len(fetch.reports) > 1:
            return f"operation {o} has reported its end {len(fetch.reports)} times: {', '.join(fetch.reports)}"
        if fetch.running and fetch.came == fetch.needed:
            return f"operation {o} has all of its {fetch.wanted} blocks, and has not reported"
        if DONE in fetch.reports and fetch.local + fetch.came < fetch.wanted:
            return f"operation {o} is done with {fetch.local + fetch.came} of {fetch.wanted} blocks"
        if FAILED in fetch.reports and fetch.peer not in world.dead:
            return f"operation {o} has failed, and its peer is alive"
    return ""


def waits_for_ever(world: Fetches) -> str:
    """Say which operation will neither get a block nor fail; "" when none."""
    for o, fetch in enumerate(world.fetches):
        if fetch.running and not world.moves(fetch) and not world.fails(fetch):
            return f"operation {o} waits, and nothing will come for it"
    return ""


@dataclass(frozen=True, slots=True)
class Request:
    """One request: its blocks, and whether it has ended, so that nothing new begins for it."""

    blocks: frozenset[int] = frozenset()
    ended: bool = False


@dataclass(frozen=True, slots=True)
class Transfer:
    """One transfer of a request, and the blocks that it writes."""

    request: int
    state: str = NEW
    target: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Blocks:
    """All requests, transfers and blocks: a value; `after` gives the next one.

    free: the list of free blocks, sorted. given: how often each block has been given out.
    """

    requests: tuple[Request, ...]
    transfers: tuple[Transfer, ...]
    free: tuple[int, ...]
    given: tuple[int, ...]

    @classmethod
    def begin(cls, requests: int, of: tuple[int, ...], blocks: int) -> Blocks:
        """Return the world before anything has begun; of: the request of each transfer."""
        return cls((Request(),) * requests, tuple(Transfer(r) for r in of), tuple(range(blocks)), (0,) * blocks)

    def active(self, r: int) -> list[int]:
        """Return the transfers of r that have begun, and not completed."""
        return [t for t, transfer in enumerate(self.transfers) if transfer.request == r and transfer.state == ACTIVE]

    def events(self) -> Iterator[Event]:
        """Return everything that can happen now."""
        for r, request in enumerate(self.requests):
            if not request.ended:
                yield from (Event("allocate", r, block) for block in sorted(set(self.free)))
                yield Event("end", r)
        for t, transfer in enumerate(self.transfers):
            if transfer.state == NEW and not self.requests[transfer.request].ended:
                yield Event("begin", t)
            if transfer.state == ACTIVE:
                yield Event("complete", t)

    def after(self, event: Event) -> Blocks:
        """Return what the event makes of this world; it must be one of `events`."""
        match event.name:
            case "allocate":
                return self.allocate(event.which, event.block)
            case "end":
                ended = self.request(event.which, ended=True)
                return ended.release(event.which) if self.frees_at_end(event.which) else ended
            case "begin":
                blocks = self.requests[self.transfers[event.which].request].blocks
                return self.transfer(event.which, state=ACTIVE, target=blocks)
            case "complete":
                completed = self.transfer(event.which, state=OVER)
                r = self.transfers[event.which].request
                return completed.release(r) if self.frees_with(event.which) else completed
            case name:
                raise ValueError(f"a block has no event {name!r}")

    def allocate(self, r: int, block: int) -> Blocks:
        """Return the world in which r has one block more, off the free list."""
        at = self.free.index(block)
        given = tuple(count + (b == block) for b, count in enumerate(self.given))
        taken = replace(self, free=(*self.free[:at], *self.free[at + 1 :]), given=given)
        return taken.request(r, blocks=self.requests[r].blocks | {block})

    def frees_at_end(self, r: int) -> bool:
        """Whether the end of r frees its blocks: no transfer of it is active."""
        return not self.active(r)

    def frees_with(self, t: int) -> bool:
        """Whether the completion of t frees its request's blocks: that has ended, and t is the last active one."""
        r = self.transfers[t].request
        return self.requests[r].ended and self.active(r) == [t]

    def release(self, r: int) -> Blocks:
        """Return the world in which the blocks of r are free."""
        return self.put_back(r).request(r, blocks=frozenset())

    def put_back(self, r: int) -> Blocks:
        """Return the world in which the blocks of r are on the free list."""
        return replace(self, free=tuple(sorted((*self.free, *self.requests[r].blocks))))

    def request(self, r: int, **changes: object) -> Blocks:
        """Return the world in which this is different with request r."""
        changed = replace(self.requests[r], **changes)  # type: ignore[arg-type]  # typed in Request
        return replace(self, requests=(*self.requests[:r], changed, *self.requests[r + 1 :]))

    def transfer(self, t: int, **changes: object) -> Blocks:
        """Return the world in which this is different with transfer t."""
        changed = replace(self.transfers[t], **changes)  # type: ignore[arg-type]  # typed in Transfer
        return replace(self, transfers=(*self.transfers[:t], changed, *self.transfers[t + 1 :]))


def shared(world: Blocks) -> str:
    """Say which block two requests have; "" when none."""
    for r, request in enumerate(world.requests):
        for q in range(r):
            for block in sorted(request.blocks & world.requests[q].blocks):
                return f"block {block} is request {q}'s and request {r}'s"
    return ""


def overwritten(world: Blocks) -> str:
    """Say which transfer writes a block that its request does not have; "" when none."""
    for t, transfer in enumerate(world.transfers):
        for block in sorted(transfer.target - world.requests[transfer.request].blocks):
            if transfer.state == ACTIVE:
                whose = [f"request {r}'s" for r, request in enumerate(world.requests) if block in request.blocks]
                return f"transfer {t} writes block {block}, which is {' and '.join(whose) or 'free'}"
    return ""


def freed_twice(world: Blocks) -> str:
    """Say which block is on the free list more than once; "" when none."""
    return next((f"block {block} is {world.free.count(block)} times on the free list" for block in world.free
                 if world.free.count(block) > 1), "")


def leaked(world: Blocks) -> str:
    """Say which block nobody will ever free; "" when none."""
    for r, request in enumerate(world.requests):
        if request.ended and request.blocks and not world.active(r):
            return f"request {r} has ended, nothing is in flight for it, and it has the blocks {sorted(request.blocks)}"
    owned = frozenset[int]().union(*(request.blocks for request in world.requests))
    return next((f"block {block} is neither free nor anybody's" for block in range(len(world.given))
                 if block not in owned and block not in world.free), "")
