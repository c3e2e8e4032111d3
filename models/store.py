"""The rank-sharded store: each rank keeps its own chunks in its memory (L1) and in the remote store (L2) (facts: 1).

Ranks walk through the list of a prompt's chunks and store those that they own, in either tier or both. A chunk may be
evicted from either tier at any time. A lookup asks each rank for its first missing chunk, and takes the least.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

L1 = "L1"
L2 = "L2"
TIERS = ((L1,), (L2,), (L1, L2))
"""Where a chunk may be stored."""


class Event(NamedTuple):
    """One thing that happens: to which chunk, and by which rank, -1 where it is the remote store itself.

    tiers: where a chunk is stored, or evicted from.
    """

    name: str
    rank: int
    chunk: int
    tiers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Rank:
    """One rank's walk through the list.

    next: the chunk that it comes to next. stored: what it has stored, in order, each chunk as often as it was stored.
    memory: which chunks are in its L1 now.
    """

    next: int = 0
    stored: tuple[int, ...] = ()
    memory: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class World:
    """All ranks and the remote store, for one prompt: a value; `after` gives the next one.

    owners: the rank that stores chunk c, for every chunk. remote: which chunks are in the L2 now. dealt: the owners are
    said to be dealt out evenly, so that shares and slices are to be even.
    """

    owners: tuple[int, ...]
    ranks: tuple[Rank, ...]
    remote: frozenset[int] = frozenset()
    dealt: bool = False

    @classmethod
    def begin(cls, owners: tuple[int, ...], world_size: int, *, dealt: bool = False) -> World:
        """Return the world before anything is stored; in replicated mode worker 0 owns every chunk."""
        return cls(owners, (Rank(),) * world_size, frozenset(), dealt)

    @property
    def chunks(self) -> int:
        """How many chunks the prompt has."""
        return len(self.owners)

    @property
    def finished(self) -> bool:
        """All ranks are at the end of the list."""
        return all(rank.next == self.chunks for rank in self.ranks)

    @property
    def room(self) -> int:
        """How many chunks of an evenly dealt prompt a rank's memory has to hold: n / W, rounded up."""
        return -(-self.chunks // len(self.ranks))

    def mine(self, r: int, chunk: int) -> bool:
        """Whether rank r takes it on itself to store the chunk."""
        return self.owners[chunk] == r

    def found(self, r: int, chunk: int) -> bool:
        """Whether rank r finds the chunk: in its own memory, or in the remote store."""
        return chunk in self.ranks[r].memory or chunk in self.remote

    def report(self, r: int) -> int:
        """Return the first chunk that rank r owns and does not find, n when there is none."""
        for chunk in range(self.chunks):
            if self.owners[chunk] == r and not self.found(r, chunk):
                return chunk
        return self.chunks

    def prefix(self) -> int:
        """Return how many chunks the engine is promised: the least of the reports."""
        return min(self.report(r) for r in range(len(self.ranks)))

    def events(self) -> Iterator[Event]:
        """Return everything that can happen now."""
        for r, rank in enumerate(self.ranks):
            if rank.next < self.chunks:
                if self.mine(r, rank.next):
                    yield from (Event("store", r, rank.next, tiers) for tiers in TIERS)
                else:
                    yield Event("pass_by", r, rank.next)
            yield from (Event("evict", r, chunk, (L1,)) for chunk in sorted(rank.memory))
        yield from (Event("evict", -1, chunk, (L2,)) for chunk in sorted(self.remote))

    def after(self, event: Event) -> World:
        """Return what the event makes of this world; it must be one of `events`."""
        match event.name:
            case "store":
                passed = self._but(event.rank, next=event.chunk + 1,
                                   stored=(*self.ranks[event.rank].stored, event.chunk))
                return passed.put(event.rank, event.chunk, event.tiers)
            case "pass_by":
                return self._but(event.rank, next=event.chunk + 1)
            case "evict":
                return self.evict(event.rank, event.chunk, event.tiers)
            case name:
                raise ValueError(f"the store has no event {name!r}")

    def put(self, r: int, chunk: int, tiers: tuple[str, ...]) -> World:
        """Return the world in which the chunk is in these tiers of rank r."""
        world = self
        if L1 in tiers:
            world = world._but(r, memory=self.ranks[r].memory | {chunk})
        if L2 in tiers:
            world = replace(world, remote=world.remote | {chunk})
        return world

    def evict(self, r: int, chunk: int, tiers: tuple[str, ...]) -> World:
        """Return the world in which the chunk is in none of these tiers of rank r."""
        world = self
        if L1 in tiers:
            world = world._but(r, memory=self.ranks[r].memory - {chunk})
        if L2 in tiers:
            world = replace(world, remote=world.remote - {chunk})
        return world

    def _but(self, r: int, **changes: object) -> World:
        ranks = self.ranks
        return replace(self, ranks=(*ranks[:r], replace(ranks[r], **changes), *ranks[r + 1 :]))  # type: ignore[arg-type]  # typed in Rank


def reach(hits: int, r: int, world_size: int, chunks: int) -> int:
    """Return the report of rank r after so many consecutive hits in its own list, dealt in turn: min(kW + r, n)."""
    return min(hits * world_size + r, chunks)


def complaint(world: World) -> str:
    """Say what is wrong with a state in the words of the protocol; "" when nothing is.

    Every chunk is stored once, by its owner, when that rank is through; evenly dealt shares differ by one at most; a
    rank's memory holds no more than its slice; and the promised prefix is the longest of which every chunk is cached.
    """
    return stored_wrong(world) or uneven(world) or prefix_wrong(world)


def stored_wrong(world: World) -> str:
    """Say which chunk was not stored once by its owner; "" when all were."""
    for r, rank in enumerate(world.ranks):
        for chunk in rank.stored:
            if world.owners[chunk] != r:
                return f"rank {r} stored chunk {chunk}, which is rank {world.owners[chunk]}'s"
            if rank.stored.count(chunk) > 1:
                return f"rank {r} stored chunk {chunk} {rank.stored.count(chunk)} times"
        for chunk in range(rank.next):
            if world.owners[chunk] == r and chunk not in rank.stored:
                return f"rank {r} is past its chunk {chunk}, and has not stored it"
    return ""


def uneven(world: World) -> str:
    """Say how evenly dealt shares differ, or whose memory holds more than its slice; "" when all is even."""
    if not world.dealt:
        return ""
    if world.finished:
        shares = [len(rank.stored) for rank in world.ranks]
        if max(shares) > min(shares) + 1:
            return f"the shares {shares} differ by more than one chunk"
    for r, rank in enumerate(world.ranks):
        if len(rank.memory) > world.room:
            return f"rank {r} holds {len(rank.memory)} chunks in L1, and its slice is {world.room} of {world.chunks}"
    return ""


def prefix_wrong(world: World) -> str:
    """Say how the promised prefix differs from the longest cached one; "" when it does not."""
    longest = 0
    while longest < world.chunks and (
        longest in world.remote or longest in world.ranks[world.owners[longest]].memory):
        longest += 1
    promised = world.prefix()
    return "" if promised == longest else f"a prefix of {promised} is promised, and {longest} chunks of it are cached"


@dataclass(frozen=True, slots=True)
class Deal:
    """The chunks of one prompt dealt out to the ranks in turn: a value; `after` gives the next one.

    length: how many chunks there are. turn: whose turn it is. shares: what each rank was dealt. kept: what each has in
    its L1.
    """

    length: int
    turn: int
    shares: tuple[tuple[int, ...], ...]
    kept: tuple[frozenset[int], ...]

    @classmethod
    def begin(cls, length: int, world_size: int) -> Deal:
        """Return the deal before its first chunk."""
        return cls(length, 0, ((),) * world_size, (frozenset(),) * world_size)

    @property
    def dealt(self) -> int:
        """How many chunks have been dealt."""
        return sum(len(share) for share in self.shares)

    @property
    def room(self) -> int:
        """The quotient of the chunks dealt and the ranks, rounded up."""
        return -(-self.dealt // len(self.shares))

    def following(self) -> int:
        """Return whose turn it is after the next chunk."""
        return (self.turn + 1) % len(self.shares)

    def keeps(self, r: int) -> bool:
        """Whether rank r keeps the chunk that is being dealt."""
        return r == self.turn

    def events(self) -> Iterator[Event]:
        """Return the next chunk's deal, until all are dealt."""
        if self.dealt < self.length:
            yield Event("deal", self.turn, self.dealt)

    def after(self, event: Event) -> Deal:
        """Return what the event makes of this deal; it must be one of `events`."""
        if event.name != "deal":
            raise ValueError(f"a deal has no event {event.name!r}")
        shares = tuple((*share, event.chunk) if r == self.turn else share for r, share in enumerate(self.shares))
        kept = tuple(held | {event.chunk} if self.keeps(r) else held for r, held in enumerate(self.kept))
        return replace(self, turn=self.following(), shares=shares, kept=kept)


def uneven_shares(deal: Deal) -> str:
    """Say how the shares of a deal are not q or q + 1 of n = qW + s chunks; "" when they are."""
    whole = deal.dealt // len(deal.shares)
    for r, share in enumerate(deal.shares):
        if not whole <= len(share) <= whole + 1:
            return f"rank {r} was dealt {len(share)} of {deal.dealt} chunks among {len(deal.shares)} ranks"
    return ""


def overfull(deal: Deal) -> str:
    """Say which rank keeps more than its slice, or that the slice is not n / W rounded up; "" if neither."""
    world_size = len(deal.shares)
    for r, held in enumerate(deal.kept):
        if len(held) > deal.room:
            return f"rank {r} keeps {len(held)} of {deal.dealt} chunks, and its slice is {deal.room}"
    if not (deal.room - 1) * world_size < deal.dealt <= deal.room * world_size:
        return f"a slice of {deal.room} chunks is not {deal.dealt} / {world_size} rounded up"
    return ""
