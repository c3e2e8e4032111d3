"""Fault schedules as JSON: an array with one object a fault, whose ``fault`` names the family."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import MISSING, asdict, fields

from kvproof.errors import UsageError
from kvproof.faults.families import FAMILIES
from kvproof.faults.fault import Fault

Schedule = tuple[Fault, ...]
"""Faults, all armed at once before the first connection is accepted; each strikes at most once."""


def to_json(schedule: Schedule) -> str:
    """Return the schedule as a JSON text that `from_json` reads back as an equal one."""
    return json.dumps([{"fault": fault.kind, **asdict(fault)} for fault in schedule])


def from_json(text: str | bytes) -> Schedule:
    """Read a schedule.

    Raises UsageError that names the entry (1 for the first), the field, what it holds and what is allowed there.
    """
    try:
        entries = json.loads(text, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"a schedule is a JSON array of faults; this is not JSON: {error}") from None
    if not isinstance(entries, list):
        raise UsageError(f"a schedule is a JSON array of faults; got {_shown(entries)}")
    schedule = tuple(_fault(entry, f"schedule entry {number} of {len(entries)}")
                     for number, entry in enumerate(entries, start=1))
    check(schedule)
    return schedule


def check(schedule: Sequence[Fault]) -> None:
    """Raise UsageError when an entry is no fault, or two of them cannot be armed together."""
    refusing: dict[int, int] = {}
    for number, fault in enumerate(schedule, start=1):
        place = f"schedule entry {number} of {len(schedule)}"
        if not isinstance(fault, Fault):
            raise UsageError(f"{place}: got {fault!r}; allowed: a fault such as Hold(...)")
        if fault.listens and refusing.setdefault(fault.match, number) != number:
            raise UsageError(f"{place}, field match: got {fault.match}, as in entry {refusing[fault.match]}; allowed: "
                             "another connection, since a port is refused once at a time")


def _fault(entry: object, place: str) -> Fault:
    if not isinstance(entry, dict):
        raise UsageError(f'{place}: got {_shown(entry)}; allowed: an object such as {{"fault": "hold", ...}}')
    given = dict(entry)
    kind = given.pop("fault", None)
    family = FAMILIES.get(kind) if isinstance(kind, str) else None
    if family is None:
        raise UsageError(f"{place}, field fault: got {_shown(kind)}; allowed: {', '.join(sorted(FAMILIES))}")
    known = {field.name: field for field in fields(family)}
    for name in given:
        if name not in known:
            raise UsageError(f"{place} ({kind}), field {name}: there is no such field; "
                             f"allowed: {', '.join(sorted(known))}")
    for name, field in known.items():
        if name not in given and field.default is MISSING and field.default_factory is MISSING:
            raise UsageError(f"{place} ({kind}), field {name}: it is missing, and has no default")
    try:
        return family(**given)
    except UsageError as error:
        raise UsageError(f"{place}: {error}") from None


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return an object of JSON; raises UsageError when a field is in it twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise UsageError(f"a schedule has the field {twice[:80]!r} twice in one entry; expected it once")
    return found


def _shown(value: object) -> str:
    return json.dumps(value)[:80]
