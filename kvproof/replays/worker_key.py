"""worker-key: with a replicated KV only worker 0 stores, and one read asks for its own worker's key (facts: 1)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from typing import Any

from kvproof.connectors.adapter import Place, Read
from kvproof.replays.stage import Case, Replay, Stage
from kvproof.rig import WRITES, NotOpened

WORLD_SIZES = (2, 4)
_CHUNK = "cc33"
_KNOWN = [(_CHUNK, 1)]
_NEITHER = frozenset({"EXPIRE", "PEXPIRE", "TOUCH", "DEL", "UNLINK", "PERSIST"})


def plan(stage: Stage) -> list[Callable[[], Case]]:
    """Store as worker 0, then read as every other worker by every read, each on a fresh connector."""
    cases: list[Callable[[], Case]] = []
    for world_size in WORLD_SIZES:
        place = stage.place(f"W {world_size}", world_size=world_size, replicated=True)
        stored = _store(stage, place)
        for worker in range(1, world_size):
            cases += [partial(_case, stage, place, worker, read, stored) for read in stage.described.reads]
    return cases


def _store(stage: Stage, place: Place) -> list[str]:
    """Store the chunk as worker 0 and return the keys that the connector set on the wire."""
    with stage.rig(place) as rig:
        rig.put((_CHUNK, 1))
        stored = rig.stored(_CHUNK)
    if not stored:
        raise NotOpened("storing a chunk as worker 0 said hit, and no key was set on the wire")
    return stored


def _case(stage: Stage, place: Place, worker: int, read: Read, stored: list[str]) -> Case:
    name = f"W={place.world_size} worker {worker} {read.name}"
    with stage.rig(replace(place, rank=worker)) as rig:
        found = rig.read(read.name, _CHUNK, _KNOWN)
        log = rig.proxy.log()
        alive = rig.trustworthy(stage, None)
    requests = [event for event in log if event.direction == "request" and _CHUNK in event.key]
    asked = sorted({event.key for event in requests if event.command not in WRITES | _NEITHER})
    evidence: dict[str, Any] = {
        "world size": place.world_size,
        "worker": worker,
        "read": read.name,
        "stored": stored,
        "asked": asked,
        "outcome": found.words,
        **found.trouble,
    }
    wrong = [key for key in asked if key not in stored]
    if found.outcome == "hit" and (found.own(_KNOWN) or not read.payload):
        return Case(name, "absent", f"{name}: the stored key was asked for and served", evidence)
    if wrong and alive:
        there = get_close_matches(wrong[0], stored, n=1, cutoff=0.0)[0]
        explain = f"worker {worker} of {place.world_size} asked for {wrong[0]} by {read.name}, and {there} is stored"
        return Case(name, "reproduced", f"{explain} ({found.words})", evidence)
    if not asked:
        return Case(name, "not-felt", f"{name}: no key was asked for on the wire ({found.words})", evidence)
    return Case(name, "error", f"{name}: the stored key was asked for, and the read said {found.words}", evidence)


REPLAY = Replay(
    "worker-key",
    "only worker 0 stores, and on the other workers one read asks for its own worker's key, which nobody stored",
    plan,
)
