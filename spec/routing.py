"""routing: one prefix on one replica, no replica above its bound, and what a new replica moves (facts: 2)."""

from __future__ import annotations

from typing import Any

import z3

from kvproof.spec.obligation import Always, Mutant, Obligation
from kvproof.spec.ring import RING
from kvproof.spec.system import Step, System, action
from kvproof.spec.theory import Bool, Formula, Int, Rank, Rigid, State, View, exists, forall, put, within


class Affinity(System):
    """A router sends each request to the home of its prefix, unless that replica is full (at its bound).

    Replicas are the ranks here. `known(p)` and `home(p)`: the router has sent prefix p somewhere before, and where.
    `kept(p, r)`: a request with prefix p went to r as the replica where it belongs; `away(p, r)`: one went there
    because its home was full; `strayed(p)`: one went away although its home had room; `crowded(r)`: one was
    sent to r although r was full. Replicas fill and drain at any time; a prefix that nobody knows goes to any replica
    that is not full, and that is its home from then on.
    """

    known = State(Int, Bool)
    home = State(Int, Rank)
    full = State(Rank, Bool)
    kept = State(Int, Rank, Bool)
    away = State(Int, Rank, Bool)
    strayed = State(Int, Bool)
    crowded = State(Rank, Bool)

    def init(self, s: View) -> list[Formula]:
        """No request yet."""
        return [
            forall(Int, lambda p: z3.Not(z3.Or(s.known(p), s.strayed(p)))),
            forall(Rank, lambda r: z3.Not(z3.Or(s.full(r), s.crowded(r)))),
            forall(Int, Rank, lambda p, r: z3.And(z3.Not(s.kept(p, r)), z3.Not(s.away(p, r)))),
        ]

    def affine(self, s: View, p: Any, r: Any) -> Formula:
        """The router takes r for the replica that a request with prefix p belongs to."""
        return z3.Or(z3.Not(s.known(p)), s.home(p) == r)

    def room(self, s: View, r: Any) -> Formula:
        """The router takes r for a replica that is not full."""
        return z3.Not(s.full(r))

    @action(p=Int, r=Rank)
    def send(self, s: View, p: Any, r: Any) -> Step:
        """A request with prefix p goes to the replica where it belongs."""
        ready = z3.And(self.room(s, r), self.affine(s, p, r))
        home = z3.If(s.known(p), s.home(p), r)
        return Step(ready, known=put(s.known, p, True), home=put(s.home, p, home), kept=put(s.kept, (p, r), True),
                    crowded=put(s.crowded, r, z3.Or(s.crowded(r), s.full(r))))

    def diverts(self, s: View, p: Any) -> Formula:
        """The router sends a request away from the home of its prefix: that is full."""
        return s.full(s.home(p))

    @action(p=Int, r=Rank)
    def divert(self, s: View, p: Any, r: Any) -> Step:
        """The request goes elsewhere, and the home stays what it was."""
        ready = z3.And(s.known(p), self.diverts(s, p), s.home(p) != r, self.room(s, r))
        strayed = z3.Or(s.strayed(p), z3.Not(s.full(s.home(p))))
        return Step(ready, away=put(s.away, (p, r), True), strayed=put(s.strayed, p, strayed),
                    crowded=put(s.crowded, r, z3.Or(s.crowded(r), s.full(r))))

    @action(fair=False, r=Rank)
    def fill(self, s: View, r: Any) -> Step:
        """A replica comes to its bound, or gets below it again."""
        return Step(True, full=put(s.full, r, z3.Not(s.full(r))))

    def invariant(self, s: View) -> dict[str, Formula]:
        """What was kept was kept at home, and nothing left it needlessly."""
        return {
            "home": forall(Int, Rank, lambda p, r: z3.Implies(s.kept(p, r), z3.And(s.known(p), s.home(p) == r))),
            "stays": forall(Int, lambda p: z3.Not(s.strayed(p))),
            "room": forall(Rank, lambda r: z3.Not(s.crowded(r))),
        }

    def safety(self, s: View) -> dict[str, Formula]:
        """What is claimed of every reachable state."""
        return {"one-replica": z3.And(
            forall(Int, Rank, Rank, lambda p, r, q: z3.Implies(z3.And(s.kept(p, r), s.kept(p, q)), r == q)),
            forall(Int, lambda p: z3.Not(s.strayed(p))), forall(Rank, lambda r: z3.Not(s.crowded(r))))}


class MovesHome(Affinity):
    """A diverted request takes its prefix's home with it."""

    @action(p=Int, r=Rank)
    def divert(self, s: View, p: Any, r: Any) -> Step:
        """The home is where the last request went."""
        step = super().divert(s, p, r)
        return Step(step.guard, **step.changes, home=put(s.home, p, r))


class DivertsEarly(Affinity):
    """A request may leave its home for any other replica, full or not."""

    def diverts(self, s: View, p: Any) -> Formula:
        """Whenever another one has room."""
        return z3.BoolVal(True)


class Overfills(Affinity):
    """Nobody looks whether a replica has room."""

    def room(self, s: View, r: Any) -> Formula:
        """All the same."""
        return z3.BoolVal(True)


class LeastLoaded(Affinity):
    """Requests go to any replica that is not full."""

    def affine(self, s: View, p: Any, r: Any) -> Formula:
        """All the same."""
        return z3.BoolVal(True)


class WholePrompt(Affinity):
    """The home is that of the whole prompt, the prefix and what follows it."""

    prompt = Rigid(Int, Int)
    homes = State(Int, Rank)
    seen = State(Int, Bool)

    def init(self, s: View) -> list[Formula]:
        """No prompt yet."""
        return [*super().init(s), forall(Int, lambda d: z3.Not(s.seen(d)))]

    @action(p=Int, r=Rank, d=Int)
    def send(self, s: View, p: Any, r: Any, d: Any) -> Step:
        """Prompt d begins with prefix p = prompt(d)."""
        ready = z3.And(s.prompt(d) == p, z3.Not(s.full(r)), z3.Or(z3.Not(s.seen(d)), s.homes(d) == r))
        return Step(ready, seen=put(s.seen, d, True), homes=put(s.homes, d, r), kept=put(s.kept, (p, r), True))

    divert = None  # type: ignore[assignment]  # takes the action out


class Bounded(System):
    """Requests are placed on replicas with room below ceil((1 + eps) total / W), total counting the new one.

    eps = over / unit. `bound` is the quotient rounded up: (bound - 1) W unit < (unit + over) total <= bound W unit.
    """

    W = Rigid(Int)
    unit = Rigid(Int)
    over = Rigid(Int)
    whole = Rigid(Int)
    number = Rigid(Rank, Int)

    load = State(Rank, Int)
    total = State(Int)
    bound = State(Int)

    def axioms(self, s: View) -> list[Formula]:
        """W is the number of replicas, which are numbered; eps is positive; `whole` = W unit."""
        return [
            s.W >= 1, s.unit >= 1, s.over >= 1, s.whole == s.W * s.unit,
            forall(Rank, lambda r: within(0, s.number(r), s.W)),
            forall(Rank, Rank, lambda r, q: z3.Implies(s.number(r) == s.number(q), r == q)),
            forall(Int, lambda i: z3.Implies(within(0, i, s.W), exists(Rank, lambda r: s.number(r) == i))),
        ]

    def sized(self, s: View, size: int) -> list[Formula]:
        """Replicas that can be numbered within the size; eps = 1/3."""
        return [s.unit == 3, s.over == 1, within(1, s.W, size + 2)]

    def init(self, s: View) -> list[Formula]:
        """No request yet."""
        return [forall(Rank, lambda r: s.load(r) == 0), s.total == 0, s.bound == 0]

    def rounded_up(self, s: View, value: Any, total: Any) -> Formula:
        """`value` is ceil((1 + eps) total / W)."""
        share = (s.unit + s.over) * total
        return z3.And((value - 1) * s.whole < share, share <= value * s.whole)

    def room(self, s: View, r: Any, bound: Any) -> Formula:
        """Replica r may take one more."""
        return s.load(r) < bound

    @action(r=Rank, b=Int)
    def place(self, s: View, r: Any, b: Any) -> Step:
        """A request goes to a replica with room; b is the bound with this request counted."""
        ready = z3.And(self.rounded_up(s, b, s.total + 1), self.room(s, r, b))
        return Step(ready, load=put(s.load, r, s.load(r) + 1), total=s.total + 1, bound=b)

    def invariant(self, s: View) -> dict[str, Formula]:
        """The bound is that of the total, and nobody is above it."""
        return {
            "total": s.total >= 0,
            "bound": self.rounded_up(s, s.bound, s.total),
            "loads": forall(Rank, lambda r: z3.And(s.load(r) >= 0, s.load(r) <= s.bound)),
        }

    def safety(self, s: View) -> dict[str, Formula]:
        """What is claimed of every reachable state."""
        return {"bounded": z3.And(
            self.rounded_up(s, s.bound, s.total), forall(Rank, lambda r: s.load(r) <= s.bound))}


class OffByOne(Bounded):
    """A replica at its bound takes one more."""

    def room(self, s: View, r: Any, bound: Any) -> Formula:
        """At most, where less is needed."""
        return s.load(r) <= bound


class NextUnasked(Bounded):
    """When the home is full the next replica on the ring takes the request unasked."""

    next = Rigid(Rank, Rank)

    @action(r=Rank, b=Int)
    def overflow(self, s: View, r: Any, b: Any) -> Step:
        """On to the next."""
        ready = z3.And(self.rounded_up(s, b, s.total + 1), z3.Not(self.room(s, r, b)))
        n = s.next(r)
        return Step(ready, load=put(s.load, n, s.load(n) + 1), total=s.total + 1, bound=b)


class Leaves(Bounded):
    """Requests also end, wherever they are, and nobody moves the others."""

    @action(r=Rank, b=Int)
    def end(self, s: View, r: Any, b: Any) -> Step:
        """The average falls."""
        ready = z3.And(s.load(r) > 0, self.rounded_up(s, b, s.total - 1))
        return Step(ready, load=put(s.load, r, s.load(r) - 1), total=s.total - 1, bound=b)


_UF = "UFLIA with quantifiers"
_REPLICAS = ((1, 0), (2, 0), (2, 1), (3, 1), (3, 2), (3, 3))


def _affine_witness(theory: Any, s: View) -> Formula:
    """A prefix has been kept at home and sent away."""
    return exists(Int, Rank, Rank, lambda p, r, q: z3.And(s.kept(p, r), s.away(p, q), r != q))


OBLIGATIONS: tuple[Obligation, ...] = (
    Always(
        id="routing.one-replica", theory=Affinity, scope="any number of replicas, prefixes and requests", fragment=_UF,
        claim="all requests with one prefix go to one replica, but while that is full, and none to a full one",
        safety="one-replica", sometimes=_affine_witness, sizes=_REPLICAS[1:4], depth=5,
        mutants=(
            Mutant("moves-home", "a request that is diverted takes its prefix's home with it", MovesHome,
                   "two replicas have computed the prefix, and neither was full when it was sent there"),
            Mutant("diverts-early", "a request is diverted although its home has room", DivertsEarly,
                   "its prefix is computed again, where the home had it and had room"),
            Mutant("overfills", "a request goes to its home although that is full", Overfills,
                   "the replica was at its bound, and was given one more"),
            Mutant("least-loaded", "a request goes to any replica with room", LeastLoaded,
                   "two replicas have computed the prefix"),
            Mutant("whole-prompt", "the home is looked up by the whole prompt", WholePrompt,
                   "two prompts with one prefix have gone to two replicas"),
        ),
    ),
    Always(
        id="routing.bounded", theory=Bounded,
        scope="any number of replicas and requests, any rational eps > 0; requests arrive and stay",
        fragment="NIA with uninterpreted functions and quantifiers",
        claim="no replica is above ceil((1 + eps) average)", safety="bounded", depth=4,
        sizes=((1, 1), (1, 2), (2, 1), (2, 2), (3, 2)),
        sometimes=lambda theory, s: z3.And(s.W == 2, s.total == 3, exists(Rank, Rank, lambda r, q: z3.And(
            s.load(r) == 2, s.load(q) == 1))),
        mutants=(
            Mutant("off-by-one", "a replica at its bound takes one more", OffByOne, "its load is above the bound"),
            Mutant("next-unasked", "the next replica on the ring is not asked for room", NextUnasked,
                   "the next one was full too, and its load is above the bound"),
            Mutant("leaves", "requests end and the others stay where they are", Leaves,
                   "the average has fallen, and a replica is above the new bound"),
        ),
    ),
    *RING,
)
