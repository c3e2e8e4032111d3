"""completion: an operation that completes is delivered once, in whatever order things happen (facts: 1)."""

from __future__ import annotations

from typing import Any

import z3

from kvproof.spec.completion_designs import (
    GONE,
    KEPT,
    NEW,
    QUEUE,
    WORKER,
    Completion,
    Kept,
    OneLock,
    RegisterFirst,
    SubmitFirst,
)
from kvproof.spec.obligation import Always, Mutant, NoDeadlock, Obligation, Progress
from kvproof.spec.system import Step, action
from kvproof.spec.theory import Formula, Int, View, exists, forall, put


class CloseWithoutLock(OneLock):
    """Close does not take the lock that submit and register hold."""

    @action(fair=False)
    def close(self, s: View) -> Step:
        """Close while a call may be between submit and register."""
        return Step(z3.Not(s.closed), **super().close(s).changes)


class DrainWithoutLock(OneLock):
    """Draining does not take the lock that submit and register hold."""

    @action(o=Int)
    def drain_unknown(self, s: View, o: Any) -> Step:
        """Drop what is not registered, or not yet."""
        unknown = forall(Int, lambda p: z3.Implies(s.registered(p), s.id(p) != s.id(o)))
        return Step(z3.And(s.place(o) == QUEUE, unknown), place=put(s.place, o, GONE))


class DropsUnknown(Kept):
    """Drain drops what it does not know."""

    def unclaimed(self, s: View) -> Any:
        """Drop it."""
        return GONE


class IgnoresClose(Kept):
    """Register does not look whether the client was closed since the operation was submitted."""

    def over(self, s: View, o: Any) -> Formula:
        """Look for a kept completion and for a dead worker only."""
        return z3.Or(s.place(o) == KEPT, s.reaped(s.at(o)))


class CancelFreesId(Completion):
    """A cancelled operation's id is returned at once, before its completion has come."""

    @action(fair=False, o=Int)
    def cancel(self, s: View, o: Any) -> Step:
        """Take the future out of the table and give the id back."""
        step = super().cancel(s, o)
        return Step(
            step.guard, **step.changes, registered=put(s.registered, o, False), busy=put(s.busy, o, False))


class RegisterFirstCancelFreesId(CancelFreesId, RegisterFirst):
    """The same in the first design."""


class OneLockCancelFreesId(CancelFreesId, OneLock):
    """The same in the second design."""


class TableFreesId(Kept):
    """Ids are chosen by a look at the table, which does not know of a call that has not registered yet."""

    def free(self, s: View, i: Any) -> Formula:
        """Only what is registered counts."""
        return forall(Int, lambda p: z3.Implies(s.registered(p), s.id(p) != i))


class QueueForgotten(Completion):
    """When a worker dies, what it had in flight fails, and its queue of completions is thrown away with it."""

    def reapable(self, s: View, w: Any, o: Any) -> Formula:
        """Only what had not completed."""
        return z3.And(s.at(o) == w, s.place(o) != QUEUE)


class RegisterFirstQueueForgotten(QueueForgotten, RegisterFirst):
    """The same in the first design."""


class OneLockQueueForgotten(QueueForgotten, OneLock):
    """The same in the second design."""


class KeptQueueForgotten(QueueForgotten, Kept):
    """The same in the third design."""


class FlightOnly(RegisterFirst):
    """Close resolves what the workers hold, and forgets what is registered and not yet submitted."""

    def closable(self, s: View, o: Any) -> Formula:
        """Only what is submitted."""
        return s.place(o) != NEW


class Requeues(Completion):
    """Drain puts back into the queue what it does not know."""

    def unclaimed(self, s: View) -> Any:
        """Back to the end of the queue."""
        return QUEUE


class RegisterFirstRequeues(Requeues, RegisterFirst):
    """The same in the first design."""


class OneLockRequeues(Requeues, OneLock):
    """The same in the second design."""


class KeptRequeues(Requeues, Kept):
    """The same in the third design."""


_SCOPE = "any number of operations, ids and workers; submit, complete, drain, register, cancel, close, death anywhere"
_FRAGMENT = "EUF with quantifiers, and counting"
_CLIENT = "the client drains queues, and sees dead workers; a call that has begun goes on; a live worker completes"
_SIZES = ((1, 0), (1, 1), (2, 1), (1, 2))
_LOST = "the caller holds a future, and nothing is left that would resolve it"
_REUSED = "two operations in flight have one id: the completion of the first will resolve the future of the second"
_AFTER_CLOSE = "the client is closed, and a caller waits for a future that nobody resolves"
_DROPPED = "the completion came before the future was registered, and was dropped: " + _LOST


def _delivers(theory: Any, s: View) -> Formula:
    """A completion has been delivered."""
    return exists(Int, lambda o: z3.And(
        s.place(o) == GONE, s.delivered(o) == 1, z3.Not(s.cancelled(o)), z3.Not(s.closed),
        z3.Not(s.reaped(s.at(o)))))


def _ends(theory: Any, s: View) -> Formula:
    """The client is closed, and had something to resolve."""
    return z3.And(s.closed, exists(Int, lambda o: z3.And(s.promised(o), z3.Not(s.cancelled(o)), s.place(o) == WORKER)))


def _two_fly(theory: Any, s: View) -> Formula:
    """Two operations are in flight."""
    return exists(Int, Int, lambda o, p: z3.And(o != p, s.place(o) == WORKER, s.place(p) == WORKER))


def _design(
    name: str, words: str, theory: type[Completion], once: tuple[Mutant, ...], resolved: tuple[Mutant, ...],
    ids: tuple[Mutant, ...],
) -> tuple[Obligation, ...]:
    shared: dict[str, Any] = {"scope": _SCOPE, "theory": theory, "fragment": _FRAGMENT}
    return (
        Always(
            id=f"completion.{name}-once", safety="once", sometimes=_delivers, mutants=once, sizes=_SIZES, **shared,
            claim=f"{words}: an operation that completes is delivered once: never twice, and none is lost",
        ),
        Always(
            id=f"completion.{name}-resolved", safety="resolved", sometimes=_ends, mutants=resolved, sizes=_SIZES,
            **shared, claim=f"{words}: once the client is closed, or has seen a worker dead, every future that a "
            "caller holds or gets is resolved, once",
        ),
        Always(
            id=f"completion.{name}-ids", safety="ids", sometimes=_two_fly, mutants=ids, sizes=_SIZES[1:], **shared,
            claim=f"{words}: operations in flight have different ids, and none gets the completion of another",
        ),
    )


def _forgotten(theory: type[QueueForgotten]) -> Mutant:
    return Mutant("queue-forgotten", "a dead worker's queue is forgotten", theory,
                  "the operation had completed, and its completion went with the worker: " + _LOST)


OBLIGATIONS: tuple[Obligation, ...] = (
    *_design(
        "register-first", "register before submit", RegisterFirst,
        (Mutant("submit-first", "submit then register", SubmitFirst, _DROPPED),),
        (
            Mutant("flight-only", "close resolves what was submitted only", FlightOnly, _AFTER_CLOSE),
            _forgotten(RegisterFirstQueueForgotten),
        ),
        (
            Mutant("cancel-frees-id", "a cancelled id is returned early, before its completion has come",
                   RegisterFirstCancelFreesId, _REUSED),
        ),
    ),
    *_design(
        "one-lock", "one lock over submit, register and close", OneLock,
        (Mutant("drain-without-lock", "drain does not take the lock", DrainWithoutLock, _DROPPED),),
        (
            Mutant("close-without-lock", "close does not take the lock", CloseWithoutLock,
                   "close came between submit and register: " + _AFTER_CLOSE),
            _forgotten(OneLockQueueForgotten),
        ),
        (
            Mutant("cancel-frees-id", "a cancelled id is returned early, before its completion has come",
                   OneLockCancelFreesId, _REUSED),
        ),
    ),
    *_design(
        "kept", "unclaimed completions are kept", Kept,
        (Mutant("drops-unknown", "drain drops what it does not know", DropsUnknown, _DROPPED),),
        (
            Mutant("ignores-close", "register does not look whether the client is closed", IgnoresClose, _AFTER_CLOSE),
            _forgotten(KeptQueueForgotten),
        ),
        (Mutant("table-frees-id", "a free id is one that is not in the table", TableFreesId, _REUSED),),
    ),
    *(
        NoDeadlock(
            id=f"completion.{name}-no-deadlock", theory=theory, scope=_SCOPE, fragment=_FRAGMENT, sizes=_SIZES,
            claim="as long as an operation that has begun is not delivered, something can happen that brings it nearer",
            sometimes=_delivers, assumes=(_CLIENT,), mutants=mutants,
        )
        for name, theory, mutants in (
            ("register-first", RegisterFirst, (
                Mutant("submit-first", "submit then register", SubmitFirst, _LOST),
                _forgotten(RegisterFirstQueueForgotten))),
            ("one-lock", OneLock, (_forgotten(OneLockQueueForgotten),)),
            ("kept", Kept, (Mutant("drops-unknown", "drain drops what it does not know", DropsUnknown, _LOST),)),
        )
    ),
    *(
        Progress(
            id=f"completion.{name}-progress", theory=theory, scope=_SCOPE, fragment=_FRAGMENT, sizes=_SIZES,
            claim="whatever happens brings one operation, worker or the client nearer to its end, and none back",
            sometimes=_delivers, assumes=(f"fairness: {_CLIENT}",), mutants=(Mutant(
                "requeues", "drain puts back what it does not know", mutant, "it is taken from the queue for ever"),),
        )
        for name, theory, mutant in (
            ("register-first", RegisterFirst, RegisterFirstRequeues), ("one-lock", OneLock, OneLockRequeues),
            ("kept", Kept, KeptRequeues))
    ),
)
