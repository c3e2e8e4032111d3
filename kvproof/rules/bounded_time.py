"""bounded-time: every call ends."""

from __future__ import annotations

from collections.abc import Iterator

from kvproof.rules.cell import Cell
from kvproof.rules.plan import Plan
from kvproof.rules.rule import PUT, Broken, Case, Rule


def cases(plan: Plan) -> Iterator[Case]:
    """Disturb each read, and the storing of a chunk, in every way in which an answer can fail to come."""
    yield Case("none:declared", plan.described.reads[0])
    yield from plan.undisturbed(plan.reads())
    yield from plan.disturbed(plan.reads(), "present", "stall", "late", "cut", "garbage", "lie")
    yield from plan.disturbed((PUT,), "put", "stall", "late", "cut", "garbage")


def check(cell: Cell) -> None:
    """Every call ends with a value, a miss or an error within its deadline, whatever the other side does."""
    declared = cell.ground.described.deadline
    if cell.case.fault == "none:declared":
        if declared is not None and declared > cell.limit:
            raise Broken(f"the adapter declares that a call may take {declared:g} s; at most {cell.limit:g} s are "
                         "allowed (--deadline allows more)")
        return
    cell.strike(cell.prepare())


RULE = Rule("bounded-time", cases, check)
