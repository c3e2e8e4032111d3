"""New cases of worlds, and simpler ones. Nothing here knows any bug: seams and requests are those that were seen."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from kvproof.campaigns.worlds.case import MOST_CHUNKS, MOST_FAULTS, MOST_STEPS, TOLD, Case, Step
from kvproof.faults.fault import Fault
from kvproof.faults.schedule import Schedule
from kvproof.ranks.disturbances import MENU, Spot
from kvproof.ranks.scenario import Seen

_WIRE = tuple(entry.wire for entry in MENU if entry.wire is not None and not entry.waits)
_STRIKES = tuple(sorted({(entry.seam, entry.does) for entry in MENU if entry.seam}))
_MATCHES = (1, 1, 1, 2, 2, 3, 4, 6)
_BRANCHES = 3


@dataclass(frozen=True)
class Generator:
    """Makes cases of worlds of so many ranks.

    seen: of each way to load, what each rank did in a step without disturbance. exchanges: of each, whether its ranks
    agree by collectives. memory: whether ranks keep chunks in memory.
    """

    ranks: int
    seen: Mapping[str, Mapping[int, Seen]]
    exchanges: Mapping[str, bool]
    memory: bool

    def fresh(self, choose: random.Random) -> Case:
        """Return a case that is made from nothing."""
        load = choose.choice(sorted(self.seen))
        place: dict[str, Any] = {}
        if choose.random() < 0.15:
            place["chunk_bytes"] = choose.choice((512, 65_536))
        if self.memory and choose.random() < 0.4:
            place["memory_bytes"] = choose.choice((2, 4, 16)) * place.get("chunk_bytes", 4096)
        # Most of what can go wrong needs a prompt that is there, and then something done to that very prompt.
        path = self._path(choose)
        steps = [Step("serve", path)]
        steps += [self._step(choose, load, path) for _ in range(choose.randint(1, 5))]
        case = Case(self.ranks, load, place, tuple(steps), ((),) * self.ranks)
        for _ in range(choose.choice((0, 0, 1, 1, 2))):
            case = self._with_fault(case, choose)
        return self._fitted(case)

    def changed(self, case: Case, choose: random.Random, other: Case) -> Case:
        """Return a case with one to three changes; other: one of which a part may be taken."""
        for _ in range(choose.choice((1, 1, 2, 3))):
            case = self._change(case, choose, other)
        return self._fitted(case)

    def _change(self, case: Case, choose: random.Random, other: Case) -> Case:
        steps, what = list(case.steps), choose.random()
        served = [step.path for step in steps if step.do == "serve"] or [self._path(choose)]
        if what < 0.4:
            steps.insert(choose.randint(0, len(steps)), self._step(choose, case.load, choose.choice(served)))
        elif what < 0.5 and len(steps) > 1:
            steps.pop(choose.randrange(len(steps)))
        elif what < 0.6 and steps:
            steps[choose.randrange(len(steps))] = self._step(choose, case.load, choose.choice(served))
        elif what < 0.7 and other.load == case.load:
            steps += other.steps[choose.randint(0, len(other.steps)):]
        elif what < 0.9:
            return self._with_fault(case, choose)
        elif any(case.schedules):
            return case.without(schedules=((),) * case.ranks)
        else:
            fresh = self.fresh(choose)
            return case.without(place=fresh.place)
        return case.without(steps=tuple(steps))

    def _path(self, choose: random.Random) -> tuple[int, ...]:
        return tuple(min(choose.randrange(_BRANCHES), choose.randrange(_BRANCHES))
                     for _ in range(choose.randint(1, MOST_CHUNKS)))

    def _step(self, choose: random.Random, load: str, about: tuple[int, ...]) -> Step:
        """Return a step about this prompt, or one that shares some of it."""
        what, rank = choose.random(), choose.randrange(self.ranks)
        if what < 0.2:
            return Step("evict", about[: choose.randint(1, len(about))], rank)
        strikes = [f"{seam} {does}" for seam, does in _STRIKES if seam in self.seen[load][rank].seams]
        if what < 0.45 and strikes:
            return Step("strike", (), rank, choose.choice(strikes), choose.choice(_MATCHES))
        path = about
        if choose.random() < 0.4:
            path = (about[: choose.randint(0, len(about))] + self._path(choose))[:MOST_CHUNKS]
        told = choose.choice(TOLD) if self.exchanges[load] and choose.random() < 0.2 else ""
        return Step("serve", path, rank if told else 0, told)

    def _with_fault(self, case: Case, choose: random.Random) -> Case:
        rank = choose.randrange(case.ranks)
        seen = self.seen[case.load][rank]
        fault: Fault | None = None
        spots = seen.lookup + seen.load
        for _ in range(20 if spots else 0):
            spot = choose.choice(spots)
            fault = choose.choice(_WIRE)(Spot(spot.command, choose.choice(_MATCHES), spot.kind))
            if fault is not None:
                break
        if fault is None:
            return case
        return _with_schedule(case, rank, (*case.schedules[rank], fault))

    @staticmethod
    def _fitted(case: Case) -> Case:
        """Return the case within the bounds of what is played."""
        left, schedules = MOST_FAULTS, []
        for each in case.schedules:
            schedules.append(each[:left])
            left -= len(schedules[-1])
        return case.without(steps=case.steps[:MOST_STEPS], schedules=tuple(schedules))


def simpler(case: Case) -> Iterator[Case]:
    """Return cases that have less than this one, or simpler, those that leave out most first."""
    half = len(case.steps) // 2
    if half > 1:
        yield case.without(steps=case.steps[half:])
        yield case.without(steps=case.steps[:half])
    if any(case.schedules):
        yield case.without(schedules=((),) * case.ranks)
    for rank, each in enumerate(case.schedules):
        for at in range(len(each)):
            yield _with_schedule(case, rank, each[:at] + each[at + 1:])
    for at in reversed(range(len(case.steps))):
        yield case.without(steps=case.steps[:at] + case.steps[at + 1:])
    for name in case.place:
        yield case.without(place={other: value for other, value in case.place.items() if other != name})
    for at, step in enumerate(case.steps):
        if len(step.path) > 1:
            yield _with_step(case, at, replace(step, path=step.path[:len(step.path) // 2]))
            yield _with_step(case, at, replace(step, path=step.path[:-1]))
        if step.do == "serve" and step.how:
            yield _with_step(case, at, replace(step, rank=0, how=""))
        if step.match > 1:
            yield _with_step(case, at, replace(step, match=1))


def _with_step(case: Case, at: int, step: Step) -> Case:
    return case.without(steps=(*case.steps[:at], step, *case.steps[at + 1:]))


def _with_schedule(case: Case, rank: int, schedule: Schedule) -> Case:
    return case.without(schedules=(*case.schedules[:rank], schedule, *case.schedules[rank + 1:]))
