"""nil-get: the five bytes that answer a GET of an absent key are read as the header of a value (facts: 1)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from kvproof.connectors.adapter import Read
from kvproof.faults.wire import WireEvent
from kvproof.replays.stage import Case, Replay, Stage
from kvproof.rig import Found, Rig

SIZES = (16, 128, 4096, 12_390_400)
"""Expected sizes of 2, 3, 4 and 8 digits, in bytes; the last is one chunk of the source: 256 tokens of 48.4 KB."""

_PRESENT, _ABSENT = "aa11", "bb22"
_KNOWN = [(_PRESENT, 1)]
_NILS = (b"$-1\r\n", b"_\r\n")
_MISSES = 2
"""Absent keys in a row: one more than there are connections, so that a connection lost to a nil shows."""


def plan(stage: Stage) -> list[Callable[[], Case]]:
    """Read absent keys by every read that fills a buffer, at every size, each on a fresh connector."""
    return [partial(_case, stage, size, read) for size in SIZES for read in stage.described.payload_reads()]


def _case(stage: Stage, size: int, read: Read) -> Case:
    name = f"{read.name}, {size} bytes"
    if not stage.described.holds(size):
        return Case(name, "unsupported", f"{name}: the adapter declares that it cannot hold chunks of that size")
    with stage.rig(stage.place(name, chunk_bytes=size)) as rig:
        rig.put((_PRESENT, 1))
        control = rig.control(read.name, _PRESENT, _KNOWN)
        absent = [rig.read(read.name, f"{_ABSENT}{number:02}", _KNOWN) for number in range(_MISSES)]
        if read.batch:
            # One in the middle of a batch. A hit with another chunk's value there is a hole that has closed up, which
            # is a bug of its own and not this one.
            middle = rig.batch(read.name, [_PRESENT, f"{_ABSENT}ff", _PRESENT], _KNOWN)[1]
            absent += [middle] if not middle.exact or middle.holds == "poison" else []
        afterwards = rig.read(read.name, _PRESENT, _KNOWN)
        nil, asked = _nil(rig), _asked(rig)
        alive = rig.trustworthy(stage, _PRESENT)
    evidence: dict[str, Any] = {
        "read": read.name,
        "bytes": size,
        "without the fault": control.words,
        "absent key": [found.words for found in absent],
        "buffer": "still poisoned" if all(found.holds in ("poison", "?") for found in absent) else "written",
        "wire": [f"{event.command} {event.key} -> {event.head!r}" for event in nil],
        "present key afterwards": afterwards.words,
        **next((found.trouble for found in [*absent, afterwards] if found.trouble), {}),
    }
    verdict, explain = _judge(rig, nil, asked, control, absent, afterwards)
    if verdict == "reproduced" and not alive:
        verdict, explain = "error", f"the server or the proxy did not survive the case ({explain})"
    return Case(name, verdict, f"{read.name} at {size} bytes: {explain}", evidence)


def _nil(rig: Rig) -> list[WireEvent]:
    """Return the replies that carried a nil for an absent key to the client."""
    replies = [event for event in rig.proxy.log() if event.direction == "reply" and _ABSENT in event.key]
    return [event for event in replies if event.null or any(nil in event.head for nil in _NILS)]


def _asked(rig: Rig) -> set[str]:
    """Return the commands with which the client asked for an absent key."""
    return {event.command for event in rig.proxy.log() if event.direction == "request" and _ABSENT in event.key}


def _judge(
    rig: Rig, nil: list[WireEvent], asked: set[str], control: Found, absent: list[Found], afterwards: Found
) -> tuple[str, str]:
    if asked == {"EXISTS"}:
        return "unsupported", "it asks EXISTS first and never GETs a key that is absent"
    if not nil:
        return "not-felt", f"no nil reply reached the client; the read of an absent key ended as {absent[0].words}"
    for found in absent:
        if found.mistaken:
            return "error", f"the adapter is wrong: {found.words}"
        if found.outcome == "hit":
            left = "untouched" if found.holds == "poison" else f"with {found.holds} in it"
            return "reproduced", f"the nil was taken for a value: a hit for an absent key, the buffer {left}"
        if found.ended_the_runner:
            return "reproduced", f"the nil arrived, and the read never came back ({found.words})"
    slow = max(0.5 * rig.place.timeout, 5 * (control.seconds or 0.0))
    late = next((found for found in absent if (found.seconds or 0.0) >= slow), None)
    served = f"a key that exists was then {'served' if afterwards.own(_KNOWN) else 'not served'} ({afterwards.words})"
    if late is not None:
        return "reproduced", (
            f"the nil arrived, and the client went on waiting: the read came back only after {late.seconds} s, "
            f"where one of a present key takes {control.seconds} s; {served}"
        )
    if afterwards.ended_the_runner:
        return "reproduced", f"the nils arrived and were misses, and then {served}"
    if not afterwards.own(_KNOWN):
        return "error", f"the nils arrived and were no hits, but {served}, so the connector cannot be judged"
    wrote = next((found for found in absent if found.holds not in ("poison", "?")), None)
    if wrote is not None:
        return "error", f"the nils were no hits, but the buffer was written to: {wrote.holds}"
    return "absent", f"the nil arrived, the read said {absent[0].outcome}, and a key that exists was served afterwards"


REPLAY = Replay(
    "nil-get",
    "the reply to a GET of an absent key is read as the header of a value, so the client hangs or calls it a hit",
    plan,
)
