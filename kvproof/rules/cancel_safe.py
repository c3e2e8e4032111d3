"""cancel-safe: a read that was given up is over."""

from __future__ import annotations

from collections.abc import Iterator

from kvproof.rig import Unsupported
from kvproof.rules.cell import Cell
from kvproof.rules.menu import RELEASE
from kvproof.rules.plan import OTHERS, Plan
from kvproof.rules.rule import Broken, Case, Rule


def cases(plan: Plan) -> Iterator[Case]:
    """Hold the reply, before and inside the payload, and let the read be cancelled or time out."""
    ways = {"cancelled": plan.cancellable() if plan.described.abandons == "cancel" else [],
            "timed-out": plan.reads(payload=True) if plan.described.abandons != "never" else []}
    for how, reads in ways.items():
        for case in plan.disturbed(reads, "present", "late", but=("delay:long",)):
            yield Case(f"{how}:{case.fault}", case.read, case.schedule, given={**case.given, "how": how})


def check(cell: Cell) -> None:
    """After a read is given up its late reply goes nowhere, and the buffers that it had are not written any more."""
    rig = cell.prepare()
    if cell.case.given["how"] == "cancelled":
        found = cell.cancel(rig)
    else:
        try:
            found = cell.keeping(rig)
        except Broken as error:
            raise Unsupported(f"the read was never given up, which bounded-time judges: {error.explain}") from error
        cell.felt(rig)
    cell.release(rig, RELEASE)
    after = cell.ask(rig, OTHERS)
    cell.no_lies(after, "after a read was given up")
    # A second one, so that whatever would still write has had a whole call's time to do so.
    after += cell.ask(rig, OTHERS)
    for each, now in zip(found, cell.kept(rig), strict=True):
        if now:
            raise Broken(f"{cell.read.name} of {each.chunk} had ended ({each.outcome}), and its buffer was written "
                         f"afterwards: it holds {now}")
    cell.no_lies(after, "after a read was given up")


RULE = Rule("cancel-safe", cases, check)
