"""no-cross-talk: a call gets its own answer or none."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from kvproof.errors import DeadlineExceeded
from kvproof.faults.families import Hold
from kvproof.rules.cell import TIMEOUT, Cell
from kvproof.rules.menu import RELEASE
from kvproof.rules.plan import OTHERS, Plan
from kvproof.rules.rule import PUT, Case, Rule


def cases(plan: Plan) -> Iterator[Case]:
    """Disturb or cancel a call and ask for other chunks afterwards, while and after its reply comes late."""
    yield from plan.disturbed(plan.reads(), "present", "late", "garbage", "error", "nil", "lie", but=("duplicate",))
    yield from plan.disturbed((PUT,), "put", "late", "refusal")
    if plan.described.abandons == "cancel":
        for case in plan.disturbed(plan.cancellable(), "present", "late", but=("delay:long",)):
            yield Case(f"cancelled:{case.fault}", case.read, case.schedule, given=case.given)


def check(cell: Cell) -> None:
    """A call gets its own answer or none, whatever became of the calls before it."""
    rig = cell.prepare()
    if cell.case.fault.startswith("cancelled:"):
        cell.cancel(rig)
    else:
        cell.strike(rig)
    how = cell.asks
    held = next((fault for fault in cell.case.schedule if isinstance(fault, Hold)), None)
    with ThreadPoolExecutor(1) as pool:
        # The late reply is let go while another call waits for its own.
        call = pool.submit(cell.ask, rig, OTHERS, how)
        if held is not None:
            try:
                rig.proxy.wait(f"request:{held.command} *{OTHERS[0]}*", deadline=TIMEOUT)
            except DeadlineExceeded:
                cell.steps.append("no other request came while the reply was held")
            cell.release(rig, RELEASE)
        found = call.result()
    found += cell.ask(rig, [*OTHERS, *(chunk for chunk in cell.victims if cell.read != PUT)], how)
    cell.nobody_elses(found, f"after {cell.read.name} of {cell.victims[0]} was disturbed ({cell.case.fault})", how)


RULE = Rule("no-cross-talk", cases, check)
