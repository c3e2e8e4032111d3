"""miss-is-miss: what nobody stored is a miss."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvproof.rig import Found
from kvproof.rules.cell import Cell
from kvproof.rules.plan import OTHERS, Plan
from kvproof.rules.round_trip import sized
from kvproof.rules.rule import Broken, Case, Rule

SIZES = (16, 128, 4096, 12_390_400)
"""Expected sizes of 2, 3, 4 and 8 digits, in bytes: a client that guesses a header gets each wrong otherwise."""


def cases(plan: Plan) -> Iterator[Case]:
    """Ask for chunks that nobody stored, and for stored ones that the server answers with a null."""
    for read in plan.reads():
        for size in SIZES if read.payload else (4096,):
            if plan.described.holds(size):
                yield Case(f"none:{size}B", read, place=sized(size), given={"shape": "absent"})
    yield from plan.disturbed(plan.reads(), "absent", "harmless")
    yield from plan.disturbed(plan.reads(payload=True), "present", "nil")


def check(cell: Cell) -> None:
    """A chunk that is not there is a miss within the deadline, never a hit, and its buffer is left as it was."""
    rig = cell.prepare()
    found = cell.strike(rig)
    for each in found if cell.shape == "absent" else ():
        _missed(cell, each)
    if cell.shape != "absent":
        _no_hit_of_nothing(cell, found)
    if cell.read.batch and cell.shape == "absent":
        mixed = cell.ask(rig, [OTHERS[0], cell.victims[0], OTHERS[1]])
        _missed(cell, mixed[1], counts=False)


def _missed(cell: Cell, found: Found, *, counts: bool = True) -> None:
    if found.outcome == "hit":
        raise Broken(f"{cell.read.name} of {found.chunk}, which nobody stored, was a hit, {cell.instead(found)}")
    if found.outcome != "miss" and counts and not cell.case.schedule:
        raise Broken(f"{cell.read.name} of {found.chunk}, which nobody stored, was no miss: {found.outcome}")
    if found.outcome == "miss" and cell.read.payload and found.holds != "poison":
        raise Broken(f"{cell.read.name} of {found.chunk} was a miss, and its buffer was written: {found.holds}")


def _no_hit_of_nothing(cell: Cell, found: Sequence[Found]) -> None:
    cell.no_lies(found, "when the server answered with a null")


RULE = Rule("miss-is-miss", cases, check)
