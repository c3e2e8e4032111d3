"""Every mistake that spec.store names, made in the model of the store and of a deal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from kvproof.models.store import Deal, Event, World


class EveryRank(World):
    def mine(self, r: int, chunk: int) -> bool:
        return True


class Resumes(World):
    def events(self) -> Iterator[Event]:
        yield from World.events(self)
        yield from (Event("resume", r, 0) for r, rank in enumerate(self.ranks) if rank.next > 0)

    def after(self, event: Event) -> World:
        return self._but(event.rank, next=0) if event.name == "resume" else World.after(self, event)


class SkipsTheRest(World):
    def events(self) -> Iterator[Event]:
        yield from World.events(self)
        yield from (Event("pass_by", r, rank.next) for r, rank in enumerate(self.ranks) if rank.next < self.chunks)


class LocalRank(World):
    """There are two ranks on each node."""

    def mine(self, r: int, chunk: int) -> bool:
        return r % 2 == 0


class StartsAgain(Deal):
    def events(self) -> Iterator[Event]:
        yield from Deal.events(self)
        if self.turn > 0:
            yield Event("part", 0, -1)

    def after(self, event: Event) -> Deal:
        return replace(self, turn=0) if event.name == "part" else Deal.after(self, event)


class Pairs(Deal):
    def following(self) -> int:
        return Deal.following(self) if self.dealt % 2 else self.turn


class KeepsAll(Deal):
    def keeps(self, r: int) -> bool:
        return True


class RoundsDown(Deal):
    @property
    def room(self) -> int:
        return self.dealt // len(self.shares)


MISTAKES: dict[str, Any] = {
    "store.once:every-rank": EveryRank,
    "store.once:resumes": Resumes,
    "store.once:skips": SkipsTheRest,
    "store.replicated:every-worker": EveryRank,
    "store.replicated:local-rank": LocalRank,
    "store.even:starts-again": StartsAgain,
    "store.even:pairs": Pairs,
    "store.slice:keeps-all": KeepsAll,
    "store.slice:rounds-down": RoundsDown,
}
