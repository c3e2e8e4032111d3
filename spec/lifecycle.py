"""lifecycle: an operation reports its end once; a block has one owner, and is freed once, after its last writer."""

from __future__ import annotations

from typing import Any

import z3

from kvproof.spec.obligation import Always, Mutant, NoDeadlock, Obligation, Progress
from kvproof.spec.system import Step, System, action
from kvproof.spec.theory import Bool, Formula, Int, Rank, Rigid, State, View, exists, forall, put, within


class Reports(System):
    """`operations` that fetch `wanted(o)` blocks, `local(o)` of which are there already, from the peer `source(o)`.

    `moved(o)` blocks have come; `reports(o)` counts the terminal reports, and `done(o)`: one of them said done.
    """

    operations = Rigid(Int)
    wanted = Rigid(Int, Int)
    local = Rigid(Int, Int)
    source = Rigid(Int, Rank)

    begun = State(Int, Bool)
    moved = State(Int, Int)
    reports = State(Int, Int)
    done = State(Int, Bool)
    dead = State(Rank, Bool)

    def axioms(self, s: View) -> list[Formula]:
        """Counts are naturals; an operation may want nothing, and more may be there than it wants."""
        return [forall(Int, lambda o: z3.And(s.wanted(o) >= 0, s.local(o) >= 0))]

    def sized(self, s: View, size: int) -> list[Formula]:
        """Operations of at most `size` blocks."""
        return [s.operations == size + 1, forall(Int, lambda o: z3.And(s.wanted(o) <= size, s.local(o) <= size))]

    def init(self, s: View) -> list[Formula]:
        """No operation has begun; every peer lives."""
        return [
            forall(Int, lambda o: z3.And(
                z3.Not(s.begun(o)), s.moved(o) == 0, s.reports(o) == 0, z3.Not(s.done(o)))),
            forall(Rank, lambda w: z3.Not(s.dead(w))),
        ]

    def needed(self, s: View, o: Any) -> Any:
        """How many blocks have to come: none for empty work and for a full local hit."""
        return z3.If(s.local(o) >= s.wanted(o), 0, s.wanted(o) - s.local(o))

    def running(self, s: View, o: Any) -> Formula:
        """Operation o has begun and not reported its end."""
        return z3.And(s.begun(o), s.reports(o) == 0)

    @action(fair=False, o=Int)
    def begin(self, s: View, o: Any) -> Step:
        """Begin o; when nothing has to come, it is done at once."""
        return Step(
            z3.And(within(0, o, s.operations), z3.Not(s.begun(o))), begun=put(s.begun, o, True),
            reports=put(s.reports, o, z3.If(self.at_once(s, o), 1, s.reports(o))),
            done=put(s.done, o, z3.Or(self.at_once(s, o), s.done(o))),
        )

    def at_once(self, s: View, o: Any) -> Formula:
        """Whether o reports its end as it begins, because no completion will come."""
        return self.needed(s, o) == 0

    @action(o=Int)
    def move(self, s: View, o: Any) -> Step:
        """One block comes; with the last one o is done."""
        ready = z3.And(self.running(s, o), s.moved(o) < self.needed(s, o), z3.Not(s.dead(s.source(o))))
        last = s.moved(o) + 1 == self.needed(s, o)
        return Step(
            ready, moved=put(s.moved, o, s.moved(o) + 1),
            reports=put(s.reports, o, s.reports(o) + z3.If(last, 1, 0)),
            done=put(s.done, o, z3.Or(last, s.done(o))),
        )

    @action(fair=False, w=Rank)
    def die(self, s: View, w: Any) -> Step:
        """A peer dies."""
        return Step(z3.Not(s.dead(w)), dead=put(s.dead, w, True))

    @action(o=Int)
    def fail(self, s: View, o: Any) -> Step:
        """An operation whose peer is dead reports that it failed."""
        ready = z3.And(self.running(s, o), s.dead(s.source(o)))
        return Step(ready, reports=put(s.reports, o, s.reports(o) + 1))

    def finished(self, s: View) -> Formula:
        """Every operation that has begun has reported."""
        return forall(Int, lambda o: z3.Implies(s.begun(o), s.reports(o) == 1))

    def invariant(self, s: View) -> dict[str, Formula]:
        """What has come and been reported."""
        return {
            **self.safety(s),
            "counted": forall(Int, lambda o: z3.Implies(s.begun(o), within(0, o, s.operations))),
            "moved": forall(Int, lambda o: within(0, s.moved(o), self.needed(s, o) + 1)),
            "begun": forall(Int, lambda o: z3.Implies(z3.Not(s.begun(o)), z3.And(s.moved(o) == 0, s.reports(o) == 0))),
            "unreported": forall(Int, lambda o: z3.Implies(s.reports(o) == 0, z3.Not(s.done(o)))),
            "counts": forall(Int, lambda o: s.reports(o) >= 0),
            "all there": forall(Int, lambda o: z3.Implies(
                z3.And(s.begun(o), s.moved(o) == self.needed(s, o)), s.reports(o) == 1)),
        }

    def safety(self, s: View) -> dict[str, Formula]:
        """What is claimed of every reachable state."""
        return {
            "one-report": forall(Int, lambda o: z3.And(s.reports(o) <= 1, z3.Implies(
                self.running(s, o), s.moved(o) < self.needed(s, o)))),
            "true-report": forall(Int, lambda o: z3.Implies(
                s.reports(o) >= 1, z3.If(s.done(o), s.moved(o) == self.needed(s, o), s.dead(s.source(o))))),
        }

    def measure(self, s: View) -> dict[str, Any]:
        """What each operation has still to do, and who may die."""
        def work(o: Any) -> tuple[Any, ...]:
            parts = (z3.If(s.begun(o), 0, 1), self.needed(s, o) - s.moved(o), z3.If(s.reports(o) == 0, 1, 0))
            return tuple(z3.If(within(0, o, s.operations), part, 0) for part in parts)

        return {
            "work": ((Int,), work, lambda o: s.operations),
            "deaths": ((Rank,), lambda w: (z3.If(s.dead(w), 0, 1),)),
        }


class EmptyWaits(Reports):
    """An operation without blocks waits for a completion like any other."""

    def at_once(self, s: View, o: Any) -> Formula:
        """Only a full local hit of something is done at once."""
        return z3.And(s.wanted(o) >= 1, self.needed(s, o) == 0)


class FullHitWaits(Reports):
    """An operation whose blocks are all there waits for a completion like any other."""

    def at_once(self, s: View, o: Any) -> Formula:
        """Only empty work is done at once."""
        return s.wanted(o) == 0


class DeathUnnoticed(Reports):
    """Nobody fails the operations of a peer that has died."""

    fail = None  # type: ignore[assignment]  # the action is taken away


class ReportsTwice(Reports):
    """The death of a peer fails everything that was begun there, also what has reported its end."""

    @action(o=Int)
    def fail(self, s: View, o: Any) -> Step:
        """Fail o, whether it has reported or not."""
        ready = z3.And(s.begun(o), s.dead(s.source(o)), s.reports(o) <= 1)
        return Step(ready, reports=put(s.reports, o, s.reports(o) + 1))


class FailedIsDone(Reports):
    """An operation that failed is reported like one that is done."""

    @action(o=Int)
    def fail(self, s: View, o: Any) -> Step:
        """Report that it is done."""
        ready = z3.And(self.running(s, o), s.dead(s.source(o)))
        return Step(ready, reports=put(s.reports, o, s.reports(o) + 1), done=put(s.done, o, True))


class TriesAgain(Reports):
    """A fetch from a dead peer begins again, and the peer is taken for alive."""

    @action(o=Int)
    def fail(self, s: View, o: Any) -> Step:
        """Begin again."""
        ready = z3.And(self.running(s, o), s.dead(s.source(o)))
        return Step(ready, moved=put(s.moved, o, 0), dead=put(s.dead, s.source(o), False))


class Blocks(System):
    """Requests own blocks while transfers read and write them; a request ends, or is aborted, at any time.

    Transfer t belongs to the request `by(t)`, which may have any number of them at once: a load and a store, say.
    `active(t)`: not completed. `target(t, b)`: t writes block b. `listed(r, b)`: b is a block of r. `ended(r)`: nothing
    new begins for r. `allocated(b)` and `freed(b)` count; a block is free when they are equal.
    """

    by = Rigid(Int, Int)

    begun = State(Int, Bool)
    active = State(Int, Bool)
    target = State(Int, Int, Bool)
    listed = State(Int, Int, Bool)
    ended = State(Int, Bool)
    allocated = State(Int, Int)
    freed = State(Int, Int)

    def sized(self, s: View, size: int) -> list[Formula]:
        """Requests, transfers and blocks 0 to `size`."""
        return [forall(Int, lambda t: within(0, s.by(t), size + 1))]

    def init(self, s: View) -> list[Formula]:
        """All blocks are free, nothing has begun."""
        return [
            forall(Int, lambda t: z3.And(z3.Not(s.begun(t)), z3.Not(s.active(t)), z3.Not(s.ended(t)))),
            forall(Int, Int, lambda t, b: z3.And(z3.Not(s.target(t, b)), z3.Not(s.listed(t, b)))),
            forall(Int, lambda b: z3.And(s.allocated(b) == 0, s.freed(b) == 0)),
        ]

    @action(r=Int, b=Int)
    def allocate(self, s: View, r: Any, b: Any) -> Step:
        """Request r takes a free block."""
        ready = z3.And(z3.Not(s.ended(r)), s.freed(b) >= s.allocated(b))
        return Step(ready, listed=put(s.listed, (r, b), True), allocated=put(s.allocated, b, s.allocated(b) + 1))

    @action(t=Int)
    def begin(self, s: View, t: Any) -> Step:
        """A transfer begins, over the blocks that its request has."""
        ready = z3.And(z3.Not(s.begun(t)), z3.Not(s.ended(s.by(t))))
        return Step(
            ready, begun=put(s.begun, t, True), active=put(s.active, t, True),
            target=lambda u, b: z3.If(u == t, s.listed(s.by(t), b), s.target(u, b)),
        )

    @action(r=Int)
    def end(self, s: View, r: Any) -> Step:
        """Request r ends or is aborted; its blocks are freed now if no transfer is active."""
        return self.release(s, r, self.idle(s, r), z3.Not(s.ended(r)), ended=put(s.ended, r, True))

    def idle(self, s: View, r: Any) -> Formula:
        """Whether the end of r frees its blocks: no transfer of it is active."""
        return forall(Int, lambda t: z3.Implies(s.by(t) == r, z3.Not(s.active(t))))

    @action(t=Int)
    def complete(self, s: View, t: Any) -> Step:
        """A transfer completes; if it was the last one of a request that has ended, the blocks are freed."""
        free = z3.And(s.ended(s.by(t)), self.last(s, t))
        return self.release(s, s.by(t), free, s.active(t), active=put(s.active, t, False))

    def last(self, s: View, t: Any) -> Formula:
        """Whether no other transfer of that request is active."""
        return forall(Int, lambda u: z3.Implies(z3.And(s.by(u) == s.by(t), s.active(u)), u == t))

    def release(self, s: View, r: Any, free: Formula, ready: Formula, **changes: Any) -> Step:
        """Free what is listed for r `when` that holds, and empty the list."""
        return Step(
            ready, **changes,
            freed=lambda b: s.freed(b) + z3.If(z3.And(free, s.listed(r, b)), 1, 0),
            listed=lambda q, b: z3.And(s.listed(q, b), z3.Not(z3.And(free, self.cleared(s), q == r))),
        )

    def cleared(self, s: View) -> Formula:
        """Whether freeing takes the blocks off the request's list."""
        return z3.BoolVal(True)

    def invariant(self, s: View) -> dict[str, Formula]:
        """Who has what, and since when."""
        return {
            **self.safety(s),
            "counts": forall(Int, lambda b: within(s.freed(b), s.allocated(b), s.freed(b) + 2)),
            "taken": forall(Int, Int, lambda r, b: z3.Implies(s.listed(r, b), s.allocated(b) == s.freed(b) + 1)),
            "begun": forall(Int, lambda t: z3.Implies(s.active(t), s.begun(t))),
        }

    def safety(self, s: View) -> dict[str, Formula]:
        """What is claimed of every reachable state."""
        return {
            "one-owner": forall(Int, Int, Int, lambda r, q, b: z3.Implies(
                z3.And(s.listed(r, b), s.listed(q, b)), r == q)),
            "last-writer": forall(Int, Int, lambda t, b: z3.Implies(
                z3.And(s.active(t), s.target(t, b)), s.listed(s.by(t), b))),
            "freed-once": forall(Int, lambda b: s.freed(b) <= s.allocated(b)),
            "no-leak": forall(Int, Int, lambda r, b: z3.Implies(z3.And(s.ended(r), s.listed(r, b)), exists(
                Int, lambda t: z3.And(s.by(t) == r, s.active(t))))),
        }


class AbortFrees(Blocks):
    """An abort frees the request's blocks at once, whatever is in flight."""

    def idle(self, s: View, r: Any) -> Formula:
        """Do not ask."""
        return z3.BoolVal(True)


class FirstDeletes(Blocks):
    """The first of two completions deletes the request."""

    def last(self, s: View, t: Any) -> Formula:
        """Take every completion for the last."""
        return z3.BoolVal(True)


class AbortLeaks(Blocks):
    """The abort leaves the freeing to a completion, also when none will come."""

    def idle(self, s: View, r: Any) -> Formula:
        """Never free at the end."""
        return z3.BoolVal(False)


class FreedByBoth(Blocks):
    """Every completion of an ended request frees its list, and nothing takes the blocks off it."""

    def last(self, s: View, t: Any) -> Formula:
        """Take every completion for the last."""
        return z3.BoolVal(True)

    def cleared(self, s: View) -> Formula:
        """Leave the list as it is."""
        return z3.BoolVal(False)


_REPORTS = "any number of operations of any size, also none; any number of peers, dying at any time"
_BLOCKS = "any number of requests, transfers and blocks; end or abort at any position"
_FRAGMENT = "UFLIA with quantifiers"
_SIZES = ((1, 0), (1, 1), (1, 2))
_WAITS = "no completion will ever come for it, and whoever asked waits for ever"
_REUSE = "a transfer writes into a block that is free, or somebody else's by now"


def _mixed(theory: Any, s: View) -> Formula:
    """One operation has moved something, another was a full hit, and both have reported."""
    return exists(Int, Int, lambda o, p: z3.And(
        s.reports(o) == 1, s.moved(o) >= 1, s.reports(p) == 1, s.wanted(p) >= 1, s.moved(p) == 0))


def _aborted(theory: Any, s: View) -> Formula:
    """A request has ended while a transfer writes one of its blocks."""
    return exists(Int, Int, lambda t, b: z3.And(s.active(t), s.target(t, b), s.ended(s.by(t))))


_EMPTY = Mutant("empty-waits", "empty work waits for a completion", EmptyWaits, _WAITS)
_FULL = Mutant("full-hit-waits", "a full local hit waits for a completion", FullHitWaits, _WAITS)


def _report(kind: type[Any], name: str, claim: str, **more: Any) -> Obligation:
    found: Obligation = kind(
        id=f"lifecycle.{name}", claim=claim, scope=_REPORTS, theory=Reports, fragment=_FRAGMENT, sizes=_SIZES,
        sometimes=_mixed, witness_sizes=((1, 1),), **more)
    return found


def _blocks(name: str, claim: str, *mutants: Mutant) -> Always:
    return Always(
        id=f"lifecycle.{name}", claim=claim, scope=_BLOCKS, theory=Blocks, fragment=_FRAGMENT, safety=name,
        sizes=_SIZES[:2], sometimes=_aborted, depth=8, mutants=mutants)


OBLIGATIONS: tuple[Obligation, ...] = (
    _report(
        Always, "one-report", "no operation reports twice, and none that has everything has yet to report",
        safety="one-report",
        mutants=(_EMPTY, _FULL, Mutant(
            "reports-twice", "a peer's death fails also what has reported its end", ReportsTwice,
            "one operation has reported done and failed: the second report finds nobody, or somebody else")),
    ),
    _report(
        Always, "true-report", "done is reported of what has every block, and failed of what has lost its peer",
        safety="true-report",
        mutants=(Mutant("failed-is-done", "a failed operation is reported as done", FailedIsDone,
                        "the engine computes with blocks that never came"),),
    ),
    _report(
        NoDeadlock, "no-deadlock", "as long as an operation has not reported, something brings it nearer to its report",
        mutants=(
            _EMPTY, _FULL,
            Mutant("dead-peer", "nobody fails the operations of a dead peer", DeathUnnoticed, _WAITS),
        ),
        assumes=("a live peer sends what it was asked for, or dies, and its death is noticed",),
    ),
    _report(
        Progress, "progress", "whatever happens brings one operation or peer nearer to its end, and none back",
        mutants=(Mutant("tries-again", "a fetch from a dead peer begins again", TriesAgain, "it can fail for ever"),),
        assumes=("fairness: what stays possible is done at some time",),
    ),
    _blocks(
        "one-owner", "no two requests have one block",
        Mutant("freed-by-both", "freed blocks stay on the request's list, and every completion frees it", FreedByBoth,
               "a freed block is given to a second request, and is still on the first one's list"),
    ),
    _blocks(
        "last-writer", "a block belongs to the request whose transfer writes it until that has completed",
        Mutant("abort-frees", "abort frees at once", AbortFrees, _REUSE),
        Mutant("first-deletes", "the first of two completions deletes", FirstDeletes, _REUSE),
    ),
    _blocks(
        "freed-once", "no block is freed more often than it was allocated",
        Mutant("freed-by-both", "freed blocks stay on the request's list, and every completion frees it", FreedByBoth,
               "the second completion frees a block that is free"),
    ),
    _blocks(
        "no-leak", "a request that has ended and has no active transfer has no block",
        Mutant("abort-leaks", "abort leaves the freeing to a completion that has already come", AbortLeaks,
               "nobody will ever free the block"),
    ),
)
