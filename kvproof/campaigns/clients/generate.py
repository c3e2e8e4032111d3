"""New cases: at random from nothing, or from a case that was worth keeping, with a change or two.

Nothing here knows any bug. What a connector can do is what its adapter declares; where faults may strike is what passed
on the wire when each read was made once, and how often each was made is what a case makes of it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvproof.campaigns.clients.case import CHUNKS, MOST_FAULTS, MOST_INSTANCES, MOST_STEPS, Case, Step
from kvproof.connectors.adapter import Read
from kvproof.faults.fault import Fault
from kvproof.faults.schedule import Schedule
from kvproof.rules.menu import MENU, Disturbance, Spot
from kvproof.runner.gaps import WAYS

UNSEEN = frozenset({"duplicate", "coalesce"})
"""Entries of the menu that are not drawn: a second reply is the next request's to any client that pairs in order."""
SIZES = (4096, 512, 8192, 65_536, 1 << 20)
_MATCHES = (1, 1, 1, 1, 2, 2, 3, 4, 6, 10)


@dataclass(frozen=True)
class Generator:
    """Makes cases for one connector.

    reads: those that the adapter declares. spots: where faults may strike. gaps: those of adapter.gaps that are there.
    sizes: of chunks, that it can hold. timeout: what the connector is told. resp3: whether it speaks
    RESP3. integrity: whether a changed bit has to be seen. masks: whether it has a known bug that can be kept away.
    loops: whether it makes asyncio loops.
    """

    reads: tuple[Read, ...]
    spots: tuple[Spot, ...]
    gaps: tuple[int, ...]
    sizes: tuple[int, ...]
    timeout: float
    resp3: bool
    integrity: bool
    masks: bool
    loops: bool = False

    def fresh(self, choose: random.Random) -> Case:
        """Return a case that is made from nothing."""
        place: dict[str, Any] = {}
        ranks = choose.random() < 0.35
        if ranks:
            place["world_size"] = choose.choice((2, 2, 3, 4))
            if choose.random() < 0.6:
                place["replicated"] = True
        # Of ranks there is more to be seen where there are two.
        instances = MOST_INSTANCES if choose.random() < (0.8 if ranks else 0.25) else 1
        if choose.random() < 0.2 and len(self.sizes) > 1:
            place["chunk_bytes"] = choose.choice(self.sizes[1:])
        if choose.random() < 0.2:
            place["connections"] = choose.choice((2, 3))
        # Most of what can go wrong needs a chunk that is stored, and then something done to that very chunk.
        about = choose.sample(range(len(CHUNKS)), choose.choice((1, 1, 2, 2, 3, len(CHUNKS))))
        steps = [Step("put", 0, self._chunks(choose, about))] if choose.random() < 0.7 else []
        steps += [self._step(choose, instances, about) for _ in range(choose.randint(1, 16))]
        many = [(0, 0, 1, 1, 2, 3), (0, 0, 1)]
        schedules = [self._schedule(choose, choose.choice(many[min(number, 1)])) for number in range(instances)]
        return self._fitted(Case(place, tuple(steps), tuple(schedules), self.masks and choose.random() < 0.5,
                                 choose.randint(1, 10**6) if self.loops and choose.random() < 0.3 else 0))

    def changed(self, case: Case, choose: random.Random, other: Case | None = None) -> Case:
        """Return a case with one to three changes; other: one of which a part may be taken."""
        for _ in range(choose.choice((1, 1, 2, 3))):
            case = self._change(case, choose, other)
        return self._fitted(case)

    def _change(self, case: Case, choose: random.Random, other: Case | None) -> Case:
        steps, what = list(case.steps), choose.random()
        used = sorted({chunk for step in steps for chunk in step.chunks})
        about = used if used and choose.random() < 0.8 else list(range(len(CHUNKS)))
        if what < 0.3:
            steps.insert(choose.randint(0, len(steps)), self._step(choose, case.instances, about))
        elif what < 0.4 and len(steps) > 1:
            steps.pop(choose.randrange(len(steps)))
        elif what < 0.5 and steps:
            at = choose.randrange(len(steps))
            steps[at] = self._step(choose, case.instances, about)
        elif what < 0.6 and steps:
            begin = choose.randrange(len(steps))
            part = steps[begin: begin + choose.randint(1, 3)]
            at = choose.randint(0, len(steps))
            steps[at:at] = part
        elif what < 0.7 and other is not None:
            begin = choose.randint(0, len(other.steps))
            steps += [replace(step, by=min(step.by, case.instances - 1)) for step in other.steps[begin:]]
        elif what < 0.95:
            number = choose.randrange(case.instances)
            schedules = list(case.schedules)
            mine = list(schedules[number])
            if mine and choose.random() < 0.6:
                at = choose.randrange(len(mine))
                changed = self._moved(mine[at], choose) if choose.random() < 0.5 else self._fault(choose)
                mine[at: at + 1] = [changed] if changed is not None else []
            elif (fault := self._fault(choose)) is not None:
                mine.append(fault)
            schedules[number] = tuple(mine)
            return case.without(schedules=tuple(schedules))
        else:
            fresh = self.fresh(choose)
            return case.without(place=fresh.place, masked=fresh.masked, loops=fresh.loops)
        return case.without(steps=tuple(steps))

    def _step(self, choose: random.Random, instances: int, about: Sequence[int]) -> Step:
        """Return a step about some of these chunks."""
        by, what = choose.randrange(instances), choose.random()
        chunks = self._chunks(choose, about)
        if what < 0.3:
            return Step("put", by, chunks)
        if what < 0.38:
            return Step("evict", by, chunks[:1])
        if what < 0.45 and self.gaps:
            return Step("early", by, (), choose.choice(WAYS), choose.choice(self.gaps))
        if what < 0.49:
            return Step("release")
        read = choose.choice(self.reads)
        if what < 0.56 and read.sync and not read.batch:
            return Step("threads", by, chunks, read.name)
        return Step("read", by, chunks, read.name)

    def _chunks(self, choose: random.Random, about: Sequence[int]) -> tuple[int, ...]:
        return tuple(choose.sample(about, min(len(about), choose.choice((1, 1, 1, 2, 3, 4)))))

    def _schedule(self, choose: random.Random, many: int) -> Schedule:
        return tuple(fault for _ in range(many) if (fault := self._fault(choose)) is not None)

    def _fault(self, choose: random.Random) -> Fault | None:
        """Return an entry of the menu at some place, or None where there is none."""
        fits = [entry for entry in MENU if self._may(entry)]
        for _ in range(20 if self.spots else 0):
            spot = choose.choice(self.spots)
            key = f"*{choose.choice(CHUNKS)}*" if choose.random() < 0.3 else "*"
            at = replace(spot, key=key, match=choose.choice(_MATCHES))
            fault = choose.choice(fits).at(at, self.timeout)
            if fault is not None:
                return fault
        return None

    def _moved(self, fault: Fault, choose: random.Random) -> Fault:
        return replace(fault, match=choose.choice(_MATCHES), key="*" if choose.random() < 0.5 else fault.key)

    def _may(self, entry: Disturbance) -> bool:
        return entry.id not in UNSEEN and (self.resp3 or not entry.resp3) and (
            self.integrity or entry.group != "damage")

    def _fitted(self, case: Case) -> Case:
        """Return the case within the bounds of what is played."""
        left, schedules = MOST_FAULTS, []
        for each in case.schedules:
            schedules.append(each[:left])
            left -= len(schedules[-1])
        return case.without(steps=case.steps[:MOST_STEPS], schedules=tuple(schedules))


def spots_of(recordings: Sequence[Any], chunk_bytes: int) -> tuple[Spot, ...]:
    """Return where faults may strike: every request that passed, by its command and the kind of its reply."""
    found = {(spot.command, spot.kind, spot.payload): spot
             for recording in recordings for spot in recording.spots(chunk_bytes)}
    return tuple(found[name] for name in sorted(found))
