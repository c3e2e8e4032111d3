"""The loading protocol of one step: W ranks agree on a prefix by an exchange, then broadcast its chunks (facts: 1).

A rank gets its own chunks, finds its first failure, enters the exchange with it, takes the least failure of all for the
agreed prefix, and then enters one broadcast a chunk, in order. A rank leaves the exchange when all ranks have entered
it, and a broadcast when the owner of the chunk has: the owner itself waits for nobody, as with gloo and NCCL. Ranks may
die, and a rank that waits may give up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from kvproof.models.chunks import round_robin as round_robin


class Event(NamedTuple):
    """One thing that one rank does; `chunk` is -1 where it is about no chunk."""

    name: str
    rank: int
    chunk: int = -1


@dataclass(frozen=True, slots=True)
class Plan:
    """What a rank was told to load: `length` chunks, the list's `fingerprint`, and the `layout` of its KV cache."""

    length: int
    fingerprint: int = 0
    layout: int = 0


@dataclass(frozen=True, slots=True)
class Rank:
    """One rank within the step.

    loaded: its own chunks whose bytes it has. failure: how far it has come in its own chunks, its first failure once it
    has entered the exchange. entered, left: how many collectives; the exchange is the first. held: chunks that a
    broadcast has brought. called, answered: it has entered, and left, the first collective of a later step.
    """

    loaded: frozenset[int] = frozenset()
    failure: int = 0
    entered: int = 0
    left: int = 0
    agreed: int = 0
    held: frozenset[int] = frozenset()
    dead: bool = False
    aborted: bool = False
    called: bool = False
    answered: bool = False

    @property
    def present(self) -> bool:
        """It lives and has not given up."""
        return not (self.dead or self.aborted)

    @property
    def done(self) -> bool:
        """It has been through the exchange and every broadcast."""
        return self.left == 1 + self.agreed

    @property
    def inside(self) -> bool:
        """It has entered a collective of this step that it has not left."""
        return self.entered > self.left

    @property
    def waits(self) -> bool:
        """It lives, and is inside a collective of this step or of the later one."""
        return self.present and (self.inside or (self.called and not self.answered))


@dataclass(frozen=True, slots=True)
class World:
    """All ranks in one step: a value; `after` gives the next one.

    plans: what each rank was told. owners: the rank that stores chunk c, for every chunk of any list. failing: ranks
    may die and waits may expire, and the ranks that are done go on to a later step.
    """

    plans: tuple[Plan, ...]
    owners: tuple[int, ...]
    ranks: tuple[Rank, ...]
    failing: bool = False

    @classmethod
    def begin(cls, plans: tuple[Plan, ...], owners: tuple[int, ...], *, failing: bool = False) -> World:
        """Return the step before anybody has done anything."""
        return cls(plans, owners, tuple(Rank() for _ in plans), failing)

    @property
    def uniform(self) -> bool:
        """All ranks were told the same."""
        first = self.plans[0]
        return all((plan.fingerprint, plan.layout) == (first.fingerprint, first.layout) for plan in self.plans)

    @property
    def finished(self) -> bool:
        """Nobody has anything left to do."""
        if self.failing:
            return all(rank.answered or not rank.present for rank in self.ranks)
        return all(rank.done for rank in self.ranks)

    def misses(self, r: int, chunk: int) -> bool:
        """Rank r owns the chunk and does not have its bytes."""
        return self.owners[chunk] == r and chunk not in self.ranks[r].loaded

    def uses(self, r: int) -> range:
        """Return the chunks that rank r computes with: the agreed prefix, once it is through."""
        rank = self.ranks[r]
        return range(rank.agreed if rank.done and not rank.aborted else 0)

    def events(self) -> Iterator[Event]:
        """Return everything that can happen now."""
        for r, rank in enumerate(self.ranks):
            yield from self._arrivals(r)
            if rank.present:
                yield from self._moves(r)
            if self.failing:
                if not rank.dead:
                    yield Event("die", r)
                if rank.waits:
                    yield Event("expire", r)

    def _arrivals(self, r: int) -> Iterator[Event]:
        """Return the own chunks of rank r whose bytes may come: at any time, early, late, or after the rank is gone."""
        for chunk in range(self.plans[r].length):
            if self.misses(r, chunk):
                yield Event("arrive", r, chunk)

    def _moves(self, r: int) -> Iterator[Event]:
        """Return what rank r can do by itself: one thing at most."""
        rank, length = self.ranks[r], self.plans[r].length
        if not rank.entered:
            if rank.failure < length and not self.misses(r, rank.failure):
                yield Event("look", r)
            else:
                yield Event("enter_exchange", r)
        elif rank.inside:
            if rank.left and self.ranks[self.owners[rank.left - 1]].entered >= rank.entered:
                yield Event("leave_broadcast", r)
            elif not rank.left and all(peer.entered for peer in self.ranks):
                yield Event("leave_exchange", r)
        elif not rank.done:
            yield Event("enter_broadcast", r)
        elif self.failing and not rank.called:
            yield Event("call", r)
        elif self.failing and not rank.answered and all(peer.called for peer in self.ranks):
            yield Event("answer", r)

    def after(self, event: Event) -> World:
        """Return what the event makes of this world; it must be one of `events`."""
        r, rank = event.rank, self.ranks[event.rank]
        match event.name:
            case "arrive":
                changed = replace(rank, loaded=rank.loaded | {event.chunk})
            case "look":
                changed = replace(rank, failure=rank.failure + 1)
            case "enter_exchange" | "enter_broadcast":
                changed = replace(rank, entered=rank.entered + 1)
            case "leave_exchange":
                least = min(peer.failure for peer in self.ranks)
                changed = replace(rank, left=1, agreed=least if self.uniform else 0)
            case "leave_broadcast":
                chunk = rank.left - 1
                owner = self.ranks[self.owners[chunk]]
                brought = {chunk} if chunk in owner.loaded else set()
                changed = replace(rank, left=rank.left + 1, held=rank.held | brought)
            case "die":
                changed = replace(rank, dead=True)
            case "expire":
                changed = replace(rank, aborted=True)
            case "call":
                changed = replace(rank, called=True)
            case "answer":
                changed = replace(rank, answered=True)
            case name:
                raise ValueError(f"the loading protocol has no event {name!r}")
        return replace(self, ranks=(*self.ranks[:r], changed, *self.ranks[r + 1 :]))


def alike(world: World) -> World:
    """Return one world for all that differ only in who is who among ranks that own nothing and were told the same."""
    owning = set(world.owners)
    ranks = list(world.ranks)
    for plan in set(world.plans):
        places = [r for r, told in enumerate(world.plans) if told == plan and r not in owning]
        for place, rank in zip(places, sorted((ranks[r] for r in places), key=repr), strict=True):
            ranks[place] = rank
    return replace(world, ranks=tuple(ranks))


def complaint(world: World) -> str:
    """Say what is wrong with a state in the words of the protocol; "" when nothing is.

    It is what every rank may rely on, told without the formulas of the proofs: the ranks that know the agreed prefix
    know the same; nobody is through while a peer waits for it; who is through holds just what was agreed on, from
    owners that gave it; who waits can give up, where ranks may fail; and somebody can do something until all are
    through.
    """
    ranks = list(enumerate(world.ranks))
    knowing = [(r, rank) for r, rank in ranks if rank.left >= 1]
    for r, rank in knowing:
        first, other = knowing[0]
        if rank.agreed != other.agreed:
            return f"rank {first} knows an agreed prefix of {other.agreed}, and rank {r} one of {rank.agreed}"
        if rank.agreed and not world.uniform:
            return f"the ranks were told different lists, and rank {r} takes a prefix of {rank.agreed}"
    for r, rank in ranks:
        for q, peer in ranks:
            if rank.done and peer.inside and rank.entered <= peer.left:
                return f"rank {r} is through, and rank {q} waits for it in collective {peer.left}"
        if rank.held - set(range(rank.agreed)):
            return f"rank {r} holds chunk {max(rank.held)}, past the agreed prefix of {rank.agreed}"
        if rank.done and rank.held != set(range(rank.agreed)):
            return f"rank {r} is through, and has {sorted(rank.held)} of an agreed prefix of {rank.agreed}"
        for chunk in world.uses(r):
            if chunk not in rank.held:
                return f"rank {r} computes with chunk {chunk}, which no broadcast has brought it"
            if world.ranks[world.owners[chunk]].entered <= chunk + 1:
                return f"rank {r} computes with chunk {chunk}, whose owner never entered its broadcast"
        if world.failing and rank.waits and Event("expire", r) not in world.events():
            return f"rank {r} waits, and cannot give up"
        if rank.answered and not all(peer.done for peer in world.ranks):
            return f"rank {r} went through a later step, and not all are through this one"
    if not world.finished and all(event.name in ("arrive", "die") for event in world.events()):
        return "nobody can do anything, and not all are through"
    return ""
