"""nil-get: the five bytes that answer a GET of an absent key are read as the header of a value (facts: 1)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from kvproof.connectors.adapter import Read
from kvproof.faults.wire import WireEvent
from kvproof.replays.stage import Case, Replay, Rig, Stage, innermost
from kvproof.runner import Hung

SIZES = (16, 128, 4096, 12_390_400)
"""Expected sizes of 2, 3, 4 and 8 digits, in bytes; the last is one chunk of the source: 256 tokens of 48.4 KB."""

_PRESENT, _ABSENT = "aa11", "bb22"
_NILS = (b"$-1\r\n", b"_\r\n")


def plan(stage: Stage) -> list[Callable[[], Case]]:
    """Read an absent key by every read that fills a buffer, at every size, each on a fresh connector."""
    return [partial(_case, stage, size, read) for size in SIZES for read in stage.described.payload_reads()]


def _case(stage: Stage, size: int, read: Read) -> Case:
    name = f"{read.name}, {size} bytes"
    with stage.rig(stage.place(name, chunk_bytes=size)) as rig:
        rig.put((_PRESENT, 1))
        known = [(_PRESENT, 1)]
        answer, absent = rig.read(read.name, _ABSENT, known)
        nil = _nil(rig)
        evidence: dict[str, Any] = {
            "read": read.name,
            "bytes": size,
            "absent key": absent,
            "buffer": "still poisoned" if absent["holds"] == "poison" else absent["holds"],
            "wire": [f"{event.command} {event.key} -> {event.head!r}" for event in nil],
        }
        if isinstance(answer, Hung):
            evidence["stack"] = innermost(answer.stacks)
            afterwards = {"outcome": "not asked: the connector is stuck in the call"}
        else:
            _, afterwards = rig.read(read.name, _PRESENT, known)
        evidence["present key afterwards"] = afterwards
        verdict, explain = _judge(rig, nil, absent, afterwards)
        return Case(name, verdict, f"{read.name} at {size} bytes: {explain}", evidence)


def _nil(rig: Rig) -> list[WireEvent]:
    """Return the replies that carried a nil for the absent key to the client."""
    replies = [event for event in rig.proxy.log() if event.direction == "reply" and _ABSENT in event.key]
    return [event for event in replies if event.null or any(nil in event.head for nil in _NILS)]


def _judge(rig: Rig, nil: list[WireEvent], absent: dict[str, Any], afterwards: dict[str, Any]) -> tuple[str, str]:
    asked = {event.command for event in rig.proxy.log() if event.direction == "request" and _ABSENT in event.key}
    if asked == {"EXISTS"}:
        return "unsupported", "it asks EXISTS first and never GETs a key that is absent"
    if not nil:
        return "not-felt", f"no nil reply reached the client; the read ended as {absent['outcome']!r}"
    outcome, seconds = str(absent["outcome"]), absent["seconds"]
    served = afterwards["outcome"] == "hit" and afterwards["exact"]
    if outcome == "hit":
        left = "untouched" if absent["holds"] == "poison" else f"with {absent['holds']} in it"
        return "reproduced", f"the nil was taken for a value: a hit for a key that does not exist, the buffer {left}"
    if outcome.startswith(("hang", "crash", "leak")):
        return "reproduced", f"the nil arrived, and the read never came back ({outcome})"
    if not served:
        patient = seconds is not None and seconds >= rig.place.timeout * 0.8
        gave_up = f"gave up after {seconds} s" if patient else f"said {outcome!r}"
        return "reproduced", (
            f"the nil arrived and the client went on waiting for a header; the read {gave_up}, "
            f"and a key that exists was not served afterwards ({afterwards['outcome']})"
        )
    if outcome == "miss" and absent["holds"] in ("poison", "nothing"):
        return "absent", "the nil arrived, the read said miss, and a key that exists was served afterwards"
    return "error", f"the nil arrived; the read said {outcome!r} and the buffer holds {absent['holds']}"


REPLAY = Replay(
    "nil-get",
    "the reply to a GET of an absent key is read as the header of a value, so the client hangs or calls it a hit",
    plan,
)
