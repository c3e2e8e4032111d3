"""store: who stores which chunk, how even the shares are, and what stays in a rank's own memory (facts: 1)."""

from __future__ import annotations

from typing import Any

import z3

from kvproof.spec.obligation import Always, Mutant, Obligation
from kvproof.spec.system import Step, System, action
from kvproof.spec.theory import Bool, Formula, Int, Rank, Rigid, State, View, exists, forall, put, within


class Store(System):
    """Every rank walks through the list of `n` chunks, `next` being where it is, and stores those that it owns.

    `stored(r, c)` counts how often rank r has stored chunk c.
    """

    n = Rigid(Int)
    owner = Rigid(Int, Rank)

    next = State(Rank, Int)
    stored = State(Rank, Int, Int)

    def axioms(self, s: View) -> list[Formula]:
        """A list has no negative length."""
        return [s.n >= 0]

    def sized(self, s: View, size: int) -> list[Formula]:
        """At most `size` chunks."""
        return [s.n <= size]

    def init(self, s: View) -> list[Formula]:
        """Nothing is stored."""
        return [forall(Rank, lambda r: s.next(r) == 0), forall(Rank, Int, lambda r, c: s.stored(r, c) == 0)]

    def mine(self, s: View, r: Any, c: Any) -> Formula:
        """Whether rank r takes it on itself to store chunk c."""
        return s.owner(c) == r

    @action(r=Rank)
    def store(self, s: View, r: Any) -> Step:
        """Rank r goes past the next chunk, and stores it when that is its own."""
        c = s.next(r)
        count = s.stored(r, c) + z3.If(self.mine(s, r, c), 1, 0)
        return Step(c < s.n, next=put(s.next, r, c + 1), stored=put(s.stored, (r, c), count))

    def finished(self, s: View) -> Formula:
        """All ranks are at the end."""
        return forall(Rank, lambda r: s.next(r) == s.n)

    def invariant(self, s: View) -> dict[str, Formula]:
        """Where a rank is says what it has stored."""
        return {
            "bounds": forall(Rank, lambda r: within(0, s.next(r), s.n + 1)),
            "stored": forall(Rank, Int, lambda r, c: s.stored(r, c) == z3.If(
                z3.And(within(0, c, s.next(r)), self.mine(s, r, c)), 1, 0)),
        }

    def safety(self, s: View) -> dict[str, Formula]:
        """What is claimed of every reachable state."""
        return {
            "once": forall(Rank, Int, lambda r, c: z3.And(
                s.stored(r, c) <= 1,
                z3.Implies(s.stored(r, c) > 0, s.owner(c) == r),
                z3.Implies(z3.And(self.finished(s), within(0, c, s.n), s.owner(c) == r), s.stored(r, c) == 1))),
        }


class EveryRank(Store):
    """Every rank stores what it holds after the all-gather: everything."""

    def mine(self, s: View, r: Any, c: Any) -> Formula:
        """All is mine."""
        return z3.BoolVal(True)


class Resumes(Store):
    """A preempted request, resumed, is walked through from its start again."""

    @action(r=Rank)
    def resume(self, s: View, r: Any) -> Step:
        """Back to the first chunk."""
        return Step(s.next(r) > 0, next=put(s.next, r, 0))


class SkipsTheRest(Store):
    """A rank whose buffer is full gives up on a chunk, and goes on."""

    @action(r=Rank)
    def full(self, s: View, r: Any) -> Step:
        """Past the chunk without storing it."""
        return Step(s.next(r) < s.n, next=put(s.next, r, s.next(r) + 1))


class Replicated(Store):
    """Every rank holds the same; worker 0, `first`, stores all of it. `local` numbers the ranks of each node."""

    first = Rigid(Rank)
    local = Rigid(Rank, Int)

    def axioms(self, s: View) -> list[Formula]:
        """Worker 0 owns everything; it is also the first of its node."""
        return [
            *super().axioms(s), forall(Int, lambda c: s.owner(c) == s.first),
            s.local(s.first) == 0, forall(Rank, lambda r: s.local(r) >= 0),
        ]

    def sized(self, s: View, size: int) -> list[Formula]:
        """Nodes of at most three ranks."""
        return [*super().sized(s, size), forall(Rank, lambda r: s.local(r) <= 2)]

    def mine(self, s: View, r: Any, c: Any) -> Formula:
        """Worker 0 stores."""
        return r == s.first

    def safety(self, s: View) -> dict[str, Formula]:
        """What is claimed of every reachable state."""
        return {
            "replicated": forall(Rank, Int, lambda r, c: z3.And(
                s.stored(r, c) <= 1,
                z3.Implies(s.stored(r, c) > 0, r == s.first),
                z3.Implies(z3.And(s.next(s.first) == s.n, within(0, c, s.n)), s.stored(s.first, c) == 1))),
        }


class EveryWorker(Replicated):
    """Every worker stores its copy under the one key."""

    def mine(self, s: View, r: Any, c: Any) -> Formula:
        """All is mine."""
        return z3.BoolVal(True)


class LocalRank(Replicated):
    """The worker asks for its number on its node."""

    def mine(self, s: View, r: Any, c: Any) -> Formula:
        """The first of each node stores."""
        return s.local(r) == 0


class RoundRobin(System):
    """The chunks of one prompt are dealt out to ranks 0 .. W - 1 in turn; `share(r)` counts what r has been dealt.

    It is rank `turn`'s turn. `rounds` and `rest` are quotient and remainder of the `n` chunks so far by W, counted by
    themselves. `kept(r)` counts the chunks in rank r's own memory, L1.
    """

    W = Rigid(Int)

    n = State(Int)
    turn = State(Int)
    rounds = State(Int)
    rest = State(Int)
    share = State(Int, Int)
    kept = State(Int, Int)

    def axioms(self, s: View) -> list[Formula]:
        """There is a rank."""
        return [s.W >= 1]

    def sized(self, s: View, size: int) -> list[Formula]:
        """At most one rank more than the size."""
        return [within(1, s.W, size + 2)]

    def init(self, s: View) -> list[Formula]:
        """Nothing has been dealt."""
        return [
            s.n == 0, s.turn == 0, s.rounds == 0, s.rest == 0,
            forall(Int, lambda r: z3.And(s.share(r) == 0, s.kept(r) == 0)),
        ]

    def keeps(self, s: View, r: Any) -> Formula:
        """Whether rank r keeps the chunk that is being dealt."""
        return r == s.turn

    def following(self, s: View) -> Any:
        """Whose turn it is afterwards."""
        return z3.If(s.turn + 1 == s.W, 0, s.turn + 1)

    @action()
    def deal(self, s: View) -> Step:
        """The next chunk goes to the rank whose turn it is."""
        whole = s.rest + 1 == s.W
        return Step(
            True, n=s.n + 1, turn=self.following(s),
            rounds=s.rounds + z3.If(whole, 1, 0), rest=z3.If(whole, 0, s.rest + 1),
            share=put(s.share, s.turn, s.share(s.turn) + 1),
            kept=lambda r: s.kept(r) + z3.If(self.keeps(s, r), 1, 0))

    def invariant(self, s: View) -> dict[str, Formula]:
        """Who has had a turn in this round has one chunk more than the whole rounds gave."""
        return {
            "division": z3.And(s.n == s.rounds * s.W + s.rest, within(0, s.rest, s.W), s.rounds >= 0),
            "turn": s.turn == s.rest,
            "share": forall(Int, lambda r: z3.Implies(
                within(0, r, s.W), s.share(r) == s.rounds + z3.If(r < s.turn, 1, 0))),
            "kept": forall(Int, lambda r: z3.Implies(within(0, r, s.W), s.kept(r) == s.share(r))),
        }

    def bound(self, s: View) -> Any:
        """The quotient n / W rounded up."""
        return s.rounds + z3.If(s.rest > 0, 1, 0)

    def safety(self, s: View) -> dict[str, Formula]:
        """What is claimed of every reachable state."""
        return {
            "even": forall(Int, Int, lambda r, p: z3.Implies(
                z3.And(within(0, r, s.W), within(0, p, s.W)), z3.And(
                    s.share(r) <= s.share(p) + 1,
                    s.n == s.rounds * s.W + s.rest, within(0, s.rest, s.W),
                    within(s.rounds, s.share(r), s.rounds + 2)))),
            "slice": forall(Int, lambda r: z3.Implies(within(0, r, s.W), z3.And(
                s.kept(r) <= self.bound(s),
                self.bound(s) * s.W >= s.n, (self.bound(s) - 1) * s.W < s.n))),
        }


class StartsAgain(RoundRobin):
    """Each part of a chunked prefill deals its chunks from rank 0 on."""

    @action()
    def part(self, s: View) -> Step:
        """The next part begins: chunk numbers start at 0 again."""
        return Step(s.turn > 0, turn=z3.IntVal(0))


class Pairs(RoundRobin):
    """Two neighbouring chunks go to the same rank, so that they can travel together."""

    odd = State(Bool)

    def init(self, s: View) -> list[Formula]:
        """The first of a pair comes first."""
        return [*super().init(s), z3.Not(s.odd)]

    @action()
    def deal(self, s: View) -> Step:
        """The turn passes after the second chunk of a pair."""
        passed = super().deal(s).changes
        return Step(True, **{**passed, "odd": z3.Not(s.odd), "turn": z3.If(s.odd, passed["turn"], s.turn)})


class KeepsAll(RoundRobin):
    """A rank also keeps what the others broadcast to it."""

    def keeps(self, s: View, r: Any) -> Formula:
        """Everybody keeps it."""
        return z3.BoolVal(True)


class RoundsDown(RoundRobin):
    """The slice is taken for n // W."""

    def bound(self, s: View) -> Any:
        """The quotient n / W rounded down."""
        return s.rounds


_SCOPE = "all W, all n, any owner map"
_ROUND = "all W, all n; round robin: chunk c belongs to rank c mod W"
_FRAGMENT = "UFLIA with quantifiers"
_ARITHMETIC = "NIA with uninterpreted functions and quantifiers; W is unknown, and multiplied only by whole rounds"


def _two_owners(theory: Any, s: View) -> Formula:
    """Two chunks of different owners have been stored, and everybody is at the end."""
    return z3.And(theory.finished(s), s.n == 2, s.owner(0) != s.owner(1))


def _uneven(theory: Any, s: View) -> Formula:
    """Two ranks have had two rounds, and one of them a chunk more."""
    return z3.And(s.W == 2, s.rounds == 2, s.turn == 1)


OBLIGATIONS: tuple[Obligation, ...] = (
    Always(
        id="store.once", claim="every chunk is stored exactly once, by its owner", scope=_SCOPE, theory=Store,
        fragment=_FRAGMENT, safety="once", sometimes=_two_owners, witness_sizes=((2, 2),), depth=4,
        mutants=(
            Mutant("every-rank", "every rank stores all that it holds", EveryRank,
                   "W copies of one chunk cross the network"),
            Mutant("resumes", "a resumed request is stored from its start again", Resumes,
                   "its owner has stored one chunk twice"),
            Mutant("skips", "a chunk is passed over when the buffer is full", SkipsTheRest,
                   "all ranks are done, and a chunk in the middle is stored nowhere"),
        ),
    ),
    Always(
        id="store.replicated", claim="in replicated mode worker 0 alone stores, and each chunk once", scope=_SCOPE,
        theory=Replicated, fragment=_FRAGMENT, safety="replicated", depth=4, witness_sizes=((2, 2),),
        sometimes=lambda theory, s: z3.And(theory.finished(s), s.n == 2, exists(Rank, lambda r: r != s.first)),
        mutants=(
            Mutant("every-worker", "every worker stores its copy", EveryWorker,
                   "the same key is written by two workers"),
            Mutant("local-rank", "the number on the node is taken for the number in the world", LocalRank,
                   "the first worker of a second node stores too"),
        ),
    ),
    Always(
        id="store.even", claim="shares differ by at most one: rank r has q or q + 1 chunks, n = qW + s with s < W",
        scope=_ROUND, theory=RoundRobin, fragment=_ARITHMETIC, safety="even", sometimes=_uneven, depth=5,
        sizes=((1, 0), (1, 1), (1, 2)),
        mutants=(
            Mutant("starts-again", "the parts of one prefill are each dealt from rank 0 on", StartsAgain,
                   "rank 0 has two chunks more than the last rank"),
            Mutant("pairs", "neighbouring chunks go to the same rank", Pairs, "one rank has two chunks, another none"),
        ),
    ),
    Always(
        id="store.slice", claim="L1 holds at most ceil(n / W) chunks of a prompt on each rank", scope=_ROUND,
        theory=RoundRobin, fragment=_ARITHMETIC, safety="slice", sometimes=_uneven, depth=5,
        sizes=((1, 0), (1, 1), (1, 2)),
        mutants=(
            Mutant("keeps-all", "a rank keeps the chunks that others broadcast", KeepsAll,
                   "each rank holds the whole prompt"),
            Mutant("rounds-down", "the memory is sized for n // W chunks", RoundsDown,
                   "the rank that has a chunk more has no room for it",
                   "how large the slice is: that is what is claimed"),
        ),
    ),
)
