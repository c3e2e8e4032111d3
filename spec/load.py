"""load: W ranks agree on a prefix by an exchange, then the owner of each agreed chunk broadcasts it (facts: 1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import z3

from kvproof.spec.obligation import Always, Mutant, NoDeadlock, Obligation, Progress, Sizes
from kvproof.spec.system import Step, System, action
from kvproof.spec.theory import Bool, Formula, Int, Rank, Rigid, State, View, exists, forall, put, within


class Load(System):
    """The loading protocol of one step, with no rank dead and the collectives' timeout switched off.

    Collective 0 is the exchange; collective c + 1 broadcasts chunk c from its owner. A rank has `entered` some number
    of collectives and `left` as many or one fewer. It leaves the exchange when every rank has entered it, and a
    broadcast when the owner of the chunk has: real broadcasts let the owner go once its bytes are on their way, and
    keep nobody waiting for those that only receive. `loaded(r, c)` says that rank r holds the bytes of its own chunk c:
    a get may bring them at any time, early, late or never. `held(r, c)` says that a broadcast has brought them.
    `failure(r)` is how far rank r has come in its own chunks: its first failure, once it has entered the exchange.
    """

    length = Rigid(Rank, Int)
    fingerprint = Rigid(Rank, Int)
    layout = Rigid(Rank, Int)
    owner = Rigid(Int, Rank)
    uniform = Rigid(Bool)

    entered = State(Rank, Int)
    left = State(Rank, Int)
    loaded = State(Rank, Int, Bool)
    failure = State(Rank, Int)
    agreed = State(Rank, Int)
    least = State(Rank, Rank)
    held = State(Rank, Int, Bool)

    def axioms(self, s: View) -> list[Formula]:
        """A list has no negative length, equal fingerprints mean equal lists, and `uniform` says that all are equal."""
        return [
            forall(Rank, lambda r: s.length(r) >= 0),
            forall(Rank, Rank, lambda r, q: z3.Implies(
                s.fingerprint(r) == s.fingerprint(q), s.length(r) == s.length(q))),
            s.uniform == forall(Rank, Rank, lambda r, q: z3.And(
                s.fingerprint(r) == s.fingerprint(q), s.layout(r) == s.layout(q))),
        ]

    def sized(self, s: View, size: int) -> list[Formula]:
        """Lists of at most `size` chunks."""
        return [forall(Rank, lambda r: z3.And(
            s.length(r) <= size, within(0, s.fingerprint(r), 3), within(0, s.layout(r), 3)))]

    def init(self, s: View) -> list[Formula]:
        """Nobody has entered anything; nothing is loaded or held."""
        return [
            forall(Rank, lambda r: z3.And(s.entered(r) == 0, s.left(r) == 0, s.failure(r) == 0)),
            forall(Rank, lambda r: z3.And(s.agreed(r) == 0, s.least(r) == r)),
            forall(Rank, Int, lambda r, c: z3.And(z3.Not(s.loaded(r, c)), z3.Not(s.held(r, c)))),
        ]

    def outside(self, s: View, r: Any) -> Formula:
        """Rank r waits in no collective."""
        return s.entered(r) == s.left(r)

    def collectives(self, s: View, r: Any) -> Any:
        """How many collectives rank r takes part in, once it knows the agreed prefix."""
        return 1 + s.agreed(r)

    def missing(self, s: View, r: Any, c: Any) -> Formula:
        """Rank r owns chunk c and does not hold it."""
        return z3.And(s.owner(c) == r, z3.Not(s.loaded(r, c)))

    def everyone(self, s: View, r: Any, body: Callable[[Any], Formula]) -> Formula:
        """Say `body` of each rank that r synchronises with: all of them."""
        return forall(Rank, lambda p: body(p))

    def prefix(self, s: View, r: Any, q: Any) -> Any:
        """What r takes for the agreed prefix, when q has the least failure."""
        return z3.If(s.uniform, s.failure(q), 0)

    @action(fair=False, r=Rank, c=Int)
    def arrive(self, s: View, r: Any, c: Any) -> Step:
        """The bytes of an own chunk arrive, at any time."""
        ready = z3.And(within(0, c, s.length(r)), self.missing(s, r, c))
        return Step(ready, loaded=put(s.loaded, (r, c), True))

    @action(r=Rank)
    def look(self, s: View, r: Any) -> Step:
        """Rank r goes past a chunk that it has, or that is not its own."""
        c = s.failure(r)
        ready = z3.And(s.entered(r) == 0, c < s.length(r), z3.Not(self.missing(s, r, c)))
        return Step(ready, failure=put(s.failure, r, c + 1))

    @action(r=Rank)
    def enter_exchange(self, s: View, r: Any) -> Step:
        """Rank r has come to its first failure, or to the end of its list, and enters the exchange with it."""
        c = s.failure(r)
        ready = z3.And(s.entered(r) == 0, z3.Or(c == s.length(r), self.missing(s, r, c)))
        return Step(ready, entered=put(s.entered, r, 1))

    @action(r=Rank, q=Rank)
    def leave_exchange(self, s: View, r: Any, q: Any) -> Step:
        """Everybody has entered the exchange; r takes the least failure, which is q's, or 0 when the lists differ."""
        least = self.everyone(s, r, lambda p: s.failure(q) <= s.failure(p))
        ready = z3.And(s.entered(r) == 1, s.left(r) == 0, self.everyone(s, r, lambda p: s.entered(p) >= 1), least)
        agreed = put(s.agreed, r, self.prefix(s, r, q))
        return Step(ready, left=put(s.left, r, 1), agreed=agreed, least=put(s.least, r, q))

    @action(r=Rank)
    def enter_broadcast(self, s: View, r: Any) -> Step:
        """Rank r enters the broadcast of the next agreed chunk."""
        ready = z3.And(s.left(r) >= 1, self.outside(s, r), s.entered(r) < self.collectives(s, r))
        return Step(ready, entered=put(s.entered, r, s.entered(r) + 1))

    @action(r=Rank)
    def leave_broadcast(self, s: View, r: Any) -> Step:
        """The owner of the chunk has entered the broadcast that r waits in; r now holds what the owner had."""
        c = s.left(r) - 1
        given = s.entered(s.owner(c)) > s.left(r)
        ready = z3.And(s.left(r) >= 1, s.entered(r) == s.left(r) + 1, given)
        held = put(s.held, (r, c), s.loaded(s.owner(c), c))
        return Step(ready, left=put(s.left, r, s.left(r) + 1), held=held)

    def done(self, s: View, r: Any) -> Formula:
        """Rank r has been through all of its collectives."""
        return z3.And(s.left(r) >= 1, s.left(r) == self.collectives(s, r))

    def finished(self, s: View) -> Formula:
        """All ranks are done."""
        return forall(Rank, lambda r: self.done(s, r))

    def finite(self, s: View) -> list[Formula]:
        """Among finitely many ranks one has the least failure."""
        return [exists(Rank, lambda q: forall(Rank, lambda p: s.failure(q) <= s.failure(p)))]

    def invariant(self, s: View) -> dict[str, Formula]:
        """Each position in the sequence says what all ranks have done."""
        return {
            "bounds": forall(Rank, lambda r: z3.And(
                s.left(r) >= 0, s.left(r) <= s.entered(r), s.entered(r) <= s.left(r) + 1)),
            "together": forall(Rank, Rank, lambda r, q: z3.Implies(s.left(r) >= 1, s.entered(q) >= 1)),
            "given": forall(Rank, Int, lambda r, c: z3.Implies(
                within(0, c, s.left(r) - 1), s.entered(s.owner(c)) > c + 1)),
            "unknown": forall(Rank, lambda r: z3.Implies(s.left(r) == 0, s.agreed(r) == 0)),
            "failure": forall(Rank, lambda r: within(0, s.failure(r), s.length(r) + 1)),
            "own": forall(Rank, Int, lambda r, c: z3.Implies(
                z3.And(within(0, c, s.failure(r)), s.owner(c) == r), s.loaded(r, c))),
            "at most": forall(Rank, Rank, lambda r, q: z3.Implies(s.left(r) >= 1, z3.And(
                s.agreed(r) >= 0,
                z3.Implies(s.uniform, s.agreed(r) <= s.failure(q)),
                z3.Implies(z3.Not(s.uniform), s.agreed(r) == 0)))),
            "at least": forall(Rank, lambda r: z3.Implies(
                z3.And(s.left(r) >= 1, s.uniform), s.agreed(r) == s.failure(s.least(r)))),
            "agree": self.safety(s)["agree"],
            "sequence": forall(Rank, lambda r: z3.Implies(s.left(r) >= 1, s.entered(r) <= self.collectives(s, r))),
            "first": forall(Rank, lambda r: z3.Implies(s.left(r) == 0, s.entered(r) <= 1)),
            "held": forall(Rank, Int, lambda r, c: z3.Implies(within(0, c, s.left(r) - 1), s.held(r, c))),
            "nothing else": forall(Rank, Int, lambda r, c: z3.Implies(
                s.held(r, c), z3.And(within(0, c, s.left(r) - 1), s.loaded(s.owner(c), c)))),
        }

    def safety(self, s: View) -> dict[str, Formula]:
        """What is claimed of every reachable state."""
        return {
            "agree": forall(Rank, Rank, lambda r, q: z3.Implies(
                z3.And(s.left(r) >= 1, s.left(q) >= 1), s.agreed(r) == s.agreed(q))),
            "same-sequence": forall(Rank, Rank, lambda r, q: z3.Implies(
                s.left(r) >= 1, z3.And(s.entered(q) <= self.collectives(s, r), s.entered(q) >= 1))),
            "no-skip": forall(Rank, Rank, lambda r, q: z3.Implies(
                z3.And(self.done(s, r), s.entered(q) == s.left(q) + 1), s.entered(r) > s.left(q))),
            "whole": forall(Rank, Int, lambda r, c: z3.Implies(
                z3.And(self.done(s, r), within(0, c, s.agreed(r))), s.held(r, c))),
            "nothing-past": forall(Rank, Int, lambda r, c: z3.Implies(
                s.held(r, c), z3.And(c < s.agreed(r), s.loaded(s.owner(c), c)))),
            "differing": forall(Rank, Rank, Rank, lambda r, p, q: z3.Implies(
                z3.And(s.left(r) >= 1, z3.Or(s.fingerprint(p) != s.fingerprint(q), s.layout(p) != s.layout(q))),
                s.agreed(r) == 0)),
        }

    def measure(self, s: View) -> dict[str, Any]:
        """What each rank has still to do, and which chunks may still arrive."""
        return {
            "work": ((Rank,), lambda r: (
                z3.If(s.left(r) == 0, 1, 0), s.length(r) - s.failure(r),
                z3.If(s.left(r) == 0, 1, self.collectives(s, r)) - s.entered(r),
                s.entered(r) - s.left(r))),
            "arrivals": (
                (Rank, Int), lambda r, c: (z3.If(z3.And(within(0, c, s.length(r)), z3.Not(s.loaded(r, c))), 1, 0),),
                lambda r, c: s.length(r)),
        }


class Leaving(Load):
    """What the mutants that leave the sequence share: `gone(r)` says that r has returned from the step."""

    gone = State(Rank, Bool)

    def init(self, s: View) -> list[Formula]:
        """Nobody is gone."""
        return [*super().init(s), forall(Rank, lambda r: z3.Not(s.gone(r)))]

    def done(self, s: View, r: Any) -> Formula:
        """Gone counts as done."""
        return z3.Or(super().done(s, r), s.gone(r))

    def leave(self, s: View, r: Any, when: Formula) -> Step:
        """Rank r returns from the step."""
        return Step(z3.And(z3.Not(s.gone(r)), when), gone=put(s.gone, r, True))

    @action(r=Rank)
    def enter_exchange(self, s: View, r: Any) -> Step:
        """Only who is still there enters."""
        step = super().enter_exchange(s, r)
        return Step(z3.And(z3.Not(s.gone(r)), step.guard), **step.changes)


class EarlyReturn(Leaving):
    """A rank returns as soon as it misses a chunk of its own."""

    @action(r=Rank)
    def go(self, s: View, r: Any) -> Step:
        """Return on the own miss."""
        c = s.failure(r)
        return self.leave(s, r, z3.And(s.entered(r) == 0, c < s.length(r), self.missing(s, r, c)))


class EmptyListSkips(Leaving):
    """A rank whose list is empty sees no reason to exchange anything."""

    @action(r=Rank)
    def go(self, s: View, r: Any) -> Step:
        """Return on an empty list."""
        return self.leave(s, r, z3.And(s.entered(r) == 0, s.length(r) == 0))


class BufferFull(Leaving):
    """A rank leaves the loop of broadcasts when its own buffer is full."""

    @action(r=Rank)
    def go(self, s: View, r: Any) -> Step:
        """Break out of the loop."""
        return self.leave(s, r, z3.And(s.left(r) >= 1, self.outside(s, r), s.entered(r) < self.collectives(s, r)))


class Raises(Leaving):
    """An exception between the local work and the collective takes a rank out of the step."""

    @action(r=Rank)
    def go(self, s: View, r: Any) -> Step:
        """Raise after the own gets, before the exchange."""
        return self.leave(s, r, z3.And(s.entered(r) == 0, s.failure(r) == s.length(r), s.length(r) >= 1))


class LonelyTimeout(Leaving):
    """A rank whose wait in a collective times out leaves the step alone, and the others are not told."""

    @action(r=Rank)
    def go(self, s: View, r: Any) -> Step:
        """Give up waiting and return, as if the collective had taken place."""
        step = self.leave(s, r, s.entered(r) == s.left(r) + 1)
        return Step(step.guard, **step.changes, entered=put(s.entered, r, s.left(r)))


class OwnFailure(Load):
    """Each rank uses its own first failure for the agreed prefix."""

    def prefix(self, s: View, r: Any, q: Any) -> Any:
        """Take one's own instead of the least."""
        return z3.If(s.uniform, s.failure(r), 0)


class Lookups(Load):
    """The ranks agree on what lookups said, not on what was loaded."""

    promised = Rigid(Rank, Int, Bool)

    @action(r=Rank)
    def look(self, s: View, r: Any) -> Step:
        """Go past a chunk that a lookup has found, whether its bytes have come or not."""
        c = s.failure(r)
        absent = z3.And(s.owner(c) == r, z3.Not(s.promised(r, c)))
        return Step(z3.And(s.entered(r) == 0, c < s.length(r), z3.Not(absent)), failure=put(s.failure, r, c + 1))


class Subgroup(Load):
    """The exchange runs over a subgroup, although the ranks outside of it take part in the broadcasts."""

    group = Rigid(Rank, Int)

    def sized(self, s: View, size: int) -> list[Formula]:
        """Two groups will do."""
        return [*super().sized(s, size), forall(Rank, lambda r: within(0, s.group(r), 2))]

    def everyone(self, s: View, r: Any, body: Callable[[Any], Formula]) -> Formula:
        """Say it of the own group only."""
        return forall(Rank, lambda p: z3.Implies(s.group(p) == s.group(r), body(p)))


class DiffersIgnored(Load):
    """Nobody compares the fingerprints and layouts that were exchanged."""

    def prefix(self, s: View, r: Any, q: Any) -> Any:
        """Take the least failure even of different lists."""
        return s.failure(q)


class OwnExtras(Load):
    """A rank also uses what it has loaded itself past the agreed prefix."""

    @action(r=Rank, c=Int)
    def keep(self, s: View, r: Any, c: Any) -> Step:
        """Take an own chunk that lies past the agreed prefix."""
        ready = z3.And(s.left(r) >= 1, within(s.agreed(r), c, s.length(r)), s.owner(c) == r, s.loaded(r, c))
        return Step(ready, held=put(s.held, (r, c), True))


class KeepsWaiting(Load):
    """A rank asks again for a chunk that failed, as long as it fails."""

    @action(r=Rank)
    def enter_exchange(self, s: View, r: Any) -> Step:
        """Enter only with everything loaded."""
        return Step(z3.And(s.entered(r) == 0, s.failure(r) == s.length(r)), entered=put(s.entered, r, 1))


class StartsOver(Load):
    """A rank that has entered a broadcast may go back and enter it again."""

    @action(r=Rank)
    def again(self, s: View, r: Any) -> Step:
        """Step back."""
        return Step(z3.And(s.left(r) >= 1, s.entered(r) == s.left(r) + 1), entered=put(s.entered, r, s.left(r)))


_SCOPE = "all W, all lists of any length, any owner map; no rank dead, no timeout; gets fail or come late anywhere"
_FRAGMENT = "UFLIA with quantifiers"
_GONE = "when a rank is done: also when it has returned from the step in any other way"
_SKIPS = "a rank has returned, and the one that waits in the collective which it never enters waits for ever"


def _two_chunks(theory: Any, s: View) -> Formula:
    """Everybody is done with an agreed prefix of one chunk or more."""
    return z3.And(theory.finished(s), exists(Rank, lambda r: s.agreed(r) >= 1), exists(
        Rank, Rank, lambda r, q: r != q))


_PAIRS = ((2, 0), (2, 1), (2, 2), (3, 1))
"""Where a claim about two ranks can fail: one rank alone has nobody to differ from."""


def _always(
    name: str, claim: str, *mutants: Mutant, sometimes: Any = _two_chunks, sizes: Sizes = _PAIRS
) -> Always:
    return Always(
        id=f"load.{name}", claim=claim, scope=_SCOPE, theory=Load, fragment=_FRAGMENT, safety=name,
        sometimes=sometimes, mutants=mutants, witness_sizes=((2, 1), (2, 2)), sizes=sizes,
    )


OBLIGATIONS: tuple[Obligation, ...] = (
    _always(
        "agree", "all ranks that know the agreed prefix know the same one",
        Mutant("own-failure", "each rank uses its own first failure", OwnFailure,
               "two ranks go into different numbers of broadcasts"),
        Mutant("subgroup", "the exchange synchronises over a subgroup", Subgroup,
               "the groups have agreed on different prefixes"),
    ),
    _always(
        "same-sequence", "all ranks enter the same collectives in order, and no broadcast before all exchange",
        Mutant("own-failure", "each rank uses its own first failure", OwnFailure,
               "one rank has entered a broadcast that is not in the other's sequence"),
        Mutant("subgroup", "the exchange synchronises over a subgroup", Subgroup,
               "one group has left the exchange before the other has entered it"),
    ),
    _always(
        "no-skip", "no rank finishes while a peer waits for it in a collective",
        Mutant("early-return", "return on the rank's own miss", EarlyReturn, _SKIPS, _GONE),
        Mutant("empty-list", "the exchange is skipped when the rank's list is empty", EmptyListSkips, _SKIPS, _GONE),
        Mutant("buffer-full", "the loop is left when the rank's own buffer is full", BufferFull, _SKIPS, _GONE),
        Mutant("exception", "an exception between the local work and the collective", Raises, _SKIPS, _GONE),
        Mutant("lonely-timeout", "a timeout leaves the step alone", LonelyTimeout, _SKIPS, _GONE),
        Mutant("own-failure", "each rank uses its own first failure", OwnFailure, _SKIPS),
    ),
    _always(
        "whole", "a rank that is done holds every chunk of the agreed prefix, as its owner loaded it",
        Mutant("lookups", "agreement on lookups instead of loads", Lookups,
               "the chunk was evicted between the lookup and the get, and a rank is done without it"),
        sizes=((1, 0), (1, 1), (2, 1)),
    ),
    _always(
        "nothing-past", "no rank holds a chunk past the agreed prefix, or one that its owner did not load",
        Mutant("own-extras", "a rank also uses what it has itself loaded past the agreed prefix", OwnExtras,
               "one rank computes with a chunk that the others do not have"),
        sizes=((1, 0), (1, 1), (2, 1)),
    ),
    _always(
        "differing", "differing fingerprints or layouts give an agreed prefix of 0 everywhere",
        Mutant("not-compared", "fingerprints are exchanged and not compared", DiffersIgnored,
               "ranks with different lists agree on a prefix"),
        sometimes=lambda theory, s: z3.And(theory.finished(s), z3.Not(s.uniform)),
    ),
    NoDeadlock(
        id="load.no-deadlock", claim="as long as not all ranks are done, one of them can do something",
        scope=_SCOPE, theory=Load, fragment=_FRAGMENT, sometimes=_two_chunks, witness_sizes=((2, 1), (2, 2)),
        assumes=("a non-empty finite set of ranks has one with the least failure",),
        mutants=(
            Mutant("early-return", "return on the rank's own miss", EarlyReturn,
                   "the others wait in the exchange, and nobody can do anything any more"),
            Mutant("waits-for-all", "a failed get is asked for until it succeeds", KeepsWaiting,
                   "the rank whose chunk never comes never enters the exchange"),
        ),
    ),
    Progress(
        id="load.progress", claim="every rank finishes: each action brings one rank nearer to its end and none back",
        scope=_SCOPE, theory=Load, fragment=_FRAGMENT, sometimes=_two_chunks, witness_sizes=((2, 1), (2, 2)),
        assumes=("fairness: an action that stays possible is taken at some time (the arrival of bytes need not be)",
                 "with load.no-deadlock, no run stops before all ranks are done"),
        mutants=(
            Mutant("starts-over", "a rank may step back out of a broadcast and enter it again", StartsOver,
                   "the rank can do so for ever"),
        ),
    ),
)
