"""load with failures: ranks die, waits expire, and the group that lost a rank has to be rebuilt."""

from __future__ import annotations

from typing import Any

import z3

from kvproof.spec.load import Load
from kvproof.spec.obligation import Always, Mutant, NoDeadlock, Obligation, Progress, Sizes
from kvproof.spec.system import Step, action
from kvproof.spec.theory import Bool, Formula, Int, Rank, State, View, exists, forall, put, within


class FailingLoad(Load):
    """The loading protocol in which a rank may die at any time, and a rank that waits may expire and abort the step.

    `called(r)` says that r, done with this step, has entered the first collective of a later one, and `answered(r)`
    that it has left it; `abandoned(r)` is how many it had entered and left in all when it gave up. What a dead or
    aborted rank had entered before stays entered: its peers may still complete it.
    """

    dead = State(Rank, Bool)
    aborted = State(Rank, Bool)
    called = State(Rank, Bool)
    answered = State(Rank, Bool)
    abandoned = State(Rank, Int)

    def init(self, s: View) -> list[Formula]:
        """Everybody lives, and nobody has given up or gone on."""
        nothing = forall(Rank, lambda r: z3.Not(z3.Or(s.dead(r), s.aborted(r), s.called(r), s.answered(r))))
        return [*super().init(s), nothing, forall(Rank, lambda r: s.abandoned(r) == 0)]

    def moved(self, s: View, r: Any) -> Any:
        """How many collectives rank r has entered, and how many left, in all."""
        return s.entered(r) + s.left(r) + z3.If(s.called(r), 1, 0) + z3.If(s.answered(r), 1, 0)

    def present(self, s: View, r: Any) -> Formula:
        """Rank r lives and is still in the step."""
        return z3.And(z3.Not(s.dead(r)), z3.Not(s.aborted(r)))

    def waits(self, s: View, r: Any) -> Formula:
        """Rank r waits in a collective, of this step or of the later one."""
        later = z3.And(s.called(r), z3.Not(s.answered(r)))
        return z3.And(self.present(s, r), z3.Or(s.entered(r) == s.left(r) + 1, later))

    def by(self, s: View, r: Any, step: Step) -> Step:
        """Return the step as one that only a present rank takes."""
        return Step(z3.And(self.present(s, r), step.guard), **step.changes)

    @action(r=Rank)
    def look(self, s: View, r: Any) -> Step:
        """As in `Load`, by a present rank."""
        return self.by(s, r, super().look(s, r))

    @action(r=Rank)
    def enter_exchange(self, s: View, r: Any) -> Step:
        """As in `Load`, by a present rank."""
        return self.by(s, r, super().enter_exchange(s, r))

    @action(r=Rank, q=Rank)
    def leave_exchange(self, s: View, r: Any, q: Any) -> Step:
        """As in `Load`, by a present rank."""
        return self.by(s, r, super().leave_exchange(s, r, q))

    @action(r=Rank)
    def enter_broadcast(self, s: View, r: Any) -> Step:
        """As in `Load`, by a present rank."""
        return self.by(s, r, super().enter_broadcast(s, r))

    @action(r=Rank)
    def leave_broadcast(self, s: View, r: Any) -> Step:
        """As in `Load`, by a present rank."""
        return self.by(s, r, super().leave_broadcast(s, r))

    @action(fair=False, r=Rank)
    def die(self, s: View, r: Any) -> Step:
        """Rank r dies, anywhere."""
        return Step(z3.Not(s.dead(r)), dead=put(s.dead, r, True))

    @action(r=Rank)
    def expire(self, s: View, r: Any) -> Step:
        """Rank r has waited long enough and aborts the step."""
        abandoned = put(s.abandoned, r, self.moved(s, r))
        return Step(self.waits(s, r), aborted=put(s.aborted, r, True), abandoned=abandoned)

    @action(r=Rank)
    def call(self, s: View, r: Any) -> Step:
        """Rank r is done with this step, and enters the first collective of a later one."""
        ready = z3.And(self.present(s, r), self.done(s, r), z3.Not(s.called(r)))
        return Step(ready, called=put(s.called, r, True))

    def all_called(self, s: View) -> Formula:
        """The collective of the later step can take place."""
        return forall(Rank, lambda p: s.called(p))

    @action(r=Rank)
    def answer(self, s: View, r: Any) -> Step:
        """Rank r leaves the first collective of the later step."""
        ready = z3.And(self.present(s, r), s.called(r), z3.Not(s.answered(r)), self.all_called(s))
        return Step(ready, answered=put(s.answered, r, True))

    def finished(self, s: View) -> Formula:
        """Every rank is dead, or gave up, or is done and through the first collective of the later step."""
        return forall(Rank, lambda r: z3.Implies(self.present(s, r), s.answered(r)))

    def measure(self, s: View) -> dict[str, Any]:
        """As in `Load`; and who may still die, give up, or go on to the later step."""
        return {
            **super().measure(s),
            "lives": ((Rank,), lambda r: (z3.If(s.dead(r), 0, 1),)),
            "patience": ((Rank,), lambda r: (z3.If(s.aborted(r), 0, 1),)),
            "later": ((Rank,), lambda r: (z3.If(s.called(r), 0, 1), z3.If(s.answered(r), 0, 1))),
        }

    def uses(self, s: View, r: Any, c: Any) -> Formula:
        """Rank r computes with chunk c."""
        return z3.And(self.done(s, r), z3.Not(s.aborted(r)), within(0, c, s.agreed(r)))

    def out(self, s: View, r: Any) -> Formula:
        """Rank r has left the step without being done with it."""
        return z3.And(z3.Not(self.done(s, r)), z3.Or(s.dead(r), s.aborted(r)))

    def invariant(self, s: View) -> dict[str, Formula]:
        """As in `Load`; who is aborted was waiting, in this step or in the later one, and has not moved since."""
        return {
            **super().invariant(s),
            "aborted": forall(Rank, lambda r: z3.Implies(
                s.aborted(r), z3.Or(s.entered(r) == s.left(r) + 1, s.called(r)))),
            "unmoved": forall(Rank, lambda r: z3.Implies(s.aborted(r), self.moved(s, r) == s.abandoned(r))),
            "called": forall(Rank, lambda r: z3.Implies(s.called(r), self.done(s, r))),
            "answered": forall(Rank, Rank, lambda r, q: z3.Implies(s.answered(r), s.called(q))),
        }

    def safety(self, s: View) -> dict[str, Formula]:
        """What is claimed of every reachable state, besides what `Load` claims."""
        def waiting(s: View, r: Any) -> Formula:
            """Rank r lives, has not given up, and is in a collective."""
            inside = z3.Or(s.entered(r) == s.left(r) + 1, z3.And(s.called(r), z3.Not(s.answered(r))))
            return z3.And(z3.Not(s.dead(r)), z3.Not(s.aborted(r)), inside)

        return {
            **super().safety(s),
            "expires": forall(Rank, lambda r: z3.Implies(waiting(s, r), z3.And(
                self.expire(s, r).guard, z3.Not(waiting(s.but(self.expire(s, r).changes), r))))),
            "abort-leaves": forall(Rank, lambda r: z3.Implies(s.aborted(r), self.moved(s, r) == s.abandoned(r))),
            "uses-completed": forall(Rank, Int, lambda r, c: z3.Implies(
                self.uses(s, r, c), z3.And(s.held(r, c), s.entered(s.owner(c)) > c + 1))),
            "rebuild": forall(Rank, Rank, lambda r, q: z3.Implies(self.out(s, q), z3.Not(s.answered(r)))),
            "all-or-none": forall(Rank, Rank, lambda r, q: z3.Implies(
                z3.And(self.done(s, r), s.agreed(r) >= 1), z3.Not(z3.And(s.aborted(q), z3.Not(self.done(s, q)))))),
        }


class NoExpiryInExchange(FailingLoad):
    """Only broadcasts have a timeout."""

    @action(r=Rank)
    def expire(self, s: View, r: Any) -> Step:
        """Expire in a broadcast only."""
        step = super().expire(s, r)
        return Step(z3.And(step.guard, s.left(r) >= 1), **step.changes)


class ExpiryIgnored(FailingLoad):
    """A wait that has expired is written to the log."""

    @action(r=Rank)
    def expire(self, s: View, r: Any) -> Step:
        """Change nothing."""
        return Step(super().expire(s, r).guard)


class LeavesDeadOwner(FailingLoad):
    """A broadcast takes place among those that live, its owner or not."""

    @action(r=Rank)
    def leave_broadcast(self, s: View, r: Any) -> Step:
        """Wait for an owner only if it lives."""
        step = Load.leave_broadcast(self, s, r)
        owner = s.owner(s.left(r) - 1)
        there = z3.Or(s.dead(owner), s.entered(owner) > s.left(r))
        inside = z3.And(s.left(r) >= 1, s.entered(r) == s.left(r) + 1)
        return self.by(s, r, Step(z3.And(inside, there), **step.changes))


class GoesOnAfterAbort(FailingLoad):
    """A rank that has given up the exchange still takes its result when that comes after all."""

    @action(r=Rank, q=Rank)
    def leave_exchange(self, s: View, r: Any, q: Any) -> Step:
        """Leave it although the step was aborted."""
        step = Load.leave_exchange(self, s, r, q)
        return Step(z3.And(z3.Not(s.dead(r)), step.guard), **step.changes)


class UsesWhatItHas(FailingLoad):
    """A rank that aborts computes with the agreed prefix all the same."""

    def uses(self, s: View, r: Any, c: Any) -> Formula:
        """Use it after an abort too."""
        return z3.And(s.left(r) >= 1, z3.Or(self.done(s, r), s.aborted(r)), within(0, c, s.agreed(r)))


class LiveOnesWillDo(FailingLoad):
    """The later step's collective takes place among those that are left."""

    def all_called(self, s: View) -> Formula:
        """Wait for the live ones only."""
        return forall(Rank, lambda p: z3.Implies(self.present(s, p), s.called(p)))


_SCOPE = "all W, all lists of any length, any owner map; ranks die and waits expire anywhere"


def _two(theory: Any, s: View) -> Formula:
    return exists(Rank, Rank, lambda r, q: r != q)


def _always(
    name: str, claim: str, sometimes: Any, *mutants: Mutant, limit: bool = False, sizes: Sizes = ((2, 0), (2, 1))
) -> Always:
    return Always(
        id=f"load.{name}", claim=claim, scope=_SCOPE, theory=FailingLoad, fragment="UFLIA with quantifiers",
        safety=name, sometimes=sometimes, mutants=mutants, limit=limit, depth=12, sizes=sizes,
    )


OBLIGATIONS: tuple[Obligation, ...] = (
    _always(
        "expires", "every rank that waits in a collective can give up, which ends its wait",
        lambda theory, s: z3.And(_two(theory, s), exists(Rank, lambda r: theory.waits(s, r))),
        Mutant("exchange-without-timeout", "only the broadcasts have a timeout", NoExpiryInExchange,
               "a rank waits in the exchange, and if a peer dies nothing will ever end that",
               redefines="whether a rank can give up is itself what is claimed"),
        Mutant("expiry-ignored", "an expired wait is noted, and goes on", ExpiryIgnored,
               "the rank has given up and waits all the same",
               redefines="what giving up does is itself what is claimed"),
    ),
    Progress(
        id="load.progress-when-failing", scope=_SCOPE, theory=FailingLoad, fragment="UFLIA with quantifiers",
        claim="whoever dies, every live rank gets through or gives up: each action brings one nearer, and none back",
        sometimes=lambda theory, s: z3.And(_two(theory, s), theory.finished(s), exists(Rank, lambda r: s.dead(r)),
                                           exists(Rank, lambda r: s.aborted(r))),
        mutants=(Mutant("expiry-ignored", "an expired wait is noted, and goes on", ExpiryIgnored,
                        "a wait can expire again and again, and ends nothing"),),
        assumes=("fairness: an action that stays possible is taken at some time (arrival and death need not be)",
                 "with load.no-deadlock-when-failing, no run stops before that"),
        depth=12, sizes=((2, 0), (2, 1)),
    ),
    NoDeadlock(
        id="load.no-deadlock-when-failing", scope=_SCOPE, theory=FailingLoad, fragment="UFLIA with quantifiers",
        claim="whoever dies, until all live ranks are through or have given up, something happens without outside help",
        sometimes=lambda theory, s: z3.And(_two(theory, s), theory.finished(s), exists(Rank, lambda r: s.dead(r)),
                                           exists(Rank, lambda r: s.aborted(r))),
        mutants=(Mutant("exchange-without-timeout", "only the broadcasts have a timeout", NoExpiryInExchange,
                        "the live ranks wait in the exchange for one that died, for ever"),),
        depth=12, sizes=((2, 0), (2, 1)),
    ),
    _always(
        "abort-leaves", "a rank that gives up leaves the step without a further collective",
        lambda theory, s: z3.And(_two(theory, s), exists(Rank, lambda r: s.aborted(r))),
        Mutant("goes-on", "a rank that gave up the exchange takes its late result all the same", GoesOnAfterAbort,
               "the rank has left a collective after giving up, and goes on into broadcasts that nobody expects it in"),
    ),
    _always(
        "uses-completed", "no rank uses a chunk whose broadcast it has not completed",
        lambda theory, s: z3.And(_two(theory, s), exists(Rank, Int, lambda r, c: z3.And(
            within(0, c, s.length(r)), theory.uses(s, r, c)))),
        Mutant("uses-what-it-has", "after an abort the agreed prefix is used all the same", UsesWhatItHas,
               "a rank computes with a buffer that nothing was broadcast into",
               redefines="what a rank uses is itself what is claimed"),
        Mutant("dead-owner", "a broadcast takes place among the live ranks although its owner is dead", LeavesDeadOwner,
               "its owner never entered the broadcast, and the rank computes with what the buffer held before"),
        sizes=((2, 1),),
    ),
    _always(
        "rebuild", "once a rank has left a step unfinished, no later step of that group completes: it must be rebuilt",
        lambda theory, s: z3.And(_two(theory, s), exists(Rank, lambda r: s.answered(r))),
        Mutant("live-ones-will-do", "a later collective waits for the live ranks only", LiveOnesWillDo,
               "the group goes on without the chunks of a rank that it still counts on"),
    ),
    _always(
        "all-or-none", "all ranks take the whole prefix or none does",
        lambda theory, s: z3.And(_two(theory, s), forall(Rank, lambda r: theory.done(s, r))),
        limit=True, sizes=((2, 1),),
    ),
)
