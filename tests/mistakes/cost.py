"""Every mistake that spec.cost names, made in the model of the costs."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from kvproof.models.cost import Backlog, Choice, Cost, Split


class Inverted(Cost):
    def break_even(self, tokens: Fraction) -> Fraction:
        return self.size / self.rate


class WithLength(Cost):
    def break_even(self, tokens: Fraction) -> Fraction:
        return tokens * self.size * self.rate


class Bits(Cost):
    def break_even(self, tokens: Fraction) -> Fraction:
        return 8 * self.size * self.rate


class NoBandwidth(Cost):
    def least_tokens(self) -> Fraction:
        return self.fixed * self.rate


class AnyBandwidth(Cost):
    def fast(self, tokens: Fraction) -> bool:
        return self.bandwidth != self.break_even(tokens)


class TransferToo(Cost):
    def floor(self, tokens: Fraction) -> Fraction:
        return self.load_time(tokens) * self.rate


class GreaterError(Choice):
    def regret_bound(self) -> Fraction:
        return max(self.load_error, self.recompute_error)


class HitsAlwaysLoad(Choice):
    def loads(self) -> bool:
        return True


class StrictlyStable(Backlog):
    @property
    def stable(self) -> bool:
        return self.service < self.between


class IdleCredit(Backlog):
    def left(self) -> Fraction:
        return self.work + self.service - self.between


class AllFromEach(Split):
    def part(self) -> Fraction:
        return self.bytes


class OneLink(Split):
    def link(self) -> Fraction:
        return self.bandwidth / self.instances


MISTAKES: dict[str, Any] = {
    "cost.break-even:inverted": Inverted,
    "cost.break-even:with-length": WithLength,
    "cost.break-even:bits": Bits,
    "cost.least-tokens:no-bandwidth": NoBandwidth,
    "cost.least-tokens:any-bandwidth": AnyBandwidth,
    "cost.floor:any-bandwidth": AnyBandwidth,
    "cost.floor:transfer-too": TransferToo,
    "cost.regret:greater-error": GreaterError,
    "cost.regret:always-load": HitsAlwaysLoad,
    "cost.backlog:strictly": StrictlyStable,
    "cost.backlog:idle-credit": IdleCredit,
    "cost.split:all-from-each": AllFromEach,
    "cost.split:one-link": OneLink,
}
