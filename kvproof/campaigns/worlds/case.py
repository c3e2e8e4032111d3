"""A case of a world of ranks, as data: how it loads, what it serves, and what is done to it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from kvproof.errors import UsageError
from kvproof.faults import schedule
from kvproof.faults.schedule import Schedule
from kvproof.ranks.check import MOST

KINDS = ("serve", "evict", "strike")
"""What a step can be: see `Step`."""
TOLD = ("", "list", "empty-list")
"""How what a rank is told may differ."""
MOST_STEPS, MOST_FAULTS, MOST_CHUNKS = 10, 3, 8
"""What a case has at most, and the chunks of a prompt."""


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that an engine is asked, or that is done to it.

    do: "serve" looks a prompt up, loads what is promised and stores the rest; "evict" deletes what a rank's instance
    has of one chunk; "strike" arms a disturbance inside of a rank. path: of "serve", a number a chunk, so that two
    prompts share as many leading chunks as their paths do; of "evict", the path of the chunk. rank: of "serve", the one
    that is told otherwise. how: of "serve", one of `TOLD`; of "strike", the seam and what happens there, such as "get
    raise", at the `match`-th passing from then on.
    """

    do: str
    path: tuple[int, ...] = ()
    rank: int = 0
    how: str = ""
    match: int = 1

    def __str__(self) -> str:
        """Say it in a few words."""
        path = "".join(map(str, self.path))
        if self.do == "serve":
            return f"serve {path}" + (f", rank {self.rank} is told another: {self.how}" if self.how else "")
        if self.do == "evict":
            return f"evict {path} from the instance of rank {self.rank}"
        return f"rank {self.rank}: {self.how} at match {self.match}"


@dataclass(frozen=True, slots=True)
class Case:
    """What is played.

    ranks: how many there are. load: the name of the way in which they load. place: fields of each rank's place that
    differ from the usual. schedules: of each rank, the faults between it and its instance.
    """

    ranks: int
    load: str
    place: Mapping[str, Any]
    steps: tuple[Step, ...]
    schedules: tuple[Schedule, ...]

    @property
    def faults(self) -> int:
        """How many faults there are in all, those inside of ranks, too."""
        return sum(map(len, self.schedules)) + sum(step.do == "strike" or bool(step.how) for step in self.steps)

    @property
    def size(self) -> tuple[int, ...]:
        """See `target.Case`."""
        return (self.faults, sum(1 + len(step.path) for step in self.steps), len(self.place))

    def without(self, **fields: Any) -> Case:
        """Return the case with these fields in place of its own."""
        return replace(self, **fields)

    def document(self) -> dict[str, Any]:
        """Return it as JSON data; `read` reads it back."""
        return {
            "ranks": self.ranks, "load": self.load, "place": dict(self.place),
            "steps": [{**asdict(step), "path": list(step.path)} for step in self.steps],
            "schedules": [json.loads(schedule.to_json(each)) for each in self.schedules],
        }

    def lines(self) -> list[str]:
        """See `target.Case`."""
        place = "".join(f", {name} {value}" for name, value in sorted(self.place.items()))
        faults = [f"rank {rank}: {fault.kind} at {fault.direction} {fault.match} of {fault.command} {fault.key}"
                  for rank, each in enumerate(self.schedules) for fault in each]
        return [f"{self.ranks} ranks, {self.load}{place}", *faults]


def read(given: Any) -> Case:
    """Read a case; raises UsageError that says what is wrong with it."""
    if not isinstance(given, dict):
        raise UsageError(f"a case is an object; got {_shown(given)}")
    ranks, load, place = given.get("ranks"), given.get("load"), given.get("place")
    if type(ranks) is not int or not 1 <= ranks <= MOST:
        raise UsageError(f"a case's ranks: got {_shown(ranks)}; expected a number from 1 to {MOST}")
    if not isinstance(load, str):
        raise UsageError(f"a case's load: got {_shown(load)}; expected the name of a way to load")
    names = ("chunk_bytes", "memory_bytes")
    if not isinstance(place, dict) or not all(name in names and type(value) is int and value >= 0
                                              for name, value in place.items()):
        raise UsageError(f"a case's place: got {_shown(place)}; expected an object of {', '.join(names)}")
    steps, schedules = given.get("steps"), given.get("schedules")
    if not isinstance(schedules, list) or len(schedules) != ranks:
        raise UsageError(f"a case's schedules: got {_shown(schedules)}; expected one for each of {ranks} ranks")
    if not isinstance(steps, list):
        raise UsageError(f"a case's steps: got {_shown(steps)}; expected a list of objects")
    return Case(ranks, load, place, tuple(_step(step, ranks) for step in steps),
                tuple(schedule.from_json(json.dumps(each)) for each in schedules))


def _step(given: Any, ranks: int) -> Step:
    if not isinstance(given, dict) or given.get("do") not in KINDS:
        raise UsageError(f"a case's step: got {_shown(given)}; expected an object whose `do` is one of "
                         f"{', '.join(KINDS)}")
    path, rank, how, match = given.get("path", []), given.get("rank", 0), given.get("how", ""), given.get("match", 1)
    fits = isinstance(path, list) and len(path) <= MOST_CHUNKS and all(type(number) is int for number in path)
    words = isinstance(how, str) and (how in TOLD if given["do"] != "strike" else len(how.split()) == 2)
    if not (fits and words) or type(rank) is not int or not 0 <= rank < ranks or type(match) is not int or match < 1:
        raise UsageError(f"a case's step: got {_shown(given)}; expected a path of at most {MOST_CHUNKS} numbers, a "
                         f"rank below {ranks}, how ({', '.join(filter(None, TOLD))}, or of a strike SEAM WHAT) and a "
                         "match from 1 on")
    return Step(given["do"], tuple(path), rank, how, match)


def _shown(value: Any) -> str:
    return json.dumps(value)[:80]
