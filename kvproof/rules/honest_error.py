"""honest-error: what failed is not said to have worked."""

from __future__ import annotations

from collections.abc import Iterator

from kvproof.rules.cell import Cell
from kvproof.rules.plan import Plan
from kvproof.rules.rule import PUT, Broken, Case, Rule


def cases(plan: Plan) -> Iterator[Case]:
    """Refuse a chunk that is to be stored, or cut its acknowledgement; answer reads with errors."""
    yield from plan.disturbed((PUT,), "put", "refusal", "error", "cut", "stall", "garbage",
                              but=("insert:push", "insert:attribute", "duplicate", "close:request"))
    yield from plan.disturbed(plan.reads(), "absent", "error")


def check(cell: Cell) -> None:
    """A chunk that was refused, or never acknowledged, is not said to be stored; an error is never a hit."""
    [*found] = cell.strike(cell.prepare())
    for each in found:
        if each.outcome == "hit":
            what = "storing it was not acknowledged" if cell.read == PUT else "the server answered with an error"
            raise Broken(f"{cell.read.name} of {each.chunk} was a hit, although {what} ({cell.case.fault})")


RULE = Rule("honest-error", cases, check)
