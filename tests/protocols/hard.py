"""hard: a claim that no solver decides in a millisecond."""

from __future__ import annotations

import z3

from kvproof.spec.obligation import Fact, Obligation
from kvproof.spec.theory import Int, Rigid, Theory


class Cubes(Theory):
    """Three whole numbers."""

    x = Rigid(Int)
    y = Rigid(Int)
    z = Rigid(Int)


OBLIGATIONS: tuple[Obligation, ...] = (
    Fact(
        id="hard.cubes", claim="no three large cubes sum to 33", scope="all integers", theory=Cubes, fragment="NIA",
        goal=lambda theory, s: z3.Not(z3.And(s.x**3 + s.y**3 + s.z**3 == 33, s.x > 10**6)), sizes=((1, 1),),
    ),
)
