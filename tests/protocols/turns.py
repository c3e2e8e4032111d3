"""turns: ranks take turns in a ring of any size; each may enter once, after all lower numbers have left."""

from __future__ import annotations

from typing import Any

import z3

from kvproof.spec.obligation import Always, Mutant, Obligation
from kvproof.spec.system import Step, System, action
from kvproof.spec.theory import Formula, Int, Rank, State, View, exists, forall, put


class Turns(System):
    """A lock by numbers: a rank draws the next number, and enters when that number is served."""

    drawn = State(Rank, Int)
    next = State(Int)
    served = State(Int)

    def init(self, s: View) -> list[Formula]:
        """Nobody has a number."""
        return [s.next == 1, s.served == 1, forall(Rank, lambda r: s.drawn(r) == 0)]

    @action(r=Rank)
    def draw(self, s: View, r: Any) -> Step:
        """Draw a number."""
        return Step(s.drawn(r) == 0, drawn=put(s.drawn, r, s.next), next=s.next + 1)

    @action(r=Rank)
    def leave(self, s: View, r: Any) -> Step:
        """Leave the critical section."""
        return Step(self.inside(s, r), drawn=put(s.drawn, r, -1), served=s.served + 1)

    def inside(self, s: View, r: Any) -> Formula:
        """Rank r is in the critical section."""
        return z3.And(s.drawn(r) >= 1, s.drawn(r) == s.served)

    def finished(self, s: View) -> Formula:
        """Everybody was served."""
        return forall(Rank, lambda r: s.drawn(r) == -1)

    def invariant(self, s: View) -> dict[str, Formula]:
        """Numbers are drawn once, and none below the served one is still held."""
        return {
            "range": forall(Rank, lambda r: z3.Or(s.drawn(r) == 0, s.drawn(r) == -1, z3.And(
                s.drawn(r) >= s.served, s.drawn(r) < s.next))),
            "order": z3.And(s.served >= 1, s.served <= s.next),
            "once": forall(Rank, Rank, lambda r, q: z3.Implies(
                z3.And(r != q, s.drawn(r) >= 1), s.drawn(r) != s.drawn(q))),
        }

    def safety(self, s: View) -> dict[str, Formula]:
        """Mutual exclusion."""
        return {"alone": forall(Rank, Rank, lambda r, q: z3.Implies(r != q, z3.Not(z3.And(
            self.inside(s, r), self.inside(s, q)))))}


class SameNumber(Turns):
    """Two ranks can draw the same number."""

    @action(r=Rank)
    def draw(self, s: View, r: Any) -> Step:
        """Draw without moving on."""
        return Step(s.drawn(r) == 0, drawn=put(s.drawn, r, s.next))


def _two(theory: Any, s: View) -> Formula:
    return exists(Rank, Rank, lambda r, q: z3.And(r != q, s.drawn(r) >= 1, s.drawn(q) >= 1))


OBLIGATIONS: tuple[Obligation, ...] = (
    Always(
        id="turns.alone", claim="no two ranks are inside at once", scope="any number of ranks", theory=Turns,
        fragment="UFLIA", safety="alone", sometimes=_two,
        mutants=(Mutant("same-number", "the number is read and not counted up", SameNumber, "both are inside"),),
    ),
)
