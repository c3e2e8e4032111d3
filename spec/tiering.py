"""tiering: which tiers a transfer leaves on the critical path, and how much cache pays for itself (facts: 3)."""

from __future__ import annotations

from typing import Any

import z3

from kvproof.spec.obligation import Always, Fact, Mutant, Obligation
from kvproof.spec.system import Step, System, action
from kvproof.spec.theory import Bool, Formula, Int, Real, Rigid, State, Theory, View, forall


class Slack(Theory):
    """What is left of the time to the first token after queueing, computing and the transfer between servers.

    Tier t needs `fetch(t)` seconds, and is on the critical path while that is within the slack. `transfer` grows to
    `longer`.
    """

    target = Rigid(Real)
    queueing = Rigid(Real)
    compute = Rigid(Real)
    transfer = Rigid(Real)
    longer = Rigid(Real)
    fetch = Rigid(Int, Real)

    def axioms(self, s: View) -> list[Formula]:
        """Times are not negative, and the transfer does not get shorter."""
        return [
            s.target >= 0, s.queueing >= 0, s.compute >= 0, s.transfer >= 0, s.longer >= s.transfer,
            forall(Int, lambda t: s.fetch(t) >= 0),
        ]

    def sized(self, s: View, size: int) -> list[Formula]:
        """Times up to four units, no two tiers alike; the size is the number of the last tier."""
        return [
            s.target <= 4, s.longer <= 4, forall(Int, lambda t: s.fetch(t) <= 4),
            forall(Int, Int, lambda t, u: z3.Implies(s.fetch(t) == s.fetch(u), t == u)),
        ]

    def usable(self, s: View, t: Any, transfer: Any) -> Formula:
        """Tier t is on the critical path."""
        return s.fetch(t) <= s.target - s.queueing - s.compute - transfer

    def only_removed(self, s: View) -> Formula:
        """No tier comes back."""
        return forall(Int, lambda t: z3.Implies(self.usable(s, t, s.longer), self.usable(s, t, s.transfer)))

    def slowest_first(self, s: View) -> Formula:
        """When a tier is off the path, so is every slower one."""
        return forall(Int, Int, lambda t, u: z3.Implies(
            z3.And(s.fetch(t) <= s.fetch(u), self.usable(s, t, s.transfer), z3.Not(self.usable(s, t, s.longer))),
            z3.Not(self.usable(s, u, s.longer))))


class FarTiersPay(Slack):
    """The transfer is charged to the tiers of other servers only."""

    far = Rigid(Int, Bool)

    def usable(self, s: View, t: Any, transfer: Any) -> Formula:
        """A near tier keeps the whole slack."""
        return s.fetch(t) <= s.target - s.queueing - s.compute - z3.If(s.far(t), transfer, 0)


class TransferHides(Slack):
    """The fetch is taken to go on during the transfer."""

    def usable(self, s: View, t: Any, transfer: Any) -> Formula:
        """What has been fetched during the transfer is not counted."""
        return s.fetch(t) - transfer <= s.target - s.queueing - s.compute


class Powers(System):
    """The inequality behind C*: q x^p - p x^q < q - p for every x >= 0 but 1 and all whole 0 < p < q.

    `P` and `Q` are x^p and x^q, `S` is 1 + x + .. + x^(p-1). A run multiplies them up to the wanted exponents: first
    both together, then q alone. With the hit rate k C^(p/q), x^q is the capacity as a multiple of C*: the hit rate is
    then P times what it is at C*. `benefit` is a c k (C*)^(p/q), what the hits at C* save, and `rent` is m C*.
    """

    x = Rigid(Real)
    benefit = Rigid(Real)
    rent = Rigid(Real)

    p = State(Real)
    q = State(Real)
    P = State(Real)
    Q = State(Real)
    S = State(Real)

    def axioms(self, s: View) -> list[Formula]:
        """Another capacity than C*; hits save something and memory costs something."""
        return [s.x >= 0, s.x != 1, s.benefit > 0, s.rent > 0]

    def sized(self, s: View, size: int) -> list[Formula]:
        """Figures up to the size."""
        return [s.x <= size, s.benefit <= size, s.rent <= size]

    def init(self, s: View) -> list[Formula]:
        """First powers."""
        return [s.p == 1, s.q == 1, s.x == s.P, s.x == s.Q, s.S == 1]

    @action()
    def raise_both(self, s: View) -> Step:
        """The next p, which is q."""
        return Step(s.p == s.q, p=s.p + 1, q=s.q + 1, P=s.P * s.x, Q=s.Q * s.x, S=s.S + s.P)

    @action()
    def raise_q(self, s: View) -> Step:
        """The next q."""
        return Step(True, q=s.q + 1, Q=s.Q * s.x)

    def invariant(self, s: View) -> dict[str, Formula]:
        """The sum telescopes; x^q lies beyond each summand of S, on x's side of 1."""
        gap = s.q - s.p - s.q * s.P + s.p * s.Q
        return {
            "exponents": z3.And(s.p >= 1, s.q >= s.p, z3.Or(s.q == s.p, s.q >= s.p + 1)),
            "powers": z3.And(s.P >= 0, s.Q >= 0, s.S >= 1, z3.Implies(s.p == s.q, s.P == s.Q)),
            "sum": (s.x - 1) * s.S == s.P - 1,
            "beyond": z3.And(z3.Implies(s.x > 1, s.p * s.Q > s.S), z3.Implies(s.x < 1, s.p * s.Q < s.S)),
            "gap": z3.And(gap >= 0, z3.Implies(s.q > s.p, gap > 0)),
        }

    def optimal(self, s: View) -> Formula:
        """At C* the marginal gain equals the rent: a c k beta (C*)^(beta - 1) = m, times C* and q."""
        return s.benefit * s.p == s.rent * s.q

    def exponent(self, s: View) -> Formula:
        """0 < beta < 1."""
        return s.p < s.q

    def safety(self, s: View) -> dict[str, Formula]:
        """Any other capacity gains less than C*."""
        return {"maximum": z3.Implies(
            z3.And(self.exponent(s), self.optimal(s)), s.benefit * s.P - s.rent * s.Q < s.benefit - s.rent)}


class ForgetsBeta(Powers):
    """C* is taken for the capacity at which the hits save as much as the memory costs."""

    def optimal(self, s: View) -> Formula:
        """Total against total instead of margin against margin."""
        return s.benefit == s.rent


class BetaOne(Powers):
    """A hit rate that grows in proportion to the capacity is let in."""

    def exponent(self, s: View) -> Formula:
        """0 < beta <= 1."""
        return s.p <= s.q


_SIZES = ((1, 1), (1, 2), (1, 3))


def _best(theory: Any, s: View) -> Formula:
    """With beta = 2/3, eight times the capacity that is claimed to be the best."""
    return z3.And(s.p == 2, s.q == 3, theory.optimal(s), s.x == 2)
_OPTIMUM = "which capacity is the best one: that is what is claimed"


OBLIGATIONS: tuple[Obligation, ...] = (
    Fact(
        id="tiering.slowest-first", theory=Slack, scope="any number of tiers, any times",
        fragment="UFLRA with quantifiers",
        claim="more transfer time only removes tiers from the critical path, slowest first",
        goal=lambda theory, s: z3.And(theory.only_removed(s), theory.slowest_first(s)),
        interesting=lambda theory, s: [
            theory.usable(s, z3.IntVal(0), s.longer), theory.usable(s, z3.IntVal(1), s.transfer),
            z3.Not(theory.usable(s, z3.IntVal(1), s.longer))],
        sizes=((1, 1), (1, 2)),
        mutants=(
            Mutant("far-tiers-pay", "the transfer is charged to the tiers of other servers only", FarTiersPay,
                   "a fast tier is off the critical path, and a slower one of this server is still on it"),
            Mutant("transfer-hides", "the fetch is taken to go on during the transfer", TransferHides,
                   "a longer transfer brings a tier back"),
        ),
    ),
    Always(
        id="tiering.maximum", theory=Powers, safety="maximum", fragment="NRA",
        scope="every rational beta = p/q with 0 < p < q, any a, c, k, m > 0, any capacity; tested, not proved, for "
              "irrational beta",
        claim="C* = (a c k beta / m)^(1/(1-beta)) is the unique maximum of the gain a c k C^beta - m C",
        assumes=("C* is given by its defining equation: marginal gain = rent",),
        sometimes=_best,
        sizes=_SIZES, depth=3,
        mutants=(
            Mutant("forgets-beta", "C* is taken where hits save as much as the memory costs", ForgetsBeta,
                   "a smaller cache gains more", _OPTIMUM),
            Mutant("beta-one", "beta = 1 is let in", BetaOne,
                   "every capacity gains the same: there is no unique maximum", _OPTIMUM),
        ),
    ),
)
