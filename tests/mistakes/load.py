"""Every mistake that spec.load and spec.load_failures name, made in the model of the loading protocol."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from kvproof.models.load import Event, Plan, World, complaint, round_robin


def world(kind: type[World] = World, plans: tuple[Plan, ...] = (Plan(1), Plan(1)), *, failing: bool = False) -> World:
    """Return a first state of that kind; chunks are dealt out in turn."""
    longest = max(plan.length for plan in plans)
    return kind.begin(plans, round_robin(longest, len(plans)), failing=failing)


@dataclass(frozen=True, slots=True)
class Leaving(World):
    """What the mistakes share that take a rank out of the step: it is gone, and does nothing any more."""

    gone: frozenset[int] = frozenset()

    def goes(self, r: int) -> bool:
        """Whether rank r may return now."""
        raise NotImplementedError

    def events(self) -> Iterator[Event]:
        for event in World.events(self):
            if event.rank not in self.gone or event.name == "arrive":
                yield event
        yield from (Event("go", r) for r in range(len(self.ranks)) if r not in self.gone and self.goes(r))

    def after(self, event: Event) -> World:
        if event.name == "go":
            return replace(self, gone=self.gone | {event.rank})
        return World.after(self, event)


def returned(world: World) -> str:
    """What is wrong where ranks may return: that one is gone while a peer waits in what it never enters."""
    if isinstance(world, Leaving):
        for r in world.gone:
            for q, peer in enumerate(world.ranks):
                if peer.entered > peer.left and world.ranks[r].entered <= peer.left and q not in world.gone:
                    return f"rank {r} has returned, and rank {q} waits for it in collective {peer.left}"
        return ""
    return complaint(world)


class EarlyReturn(Leaving):
    def goes(self, r: int) -> bool:
        rank = self.ranks[r]
        return rank.entered == 0 and rank.failure < self.plans[r].length and self.misses(r, rank.failure)


class EmptyListSkips(Leaving):
    def goes(self, r: int) -> bool:
        return self.ranks[r].entered == 0 and self.plans[r].length == 0


class BufferFull(Leaving):
    def goes(self, r: int) -> bool:
        rank = self.ranks[r]
        return rank.left >= 1 and rank.entered == rank.left and not rank.done


class Raises(Leaving):
    def goes(self, r: int) -> bool:
        rank, length = self.ranks[r], self.plans[r].length
        return rank.entered == 0 and rank.failure == length >= 1


class LonelyTimeout(Leaving):
    def goes(self, r: int) -> bool:
        return self.ranks[r].entered > self.ranks[r].left

    def after(self, event: Event) -> World:
        after = Leaving.after(self, event)
        if event.name == "go":
            rank = after.ranks[event.rank]
            ranks = list(after.ranks)
            ranks[event.rank] = replace(rank, entered=rank.left)
            after = replace(after, ranks=tuple(ranks))
        return after


class OwnFailure(World):
    def after(self, event: Event) -> World:
        after = World.after(self, event)
        if event.name != "leave_exchange":
            return after
        ranks = list(after.ranks)
        ranks[event.rank] = replace(ranks[event.rank], agreed=ranks[event.rank].failure if self.uniform else 0)
        return replace(after, ranks=tuple(ranks))


class Subgroup(World):
    """Even ranks and odd ranks exchange among themselves."""

    def events(self) -> Iterator[Event]:
        for event in World.events(self):
            if event.name != "leave_exchange":
                yield event
        for r, rank in enumerate(self.ranks):
            if rank.entered == 1 and rank.left == 0 and all(peer.entered for peer in self.ranks[r % 2 :: 2]):
                yield Event("leave_exchange", r)

    def after(self, event: Event) -> World:
        after = World.after(self, event)
        if event.name != "leave_exchange":
            return after
        ranks = list(after.ranks)
        least = min(peer.failure for peer in self.ranks[event.rank % 2 :: 2])
        ranks[event.rank] = replace(ranks[event.rank], agreed=least)
        return replace(after, ranks=tuple(ranks))


class Lookups(World):
    """Lookups have said that every chunk is there."""

    def events(self) -> Iterator[Event]:
        for event in World.events(self):
            rank = self.ranks[event.rank]
            if event.name == "enter_exchange" and rank.failure < self.plans[event.rank].length:
                yield Event("look", event.rank)
            else:
                yield event


class OwnExtras(World):
    def events(self) -> Iterator[Event]:
        yield from World.events(self)
        for r, rank in enumerate(self.ranks):
            if rank.left >= 1:
                yield from (Event("keep", r, chunk) for chunk in rank.loaded if chunk >= rank.agreed
                            and chunk not in rank.held)

    def after(self, event: Event) -> World:
        if event.name != "keep":
            return World.after(self, event)
        ranks = list(self.ranks)
        ranks[event.rank] = replace(ranks[event.rank], held=ranks[event.rank].held | {event.chunk})
        return replace(self, ranks=tuple(ranks))


class DiffersIgnored(World):
    def after(self, event: Event) -> World:
        after = World.after(self, event)
        if event.name != "leave_exchange":
            return after
        ranks = list(after.ranks)
        ranks[event.rank] = replace(ranks[event.rank], agreed=min(peer.failure for peer in self.ranks))
        return replace(after, ranks=tuple(ranks))


class KeepsWaiting(World):
    def events(self) -> Iterator[Event]:
        for event in World.events(self):
            if event.name != "enter_exchange" or self.ranks[event.rank].failure == self.plans[event.rank].length:
                yield event


class StartsOver(World):
    def events(self) -> Iterator[Event]:
        yield from World.events(self)
        yield from (Event("again", r) for r, rank in enumerate(self.ranks) if rank.left >= 1
                    and rank.entered > rank.left)

    def after(self, event: Event) -> World:
        if event.name != "again":
            return World.after(self, event)
        ranks = list(self.ranks)
        ranks[event.rank] = replace(ranks[event.rank], entered=ranks[event.rank].left)
        return replace(self, ranks=tuple(ranks))


class NoExpiryInExchange(World):
    def events(self) -> Iterator[Event]:
        for event in World.events(self):
            if event.name != "expire" or self.ranks[event.rank].left >= 1:
                yield event


class ExpiryIgnored(World):
    def after(self, event: Event) -> World:
        return self if event.name == "expire" else World.after(self, event)


class GoesOnAfterAbort(World):
    def events(self) -> Iterator[Event]:
        yield from World.events(self)
        for r, rank in enumerate(self.ranks):
            if rank.aborted and not rank.dead and rank.entered == 1 and rank.left == 0 and all(
                    peer.entered for peer in self.ranks):
                yield Event("leave_exchange", r)


class UsesWhatItHas(World):
    def uses(self, r: int) -> range:
        rank = self.ranks[r]
        return range(rank.agreed if rank.left >= 1 and (rank.done or rank.aborted) else 0)


class LeavesDeadOwner(World):
    def events(self) -> Iterator[Event]:
        yield from World.events(self)
        for r, rank in enumerate(self.ranks):
            if rank.present and rank.left >= 1 and rank.entered > rank.left:
                owner = self.ranks[self.owners[rank.left - 1]]
                if owner.dead and owner.entered < rank.entered:
                    yield Event("leave_broadcast", r)


class LiveOnesWillDo(World):
    def events(self) -> Iterator[Event]:
        yield from World.events(self)
        for r, rank in enumerate(self.ranks):
            if rank.present and rank.called and not rank.answered and all(
                    peer.called for peer in self.ranks if peer.present) and not all(
                    peer.called for peer in self.ranks):
                yield Event("answer", r)


MISTAKES: dict[str, World] = {
    "own-failure": world(OwnFailure),
    "subgroup": world(Subgroup),
    "early-return": world(EarlyReturn),
    "empty-list": world(EmptyListSkips, (Plan(0, 1), Plan(1, 2))),
    "buffer-full": world(BufferFull),
    "exception": world(Raises),
    "lonely-timeout": world(LonelyTimeout),
    "lookups": world(Lookups),
    "own-extras": world(OwnExtras, (Plan(2), Plan(2))),
    "not-compared": world(DiffersIgnored, (Plan(1, 1), Plan(2, 2))),
    "waits-for-all": world(KeepsWaiting),
    "starts-over": world(StartsOver),
    "exchange-without-timeout": world(NoExpiryInExchange, failing=True),
    "expiry-ignored": world(ExpiryIgnored, failing=True),
    "goes-on": world(GoesOnAfterAbort, failing=True),
    "uses-what-it-has": world(UsesWhatItHas, failing=True),
    "dead-owner": world(LeavesDeadOwner, failing=True),
    "live-ones-will-do": world(LiveOnesWillDo, failing=True),
}
"""A first state of the model with each mistake, by the mutant's id."""
