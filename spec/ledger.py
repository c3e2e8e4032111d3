"""ledger: every way out of a loop over keys gives back the lock, the pins and the usage that it took."""

from __future__ import annotations

from typing import Any

import z3

from kvproof.spec.obligation import Always, Mutant, NoDeadlock, Obligation, Progress
from kvproof.spec.system import Step, System, action
from kvproof.spec.theory import Bool, Formula, Int, Rank, Rigid, State, View, enum, exists, forall, put, within

Phase, BEFORE, LOOP, HOLDING, UNDO, OVER = enum("LedgerPhase", "before", "loop", "holding", "undo", "over")


class Ledger(System):
    """Callers (ranks, threads: any finite number) go over keys 0 .. keys - 1, each in a loop of its own.

    For each key a caller takes the key's lock, reserves `bytes(k)` of the budget and pins the key, lets the lock go and
    steps on; something may fail at every place. Then, after success as after failure, it undoes what it has done, last
    key first. `step(c)` is how many keys c has been through and not undone. `pins(c, k)` are the pins of c on k and
    `usage(c)` is what c has of the budget (a key's pins, and the budget's use, are the sums over callers). `holder(k)`
    has the lock of k when `locked(k)`. `total(k)` is what keys 0 .. k - 1 weigh.
    """

    keys = Rigid(Int)
    bytes = Rigid(Int, Int)
    total = Rigid(Int, Int)

    phase = State(Rank, Phase)
    step = State(Rank, Int)
    pins = State(Rank, Int, Int)
    usage = State(Rank, Int)
    locked = State(Int, Bool)
    holder = State(Int, Rank)

    def axioms(self, s: View) -> list[Formula]:
        """`total` adds up; nothing weighs less than nothing."""
        return [
            s.keys >= 0,
            s.total(0) == 0,
            forall(Int, lambda k: z3.Implies(within(0, k, s.keys), z3.And(
                s.bytes(k) >= 0, s.total(k + 1) == s.total(k) + s.bytes(k)))),
        ]

    def sized(self, s: View, size: int) -> list[Formula]:
        """At most `size` keys."""
        return [s.keys <= size]

    def init(self, s: View) -> list[Formula]:
        """Nobody has begun."""
        return [
            forall(Rank, lambda c: z3.And(s.phase(c) == BEFORE, s.step(c) == 0, s.usage(c) == 0)),
            forall(Rank, Int, lambda c, k: s.pins(c, k) == 0),
            forall(Int, lambda k: z3.Not(s.locked(k))),
        ]

    @action(c=Rank)
    def begin(self, s: View, c: Any) -> Step:
        """Enter the loop."""
        return Step(s.phase(c) == BEFORE, phase=put(s.phase, c, LOOP))

    @action(c=Rank)
    def lock(self, s: View, c: Any) -> Step:
        """Take the lock of the next key."""
        k = s.step(c)
        ready = z3.And(s.phase(c) == LOOP, k < s.keys, z3.Not(s.locked(k)))
        return Step(
            ready, phase=put(s.phase, c, HOLDING), locked=put(s.locked, k, True), holder=put(s.holder, k, c))

    @action(c=Rank)
    def take(self, s: View, c: Any) -> Step:
        """Reserve and pin, let the lock go, and step on."""
        k = s.step(c)
        return Step(
            s.phase(c) == HOLDING, phase=put(s.phase, c, LOOP), locked=put(s.locked, k, False),
            step=put(s.step, c, k + 1), pins=put(s.pins, (c, k), s.pins(c, k) + 1),
            usage=put(s.usage, c, s.usage(c) + s.bytes(k)),
        )

    @action(c=Rank)
    def finish(self, s: View, c: Any) -> Step:
        """After the last key the work is done, and what was taken is to be given back."""
        return Step(z3.And(s.phase(c) == LOOP, s.step(c) == s.keys), phase=put(s.phase, c, UNDO))

    @action(fair=False, c=Rank)
    def fail(self, s: View, c: Any) -> Step:
        """Something fails in the loop, with or without the lock (an allocation, a read): the lock is let go."""
        k = s.step(c)
        held = s.phase(c) == HOLDING
        return Step(
            z3.Or(s.phase(c) == LOOP, held), phase=put(s.phase, c, UNDO),
            locked=put(s.locked, k, z3.And(s.locked(k), z3.Not(held))),
        )

    @action(c=Rank)
    def undo(self, s: View, c: Any) -> Step:
        """Unpin the last key that was taken and give its bytes back."""
        k = s.step(c) - 1
        return Step(
            z3.And(s.phase(c) == UNDO, s.step(c) >= 1), step=put(s.step, c, k),
            pins=put(s.pins, (c, k), s.pins(c, k) - 1), usage=put(s.usage, c, s.usage(c) - s.bytes(k)),
        )

    @action(c=Rank)
    def leave(self, s: View, c: Any) -> Step:
        """Return, with everything undone."""
        return Step(z3.And(s.phase(c) == UNDO, s.step(c) == 0), phase=put(s.phase, c, OVER))

    def finished(self, s: View) -> Formula:
        """Everybody has returned."""
        return forall(Rank, lambda c: s.phase(c) == OVER)

    def invariant(self, s: View) -> dict[str, Formula]:
        """What has been taken is what was stepped over."""
        return {
            "steps": forall(Rank, lambda c: z3.And(
                within(0, s.step(c), s.keys + 1), z3.Implies(s.phase(c) == HOLDING, s.step(c) < s.keys),
                z3.Implies(z3.Or(s.phase(c) == BEFORE, s.phase(c) == OVER), s.step(c) == 0))),
            "pins": forall(Rank, Int, lambda c, k: s.pins(c, k) == z3.If(within(0, k, s.step(c)), 1, 0)),
            "usage": forall(Rank, lambda c: s.usage(c) == s.total(s.step(c))),
            "locks": forall(Int, lambda k: z3.Implies(s.locked(k), z3.And(
                s.phase(s.holder(k)) == HOLDING, s.step(s.holder(k)) == k))),
            "holders": forall(Rank, lambda c: z3.Implies(s.phase(c) == HOLDING, z3.And(
                s.locked(s.step(c)), s.holder(s.step(c)) == c))),
        }

    def safety(self, s: View) -> dict[str, Formula]:
        """What is claimed of every reachable state."""
        return {
            "restored": forall(Rank, lambda c: z3.Implies(s.phase(c) == OVER, z3.And(
                s.usage(c) == 0, forall(Int, lambda k: z3.And(
                    s.pins(c, k) == 0, z3.Implies(s.locked(k), s.holder(k) != c)))))),
            "never-negative": forall(Rank, Int, lambda c, k: s.pins(c, k) >= 0),
            "exclusive": forall(Rank, Rank, lambda c, d: z3.Implies(
                z3.And(s.phase(c) == HOLDING, s.phase(d) == HOLDING, s.step(c) == s.step(d)), c == d)),
        }

    def measure(self, s: View) -> dict[str, Any]:
        """What each caller has still to go through: the loop, then the way back."""
        def ahead(c: Any) -> Any:
            return z3.If(s.phase(c) == BEFORE, 3, z3.If(s.phase(c) == UNDO, 1, z3.If(s.phase(c) == OVER, 0, 2)))

        return {"work": ((Rank,), lambda c: (
            ahead(c), z3.If(ahead(c) == 2, s.keys - s.step(c), s.step(c)), z3.If(s.phase(c) == HOLDING, 0, 1)))}


class ReturnsInLoop(Ledger):
    """A failure inside the loop returns, with the lock held and what was taken before not undone."""

    @action(fair=False, c=Rank)
    def fail(self, s: View, c: Any) -> Step:
        """Return at once."""
        return Step(s.phase(c) == HOLDING, phase=put(s.phase, c, OVER))


class LosesPins(Ledger):
    """A failure inside the loop lets the lock go and returns, with the earlier keys still pinned."""

    @action(fair=False, c=Rank)
    def fail(self, s: View, c: Any) -> Step:
        """Release the lock only."""
        step = super().fail(s, c)
        return Step(step.guard, **{**step.changes, "phase": put(s.phase, c, OVER)})


class UndoneTwice(Ledger):
    """Both the retrieval and the unpinning at the end of the request undo the last key."""

    again = State(Rank, Bool)

    def init(self, s: View) -> list[Formula]:
        """Nothing has been undone."""
        return [*super().init(s), forall(Rank, lambda c: z3.Not(s.again(c)))]

    @action(c=Rank)
    def undo(self, s: View, c: Any) -> Step:
        """Undo, and the first time do not step back."""
        step = super().undo(s, c)
        back = put(s.step, c, z3.If(s.again(c), s.step(c) - 1, s.step(c)))
        return Step(step.guard, **{**step.changes, "step": back, "again": put(s.again, c, True)})


class NoLock(Ledger):
    """The lock is taken whoever has it."""

    @action(c=Rank)
    def lock(self, s: View, c: Any) -> Step:
        """Do not look."""
        step = super().lock(s, c)
        return Step(z3.And(s.phase(c) == LOOP, s.step(c) < s.keys), **step.changes)


class UnlocksAlways(Ledger):
    """A failure releases the key's lock, its own or not (`finally: release()`)."""

    @action(fair=False, c=Rank)
    def fail(self, s: View, c: Any) -> Step:
        """Let go of what somebody else may hold."""
        step = super().fail(s, c)
        return Step(step.guard, **{**step.changes, "locked": put(s.locked, s.step(c), False)})


class AsksAgain(Ledger):
    """A failure goes back to the start of the loop."""

    @action(fair=False, c=Rank)
    def fail(self, s: View, c: Any) -> Step:
        """Begin again, once all is undone."""
        return Step(z3.And(s.phase(c) == UNDO, s.step(c) == 0), phase=put(s.phase, c, LOOP))


_SCOPE = "any number of callers and keys; a failure at any place in the loop"
_FRAGMENT = "UFLIA with quantifiers"
_SIZES = ((1, 0), (1, 1), (2, 1), (1, 2))
_RETURN = Mutant(
    "return-in-loop", "return inside the loop", ReturnsInLoop,
    "the caller has returned and the key's lock is held: the next caller blocks for ever")


def _pinned(theory: Any, s: View) -> Formula:
    """Somebody is on the way back from a key that weighs something."""
    return exists(Rank, lambda c: z3.And(s.phase(c) == UNDO, s.step(c) >= 1, s.usage(c) >= 1))


def _shared(kind: type[Any], name: str, claim: str, **more: Any) -> Obligation:
    found: Obligation = kind(
        id=f"ledger.{name}", claim=claim, scope=_SCOPE, theory=Ledger, fragment=_FRAGMENT,
        sometimes=_pinned, witness_sizes=((1, 1),), **{"sizes": _SIZES, "depth": 9, **more})
    return found


OBLIGATIONS: tuple[Obligation, ...] = (
    _shared(
        Always, "restored", "whoever has returned holds no lock, no pin and no part of the budget", safety="restored",
        mutants=(
            _RETURN,
            Mutant("loses-pins", "return inside the loop, with the lock let go", LosesPins,
                   "the earlier keys stay pinned for ever and cannot be evicted"),
            Mutant("undone-twice", "undone twice", UndoneTwice,
                   "the usage is less than what is in use, and somebody else's pin is gone"),
        ),
    ),
    _shared(
        Always, "never-negative", "no pin count falls below zero", safety="never-negative",
        mutants=(Mutant("undone-twice", "undone twice", UndoneTwice,
                        "one caller's pins on the key are negative: it has undone somebody else's"),),
    ),
    _shared(
        Always, "exclusive", "no two callers hold the lock of one key", safety="exclusive",
        sizes=((2, 1), (3, 1)), depth=6,
        mutants=(
            Mutant("no-lock", "the lock is taken without a look at who has it", NoLock,
                   "two callers change the key's pins and the budget at once"),
            Mutant("unlocks-always", "a failure releases the lock although another caller has it", UnlocksAlways,
                   "a third caller has come in while the second was at work"),
        ),
    ),
    _shared(
        NoDeadlock, "no-deadlock", "as long as somebody has not returned, somebody can go on",
        mutants=(_RETURN,),
    ),
    _shared(
        Progress, "progress", "whatever a caller does brings it nearer to its return",
        mutants=(Mutant("asks-again", "a failure starts the loop again", AsksAgain, "a loop can fail for ever"),),
        assumes=("fairness: what stays possible is done at some time; the work itself ends",),
    ),
)
