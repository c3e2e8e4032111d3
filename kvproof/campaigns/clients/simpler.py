"""Cases that are simpler than one, for shrinking it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from kvproof.campaigns.clients.case import Case
from kvproof.faults.schedule import Schedule


def simpler(case: Case) -> Iterator[Case]:
    """Return cases that have less, or simpler, than this one."""
    if case.instances > 1 and all(step.by == 0 for step in case.steps):
        yield case.without(schedules=case.schedules[:1])
    half = len(case.steps) // 2
    if half > 1:
        yield case.without(steps=case.steps[half:])
        yield case.without(steps=case.steps[:half])
    if case.faults:
        yield case.without(schedules=tuple(() for _ in case.schedules))
    for number, each in enumerate(case.schedules):
        for at in range(len(each)):
            yield _with_schedule(case, number, each[:at] + each[at + 1:])
    for at in reversed(range(len(case.steps))):
        yield case.without(steps=case.steps[:at] + case.steps[at + 1:])
    for name in case.place:
        yield case.without(place={other: value for other, value in case.place.items() if other != name})
    if case.loops:
        yield case.without(loops=0)
    if case.masked:
        yield case.without(masked=False)
    for at, step in enumerate(case.steps):
        if step.do == "threads":
            yield case.without(steps=(*case.steps[:at], replace(step, do="read"), *case.steps[at + 1:]))
        for chunk in range(len(step.chunks) if len(step.chunks) > 1 else 0):
            yield _with_step(case, at, step.chunks[:chunk] + step.chunks[chunk + 1:])
    for number, each in enumerate(case.schedules):
        for at, fault in enumerate(each):
            for fields in ({"match": 1}, {"key": "*"}):
                if any(getattr(fault, name) != value for name, value in fields.items()):
                    changed = replace(fault, **fields)
                    yield _with_schedule(case, number, (*each[:at], changed, *each[at + 1:]))
    used = sorted({chunk for step in case.steps for chunk in step.chunks})
    if used != list(range(len(used))):
        renamed = {chunk: number for number, chunk in enumerate(used)}
        yield case.without(steps=tuple(
            replace(step, chunks=tuple(renamed[chunk] for chunk in step.chunks)) for step in case.steps))


def _with_step(case: Case, at: int, chunks: tuple[int, ...]) -> Case:
    return case.without(steps=(*case.steps[:at], replace(case.steps[at], chunks=chunks), *case.steps[at + 1:]))


def _with_schedule(case: Case, number: int, schedule: Schedule) -> Case:
    return case.without(schedules=(*case.schedules[:number], schedule, *case.schedules[number + 1:]))
