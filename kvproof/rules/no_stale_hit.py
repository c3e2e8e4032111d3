"""no-stale-hit: bytes that are not the chunk's are no hit."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kvproof.rig import Unsupported
from kvproof.rules.cell import Cell
from kvproof.rules.menu import Group
from kvproof.rules.plan import OTHERS, Plan
from kvproof.rules.rule import Broken, Case, NotFelt, Rule
from kvproof.rules.truth import UNNAMED, Truth, truth

LIES: dict[str, Callable[[bytes], bytes]] = {
    "stored:short": lambda value: value[:-1],
    "stored:half": lambda value: value[: len(value) // 2],
    "stored:long": lambda value: value + b"\0",
    "stored:empty": lambda value: b"",
}
"""What is done to a stored value, so that it has another length."""
DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "stored:zeroed": lambda value: bytes(len(value)),
    "stored:torn": lambda value: value[: len(value) // 2] + bytes(len(value) - len(value) // 2),
    "stored:flipped": lambda value: value[:-1] + bytes([value[-1] ^ 1]),
}
"""What is done to a stored value that keeps its length; only a checksum shows it."""


def cases(plan: Plan) -> Iterator[Case]:
    """Change the value on its way or where it is stored; what keeps its length only where integrity is declared."""
    integrity = "integrity" in plan.described.capabilities
    groups: tuple[Group, ...] = ("lie", "cut", "garbage", *(("damage",) if integrity else ()))
    reads = plan.reads(payload=True)
    yield from plan.disturbed(reads, "present", *groups, but=("duplicate", "close:request"))
    done = {**LIES, **(DAMAGE if integrity else {})}
    for read in reads if plan.described.truth != "none" else ():
        for name in done:
            yield Case(name, read)


def check(cell: Cell) -> None:
    """Bytes that are short, long, torn, zeroed or never came are no hit; nor are flipped bits with integrity."""
    rig = cell.prepare()
    change = {**LIES, **DAMAGE}.get(cell.case.fault)
    if change is not None:
        _change(cell, truth(cell.ground, rig), change)
    found = cell.strike(rig)
    cell.no_lies(found, f"with a value that is not the chunk's ({cell.case.fault})")
    cell.no_lies(cell.ask(rig, OTHERS), f"after a value was not the chunk's ({cell.case.fault})")
    if change is not None and found[0].outcome == "hit":
        raise Broken(f"what is stored for {found[0].chunk} has not the chunk's length or bytes ({cell.case.fault}), "
                     f"and {cell.read.name} of it was a hit")


def _change(cell: Cell, channel: Truth, change: Callable[[bytes], bytes]) -> None:
    """Change the largest of the chunk's values, or the first of those: others may only describe it."""
    values = {name: value for name in channel.names(cell.victims[0]) if (value := channel.get(name))}
    if not values:
        raise Unsupported(UNNAMED)
    name = max(values, key=lambda each: len(values[each]))
    changed = change(values[name])
    if changed == values[name]:
        raise NotFelt(f"the value under {name} is the same afterwards")
    channel.set(name, changed)
    cell.steps.append(f"the value under {name} was changed: {cell.case.fault}")


RULE = Rule("no-stale-hit", cases, check)
