"""prefix: what ranks report, its minimum, the longest cached prefix, and the tokens given to the engine (facts: 1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import z3

from kvproof.spec.obligation import Fact, Mutant, Obligation
from kvproof.spec.theory import Bool, Formula, Int, Rank, Rigid, Theory, View, all_of, exists, forall, within
from kvproof.spec.tokens import TOKENS

Hits = Callable[[Any], Formula]


class Reports(Theory):
    """Each rank reports its least missing owned chunk; the scheduler takes the minimum.

    `n` chunks, of which rank `owner(c)` keeps chunk c. Nothing is computed here: each definition says what a value
    is, so it holds for whatever code arrives at that value.
    """

    n = Rigid(Int)
    owner = Rigid(Int, Rank)
    report = Rigid(Rank, Int)
    minimum = Rigid(Int)

    def axioms(self, s: View) -> list[Formula]:
        """A list has no negative length."""
        return [s.n >= 0]

    def sized(self, s: View, size: int) -> list[Formula]:
        """At most `size` chunks."""
        return [s.n <= size]

    def missing(self, s: View, hit: Hits, r: Any, c: Any) -> Formula:
        """Rank r owns chunk c and does not have it."""
        return z3.And(s.owner(c) == r, z3.Not(hit(c)))

    def first(self, s: View, hit: Hits, r: Any, value: Any) -> list[Formula]:
        """`value` is the least chunk that r owns and misses, n when there is none."""
        return [
            within(0, value, s.n + 1),
            z3.Or(value == s.n, self.missing(s, hit, r, value)),
            forall(Int, lambda c: z3.Implies(within(0, c, value), z3.Not(self.missing(s, hit, r, c)))),
        ]

    def reports(self, s: View, hit: Hits, report: Any) -> Formula:
        """What every rank reports."""
        return forall(Rank, lambda r: all_of(*self.first(s, hit, r, report(r))))

    def chosen(self, s: View, report: Any, value: Any) -> Formula:
        """`value` is the minimum of the reports."""
        return z3.And(forall(Rank, lambda r: value <= report(r)), exists(Rank, lambda r: report(r) == value))

    def cached(self, s: View, hit: Hits, value: Any) -> Formula:
        """`value` is the length of the longest prefix of which every chunk is cached."""
        return z3.And(
            within(0, value, s.n + 1),
            forall(Int, lambda c: z3.Implies(within(0, c, value), hit(c))),
            z3.Or(value == s.n, z3.Not(hit(value))),
        )


class Prefix(Reports):
    """What ranks report beside the longest cached prefix: `hit(c)` says that its owner has chunk c."""

    hit = Rigid(Int, Bool)
    longest = Rigid(Int)


class Maximum(Prefix):
    """The scheduler takes the maximum."""

    def chosen(self, s: View, report: Any, value: Any) -> Formula:
        """`value` is the maximum of the reports."""
        return z3.And(forall(Rank, lambda r: value >= report(r)), exists(Rank, lambda r: report(r) == value))


class Count(Prefix):
    """A rank reports how many owned chunks it has up to its first miss, not where that lies in the whole list."""

    least = Rigid(Rank, Int)
    count = Rigid(Rank, Int, Int)

    def reports(self, s: View, hit: Hits, report: Any) -> Formula:
        """`count(r, c)` is how many of the chunks before c rank r owns; a rank without chunks reports n."""
        return forall(Rank, lambda r: z3.And(
            *self.first(s, hit, r, s.least(r)),
            s.count(r, 0) == 0,
            forall(Int, lambda c: z3.Implies(
                within(0, c, s.n), s.count(r, c + 1) == s.count(r, c) + z3.If(s.owner(c) == r, 1, 0))),
            report(r) == z3.If(s.count(r, s.n) == 0, s.n, s.count(r, s.least(r))),
        ))


class NothingIsZero(Prefix):
    """A rank that owns nothing reports 0."""

    least = Rigid(Rank, Int)

    def reports(self, s: View, hit: Hits, report: Any) -> Formula:
        """Report 0 for an empty list of own chunks."""
        return forall(Rank, lambda r: z3.And(
            *self.first(s, hit, r, s.least(r)),
            report(r) == z3.If(exists(Int, lambda c: z3.And(within(0, c, s.n), s.owner(c) == r)), s.least(r), 0),
        ))


class PastTheHole(Prefix):
    """The loop goes on after a miss, so the report is the end of the last owned hit."""

    def first(self, s: View, hit: Hits, r: Any, value: Any) -> list[Formula]:
        """`value` lies just after the last owned hit (n when nothing is missing)."""
        whole = forall(Int, lambda c: z3.Implies(within(0, c, s.n), z3.Not(self.missing(s, hit, r, c))))
        return [
            within(0, value, s.n + 1),
            z3.Implies(whole, value == s.n),
            z3.Implies(z3.Not(whole), all_of(
                z3.Or(value == 0, z3.And(s.owner(value - 1) == r, hit(value - 1))),
                forall(Int, lambda c: z3.Implies(within(value, c, s.n), z3.Not(z3.And(s.owner(c) == r, hit(c))))),
            )),
        ]


class Change(Reports):
    """The same list before and after chunks were added: `hit` before, `later` after."""

    hit = Rigid(Int, Bool)
    later = Rigid(Int, Bool)
    later_report = Rigid(Rank, Int)
    later_minimum = Rigid(Int)

    def added(self, s: View) -> Formula:
        """Adding takes nothing away."""
        return forall(Int, lambda c: z3.Implies(s.hit(c), s.later(c)))

    def evicted(self, s: View) -> Formula:
        """Evicting brings nothing."""
        return forall(Int, lambda c: z3.Implies(s.later(c), s.hit(c)))

    def after(self, s: View) -> list[Formula]:
        """What the ranks report after the change, and its minimum."""
        return [self.reports(s, s.later, s.later_report), self.chosen(s, s.later_report, s.later_minimum)]


class Displaces(Change):
    """Adding a chunk to a full store displaces another one."""

    displaced = Rigid(Int)

    def added(self, s: View) -> Formula:
        """Everything stays but one chunk."""
        return forall(Int, lambda c: z3.Implies(z3.And(s.hit(c), c != s.displaced), s.later(c)))


class NoHitsIsAll(Change):
    """A rank in which a lookup finds nothing at all is taken for one that owns nothing, and reports n."""

    least = Rigid(Rank, Int)
    later_least = Rigid(Rank, Int)

    def reports(self, s: View, hit: Hits, report: Any) -> Formula:
        """Report n when the list of owned hits is empty."""
        least = s.least if report is s.report else s.later_least
        return forall(Rank, lambda r: z3.And(
            *self.first(s, hit, r, least(r)),
            report(r) == z3.If(exists(Int, lambda c: z3.And(within(0, c, s.n), s.owner(c) == r, hit(c))),
                               least(r), s.n),
        ))


class TwoTiers(Reports):
    """A rank has a chunk in its own memory (`l1`) or in the remote store (`l2`)."""

    l1 = Rigid(Rank, Int, Bool)
    l2 = Rigid(Int, Bool)
    longest = Rigid(Int)

    def found(self, s: View, r: Any, c: Any) -> Formula:
        """What rank r finds of its own chunk c."""
        return z3.Or(s.l1(r, c), s.l2(c))

    def missing(self, s: View, hit: Hits, r: Any, c: Any) -> Formula:
        """Rank r owns chunk c and finds it nowhere; what is cached (`hit`) is for the claim to compare with."""
        return z3.And(s.owner(c) == r, z3.Not(self.found(s, r, c)))

    def anywhere(self, s: View, c: Any) -> Formula:
        """Chunk c is cached: in its owner's memory, or in the store."""
        return z3.Or(s.l1(s.owner(c), c), s.l2(c))


class FirstTierOnly(TwoTiers):
    """The lookup asks the first tier only."""

    def found(self, s: View, r: Any, c: Any) -> Formula:
        """In memory."""
        return s.l1(r, c)


class SecondTierOnly(TwoTiers):
    """After the first miss in memory the rest is looked for in the store alone."""

    def found(self, s: View, r: Any, c: Any) -> Formula:
        """In memory if everything owned before is in memory too, in the store otherwise."""
        def earlier(d: Any) -> Formula:
            return z3.And(within(0, d, c), s.owner(d) == r, z3.Not(s.l1(r, d)))
        return z3.If(exists(Int, earlier), s.l2(c), z3.Or(s.l1(r, c), s.l2(c)))


class RoundRobin(Theory):
    """Chunk c belongs to rank c mod W, so the j-th chunk of rank r is `own(j)` = jW + r."""

    W = Rigid(Int)
    n = Rigid(Int)
    r = Rigid(Int)
    k = Rigid(Int)
    own = Rigid(Int, Int)
    hit = Rigid(Int, Bool)
    report = Rigid(Int)
    at = Rigid(Int)

    def axioms(self, s: View) -> list[Formula]:
        """A rank's own chunks are W apart."""
        return [
            s.W >= 1, s.n >= 0, within(0, s.r, s.W), s.k >= 0, s.at >= 0,
            forall(Int, lambda j: s.own(j) == j * s.W + s.r),
        ]

    def sized(self, s: View, size: int) -> list[Formula]:
        """At most `size` chunks and one rank more."""
        return [s.n <= size, within(1, s.W, size + 2), s.k <= size, s.at <= size]

    def consecutive(self, s: View) -> list[Formula]:
        """Rank r has k consecutive hits in its own list and then a miss, or its list ends."""
        return [
            forall(Int, lambda j: z3.Implies(z3.And(within(0, j, s.k), s.own(j) < s.n), s.hit(s.own(j)))),
            z3.Or(s.own(s.k) >= s.n, z3.Not(s.hit(s.own(s.k)))),
        ]

    def first(self, s: View) -> list[Formula]:
        """The report is the least chunk that r owns and misses (its `at`-th), n when there is none."""
        return [
            within(0, s.report, s.n + 1),
            z3.Or(s.report == s.n, z3.And(s.report == s.own(s.at), z3.Not(s.hit(s.report)))),
            forall(Int, lambda j: z3.Implies(z3.And(j >= 0, s.own(j) < s.report), s.hit(s.own(j)))),
        ]

    def place(self, s: View) -> Formula:
        """Where the k-th own chunk lies in the whole list."""
        return s.k * s.W + s.r

    def computed(self, s: View) -> Formula:
        """What the rank computes from k."""
        return z3.If(self.place(s) < s.n, self.place(s), s.n)


class ForgetsRank(RoundRobin):
    """The rank's own place in a round is forgotten: kW."""

    def place(self, s: View) -> Formula:
        """Multiply only."""
        return s.k * s.W


class NoCap(RoundRobin):
    """The product is not cut off at the list's end."""

    def computed(self, s: View) -> Formula:
        """Whatever comes out."""
        return self.place(s)


_ANY = "all W, all n, any owner map"
_UF = "UFLIA with quantifiers"
_FINITE = ("the minimum of the reports is one of them, as the ranks are finitely many",)


def _minimum(theory: Any, s: View) -> list[Formula]:
    return [theory.reports(s, s.hit, s.report), theory.chosen(s, s.report, s.minimum)]


def _two_ranks(theory: Any, s: View) -> list[Formula]:
    """Two ranks own a chunk each, and one of several chunks is missing."""
    return [s.owner(0) != s.owner(1), s.minimum == 1, s.n == 2]


def _change(theory: Any, s: View) -> list[Formula]:
    return [*_minimum(theory, s), *theory.after(s)]


def _tier_reports(theory: Any, s: View) -> list[Formula]:
    def cached(c: Any) -> Formula:
        found: Formula = theory.anywhere(s, c)
        return found

    return [
        theory.reports(s, cached, s.report), theory.chosen(s, s.report, s.minimum),
        theory.cached(s, cached, s.longest),
    ]


OBLIGATIONS: tuple[Obligation, ...] = (
    Fact(
        id="prefix.minimum", theory=Prefix, scope=_ANY, fragment=_UF, assumes=_FINITE,
        claim="the minimum over ranks of the first missing owned chunk is the longest cached prefix",
        hypotheses=lambda theory, s: [*_minimum(theory, s), theory.cached(s, s.hit, s.longest)],
        goal=lambda theory, s: s.minimum == s.longest,
        interesting=_two_ranks,
        mutants=(
            Mutant("maximum", "the scheduler takes the maximum of the reports", Maximum,
                   "the engine is promised a prefix in which a chunk of another rank is missing"),
            Mutant("count", "a rank reports how many owned chunks it hit, not where they end", Count,
                   "a rank's first chunk is not the prompt's first, so its count falls short of where it ends"),
            Mutant("owns-nothing", "a rank that owns nothing reports 0", NothingIsZero,
                   "a prompt with fewer chunks than ranks never hits"),
            Mutant("past-the-hole", "hits after a hole are counted: `continue` on a miss, not `break`", PastTheHole,
                   "the promised prefix has a hole"),
        ),
    ),
    Fact(
        id="prefix.round-robin", theory=RoundRobin,
        scope="all W, all n, every rank; round robin: the j-th chunk of rank r is jW + r",
        fragment="NIA with uninterpreted functions and quantifiers",
        claim="k consecutive owned hits of rank r mean the global chunk min(kW + r, n)",
        hypotheses=lambda theory, s: [*theory.consecutive(s), *theory.first(s)],
        goal=lambda theory, s: s.report == theory.computed(s),
        interesting=lambda theory, s: [s.W == 2, s.r == 1, s.k == 1, s.report == 3, s.n == 4],
        sizes=((1, 0), (1, 1), (1, 2), (1, 3), (1, 4)),
        mutants=(
            Mutant("forgets-rank", "kW: the rank's own place in the round is not added", ForgetsRank,
                   "the rank reports a chunk that belongs to rank 0, and a prefix too short"),
            Mutant("no-cap", "kW + r is not cut off at n", NoCap,
                   "the rank reports more chunks than the prompt has"),
        ),
    ),
    Fact(
        id="prefix.adding", theory=Change, scope=_ANY, fragment=_UF, assumes=_FINITE,
        claim="adding a chunk never shortens the reported prefix",
        hypotheses=lambda theory, s: [theory.added(s), *_change(theory, s)],
        goal=lambda theory, s: s.minimum <= s.later_minimum,
        interesting=lambda theory, s: [s.minimum < s.later_minimum, s.minimum == 1],
        mutants=(
            Mutant("displaces", "a put into a full store displaces a chunk of the same prompt", Displaces,
                   "after the put the prefix is shorter than before"),
        ),
    ),
    Fact(
        id="prefix.evicting", theory=Change, scope=_ANY, fragment=_UF, assumes=_FINITE,
        claim="evicting a chunk never lengthens the reported prefix",
        hypotheses=lambda theory, s: [theory.evicted(s), *_change(theory, s)],
        goal=lambda theory, s: s.later_minimum <= s.minimum,
        interesting=lambda theory, s: [s.minimum > s.later_minimum, s.later_minimum == 1],
        mutants=(
            Mutant("no-hits-is-all", "a rank with no hit left is taken for one that owns nothing", NoHitsIsAll,
                   "when its last hit is evicted a rank reports the whole prompt"),
        ),
    ),
    Fact(
        id="prefix.two-tiers", theory=TwoTiers, scope=f"{_ANY}; any contents of both tiers", fragment=_UF,
        assumes=_FINITE,
        claim="with two tiers a rank, the minimum is the longest prefix of which each chunk is in one of them",
        hypotheses=_tier_reports,
        goal=lambda theory, s: s.minimum == s.longest,
        interesting=lambda theory, s: [
            s.minimum == 2, s.owner(0) != s.owner(1), z3.Not(s.l2(0)), z3.Not(s.l1(s.owner(1), 1))],
        mutants=(
            Mutant("first-tier-only", "the lookup asks memory only", FirstTierOnly,
                   "what the store holds is computed again"),
            Mutant("second-tier-only", "after its first miss in memory a rank asks the store alone", SecondTierOnly,
                   "a chunk that is in memory ends the prefix"),
        ),
    ),
    TOKENS,
)
