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
    yield from plan.disturbed(plan.reads(payload=True), "present", "error")
    yield from plan.disturbed(plan.reads(payload=False), "absent", "error")


def check(cell: Cell) -> None:
    """A chunk that was refused, or never acknowledged, is not said to be stored; an error is never a hit."""
    found = cell.strike(cell.prepare())
    for each in found:
        if each.outcome == "hit" and cell.read == PUT:
            raise Broken(f"put of {each.chunk} was a hit, although storing it was not acknowledged ({cell.case.fault})")
    cell.no_lies(found, f"although the server answered with an error ({cell.case.fault})")


RULE = Rule("honest-error", cases, check)
