"""batch-aligned: the results of a batch are those of its chunks, in order."""

from __future__ import annotations

from collections.abc import Iterator

from kvproof.rules.cell import Cell
from kvproof.rules.plan import Plan
from kvproof.rules.rule import Broken, Case, Rule

BATCH = ("a0c1", "a1c2", "a2c3", "a3c4")


def cases(plan: Plan) -> Iterator[Case]:
    """Leave out each chunk of a batch in turn, and two of them; disturb the reply for the first and the last."""
    for read in plan.reads(payload=True, batch=True):
        for holes in ((0,), (1,), (2,), (3,), (0, 2), (1, 3), (0, 1, 2, 3)):
            yield Case(f"none:hole-{'-'.join(str(hole + 1) for hole in holes)}", read, given={"holes": holes})
    yield from plan.disturbed(plan.reads(payload=True, batch=True), "present", "nil", "error", "lie")


def check(cell: Cell) -> None:
    """A hole in a batch stays where it is: results come by index, and nothing moves into another's place."""
    if cell.case.schedule:
        cell.nobody_elses(cell.strike(cell.prepare()), "with one reply of the batch disturbed")
        return
    holes = cell.case.given["holes"]
    rig = cell.open()
    cell.put(rig, *((chunk, 1) for index, chunk in enumerate(BATCH) if index not in holes))
    found = cell.ask(rig, BATCH)
    for index, each in enumerate(found):
        if index in holes and each.outcome == "hit":
            raise Broken(f"{cell.read.name} of {', '.join(BATCH)}: nobody stored {each.chunk}, and it was a hit, "
                         f"{cell.instead(each)}")
        if each.outcome == "hit" and not cell.right(each):
            raise Broken(f"{cell.read.name} of {', '.join(BATCH)} without {', '.join(BATCH[hole] for hole in holes)}: "
                         f"{each.chunk} was a hit, {cell.instead(each)}")
        if index < min(holes) and not cell.right(each):
            raise Broken(f"{cell.read.name} of {', '.join(BATCH)}: {each.chunk}, which is stored and comes before the "
                         f"first hole, was {each.outcome}")


RULE = Rule("batch-aligned", cases, check)
