"""honest-error: what failed is not said to have worked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvproof.faults.wire import WireEvent
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
    rig = cell.prepare()
    found = cell.strike(rig)
    for each in found:
        if each.outcome == "hit" and cell.read == PUT and not _stored_again(rig.proxy.log()):
            raise Broken(f"put of {each.chunk} was a hit, although storing it was not acknowledged ({cell.case.fault})")
    cell.no_lies(found, f"although the server answered with an error ({cell.case.fault})")


def _stored_again(events: Sequence[WireEvent]) -> bool:
    """Whether the request that was disturbed was made once more afterwards, and that one was acknowledged."""
    struck = next((event for event in events if event.did and event.fault is not None), None)
    if struck is None:
        return False
    alike = [event for event in events if not event.did and event.sequence > struck.sequence
             and (event.command, event.key) == (struck.command, struck.key)]
    again = [event for event in alike if event.direction == "request"]
    return any(
        request.connection == reply.connection and request.sequence < reply.sequence
        for request in again for reply in alike
        if reply.direction == "reply" and not reply.null and not reply.head.startswith(b"-"))


RULE = Rule("honest-error", cases, check)
