"""recovers: once a disturbance is gone, the same connector works again."""

from __future__ import annotations

from collections.abc import Iterator

from kvproof.faults.server_fault import ServerFault
from kvproof.faults.server_faults import Kicked, Killed, Paused, Stopped
from kvproof.rules.cell import TIMEOUT, Cell
from kvproof.rules.menu import RELEASE
from kvproof.rules.plan import Plan
from kvproof.rules.rule import PUT, Case, Rule

SERVER: dict[str, ServerFault] = {
    "server:kicked": Kicked(), "server:restarted": Killed(with_data=True), "server:stopped": Stopped(),
    "server:paused": Paused(),
}
"""What is done to the server itself, by id."""


def cases(plan: Plan) -> Iterator[Case]:
    """Disturb one call, or the server during one, and ask then for what is stored until it is served."""
    yield from plan.disturbed(plan.reads(), "present", "stall", "late", "cut", "garbage", "error", "nil",
                              but=("bandwidth:slow", "drip:slow", "duplicate"))
    yield from plan.disturbed((PUT,), "put", "stall", "cut", "refusal")
    for fault in SERVER if plan.wired else ():
        for read in plan.reads():
            yield Case(fault, read)


def check(cell: Cell) -> None:
    """Once a disturbance is gone the same connector reads and stores again, within the time that it declares."""
    fault = SERVER.get(cell.case.fault)
    if fault is not None:
        cell.own_server()
    rig = cell.prepare()
    if fault is None:
        cell.strike(rig)
        cell.release(rig, RELEASE)
    else:
        with fault.on(cell.ground.server):
            cell.ask(rig, cell.victims)
    cell.until_works(rig, cell.ground.described.recovery + TIMEOUT)


RULE = Rule("recovers", cases, check)
