"""Three right designs of a client that submits operations to workers and resolves futures by their completions."""

from __future__ import annotations

from typing import Any

import z3

from kvproof.spec.system import Step, System, action
from kvproof.spec.theory import Bool, Formula, Int, Rank, Rigid, State, View, enum, forall, put, within

Place, NEW, WORKER, QUEUE, KEPT, GONE = enum("CompletionPlace", "new", "worker", "queue", "kept", "gone")
_LEFT = {NEW: 4, WORKER: 3, QUEUE: 2, KEPT: 1}


class Completion(System):
    """What the three designs share. There are any number of `operations`; ids are integers, workers are the ranks.

    An operation goes to a worker, its completion into that worker's queue under the operation's id, and draining the
    queue finds the future that is registered under that id. `place(o)` is where o, then its completion, is: new, at the
    worker, in the queue, kept by a drain that did not know it, gone. `busy(o)`: the id of o is not yet given back.
    `promised(o)`: the caller holds a future. `delivered(o)` counts how often that future was resolved, by a completion,
    an error or its cancellation, and `got(o)` is whose completion it was. A cancelled future stays registered until its
    completion comes. `dead(w)`: the worker has died; `reaped(w)`: the client has seen it and dealt with it.
    """

    operations = Rigid(Int)

    place = State(Int, Place)
    at = State(Int, Rank)
    id = State(Int, Int)
    busy = State(Int, Bool)
    registered = State(Int, Bool)
    promised = State(Int, Bool)
    cancelled = State(Int, Bool)
    delivered = State(Int, Int)
    got = State(Int, Int)
    dead = State(Rank, Bool)
    reaped = State(Rank, Bool)
    closed = State(Bool)

    def sized(self, s: View, size: int) -> list[Formula]:
        """Operations 0 to `size`."""
        return [s.operations == size + 1]

    def init(self, s: View) -> list[Formula]:
        """No operation has begun, every worker lives."""
        return [
            forall(Int, lambda o: z3.And(
                s.place(o) == NEW, z3.Not(s.busy(o)), z3.Not(s.registered(o)), z3.Not(s.promised(o)),
                z3.Not(s.cancelled(o)), s.delivered(o) == 0, s.got(o) == o, s.id(o) == 0)),
            forall(Rank, lambda w: z3.And(z3.Not(s.dead(w)), z3.Not(s.reaped(w)))),
            z3.Not(s.closed),
        ]

    def fresh(self, s: View, o: Any) -> Formula:
        """Nothing has been done for o."""
        return z3.And(s.place(o) == NEW, z3.Not(s.promised(o)))

    def halfway(self, s: View, o: Any) -> Formula:
        """The call is between submitting o and giving its future to the caller."""
        return z3.And(s.place(o) != NEW, z3.Not(s.promised(o)))

    def free(self, s: View, i: Any) -> Formula:
        """Nothing holds the id."""
        return forall(Int, lambda p: z3.Implies(s.busy(p), s.id(p) != i))

    def usable(self, s: View, o: Any, i: Any, w: Any) -> Formula:
        """Whether a new operation may take this id and this worker."""
        return z3.And(within(0, o, s.operations), self.unlocked(s), z3.Not(s.closed), self.fresh(s, o), self.free(s, i),
                      z3.Not(s.reaped(w)))

    def unlocked(self, s: View) -> Formula:
        """No call holds the lock; there is none unless a design has one."""
        return z3.BoolVal(True)

    def resolved(self, s: View, o: Any, when: Formula) -> Any:
        """How often o is delivered once it is resolved `when` this holds: a cancelled future is left alone."""
        return s.delivered(o) + z3.If(z3.And(when, z3.Not(s.cancelled(o))), 1, 0)

    @action(o=Int)
    def complete(self, s: View, o: Any) -> Step:
        """The worker ends o and puts the completion into its queue."""
        return Step(z3.And(s.place(o) == WORKER, z3.Not(s.dead(s.at(o)))), place=put(s.place, o, QUEUE))

    @action(o=Int, p=Int)
    def drain(self, s: View, o: Any, p: Any) -> Step:
        """The completion of o is taken from the queue; p is what is registered under its id."""
        ready = z3.And(self.unlocked(s), s.place(o) == QUEUE, s.registered(p), s.id(p) == s.id(o))
        return Step(
            ready, place=put(s.place, o, GONE), registered=put(s.registered, p, False), busy=put(s.busy, p, False),
            delivered=put(s.delivered, p, self.resolved(s, p, True)), got=put(s.got, p, o),
        )

    @action(o=Int)
    def drain_unknown(self, s: View, o: Any) -> Step:
        """The completion of o is taken from the queue and nothing is registered under its id."""
        unknown = forall(Int, lambda p: z3.Implies(s.registered(p), s.id(p) != s.id(o)))
        return Step(z3.And(self.unlocked(s), s.place(o) == QUEUE, unknown), place=put(s.place, o, self.unclaimed(s)))

    def unclaimed(self, s: View) -> Any:
        """Where a completion goes that nobody is registered for."""
        return GONE

    @action(fair=False, o=Int)
    def cancel(self, s: View, o: Any) -> Step:
        """The caller cancels its future; the id stays taken until the completion has come."""
        ready = z3.And(s.promised(o), s.delivered(o) == 0)
        return Step(ready, delivered=put(s.delivered, o, s.delivered(o) + 1), cancelled=put(s.cancelled, o, True))

    @action(fair=False, w=Rank)
    def die(self, s: View, w: Any) -> Step:
        """A worker dies; what it has not completed never will be."""
        return Step(z3.Not(s.dead(w)), dead=put(s.dead, w, True))

    @action(w=Rank)
    def reap(self, s: View, w: Any) -> Step:
        """The client sees that a worker is dead: its queue is drained, and what is in flight there fails."""
        def ends(o: Any) -> Formula:
            return z3.And(self.reapable(s, w, o), s.registered(o))

        there = z3.And(self.unlocked(s), s.dead(w), z3.Not(s.reaped(w)))
        return Step(
            there, reaped=put(s.reaped, w, True),
            place=lambda o: z3.If(z3.And(s.at(o) == w, s.place(o) != NEW, s.place(o) != KEPT), GONE, s.place(o)),
            delivered=lambda o: self.resolved(s, o, ends(o)),
            registered=lambda o: z3.And(s.registered(o), z3.Not(ends(o))),
            busy=lambda o: z3.And(s.busy(o), z3.Not(ends(o))),
        )

    def reapable(self, s: View, w: Any, o: Any) -> Formula:
        """Whether the end of worker w is the end of o: in flight there, or completed in its queue."""
        return s.at(o) == w

    @action(fair=False)
    def close(self, s: View) -> Step:
        """Nothing new is taken, and whatever is registered is resolved."""
        return Step(
            z3.And(self.unlocked(s), z3.Not(s.closed)), closed=z3.BoolVal(True),
            delivered=lambda o: self.resolved(s, o, z3.And(s.registered(o), self.closable(s, o))),
            registered=lambda o: z3.And(s.registered(o), z3.Not(self.closable(s, o))),
        )

    def closable(self, s: View, o: Any) -> Formula:
        """Whether close resolves o: whatever it is doing."""
        return z3.BoolVal(True)

    def finished(self, s: View) -> Formula:
        """Every operation that has begun is delivered."""
        return forall(Int, lambda o: z3.Or(self.fresh(s, o), z3.And(s.promised(o), s.delivered(o) == 1)))

    def safety(self, s: View) -> dict[str, Formula]:
        """What is claimed of every reachable state."""
        return {
            "once": forall(Int, lambda o: z3.And(s.delivered(o) <= 1, z3.Implies(
                z3.And(s.promised(o), s.delivered(o) == 0, z3.Not(s.closed), z3.Not(s.reaped(s.at(o)))),
                z3.And(s.registered(o), s.place(o) != KEPT, s.place(o) != GONE)))),
            "resolved": forall(Int, lambda o: z3.Implies(
                z3.And(s.promised(o), z3.Or(s.closed, s.reaped(s.at(o)))), s.delivered(o) == 1)),
            "ids": z3.And(
                forall(Int, lambda o: s.got(o) == o),
                forall(Int, Int, lambda o, p: z3.Implies(
                    z3.And(self.flying(s, o), self.flying(s, p), s.id(o) == s.id(p)), o == p))),
        }

    def flying(self, s: View, o: Any) -> Formula:
        """A completion of o is still to come out of its worker or the queue, or is kept."""
        return z3.Or(s.place(o) == WORKER, s.place(o) == QUEUE, s.place(o) == KEPT)

    def invariant(self, s: View) -> dict[str, Formula]:
        """What each stage of an operation implies."""
        return {
            **self.safety(s),
            "counted": forall(Int, lambda o: z3.Or(self.fresh(s, o), within(0, o, s.operations))),
            "new": forall(Int, lambda o: z3.Implies(z3.Not(s.promised(o)), z3.And(
                s.delivered(o) == 0, z3.Not(s.registered(o)), z3.Not(s.cancelled(o))))),
            "registered": forall(Int, lambda o: z3.Implies(s.registered(o), z3.And(
                s.busy(o), z3.Not(s.closed), z3.Not(s.reaped(s.at(o))), s.place(o) != KEPT, s.place(o) != GONE))),
            "delivered": forall(Int, lambda o: z3.Implies(
                s.registered(o), s.delivered(o) == z3.If(s.cancelled(o), 1, 0))),
            "counts": forall(Int, lambda o: s.delivered(o) >= 0),
            "taken": forall(Int, lambda o: z3.Implies(self.flying(s, o), s.busy(o))),
            "unique": forall(Int, Int, lambda o, p: z3.Implies(
                z3.And(s.busy(o), s.busy(p), s.id(o) == s.id(p)), o == p)),
            "reaped": forall(Rank, lambda w: z3.Implies(s.reaped(w), s.dead(w))),
            "queued": forall(Int, lambda o: z3.Implies(
                z3.Or(s.place(o) == WORKER, s.place(o) == QUEUE), z3.Not(s.reaped(s.at(o))))),
        }

    def measure(self, s: View) -> dict[str, Any]:
        """What each operation has still to go through, which workers may die, whether close is to come."""
        def left(o: Any) -> Any:
            found: Any = 0
            for place, steps in _LEFT.items():
                found = z3.If(s.place(o) == place, steps, found)
            return found

        def work(o: Any) -> tuple[Any, ...]:
            parts = (z3.If(self.fresh(s, o), 1, 0), left(o), z3.If(s.promised(o), 0, 1), z3.If(s.cancelled(o), 0, 1))
            return tuple(z3.If(within(0, o, s.operations), part, 0) for part in parts)

        return {
            "work": ((Int,), work, lambda o: s.operations),
            "deaths": ((Rank,), lambda w: (z3.If(s.dead(w), 0, 1), z3.If(s.reaped(w), 0, 1))),
            "closing": ((), lambda: (z3.If(s.closed, 0, 1),)),
        }


class RegisterFirst(Completion):
    """First design: the future is registered before the operation is submitted."""

    @action(fair=False, o=Int, i=Int, w=Rank)
    def register(self, s: View, o: Any, i: Any, w: Any) -> Step:
        """Register o under a free id, for a worker that is not known to be dead."""
        return Step(
            self.usable(s, o, i, w), id=put(s.id, o, i), busy=put(s.busy, o, True), at=put(s.at, o, w),
            registered=put(s.registered, o, True), promised=put(s.promised, o, True),
        )

    @action(o=Int)
    def submit(self, s: View, o: Any) -> Step:
        """Submit what is registered, unless close or a reaped worker has resolved it in the meantime."""
        return Step(z3.And(s.registered(o), s.place(o) == NEW), place=put(s.place, o, WORKER))

    def invariant(self, s: View) -> dict[str, Formula]:
        """Whatever is submitted has its future already."""
        return {
            **super().invariant(s),
            "promised": forall(Int, lambda o: z3.Implies(s.place(o) != NEW, s.promised(o))),
        }


class SubmitFirst(Completion):
    """What the other designs share: the operation is submitted, and then its future is registered."""

    @action(fair=False, o=Int, i=Int, w=Rank)
    def submit(self, s: View, o: Any, i: Any, w: Any) -> Step:
        """Submit o under a free id."""
        return Step(
            self.usable(s, o, i, w), id=put(s.id, o, i), busy=put(s.busy, o, True), at=put(s.at, o, w),
            place=put(s.place, o, WORKER),
        )

    @action(o=Int)
    def register(self, s: View, o: Any) -> Step:
        """Register the future of o, and give it to the caller."""
        return Step(
            self.halfway(s, o), registered=put(s.registered, o, True), promised=put(s.promised, o, True))

    def invariant(self, s: View) -> dict[str, Formula]:
        """A caller has a future only for what is submitted."""
        return {
            **super().invariant(s),
            "submitted": forall(Int, lambda o: z3.Implies(s.promised(o), s.place(o) != NEW)),
        }


class OneLock(SubmitFirst):
    """Second design: one lock is held from submit to register, and by whatever else touches the table."""

    locked = State(Bool)
    caller = State(Int)

    def init(self, s: View) -> list[Formula]:
        """Nobody holds the lock."""
        return [*super().init(s), z3.Not(s.locked), s.caller == 0]

    def unlocked(self, s: View) -> Formula:
        """Nobody holds the lock."""
        return z3.Not(s.locked)

    @action(fair=False, o=Int, i=Int, w=Rank)
    def submit(self, s: View, o: Any, i: Any, w: Any) -> Step:
        """Take the lock and submit."""
        step = super().submit(s, o, i, w)
        return Step(step.guard, **step.changes, locked=z3.BoolVal(True), caller=o)

    @action(o=Int)
    def register(self, s: View, o: Any) -> Step:
        """Register, and let the lock go."""
        step = super().register(s, o)
        return Step(step.guard, **step.changes, locked=z3.BoolVal(False))

    def invariant(self, s: View) -> dict[str, Formula]:
        """Whose call is between submit and register holds the lock, and its operation has not come to an end."""
        return {
            **super().invariant(s),
            "one call": forall(Int, lambda o: self.halfway(s, o) == z3.And(s.locked, s.caller == o)),
            "in the call": z3.Implies(s.locked, z3.And(
                s.busy(s.caller), z3.Not(s.closed), z3.Not(s.reaped(s.at(s.caller))), z3.Or(
                    s.place(s.caller) == WORKER, s.place(s.caller) == QUEUE))),
        }


class Kept(SubmitFirst):
    """Third design: no lock; a completion that nobody is registered for is kept until somebody registers."""

    def unclaimed(self, s: View) -> Any:
        """Keep it, unless the client is closed."""
        return z3.If(s.closed, GONE, KEPT)

    @action(o=Int)
    def register(self, s: View, o: Any) -> Step:
        """Register the future of o; it is resolved at once if its completion is kept, or can no longer come."""
        over = self.over(s, o)
        return Step(
            self.halfway(s, o), promised=put(s.promised, o, True), registered=put(s.registered, o, z3.Not(over)),
            delivered=put(s.delivered, o, self.resolved(s, o, over)),
            place=put(s.place, o, z3.If(s.place(o) == KEPT, GONE, s.place(o))),
            busy=put(s.busy, o, z3.Or(z3.Not(over), s.place(o) == WORKER, s.place(o) == QUEUE)),
        )

    def over(self, s: View, o: Any) -> Formula:
        """Whether no completion of o can come any more, or it has come."""
        return z3.Or(s.place(o) == KEPT, s.closed, s.reaped(s.at(o)))

    def invariant(self, s: View) -> dict[str, Formula]:
        """What is kept is for a call that has not registered; what is gone before that, went with worker or client."""
        return {
            **super().invariant(s),
            "kept": forall(Int, lambda o: z3.Implies(s.place(o) == KEPT, z3.Not(s.promised(o)))),
            "coming": forall(Int, lambda o: z3.Implies(
                z3.And(s.promised(o), z3.Not(s.closed), z3.Or(s.place(o) == WORKER, s.place(o) == QUEUE)),
                s.registered(o))),
            "in the call": forall(Int, lambda o: z3.Implies(self.halfway(s, o), z3.And(
                s.busy(o), z3.Implies(s.place(o) == GONE, z3.Or(s.closed, s.reaped(s.at(o))))))),
        }
