"""Mistakes of the proofs about tiers, made in their models."""

from __future__ import annotations

from typing import Any

from kvproof.models.tiers import Budget, Rent, Tier
from tests.economics_properties import FAR


class FarTiersPay(Budget):
    def in_time(self, tier: Tier, size: float, transfer: float) -> bool:
        return super().in_time(tier, size, transfer if tier.name.startswith(FAR) else 0.0)


class TransferHides(Budget):
    def in_time(self, tier: Tier, size: float, transfer: float) -> bool:
        return tier.fetch(size) - transfer <= self.slack(0.0)


class ForgetsBeta(Rent):
    def best(self) -> float:
        return float((self.requests * self.saved * self.k / self.rent) ** (1 / (1 - self.beta)))


class BetaOne(Rent):
    def best(self) -> float:
        return self.full() if self.beta == 1 else super().best()


MISTAKES: dict[str, Any] = {
    "tiering.slowest-first:far-tiers-pay": FarTiersPay,
    "tiering.slowest-first:transfer-hides": TransferHides,
    "tiering.maximum:forgets-beta": ForgetsBeta,
    "tiering.maximum:beta-one": BetaOne,
}
