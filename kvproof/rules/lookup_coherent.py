"""lookup-coherent: what was there when it was looked up and is gone when it is read is a miss."""

from __future__ import annotations

from collections.abc import Iterator

from kvproof.connectors.adapter import Read
from kvproof.rig import Unsupported
from kvproof.rules.cell import Cell
from kvproof.rules.plan import Plan
from kvproof.rules.rule import Broken, Case, Rule
from kvproof.rules.truth import UNNAMED, truth


def cases(plan: Plan) -> Iterator[Case]:
    """Look up by each way, let one, another or all of the object's keys go, and read by each way."""
    if plan.described.truth == "none":
        return
    lookups: list[Read | None] = [*plan.reads(payload=False), None]
    for read in plan.reads(payload=True):
        for lookup in lookups:
            for which in ("all", *(f"key-{number + 1}" for number in range(plan.keys) if plan.keys > 1)):
                name = f"evicted:{which}" + (f":after-{lookup.name}" if lookup else "")
                yield Case(name, read, given={"lookup": lookup, "which": which})


def check(cell: Cell) -> None:
    """A chunk that was reported as there and is evicted then is a miss when it is read, and when it is looked up."""
    lookup, which = cell.case.given["lookup"], cell.case.given["which"]
    cell.require_absence(*([lookup] if lookup is not None else []), cell.read)
    rig = cell.prepare()
    before = cell.ask(rig, cell.victims, lookup or cell.read)
    if any(each.outcome != "hit" for each in before):
        raise Broken(f"{(lookup or cell.read).name} does not report what was just stored: {before[0].outcome}")
    channel = truth(cell.ground, rig)
    names = channel.names(cell.victims[0])
    if not names:
        raise Unsupported(UNNAMED)
    gone = names if which == "all" else [names[int(which.removeprefix("key-")) - 1]]
    cell.steps.append(f"evicted {channel.delete(gone)} of {len(names)}: {', '.join(gone)}")
    cell.known.remove((cell.victims[0], 1))
    found = cell.ask(rig, cell.victims)
    if found[0].outcome == "hit":
        raise Broken(f"{cell.read.name} of {cell.victims[0]}, which was evicted after it was looked up, was a hit, "
                     f"{cell.instead(found[0])}")
    cell.no_lies(found, "after the first chunk was evicted")
    if lookup is not None and which == "all":
        again = cell.ask(rig, cell.victims[:1], lookup)
        if again[0].outcome == "hit":
            raise Broken(f"{lookup.name} reports {cell.victims[0]} as there after it was evicted and read as "
                         f"{found[0].outcome}")


RULE = Rule("lookup-coherent", cases, check)
