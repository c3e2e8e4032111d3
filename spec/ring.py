"""ring: which keys move when a replica joins, without bounded loads and with them; claims of `routing`."""

from __future__ import annotations

from typing import Any

import z3

from kvproof.spec.obligation import Fact, Mutant, Obligation
from kvproof.spec.theory import Bool, Formula, Int, Rank, Rigid, Theory, View, exists, forall, within


class Ring(Theory):
    """A ring: a key belongs to the replica with the nearest point clockwise of it; replica `new` joins the `old` ones.

    `distance(k, r)` is how far replica r's nearest point lies from key k, whatever number of points it has; no two
    replicas are equally far. `before(k)` and `after(k)` are where key k belongs without and with `new`.
    """

    old = Rigid(Rank, Bool)
    new = Rigid(Rank)
    distance = Rigid(Int, Rank, Int)
    before = Rigid(Int, Rank)
    after = Rigid(Int, Rank)

    def axioms(self, s: View) -> list[Formula]:
        """The new replica is none of the old ones; distances differ."""
        return [
            z3.Not(s.old(s.new)),
            forall(Int, Rank, Rank, lambda k, r, q: z3.Implies(s.distance(k, r) == s.distance(k, q), r == q)),
            forall(Int, Rank, lambda k, r: s.distance(k, r) >= 0),
        ]

    def sized(self, s: View, size: int) -> list[Formula]:
        """Distances up to five."""
        return [forall(Int, Rank, lambda k, r: s.distance(k, r) <= 5)]

    def placed_before(self, s: View) -> Formula:
        """Every key belongs to the nearest of the old replicas."""
        return forall(Int, lambda k: z3.And(s.old(s.before(k)), forall(Rank, lambda r: z3.Implies(
            s.old(r), s.distance(k, s.before(k)) <= s.distance(k, r)))))

    def far(self, s: View, k: Any, r: Any) -> Any:
        """How far replica r is from key k once the new one has joined."""
        return s.distance(k, r)

    def placed_after(self, s: View) -> Formula:
        """Every key belongs to the nearest of all of these."""
        return forall(Int, lambda k: z3.And(
            z3.Or(s.old(s.after(k)), s.after(k) == s.new),
            forall(Rank, lambda r: z3.Implies(
                z3.Or(s.old(r), r == s.new), self.far(s, k, s.after(k)) <= self.far(s, k, r)))))


class Respaced(Ring):
    """The points are spread evenly over the ring for the number of replicas, so all of them move."""

    moved = Rigid(Int, Rank, Int)

    def axioms(self, s: View) -> list[Formula]:
        """These differ too."""
        return [*super().axioms(s), forall(Int, Rank, Rank, lambda k, r, q: z3.Implies(
            s.moved(k, r) == s.moved(k, q), r == q))]

    def far(self, s: View, k: Any, r: Any) -> Any:
        """New points, new distances."""
        return s.moved(k, r)

    def sized(self, s: View, size: int) -> list[Formula]:
        """Distances up to five here too."""
        return [*super().sized(s, size), forall(Int, Rank, lambda k, r: within(0, s.moved(k, r), 6))]


class Modulo(Ring):
    """No ring: key k belongs to the replica whose number is k mod the number of replicas."""

    number = Rigid(Rank, Int)
    count = Rigid(Int)
    quotient = Rigid(Int, Int)
    later_quotient = Rigid(Int, Int)

    def axioms(self, s: View) -> list[Formula]:
        """The old replicas have the numbers 0 .. count - 1, the new one has the next."""
        return [
            *super().axioms(s), s.count >= 1, s.number(s.new) == s.count,
            forall(Rank, lambda r: s.old(r) == (r != s.new)),
            forall(Rank, lambda r: z3.Implies(r != s.new, within(0, s.number(r), s.count))),
            forall(Rank, Rank, lambda r, q: z3.Implies(s.number(r) == s.number(q), r == q)),
            forall(Int, lambda i: z3.Implies(within(0, i, s.count), exists(Rank, lambda r: s.number(r) == i))),
        ]

    def sized(self, s: View, size: int) -> list[Formula]:
        """As many replicas as there are numbers up to the size."""
        return [*super().sized(s, size), s.count <= size]

    def placed_before(self, s: View) -> Formula:
        """With k = quotient count + number."""
        return forall(Int, lambda k: z3.And(
            s.number(s.before(k)) < s.count, k == s.quotient(k) * s.count + s.number(s.before(k))))

    def placed_after(self, s: View) -> Formula:
        """With k = quotient (count + 1) + number."""
        return forall(Int, lambda k: k == s.later_quotient(k) * (s.count + 1) + s.number(s.after(k)))


class BoundedRing(Theory):
    """Two old replicas and a new one, and two keys, `a` placed before `b`, with bounded loads on a ring.

    A key goes to the nearest replica with room below ceil((1 + eps) 2 / W), for W = 2 and then 3.
    """

    first = Rigid(Rank)
    second = Rigid(Rank)
    new = Rigid(Rank)
    far_a = Rigid(Rank, Int)
    far_b = Rigid(Rank, Int)
    unit = Rigid(Int)
    over = Rigid(Int)
    bound = Rigid(Int)
    later_bound = Rigid(Int)
    a = Rigid(Rank)
    b = Rigid(Rank)
    later_a = Rigid(Rank)
    later_b = Rigid(Rank)

    def axioms(self, s: View) -> list[Formula]:
        """Three replicas, different distances, eps = over / unit, and both bounds by their quotients."""
        return [
            z3.Distinct(s.first, s.second, s.new),
            forall(Rank, lambda r: z3.Or(r == s.first, r == s.second, r == s.new)),
            z3.Distinct(*[s.far_a(r) for r in (s.first, s.second, s.new)]),
            z3.Distinct(*[s.far_b(r) for r in (s.first, s.second, s.new)]),
            forall(Rank, lambda r: z3.And(s.far_a(r) >= 0, s.far_b(r) >= 0)),
            s.unit >= 1, s.over >= 1,
            within(2 * s.unit * (s.bound - 1), 2 * (s.unit + s.over) - 1, 2 * s.unit * s.bound),
            within(3 * s.unit * (s.later_bound - 1), 2 * (s.unit + s.over) - 1, 3 * s.unit * s.later_bound),
        ]

    def sized(self, s: View, size: int) -> list[Formula]:
        """Distances up to two, eps of small figures."""
        return [forall(Rank, lambda r: z3.And(s.far_a(r) <= 2, s.far_b(r) <= 2)), s.unit <= size, s.over <= size]

    def nearest(self, replicas: tuple[Any, ...], far: Any, taken: Any, bound: Any, chosen: Any) -> Formula:
        """`chosen` is the nearest of the replicas with room; `taken` already has one key."""
        def room(r: Any) -> Formula:
            return z3.If(r == taken, 1, 0) < bound if taken is not None else bound > 0
        return z3.And(
            z3.Or(*[chosen == r for r in replicas]), room(chosen),
            *[z3.Implies(room(r), far(chosen) <= far(r)) for r in replicas])

    def placed(self, s: View) -> list[Formula]:
        """Where both keys belong, without and with the new replica."""
        old, everybody = (s.first, s.second), (s.first, s.second, s.new)
        return [
            self.nearest(old, s.far_a, None, s.bound, s.a), self.nearest(old, s.far_b, s.a, s.bound, s.b),
            self.nearest(everybody, s.far_a, None, s.later_bound, s.later_a),
            self.nearest(everybody, s.far_b, s.later_a, s.later_bound, s.later_b),
        ]


_UF = "UFLIA with quantifiers"

RING: tuple[Obligation, ...] = (
    Fact(
        id="routing.ring", theory=Ring, scope="any number of replicas, points of a replica, and keys", fragment=_UF,
        claim="on the ring without bounds adding a replica moves no key between the others",
        hypotheses=lambda theory, s: [theory.placed_before(s), theory.placed_after(s)],
        goal=lambda theory, s: forall(Int, lambda k: z3.Or(s.after(k) == s.before(k), s.after(k) == s.new)),
        interesting=lambda theory, s: [s.after(0) == s.new, s.after(1) == s.before(1), s.before(0) != s.before(1)],
        sizes=((2, 1), (3, 1), (3, 2), (3, 3)),
        mutants=(
            Mutant("respaced", "all points are spread anew when a replica joins", Respaced,
                   "a key has moved from one old replica to another"),
            Mutant("modulo", "a key belongs to replica k mod the number of replicas", Modulo,
                   "a key has moved from one old replica to another"),
        ),
    ),
    Fact(
        id="routing.ring-bounded", theory=BoundedRing, limit=True, fragment=_UF,
        scope="two replicas, a third that joins, two keys, any eps > 0",
        claim="with bounded loads adding a replica moves no key between the others",
        hypotheses=lambda theory, s: theory.placed(s),
        goal=lambda theory, s: z3.And(
            z3.Or(s.later_a == s.a, s.later_a == s.new), z3.Or(s.later_b == s.b, s.later_b == s.new)),
        interesting=lambda theory, s: [s.later_b == s.new, s.later_a == s.a],
        sizes=((3, 1), (3, 2), (3, 3)),
    ),
)
