"""A case of a campaign, as data: where instances of a connector live, what they do, and the faults on their ways."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from kvproof.errors import UsageError
from kvproof.faults import schedule
from kvproof.faults.schedule import Schedule

CHUNKS = ("c0a1", "c1b2", "c2d3", "c3e4", "c4f5", "c5a6")
"""The chunks that a case may be about, by number; none is in the name of another."""
KINDS = ("put", "read", "evict", "threads", "early", "release")
"""What a step can be: see `Step`."""
MOST_INSTANCES, MOST_STEPS, MOST_FAULTS = 2, 24, 3
"""What a case has at most."""


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that an instance does, or that is done to what it stored.

    do: "put" stores `chunks`, one call each; "read" asks for them by the read `how`, one call for a batch; "evict"
    deletes what is stored for them; "threads" reads them by `how` from two threads at once; "early" makes the call
    that hands its work over at the connector's gap number `gap` (adapter.gaps), so that the completion comes before
    the caller waits, in one of the two ways of runner.gaps.WAYS, `how`; "release" lets go of what faults hold. by:
    the number of the instance.
    """

    do: str
    by: int = 0
    chunks: tuple[int, ...] = ()
    how: str = ""
    gap: int = 0

    def __str__(self) -> str:
        """Say it in a few words."""
        names = ", ".join(CHUNKS[chunk] for chunk in self.chunks)
        how = f" by {self.how}" if self.how else ""
        return " ".join(filter(None, (f"{self.by}:", self.do, names + how)))


@dataclass(frozen=True, slots=True)
class Case:
    """What is played.

    place: fields of each instance's `adapter.Place` that differ from the usual; with a world size above 1 the instance
    of number r is rank r. schedules: of each instance, the faults between it and the server. masked: whether the
    connector's known bug (adapter.masks) is kept from striking. loops: by which seed the connector's asyncio loops
    choose what runs next; 0 leaves them as they are.
    """

    place: Mapping[str, Any]
    steps: tuple[Step, ...]
    schedules: tuple[Schedule, ...]
    masked: bool = False
    loops: int = 0

    @property
    def instances(self) -> int:
        """How many instances there are."""
        return len(self.schedules)

    @property
    def faults(self) -> int:
        """How many faults there are in all."""
        return sum(map(len, self.schedules))

    @property
    def size(self) -> tuple[int, int, int, int]:
        """How large it is: of two cases that show the same, the smaller one is shown."""
        return (self.faults, self.instances, sum(1 + len(step.chunks) for step in self.steps),
                len(self.place) + self.masked + bool(self.loops))

    def without(self, **fields: Any) -> Case:
        """Return the case with these fields in place of its own."""
        return replace(self, **fields)

    def document(self) -> dict[str, Any]:
        """Return it as JSON data; `read` reads it back."""
        return {
            "place": dict(self.place), "masked": self.masked, "loops": self.loops,
            "steps": [{name: value for name, value in asdict(step).items() if value or name == "do"}
                      for step in self.steps],
            "schedules": [json.loads(schedule.to_json(each)) for each in self.schedules],
        }

    def lines(self) -> list[str]:
        """See `target.Case`."""
        place = [f"{name} {value}" for name, value in sorted(self.place.items())]
        place += [f"asyncio in the order of seed {self.loops}"] if self.loops else []
        faults = [f"{number}: {fault.kind} at {fault.direction} {fault.match} of {fault.command} {fault.key}"
                  for number, each in enumerate(self.schedules) for fault in each]
        return [*([", ".join(place)] if place else []), *faults]


_PLACE: Mapping[str, type] = {"chunk_bytes": int, "world_size": int, "replicated": bool, "connections": int}
"""The fields of a place that a case may choose."""


def read(given: Any) -> Case:
    """Read a case; raises UsageError that says what is wrong with it."""
    if not isinstance(given, dict):
        raise UsageError(f"a case is an object; got {_shown(given)}")
    place, steps, schedules = given.get("place"), given.get("steps"), given.get("schedules")
    if not isinstance(place, dict) or not all(_fits(name, value) for name, value in place.items()):
        raise UsageError(f"a case's place: got {_shown(place)}; expected an object of {', '.join(_PLACE)}")
    if not isinstance(schedules, list) or not 1 <= len(schedules) <= MOST_INSTANCES:
        raise UsageError(f"a case's schedules: got {_shown(schedules)}; expected one for each of 1 to {MOST_INSTANCES} "
                         "instances")
    if not isinstance(steps, list):
        raise UsageError(f"a case's steps: got {_shown(steps)}; expected a list of objects")
    loops = given.get("loops", 0)
    if type(loops) is not int or loops < 0:
        raise UsageError(f"a case's loops: got {_shown(loops)}; expected a seed, or 0")
    return Case(place, tuple(_step(step, len(schedules)) for step in steps),
                tuple(schedule.from_json(json.dumps(each)) for each in schedules), given.get("masked") is True, loops)


def _fits(name: str, value: Any) -> bool:
    return isinstance(value, int) and type(value) is _PLACE.get(name) and value >= 0


def _step(given: Any, instances: int) -> Step:
    if not isinstance(given, dict) or given.get("do") not in KINDS:
        raise UsageError(f"a case's step: got {_shown(given)}; expected an object whose `do` is one of "
                         f"{', '.join(KINDS)}")
    usual = {"chunks": [], "by": 0, "how": "", "gap": 0}
    chunks, by, how, gap = (given.get(name, value) for name, value in usual.items())
    fits = isinstance(chunks, list) and all(type(chunk) is int and 0 <= chunk < len(CHUNKS) for chunk in chunks)
    if not fits or type(by) is not int or not 0 <= by < instances or not isinstance(how, str) or type(gap) is not int:
        raise UsageError(f"a case's step: got {_shown(given)}; expected chunks by number (below {len(CHUNKS)}), `by` "
                         f"an instance (below {instances}), `how` a text and `gap` a number")
    return Step(given["do"], by, tuple(chunks), how, gap)


def _shown(value: Any) -> str:
    return json.dumps(value)[:80]


def shape(kinds: Sequence[str]) -> str:
    """Return the shape of a schedule: the kinds of its faults, in no order."""
    return "+".join(sorted(set(kinds))) or "no fault"
