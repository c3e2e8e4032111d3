"""keys-separate: chunks that differ in anything that matters are never taken for each other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kvproof.rules.cell import Cell
from kvproof.rules.plan import Plan
from kvproof.rules.rule import Broken, Case, Rule

DIFFERENT: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "model": ({"suffix": ""}, {"suffix": "-b"}),
    "model-and-world-size": ({"suffix": "", "world_size": 12}, {"suffix": "1", "world_size": 2}),
    "dtype": ({"dtype": "bfloat16"}, {"dtype": "float16"}),
    "world-size": ({"world_size": 1}, {"world_size": 2}),
    "world-size-and-rank": ({"world_size": 12, "rank": 1}, {"world_size": 2, "rank": 1}),
    "salt": ({"salt": ""}, {"salt": "tenant-b"}),
    "salts": ({"salt": "tenant-a"}, {"salt": "tenant-b"}),
    "salt-or-adapter": ({"salt": "a"}, {"adapter": "a"}),
    "adapter": ({"adapter": ""}, {"adapter": "lora-b"}),
    "adapters": ({"adapter": "lora-a"}, {"adapter": "lora-b"}),
}
"""Two places, by what they differ in; a suffix is one of the model's name."""


def cases(plan: Plan) -> Iterator[Case]:
    """Store at one place and read at another, and read in two processes that share no hash seed."""
    promised = plan.described.capabilities
    for read in plan.reads():
        for name in DIFFERENT:
            if all(what not in name or what in promised for what in ("salt", "adapter")):
                yield Case(f"none:{name}", read)
        yield Case("none:hash-seed", read)


def check(cell: Cell) -> None:
    """What differs in model, type, world size, salt or adapter is separate; another process finds the same key."""
    name = cell.case.fault.removeprefix("none:")
    if name == "hash-seed":
        first, other = cell.open(), cell.open(elsewhere=True)
        cell.put(first, *((chunk, 1) for chunk in cell.victims))
        cell.misses(cell.ask(other, cell.victims), "stored by another process, which has another hash seed")
        return
    one, two = (_place(cell, dict(fields)) for fields in DIFFERENT[name])
    cell.require_absence(place=two)
    first, other = cell.open(one), cell.open(two)
    cell.put(first, *((chunk, 1) for chunk in cell.victims))
    for each in cell.ask(other, cell.victims):
        if each.outcome == "hit":
            raise Broken(f"stored with {_words(name, 0)}, {each.chunk} was a hit for {cell.read.name} with "
                         f"{_words(name, 1)}")
    cell.put(other, *((chunk, 2) for chunk in cell.victims))
    cell.known[:] = [(chunk, 1) for chunk in cell.victims]
    cell.misses(cell.ask(first, cell.victims), f"after the same chunk was stored with {_words(name, 1)}")


def _place(cell: Cell, fields: dict[str, Any]) -> Any:
    suffix = fields.pop("suffix", "")
    return cell.place(**fields, **({"model": cell.place().model + suffix} if suffix else {}))


def _words(name: str, which: int) -> str:
    return ", ".join(f"{field} {value!r}" for field, value in DIFFERENT[name][which].items())


RULE = Rule("keys-separate", cases, check)
