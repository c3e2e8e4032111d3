"""Tiers of a cache: a token's bytes, which tiers stay on the critical path, and how much of one pays (facts: 3)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


def token_bytes(layers: int, heads: int, dimension: int, width: int) -> int:
    """Return the bytes of a token's KV: keys and values of every layer and KV head, `width` bytes a number."""
    return layers * heads * dimension * 2 * width


@dataclass(frozen=True, slots=True)
class Tier:
    """A tier: bytes a second that it is read with, and seconds that every fetch takes besides."""

    name: str
    bandwidth: float
    fixed: float = 0.0

    def fetch(self, size: float) -> float:
        """Return the seconds in which so many bytes are fetched."""
        return self.fixed + size / self.bandwidth


@dataclass(frozen=True)
class Budget:
    """The time to the first token, in seconds: what is wanted, and what of it queueing and computing take."""

    target: float
    queueing: float
    compute: float

    def slack(self, transfer: float) -> float:
        """Return the seconds that are left for fetching, when a transfer between servers takes so many."""
        return self.target - self.queueing - self.compute - transfer

    def in_time(self, tier: Tier, size: float, transfer: float) -> bool:
        """Whether so many bytes are fetched from a tier in the time that is left."""
        return tier.fetch(size) <= self.slack(transfer)

    def critical(self, tiers: Sequence[Tier], size: float, transfer: float) -> list[Tier]:
        """Return the tiers on the critical path; from the others can only be prefetched."""
        return [tier for tier in tiers if self.in_time(tier, size, transfer)]


@dataclass(frozen=True, slots=True)
class Rent:
    """What a tier's capacity gains and costs, where its hit rate is h(C) = k C^beta.

    requests: a second. saved: what a hit saves. rent: of a byte for a second, in the same unit of money. k, beta: of
    the hit rate, C in bytes.
    """

    requests: float
    saved: float
    rent: float
    k: float
    beta: float

    def gain(self, capacity: float) -> float:
        """Return what a capacity gains a second, less its rent."""
        return float(self.requests * self.saved * self.k * capacity**self.beta - self.rent * capacity)

    def best(self) -> float:
        """Return C*, the capacity in bytes at which the marginal gain equals the rent; infinite where there is none."""
        if self.beta >= 1:
            return math.inf
        try:
            return float((self.requests * self.saved * self.k * self.beta / self.rent) ** (1 / (1 - self.beta)))
        except OverflowError:
            return math.inf

    def full(self) -> float:
        """Return the capacity at which the power law would promise that everything hits: no hit rate is above 1."""
        return float((1 / self.k) ** (1 / self.beta))
