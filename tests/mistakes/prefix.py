"""Every mistake that spec.prefix names, made in the models of the store and of the tokens given."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvproof.models.store import L2, World
from kvproof.models.tokens import Hit


def owned(world: World, r: int) -> list[int]:
    """Return the chunks that rank r owns."""
    return [chunk for chunk in range(world.chunks) if world.owners[chunk] == r]


class Maximum(World):
    def prefix(self) -> int:
        return max(self.report(r) for r in range(len(self.ranks)))


class Count(World):
    def report(self, r: int) -> int:
        own = owned(self, r)
        hits = next((k for k, chunk in enumerate(own) if not self.found(r, chunk)), len(own))
        return hits if own else self.chunks


class NothingIsZero(World):
    def report(self, r: int) -> int:
        return World.report(self, r) if owned(self, r) else 0


class PastTheHole(World):
    def report(self, r: int) -> int:
        own = owned(self, r)
        if all(self.found(r, chunk) for chunk in own):
            return self.chunks
        return max((chunk + 1 for chunk in own if self.found(r, chunk)), default=0)


class Displaces(World):
    def put(self, r: int, chunk: int, tiers: tuple[str, ...]) -> World:
        after = World.put(self, r, chunk, tiers)
        others = self.remote - {chunk}
        if L2 not in tiers or chunk in self.remote or not others:
            return after
        return replace(after, remote=after.remote - {min(others)})


class NoHitsIsAll(World):
    def report(self, r: int) -> int:
        return World.report(self, r) if any(self.found(r, chunk) for chunk in owned(self, r)) else self.chunks


class FirstTierOnly(World):
    def found(self, r: int, chunk: int) -> bool:
        return chunk in self.ranks[r].memory


class SecondTierOnly(World):
    def found(self, r: int, chunk: int) -> bool:
        missed = any(earlier not in self.ranks[r].memory for earlier in owned(self, r) if earlier < chunk)
        return chunk in self.remote if missed else World.found(self, r, chunk)


def forgets_rank(hits: int, r: int, world_size: int, chunks: int) -> int:
    return min(hits * world_size, chunks)


def no_cap(hits: int, r: int, world_size: int, chunks: int) -> int:
    return hits * world_size + r


class WholePrompt(Hit):
    def usable(self) -> int:
        return self.cached


class LocalAbove(Hit):
    def given(self) -> int:
        return self.usable() // self.block * self.block - self.local


class LateMinusOne(Hit):
    def given(self) -> int:
        whole = self.cached // self.block * self.block
        return max(0, whole - (whole == self.prompt) - self.local)


class MinusOneAligned(Hit):
    def given(self) -> int:
        return (self.cached - self.local - 1) // self.block * self.block


MISTAKES: dict[str, Any] = {
    "prefix.minimum:maximum": Maximum,
    "prefix.minimum:count": Count,
    "prefix.minimum:owns-nothing": NothingIsZero,
    "prefix.minimum:past-the-hole": PastTheHole,
    "prefix.round-robin:forgets-rank": forgets_rank,
    "prefix.round-robin:no-cap": no_cap,
    "prefix.adding:displaces": Displaces,
    "prefix.evicting:no-hits-is-all": NoHitsIsAll,
    "prefix.two-tiers:first-tier-only": FirstTierOnly,
    "prefix.two-tiers:second-tier-only": SecondTierOnly,
    "prefix.tokens:whole-prompt": WholePrompt,
    "prefix.tokens:local-above": LocalAbove,
    "prefix.tokens:late-minus-one": LateMinusOne,
    "prefix.tokens:minus-one-aligned": MinusOneAligned,
}
