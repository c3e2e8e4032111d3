"""close-resolves: closing ends everything that is in flight, and itself."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from kvproof.errors import DeadlineExceeded
from kvproof.rig import briefly
from kvproof.rules.cell import TIMEOUT, Cell
from kvproof.rules.plan import Plan
from kvproof.rules.rule import Broken, Case, NotFelt, Rule
from kvproof.runner import Returned, verdict_of
from kvproof.runner.calls import AdapterMistake

CLOSING = 1.0
"""Seconds within which both have to end, beyond what a call in flight may take by itself."""


def cases(plan: Plan) -> Iterator[Case]:
    """Close while a read waits for a reply that never comes, and while nothing is in flight."""
    yield from plan.undisturbed(plan.described.reads[:1], "none:idle")
    yield from plan.disturbed(plan.reads(), "present", "stall", but=(
        "drip:slow", "bandwidth:slow", "hold:close-request", "hold:close", "half-open:inside", "silence:end"))


def check(cell: Cell) -> None:
    """Closing returns, and a call that is in flight then ends, however little the other side says."""
    rig = cell.prepare()
    if not cell.case.schedule:
        answer = rig.run("kvproof.runner.calls:close")
        cell.ended(answer, "close")
        if not isinstance(answer, Returned):
            raise Broken(f"close: {briefly(answer)}")
        return
    within = (rig.deadline or TIMEOUT) + CLOSING
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(rig.run, "kvproof.runner.inside:close_during", within + 1.0, read=cell.read.name,
                           chunks=list(cell.victims), known=cell.known, within=within)
        try:
            rig.proxy.wait("struck", deadline=TIMEOUT)
            struck = True
        except DeadlineExceeded:
            struck = False
        rig.runner.tell("close")
        answer = call.result()
    told = next((note for note in answer.notes if "close" in note), None)
    cell.steps.append(f"close during {cell.read.name}: {told or briefly(answer)}")
    if not struck:
        raise NotFelt("nothing was in flight when the connector was closed")
    if told is None:
        cell.ended(answer, f"close during {cell.read.name}")
        raise Broken(f"close during {cell.read.name}: {briefly(answer)}")
    if "not back" in (told["read"], told["close"]):
        which = " and ".join(name for name in ("close", "read") if told[name] == "not back")
        cell.trouble = cell.stacks(answer)
        verdict = verdict_of(answer) if not isinstance(answer, Returned) else "hang"
        raise Broken(f"{cell.read.name} waited for a reply when the connector was closed; after {within:g} s {which} "
                     f"had not come back ({told})", verdict)
    if AdapterMistake.__name__ in told["read"]:
        raise NotFelt(f"the adapter is wrong: {told['read']}")


RULE = Rule("close-resolves", cases, check)
