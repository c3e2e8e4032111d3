"""prefix-count: a look-up of several chunks tells how many of the leading ones are there."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from kvproof.rules.batch_aligned import BATCH
from kvproof.rules.cell import Cell
from kvproof.rules.plan import Plan
from kvproof.rules.rule import Broken, Case, Rule


def cases(plan: Plan) -> Iterator[Case]:
    """Try every way in which some of four chunks are stored, and disturb the replies."""
    reads = plan.reads(payload=False, batch=True)
    for read in reads:
        for there in product((True, False), repeat=len(BATCH)):
            name = "".join("1" if one else "0" for one in there)
            yield Case(f"none:{name}", read, given={"there": there})
    yield from plan.disturbed(reads, "absent", "harmless", "error", "garbage", but=("duplicate",))


def check(cell: Cell) -> None:
    """What a look-up reports are the leading chunks that are stored, not how many are."""
    if cell.case.schedule:
        found = cell.strike(cell.prepare())
        cell.no_lies(found, "with a reply disturbed")
        return
    there = cell.case.given["there"]
    rig = cell.open()
    cell.put(rig, *((chunk, 1) for chunk, one in zip(BATCH, there, strict=True) if one))
    leading = there.index(False) if False in there else len(there)
    for index, each in enumerate(cell.ask(rig, BATCH)):
        if each.outcome == "hit" and not there[index]:
            raise Broken(f"{cell.read.name} reports {each.chunk} as there, and nobody stored it; stored are "
                         f"{', '.join(chunk for chunk, one in zip(BATCH, there, strict=True) if one) or 'none'}")
        if index < leading and each.outcome != "hit":
            raise Broken(f"{cell.read.name} reports {each.outcome} for {each.chunk}, which is stored as are all before")


RULE = Rule("prefix-count", cases, check)
