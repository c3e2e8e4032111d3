"""key-per-rank: a rank gets its own shard; a replicated chunk is found by every rank."""

from __future__ import annotations

from collections.abc import Iterator

from kvproof.rules.cell import Cell
from kvproof.rules.plan import Plan
from kvproof.rules.rule import Broken, Case, Rule


def cases(plan: Plan) -> Iterator[Case]:
    """Store as one rank and read as others, sharded and replicated, by every read."""
    for read in plan.reads():
        for world_size in (2, 4):
            for rank in range(1, world_size):
                yield Case(f"none:sharded-{rank}-of-{world_size}", read,
                           given={"rank": rank, "world_size": world_size, "replicated": False})
                yield Case(f"none:replicated-{rank}-of-{world_size}", read,
                           given={"rank": rank, "world_size": world_size, "replicated": True})


def check(cell: Cell) -> None:
    """A rank gets what it stored itself, never another's; replicated, every rank finds what worker 0 stored."""
    given = cell.case.given
    fields = {"world_size": given["world_size"], "replicated": given["replicated"]}
    theirs = cell.place(**fields, rank=given["rank"])
    if not given["replicated"]:
        cell.require_absence(place=theirs)
    first, other = cell.open(cell.place(**fields)), cell.open(theirs)
    cell.put(first, *((chunk, 1) for chunk in cell.victims))
    if given["replicated"]:
        cell.misses(cell.ask(other, cell.victims), f"stored by worker 0 and read by worker {given['rank']}")
        return
    for each in cell.ask(other, cell.victims):
        if each.outcome == "hit":
            raise Broken(f"rank {given['rank']} read {each.chunk} by {cell.read.name}, which rank 0 alone has stored: "
                         "a hit")
    cell.put(other, *((chunk, 2) for chunk in cell.victims))
    cell.misses(cell.ask(other, cell.victims), f"stored by rank {given['rank']} itself")
    cell.known[:] = [(chunk, 1) for chunk in cell.victims]
    cell.misses(cell.ask(first, cell.victims), f"after rank {given['rank']} stored its own, read by rank 0")


RULE = Rule("key-per-rank", cases, check)
