"""leak-free: what is opened and closed again leaves nothing behind."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace

from kvproof.rules.cell import Cell
from kvproof.rules.plan import VICTIMS, Plan
from kvproof.rules.rule import Broken, Case, Rule

WARM, COUNTED = 3, 5
"""Cycles after which all that is made once has been made, and those over which growth is counted."""
CYCLE = 10.0
"""Seconds that opening, storing, reading and closing once may take beyond a single call."""


def cases(plan: Plan) -> Iterator[Case]:
    """Open, store, read and close again and again, undisturbed, and with every reply to a read disturbed."""
    yield from plan.undisturbed(plan.reads(), "none")
    entries = ("close", "silence", "error:LOADING", "unknown-type", "nil")
    for read in plan.reads():
        for entry in entries:
            case = next((case for case in plan.disturbed([read], "present", "cut", "stall", "error", "garbage", "nil")
                         if case.given["entry"] == entry), None)
            if case is not None:
                fault = replace(case.schedule[0], match=1, times=None)
                yield Case(f"{entry}:each", read, (fault,), given=case.given)


def check(cell: Cell) -> None:
    """Threads, processes, descriptors, buffers and connections are after each cycle what they were before."""
    rig = cell.open()
    answer = cell.call(rig, "kvproof.runner.calls:close", "close")
    cell.steps.append(f"close leaves {answer}")
    place = asdict(rig.place)
    seen = []
    for number in range(1, WARM + COUNTED + 1):
        seen.append(cell.call(
            rig, "kvproof.runner.inside:cycle", f"cycle {number} of open, put, {cell.read.name} and close",
            place=place, read=cell.read.name, chunk=VICTIMS[0], number=number, slack=CYCLE))
        cell.steps.append(f"after cycle {number}: {seen[-1]}")
    cell.felt(rig)
    for what in seen[-1]:
        grown = seen[-1][what] - seen[WARM - 1][what]
        if grown >= COUNTED - 1:
            raise Broken(f"{COUNTED} cycles of open, {cell.read.name} and close left {grown} {what} behind: "
                         f"{[each[what] for each in seen]}", "leak")
    left = cell.connections(rig)
    if left >= COUNTED - 1:
        raise Broken(f"{WARM + COUNTED} cycles of open, {cell.read.name} and close left {left} connections open on the "
                     "server's side", "leak")


RULE = Rule("leak-free", cases, check)
