"""sync-from-any-thread: synchronous calls may come from several threads at once."""

from __future__ import annotations

from collections.abc import Iterator

from kvproof.rules.cell import Cell
from kvproof.rules.plan import NOBODYS, OTHERS, VICTIMS, Plan
from kvproof.rules.rule import Broken, Case, Rule

CONNECTIONS = (1, 4)
THREADS, TIMES = 4, 8


def cases(plan: Plan) -> Iterator[Case]:
    """Make each synchronous read, and all of them, from several threads, with fewer and with as many connections."""
    reads = plan.reads(sync=True)
    for connections in CONNECTIONS:
        for read in reads:
            yield Case(f"none:{THREADS}-threads-on-{connections}", read, place={"connections": connections},
                       given={"reads": [read.name]})
        if len(reads) > 1:
            yield Case(f"none:{THREADS}-threads-mixed-on-{connections}", reads[0], place={"connections": connections},
                       given={"reads": [read.name for read in reads]})


def check(cell: Cell) -> None:
    """Synchronous calls from several threads at once all come back, each with its own answer."""
    names = cell.case.given["reads"]
    reads = {read.name: read for read in cell.ground.described.reads}
    chunks = (*VICTIMS, *OTHERS, *([] if cell.knows_absence(*(reads[name] for name in names)) else [NOBODYS]))
    rig = cell.open()
    cell.put(rig, *((chunk, 1) for chunk in chunks if chunk != NOBODYS))
    found = cell.call(rig, "kvproof.runner.inside:from_threads", f"{', '.join(names)} from {THREADS} threads",
                      reads=names, chunks=chunks, known=cell.known, threads=THREADS, times=TIMES, slack=5.0)
    for each in found:
        name = each["read"]
        if each["chunk"] == NOBODYS:
            right = each["outcome"] == "miss"
        else:
            right = each["outcome"] == "hit" and (
                not reads[name].payload or (each["exact"] and each["holds"] == f"{each['chunk']} version 1"))
        if not right:
            held = f", and its buffer holds {each['holds']}" if reads[name].payload else ""
            said = f"a {each['outcome']}" if each["outcome"] in ("hit", "miss") else each["outcome"]
            raise Broken(f"with {THREADS} threads, {name} of {each['chunk']} was {said}{held}")


RULE = Rule("sync-from-any-thread", cases, check)
