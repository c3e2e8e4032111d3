"""linearizable: what was overwritten, and acknowledged, never comes back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from kvproof.rig import Rig
from kvproof.rules.cell import Cell
from kvproof.rules.menu import RELEASE
from kvproof.rules.plan import VICTIMS, Plan
from kvproof.rules.rule import PUT, Broken, Case, Rule

CHUNK = VICTIMS[0]
VERSIONS, READERS = 30, 3


def cases(plan: Plan) -> Iterator[Case]:
    """Overwrite and read in turn, from two processes, at once from several threads, and with a store in doubt."""
    reads = plan.reads(payload=True)
    for read in reads:
        yield Case("none:in-turn", read)
        yield Case("none:two-processes", read)
        if read.sync:
            yield Case("none:at-once", read, place={"connections": READERS + 1})
    for case in plan.disturbed((PUT,), "overwrite", "cut", "stall", "late", but=("bandwidth:slow", "drip:slow")):
        for read in reads:
            yield Case(case.fault, read, case.schedule, given=case.given)


def check(cell: Cell) -> None:
    """A value that was overwritten and acknowledged never comes back, nor one that nobody wrote; a miss may come."""
    name = cell.case.fault
    rig = cell.open()
    cell.put(rig, (CHUNK, 1))
    if name == "none:two-processes":
        _two(cell, rig)
    elif name == "none:at-once":
        _at_once(cell, rig)
    elif name == "none:in-turn":
        for version in range(2, 6):
            cell.no_lies(cell.ask(rig, [CHUNK]), f"after version {version - 1} was stored")
            cell.put(rig, (CHUNK, version))
        cell.no_lies(cell.ask(rig, [CHUNK]), "after version 5 was stored")
    else:
        _in_doubt(cell, rig)


def _two(cell: Cell, rig: Rig) -> None:
    other = cell.open()
    for version in range(2, 6):
        cell.no_lies(cell.ask(other, [CHUNK]), f"stored by another process as version {version - 1}")
        cell.put(rig if version % 2 else other, (CHUNK, version))
        cell.no_lies(cell.ask(rig, [CHUNK]), f"after version {version} was stored")


def _in_doubt(cell: Cell, rig: Rig) -> None:
    """Store version 2 so that nobody knows whether it was stored, and see that time does not go back."""
    stored = cell.store(rig, CHUNK, 2)
    cell.felt(rig)
    cell.release(rig, RELEASE)
    allowed = [(CHUNK, 1), (CHUNK, 2)] if stored[0].outcome != "hit" else [(CHUNK, 2)]
    seen = 0
    for _ in range(3):
        cell.known[:] = [(CHUNK, 1), (CHUNK, 2)]
        [found] = cell.ask(rig, [CHUNK])
        if found.outcome != "hit":
            continue
        version = next((version for chunk, version in allowed if found.holds == f"{chunk} version {version}"), None)
        if version is None or not found.exact or version < seen:
            raise Broken(f"version 2 was stored ({stored[0].outcome}), and {cell.read.name} then returned "
                         f"{found.holds}{f' after version {seen}' if seen else ''}")
        seen = version


def _at_once(cell: Cell, rig: Rig) -> None:
    history = cell.call(rig, "kvproof.runner.inside:overwrite", f"{cell.read.name} while it is overwritten",
                        read=cell.read.name, chunk=CHUNK, versions=VERSIONS, readers=READERS, slack=10.0)
    cell.steps.append(f"{len(history)} calls at once")
    puts = [{"version": 1, "began": 0.0, "ended": 0.0}] + [
        call for call in history if call["what"] == "put" and call["outcome"] == "hit"]
    begun = [{"version": 1, "began": 0.0}] + [call for call in history if call["what"] == "put"]
    newest: list[tuple[float, int]] = []
    for call in (each for each in history if each["what"] == "read" and each["outcome"] == "hit"):
        version = _version(call)
        least = max(each["version"] for each in puts if each["ended"] < call["began"])
        most = max(each["version"] for each in begun if each["began"] < call["ended"])
        if version is None:
            raise Broken(f"{cell.read.name} while {CHUNK} was overwritten returned what nobody wrote: {call['holds']}")
        if not least <= version <= most:
            raise Broken(f"{cell.read.name} returned version {version} of {CHUNK} after version {least} had been "
                         f"stored and acknowledged (the newest begun was {most})")
        _monotone(cell, newest, call, version)


def _monotone(cell: Cell, newest: list[tuple[float, int]], call: dict[str, Any], version: int) -> None:
    before: Sequence[int] = [seen for ended, seen in newest if ended < call["began"]]
    if before and max(before) > version:
        raise Broken(f"{cell.read.name} returned version {version} of {CHUNK} after another had returned {max(before)}")
    newest.append((call["ended"], version))


def _version(call: dict[str, Any]) -> int | None:
    chunk, _, version = str(call["holds"]).partition(" version ")
    return int(version) if call["exact"] and chunk == CHUNK and version.isdigit() else None


RULE = Rule("linearizable", cases, check)
