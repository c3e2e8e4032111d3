"""cost: when loading a cached prefix pays, what a wrong choice costs, and when the queue of loads grows (facts: 1)."""

from __future__ import annotations

from typing import Any

import z3

from kvproof.spec.obligation import Always, Fact, Mutant, Obligation
from kvproof.spec.system import Step, System, action
from kvproof.spec.theory import Formula, Real, Rigid, State, Theory, View, all_of, within


class Cost(Theory):
    """n cached tokens of s bytes each; R tokens/s recomputed, B bytes/s loaded, and a fixed cost of T0 seconds a load.

    `recompute` and `load` are in seconds, given by what they are quotients of.
    """

    n = Rigid(Real)
    s = Rigid(Real)
    R = Rigid(Real)
    B = Rigid(Real)
    T0 = Rigid(Real)
    recompute = Rigid(Real)
    load = Rigid(Real)

    def axioms(self, s: View) -> list[Formula]:
        """Rates and sizes are positive; n / R and T0 + n s / B."""
        return [
            s.n > 0, s.s > 0, s.R > 0, s.B > 0, s.T0 >= 0,
            s.recompute * s.R == s.n, (s.load - s.T0) * s.B == s.n * s.s,
        ]

    def sized(self, s: View, size: int) -> list[Formula]:
        """Figures up to the size."""
        return [figure <= size for figure in (s.n, s.s, s.R, s.B, s.T0)]

    def threshold(self, s: View) -> Any:
        """B*, in bytes a second."""
        return s.s * s.R

    def wins(self, s: View) -> Formula:
        """Loading takes less time."""
        return s.load < s.recompute


class Inverted(Cost):
    """The rate of recomputing is put in seconds a token."""

    def threshold(self, s: View) -> Any:
        """Divide by R where it should be multiplied."""
        return s.s / s.R


class WithLength(Cost):
    """The threshold is taken to grow with the prompt."""

    def threshold(self, s: View) -> Any:
        """Bytes of the whole prompt."""
        return s.n * s.s * s.R


class Bits(Cost):
    """The network's rate is given in bits."""

    def threshold(self, s: View) -> Any:
        """Eight times as much."""
        return 8 * s.s * s.R


class FixedCost(Cost):
    """With a fixed cost: `least` is n*, the tokens from which a hit pays, given B > sR."""

    least = Rigid(Real)

    def sized(self, s: View, size: int) -> list[Formula]:
        """Figures up to the size, and a fixed cost, without which there is nothing to see."""
        return [*super().sized(s, size), s.T0 > 0, within(-4 * size, s.least, 4 * size)]

    def fast(self, s: View) -> Formula:
        """The tier is faster than the threshold."""
        return self.threshold(s) < s.B

    def tokens(self, s: View) -> Formula:
        """n* (1/R - s/B) = T0, without the quotients."""
        return s.least * (s.B - s.s * s.R) == s.T0 * s.R * s.B

    def floor(self, s: View) -> Any:
        """What n* cannot fall below, at any bandwidth."""
        return s.T0 * s.R


class NoBandwidth(FixedCost):
    """n* is taken for the tokens that are recomputed in T0, as if the transfer took no time."""

    def tokens(self, s: View) -> Formula:
        """n* = T0 R."""
        return s.least == s.T0 * s.R


class AnyBandwidth(FixedCost):
    """The formula is used for a tier that is slower than the threshold."""

    def fast(self, s: View) -> Formula:
        """Any bandwidth but the threshold itself, at which it divides by zero."""
        return self.threshold(s) != s.B


class TransferToo(FixedCost):
    """The floor is taken to hold the transfer as well."""

    def floor(self, s: View) -> Any:
        """T0 and the load."""
        return s.load * s.R


class Choice(Theory):
    """Two ways, their true and their estimated times; each estimate is off by at most its error. All in seconds."""

    true_load = Rigid(Real)
    true_recompute = Rigid(Real)
    load = Rigid(Real)
    recompute = Rigid(Real)
    load_error = Rigid(Real)
    recompute_error = Rigid(Real)

    def axioms(self, s: View) -> list[Formula]:
        """Times are not negative; what the errors are."""
        return [
            s.true_load >= 0, s.true_recompute >= 0,
            s.load - s.true_load <= s.load_error, s.true_load - s.load <= s.load_error,
            s.recompute - s.true_recompute <= s.recompute_error, s.true_recompute - s.recompute <= s.recompute_error,
        ]

    def sized(self, s: View, size: int) -> list[Formula]:
        """Times up to the size."""
        return [time <= size for time in (s.true_load, s.true_recompute, s.load_error, s.recompute_error)]

    def loads(self, s: View) -> Formula:
        """Load when its estimate is the lesser."""
        return s.load <= s.recompute

    def regret(self, s: View) -> Any:
        """How much longer the chosen way takes than the other, in truth."""
        return z3.If(self.loads(s), s.true_load - s.true_recompute, s.true_recompute - s.true_load)

    def bound(self, s: View) -> Any:
        """Both estimates may be off, in opposite directions."""
        return s.load_error + s.recompute_error


class GreaterError(Choice):
    """The regret is taken to be at most the greater of the errors."""

    def bound(self, s: View) -> Any:
        """The maximum."""
        return z3.If(s.load_error > s.recompute_error, s.load_error, s.recompute_error)


class HitsAlwaysLoad(Choice):
    """Every hit is loaded, whatever the estimates say."""

    def loads(self, s: View) -> Formula:
        """Always."""
        return z3.BoolVal(True)


class Backlog(System):
    """Synchronous loading as a queue: every `A` seconds a load of `S` seconds of work arrives; `w` is the work left.

    w' = max(0, w + S - A) after each of `steps` arrivals; at first it is `start`.
    """

    A = Rigid(Real)
    S = Rigid(Real)
    start = Rigid(Real)

    w = State(Real)
    steps = State(Real)

    def axioms(self, s: View) -> list[Formula]:
        """Arrivals and services take time."""
        return [s.A > 0, s.S > 0, s.start >= 0]

    def sized(self, s: View, size: int) -> list[Formula]:
        """Figures up to the size."""
        return [figure <= size for figure in (s.A, s.S, s.start)]

    def init(self, s: View) -> list[Formula]:
        """The first backlog."""
        return [s.w == s.start, s.steps == 0]

    def left(self, s: View) -> Any:
        """The work left when the next load arrives."""
        rest = s.w + s.S - s.A
        return z3.If(rest > 0, rest, 0)

    @action()
    def arrive(self, s: View) -> Step:
        """The next load arrives."""
        return Step(True, w=self.left(s), steps=s.steps + 1)

    def stable(self, s: View) -> Formula:
        """When the backlog is claimed to be bounded."""
        return s.S <= s.A

    def invariant(self, s: View) -> dict[str, Formula]:
        """Bounded by where it began, or grown by S - A at each step."""
        return {
            "natural": z3.And(s.w >= 0, s.steps >= 0),
            "bounded": z3.Implies(s.S <= s.A, s.w <= s.start),
            "grows": z3.Implies(s.S > s.A, s.w >= s.start + s.steps * (s.S - s.A)),
            "steps": z3.Or(s.steps == 0, s.steps >= 1),
        }

    def safety(self, s: View) -> dict[str, Formula]:
        """What is claimed of every reachable state."""
        return {"backlog": z3.And(
            s.w >= 0,
            z3.Implies(self.stable(s), s.w <= s.start),
            z3.Implies(z3.Not(self.stable(s)), z3.And(
                s.w >= s.start + s.steps * (s.S - s.A), z3.Implies(s.steps >= 1, s.w > s.start))))}


class StrictlyStable(Backlog):
    """The backlog is taken to grow unless service is strictly faster than arrivals."""

    def stable(self, s: View) -> Formula:
        """Iff S < A."""
        return s.S < s.A


class IdleCredit(Backlog):
    """Idle time is carried over as if it could be worked ahead."""

    def left(self, s: View) -> Any:
        """No maximum with 0."""
        return s.w + s.S - s.A


class Split(Theory):
    """`rate` requests/s of `size` bytes each over W instances of B bytes/s; utilisation of one and of each of W."""

    rate = Rigid(Real)
    bytes = Rigid(Real)
    B = Rigid(Real)
    W = Rigid(Real)
    rho = Rigid(Real)
    each = Rigid(Real)

    def axioms(self, s: View) -> list[Formula]:
        """Positive figures; W is one or more; rho = rate bytes / B."""
        return [s.rate > 0, s.bytes > 0, s.B > 0, s.W >= 1, s.rho * s.B == s.rate * s.bytes]

    def sized(self, s: View, size: int) -> list[Formula]:
        """Figures up to the size."""
        return [figure <= size + 1 for figure in (s.rate, s.bytes, s.B, s.W)]

    def part(self, s: View) -> Any:
        """W times what one instance is asked for of a prompt, in bytes."""
        return s.bytes

    def bandwidth(self, s: View) -> Any:
        """W times the bandwidth of one instance."""
        return s.B * s.W

    def instance(self, s: View) -> Formula:
        """The one of each: rate (part / W) / (bandwidth / W), without the quotients."""
        return s.each * self.bandwidth(s) == s.rate * self.part(s)


class AllFromEach(Split):
    """Each instance is asked for the whole prompt."""

    def part(self, s: View) -> Any:
        """All of it, so W times as much over all."""
        return s.bytes * s.W


class OneLink(Split):
    """The instances share one link."""

    def bandwidth(self, s: View) -> Any:
        """One link's bandwidth is all there is."""
        return s.B


_POSITIVE = "all real figures: n, s, R, B > 0, T0 >= 0"
_NRA = "NRA"
_SIZES = ((1, 1), (1, 2), (1, 4))

OBLIGATIONS: tuple[Obligation, ...] = (
    Fact(
        id="cost.break-even", theory=Cost, scope=_POSITIVE, fragment=_NRA, sizes=_SIZES,
        claim="without a fixed cost a hit wins iff B > B* = sR: the prompt's length cancels out",
        hypotheses=lambda theory, s: [s.T0 == 0],
        goal=lambda theory, s: theory.wins(s) == (theory.threshold(s) < s.B),
        interesting=lambda theory, s: [s.B == 2, s.s * s.R == 1],
        mutants=(
            Mutant("inverted", "R is taken for seconds a token: s / R", Inverted,
                   "the verdict contradicts the times: here a hit that loads faster is recomputed"),
            Mutant("with-length", "the threshold is taken to grow with the prompt's length", WithLength,
                   "the verdict changes with a length that cancels out"),
            Mutant("bits", "B is taken for bits a second", Bits, "a hit that would win is recomputed"),
        ),
    ),
    Fact(
        id="cost.least-tokens", theory=FixedCost, scope=_POSITIVE, fragment=_NRA, sizes=_SIZES,
        claim="with a fixed cost T0 and B > sR a hit wins iff n > n* = T0 / (1/R - s/B)",
        hypotheses=lambda theory, s: [theory.fast(s), theory.tokens(s)],
        goal=lambda theory, s: theory.wins(s) == (s.n > s.least),
        interesting=lambda theory, s: [s.T0 == 1, s.n > s.least],
        mutants=(
            Mutant("no-bandwidth", "n* = T0 R, as if the transfer took no time", NoBandwidth,
                   "a hit of more than n* tokens takes longer to load than to recompute"),
            Mutant("any-bandwidth", "n* is used below the threshold B*", AnyBandwidth,
                   "n* is negative, and every hit is loaded although none can win"),
        ),
    ),
    Fact(
        id="cost.floor", theory=FixedCost, scope=f"{_POSITIVE}; every B > sR", fragment=_NRA, sizes=_SIZES,
        claim="n* >= T0 R for every B > sR: no bandwidth makes a shorter prompt pay, and n* > T0 R when T0 > 0",
        hypotheses=lambda theory, s: [theory.fast(s), theory.tokens(s)],
        goal=lambda theory, s: all_of(
            s.least >= theory.floor(s), z3.Implies(s.T0 > 0, s.least > theory.floor(s))),
        interesting=lambda theory, s: [s.T0 == 1],
        mutants=(
            Mutant("any-bandwidth", "n* is used below the threshold B*", AnyBandwidth,
                   "n* is negative, less than T0 R"),
            Mutant("transfer-too", "the floor is taken to contain the transfer", TransferToo,
                   "n* is less than that floor: prompts that pay are ruled out"),
        ),
    ),
    Fact(
        id="cost.regret", theory=Choice, scope="all times, estimates and errors", fragment="LRA", sizes=_SIZES,
        claim="choosing the lesser estimate costs at most the sum of both estimates' errors more than the better way",
        goal=lambda theory, s: theory.regret(s) <= theory.bound(s),
        interesting=lambda theory, s: [theory.regret(s) == theory.bound(s), theory.regret(s) == 1],
        mutants=(
            Mutant("greater-error", "the greater of the two errors is taken for the bound", GreaterError,
                   "both estimates are off in opposite directions, and the regret is the sum of the errors"),
            Mutant("always-load", "a hit is always loaded", HitsAlwaysLoad,
                   "the estimates were right, and the hit costs more than recomputing by any amount"),
        ),
    ),
    Always(
        id="cost.backlog", theory=Backlog, scope="all A, S > 0, constant; any backlog at first; any number of arrivals",
        fragment=_NRA, safety="backlog", sizes=_SIZES, depth=3,
        claim="for arrivals every A and service S the backlog is bounded iff S <= A",
        assumes=(
            "bounded means never above its start",
            "unbounded means at least k (S - A) after k arrivals, which passes every bound as reals are Archimedean",
        ),
        sometimes=lambda theory, s: z3.And(s.S > s.A, s.w == 2, s.start == 0),
        mutants=(
            Mutant("strictly", "bounded iff S < A", StrictlyStable,
                   "with S = A the backlog stays where it was, and is taken to grow",
                   "when the backlog is bounded: that is what is claimed"),
            Mutant("idle-credit", "idle time is carried over", IdleCredit,
                   "the backlog is negative: a load would be served before it arrives"),
        ),
    ),
    Fact(
        id="cost.split", theory=Split, scope="all rates, sizes and bandwidths, all real W >= 1", fragment=_NRA,
        sizes=_SIZES,
        claim="splitting each prompt evenly over W instances divides the utilisation of each by W",
        hypotheses=lambda theory, s: [theory.instance(s)],
        goal=lambda theory, s: s.each * s.W == s.rho,
        interesting=lambda theory, s: [s.W == 2, s.rho > 1, s.each < 1],
        mutants=(
            Mutant("all-from-each", "every instance is asked for the whole prompt", AllFromEach,
                   "each instance is as busy as the one was"),
            Mutant("one-link", "the instances share one link", OneLink, "each instance is as busy as the one was"),
        ),
    ),
)
