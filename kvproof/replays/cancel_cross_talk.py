"""cancel-cross-talk: a cancelled command leaves its reply on the connection, and the next caller gets it (facts: 2)."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from kvproof.connectors.adapter import Place, Read
from kvproof.errors import DeadlineExceeded
from kvproof.faults.families.hold import Hold
from kvproof.replays.stage import Case, Replay, Rig, Stage, Unsupported, briefly, innermost
from kvproof.runner import Answer, Hung, Returned, calls
from kvproof.runner.child import Session

_CANCELLED, _NEXT = "ee55", "ff66"
_KNOWN = [(_CANCELLED, 1), (_NEXT, 2)]
_RELEASE = "over"
_PATIENCE = 1.0
"""Seconds after which a connector that cannot cancel is to give a read up."""

Found = tuple[str, dict[str, Any], Answer | None]
"""The chunk that was asked for, what came, and the answer it came in (None when it could not be asked for)."""


def plan(stage: Stage) -> list[Callable[[], Case]]:
    """Give up a read whose reply is held, then read another key, by every read that fills a buffer."""
    if stage.described.abandons == "never":
        raise Unsupported("a read can neither be cancelled nor timed out")
    return [partial(_case, stage, read) for read in stage.described.payload_reads()]


def _case(stage: Stage, read: Read) -> Case:
    name = read.name
    place = stage.place(name, timeout=_PATIENCE)
    command, key = _last_request(stage, place, read)
    with stage.rig(place, (Hold(command=command, key=key, until=_RELEASE),)) as rig:
        given_up, held = _give_up(stage, rig, read)
        reads = [_read_while_held(rig, read, command), _read(rig, read, _NEXT), _read(rig, read, _CANCELLED)]
        log = rig.proxy.log()
    evidence: dict[str, Any] = {
        "read": read.name,
        "held": f"the reply to {command} {key}",
        "given up": briefly(given_up),
        "then": [f"{chunk}: {found['outcome']}, holds {found['holds']}" for chunk, found, _ in reads],
        "wire": [str(event) for event in log if event.did or event.direction == "close"],
    }
    stack = [frame for _, _, answer in reads if isinstance(answer, Hung) for frame in innermost(answer.stacks)]
    if stack:
        evidence["stack"] = stack
    if not held:
        return Case(name, "not-felt", f"{name}: the reply was never held ({briefly(given_up)})", evidence)
    for chunk, found, _ in reads:
        other = _CANCELLED if chunk == _NEXT else _NEXT
        if found["outcome"] == "hit" and not (found["exact"] and str(found["holds"]).startswith(f"{chunk} ")):
            whose = "the value of" if str(found["holds"]).startswith(other) else "something else than its own value:"
            explain = f"after a read of {other} was given up, {name} of {chunk} returned {whose} {found['holds']}"
            return Case(name, "reproduced", explain, evidence)
    if isinstance(given_up, Returned) and "before it could be cancelled" in str(given_up.value):
        return Case(name, "not-felt", f"{name}: {given_up.value}", evidence)
    if isinstance(given_up, Returned):
        way = "cancelled" if stage.described.abandons == "cancel" else "timed out"
        explain = f"{name}: the reply was held, the read {way}, and every later read got its own value or a miss"
        return Case(name, "absent", explain, evidence)
    return Case(name, "error", f"{name}: {briefly(given_up)}", evidence)


def _last_request(stage: Stage, place: Place, read: Read) -> tuple[str, str]:
    """Store both chunks, read one without a fault, and return the request whose reply carries its payload."""
    with stage.rig(place) as rig:
        rig.put(*_KNOWN)
        before = len(rig.proxy.log())
        rig.read(read.name, _CANCELLED, _KNOWN)
        requests = [e for e in rig.proxy.log()[before:] if e.direction == "request" and _CANCELLED in e.key]
    if not requests:
        raise Unsupported(f"{read.name} asks for nothing on the wire")
    return requests[-1].command, requests[-1].key


def _give_up(stage: Stage, rig: Rig, read: Read) -> tuple[Answer, bool]:
    """Begin the read, wait until its reply is held, and let it be given up; return how it ended, and if it was held."""
    cancels = stage.described.abandons == "cancel"
    function = "kvproof.replays.cancel_cross_talk:inside_cancel" if cancels else "kvproof.runner.calls:read"
    arguments: dict[str, Any] = {"read": read.name, "chunks": [_CANCELLED]}
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(rig.run, function, **arguments)
        try:
            rig.proxy.wait("held", deadline=2.0)
            held = True
        except DeadlineExceeded:
            held = False
        rig.runner.tell("cancel")
        return call.result(), held


def _read_while_held(rig: Rig, read: Read, command: str) -> Found:
    """Read the next key; the held reply is let go once its request is seen, or cannot be expected any more."""
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(_read, rig, read, _NEXT)
        try:
            rig.proxy.wait(f"request:{command} *{_NEXT}*", deadline=rig.place.timeout)
        except DeadlineExceeded:
            # The connection is still taken by the reply that is held, which is a right way to go on.
            pass
        rig.proxy.release(_RELEASE)
        return call.result()


def _read(rig: Rig, read: Read, chunk: str) -> Found:
    if not rig.runner.usable:
        return chunk, {"outcome": "not asked: the connector is gone", "holds": "?", "exact": False}, None
    answer, found = rig.read(read.name, chunk, _KNOWN)
    return chunk, found, answer


def inside_cancel(session: Session, read: str, chunks: list[str]) -> str:
    """Begin a read and cancel it once the host says so (in the runner); return the connector's own words."""
    connector = session.connector
    how = calls.read_named(connector, read)
    return connector.cancel_read(how, calls.poisoned_items(connector, how, chunks), lambda: session.told("cancel"))


REPLAY = Replay(
    "cancel-cross-talk",
    "a command that is cancelled after it was sent leaves its reply on the connection, where the next caller gets it",
    plan,
)
