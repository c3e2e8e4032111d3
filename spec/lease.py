"""lease: a positive answer to a lookup holds until it is used or withdrawn."""

from __future__ import annotations

from typing import Any

import z3

from kvproof.spec.obligation import Always, Mutant, NoDeadlock, Obligation, Progress
from kvproof.spec.system import Step, System, action
from kvproof.spec.theory import Bool, Formula, Int, Rigid, State, View, enum, exists, forall, put, within

Phase, ASKING, PROMISED, COMPUTING, USED = enum("LeasePhase", "asking", "promised", "computing", "used")


class Lease(System):
    """`requests` (any number) ask for one of `chunks` each, `chunk(q)`, and load it when the answer is yes.

    `present(k)`: the cache has chunk k. `intact(k)`: its bytes are good; nobody knows before they are loaded.
    `verdict(k)`: what lookups answer for k. `phase(q)`: still asking, promised by a positive answer (a lease), gone to
    compute the chunk itself, or has used the chunk. `refused(k)`: a load of k has failed since k was last stored.
    """

    requests = Rigid(Int)
    chunks = Rigid(Int)
    chunk = Rigid(Int, Int)

    present = State(Int, Bool)
    intact = State(Int, Bool)
    verdict = State(Int, Bool)
    refused = State(Int, Bool)
    phase = State(Int, Phase)

    def axioms(self, s: View) -> list[Formula]:
        """Every request asks for a chunk that there is."""
        return [forall(Int, lambda q: within(0, s.chunk(q), s.chunks))]

    def sized(self, s: View, size: int) -> list[Formula]:
        """Requests and chunks 0 to `size`."""
        return [s.requests == size + 1, s.chunks == size + 1]

    def init(self, s: View) -> list[Formula]:
        """Any chunks are present, and lookups know which; nobody has asked."""
        return [
            forall(Int, lambda k: z3.And(s.verdict(k) == s.present(k), z3.Not(s.refused(k)))),
            forall(Int, lambda q: s.phase(q) == ASKING),
        ]

    def leased(self, s: View, k: Any) -> Formula:
        """A request has a positive answer for k."""
        return exists(Int, lambda q: z3.And(s.phase(q) == PROMISED, s.chunk(q) == k))

    @action(q=Int)
    def ask(self, s: View, q: Any) -> Step:
        """Look the chunk up: a promise, or compute it."""
        found = z3.If(s.verdict(s.chunk(q)), PROMISED, COMPUTING)
        return Step(z3.And(within(0, q, s.requests), s.phase(q) == ASKING), phase=put(s.phase, q, found))

    @action(q=Int)
    def load(self, s: View, q: Any) -> Step:
        """Load what was promised, and it is good."""
        return Step(z3.And(s.phase(q) == PROMISED, self.good(s, s.chunk(q))), phase=put(s.phase, q, USED))

    def good(self, s: View, k: Any) -> Formula:
        """Whether a load of k succeeds."""
        return z3.And(s.present(k), s.intact(k))

    @action(q=Int)
    def fail(self, s: View, q: Any) -> Step:
        """A load fails: every positive answer for the chunk is withdrawn, and those who had one ask again."""
        k = s.chunk(q)

        def withdrawn(p: Any) -> Formula:
            return z3.And(s.phase(p) == PROMISED, s.chunk(p) == k)

        return Step(
            z3.And(s.phase(q) == PROMISED, z3.Not(self.good(s, k))), present=put(s.present, k, False),
            verdict=put(s.verdict, k, self.after_failure(s, k)), refused=put(s.refused, k, True),
            phase=lambda p: z3.If(withdrawn(p), ASKING, s.phase(p)),
        )

    def after_failure(self, s: View, k: Any) -> Any:
        """What lookups answer for k once a load of it has failed."""
        return z3.BoolVal(False)

    @action(fair=False, k=Int)
    def evict(self, s: View, k: Any) -> Step:
        """Chunk k makes room for others."""
        return Step(
            z3.And(within(0, k, s.chunks), s.present(k), self.evictable(s, k)), present=put(s.present, k, False),
            verdict=put(s.verdict, k, False))

    def evictable(self, s: View, k: Any) -> Formula:
        """Whether k may be evicted: nobody has been promised it."""
        return z3.Not(self.leased(s, k))

    @action(fair=False, k=Int)
    def spoil(self, s: View, k: Any) -> Step:
        """The bytes of k are damaged, and nobody notices."""
        return Step(z3.And(within(0, k, s.chunks), s.intact(k)), intact=put(s.intact, k, False))

    @action(fair=False, k=Int)
    def store(self, s: View, k: Any) -> Step:
        """Chunk k is stored, again or for the first time."""
        return Step(
            z3.And(within(0, k, s.chunks), z3.Not(s.present(k))), present=put(s.present, k, True),
            intact=put(s.intact, k, True), verdict=put(s.verdict, k, True), refused=put(s.refused, k, False))

    def finished(self, s: View) -> Formula:
        """Every request uses the chunk, or computes it."""
        return forall(Int, lambda q: z3.Implies(
            within(0, q, s.requests), z3.Or(s.phase(q) == USED, s.phase(q) == COMPUTING)))

    def invariant(self, s: View) -> dict[str, Formula]:
        """Answers are true to what is there."""
        return {
            **self.safety(s),
            "counted": forall(Int, lambda q: z3.Or(s.phase(q) == ASKING, within(0, q, s.requests))),
            "verdict": forall(Int, lambda k: s.verdict(k) == s.present(k)),
            "refused": forall(Int, lambda k: z3.Implies(s.refused(k), z3.Not(s.present(k)))),
        }

    def safety(self, s: View) -> dict[str, Formula]:
        """What is claimed of every reachable state."""
        return {
            "holds": forall(Int, lambda q: z3.Implies(s.phase(q) == PROMISED, s.present(s.chunk(q)))),
            "withdrawn": forall(Int, lambda k: z3.Implies(
                s.refused(k), z3.Not(z3.Or(s.verdict(k), self.leased(s, k))))),
        }


class Quiet(Lease):
    """Nothing is stored while the requests are served."""

    store = None  # type: ignore[assignment]  # the action is taken away

    def measure(self, s: View) -> dict[str, Any]:
        """For each request: whether it is over, what can still become of its chunk, whether it has asked."""
        def request(q: Any) -> tuple[Any, ...]:
            over = z3.Or(s.phase(q) == USED, s.phase(q) == COMPUTING)
            parts = (z3.Not(over), s.present(s.chunk(q)), s.phase(q) == ASKING)
            return tuple(z3.If(z3.And(within(0, q, s.requests), part), 1, 0) for part in parts)

        def chunk(k: Any) -> tuple[Any, ...]:
            return tuple(z3.If(z3.And(within(0, k, s.chunks), part), 1, 0) for part in (s.present(k), s.intact(k)))

        return {
            "requests": ((Int,), request, lambda q: s.requests), "chunks": ((Int,), chunk, lambda k: s.chunks)}


class StillPresent(Lease):
    """A failed load leaves the cached verdict "present" as it is."""

    def after_failure(self, s: View, k: Any) -> Any:
        """As before."""
        return s.verdict(k)


class StillPresentQuiet(Quiet):
    """A failed load leaves the cached verdict "present" as it is."""

    def after_failure(self, s: View, k: Any) -> Any:
        """As before."""
        return s.verdict(k)


class Unpinned(Lease):
    """A hit is counted and not pinned."""

    def evictable(self, s: View, k: Any) -> Formula:
        """Anything may go at any time."""
        return z3.BoolVal(True)


class NobodyFails(Quiet):
    """A load that does not succeed is tried until it does."""

    fail = None  # type: ignore[assignment]  # the action is taken away


_SCOPE = "any number of requests and chunks; eviction, damage and storing anywhere"
_FRAGMENT = "EUF with quantifiers"
_SIZES = ((1, 0), (1, 1))
_STILL = "the cached verdict \"present\" survives a failed load"


def _withdraws(theory: Any, s: View) -> Formula:
    """A load has failed, and its request computes the chunk."""
    return exists(Int, lambda q: z3.And(s.phase(q) == COMPUTING, s.refused(s.chunk(q))))


OBLIGATIONS: tuple[Obligation, ...] = (
    Always(
        id="lease.holds", claim="what a request was promised is in the cache until it is used or the promise withdrawn",
        scope=_SCOPE, theory=Lease, fragment=_FRAGMENT, sizes=_SIZES, safety="holds", depth=8,
        sometimes=lambda theory, s: exists(Int, lambda q: z3.And(s.phase(q) == USED, z3.Not(s.present(s.chunk(q))))),
        mutants=(
            Mutant("unpinned", "a hit is counted and not pinned", Unpinned,
                   "the chunk was evicted between the answer and its use"),
            Mutant("still-present", _STILL, StillPresent, "a request is promised a chunk that has failed already"),
        ),
    ),
    Always(
        id="lease.withdrawn", claim="after a failed load nobody has, or gets, a positive answer until a new store",
        scope=_SCOPE, theory=Lease, fragment=_FRAGMENT, sizes=_SIZES, safety="withdrawn", depth=8,
        sometimes=_withdraws,
        mutants=(Mutant("still-present", _STILL, StillPresent, "the next lookup promises what cannot be loaded"),),
    ),
    NoDeadlock(
        id="lease.no-deadlock", claim="a request that is neither served nor computing can go on",
        scope=_SCOPE, theory=Quiet, fragment=_FRAGMENT, sizes=_SIZES, depth=8, sometimes=_withdraws,
        mutants=(Mutant("nobody-fails", "a load is tried until it succeeds", NobodyFails,
                        "the chunk is damaged, and the request waits for it for ever"),),
    ),
    Progress(
        id="lease.progress", claim="every request ends: its chunk is used, or it goes to compute it",
        scope="any number of requests and chunks; eviction and damage anywhere, nothing stored in the meantime",
        theory=Quiet, fragment=_FRAGMENT, sizes=_SIZES, depth=8, sometimes=_withdraws,
        assumes=("fairness: a request goes on when it can", "nothing is stored while the requests are served"),
        mutants=(Mutant("still-present", _STILL, StillPresentQuiet,
                        "the request asks, is promised the chunk and fails to load it, again and again"),),
    ),
)
