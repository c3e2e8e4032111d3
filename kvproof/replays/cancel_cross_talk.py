"""cancel-cross-talk: a cancelled command leaves its reply on the connection, and the next caller gets it (facts: 2)."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from kvproof.connectors.adapter import Place, Read
from kvproof.errors import DeadlineExceeded
from kvproof.faults.families.hold import Hold
from kvproof.replays.stage import Case, Replay, Stage
from kvproof.rig import Found, NotOpened, Rig, Unsupported
from kvproof.runner import calls
from kvproof.runner.child import Session

_GIVEN_UP, _NEXT = "ee55", "ff66"
_KNOWN = [(_GIVEN_UP, 1), (_NEXT, 2)]
_RELEASE = "over"
_PATIENCE = 1.0
"""Seconds after which a connector that cannot cancel is to give a read up."""


def plan(stage: Stage) -> list[Callable[[], Case]]:
    """Give up a read whose reply is held, then read another key, by every read that fills a buffer."""
    if stage.described.abandons == "never":
        raise Unsupported('a read can neither be cancelled nor timed out (the adapter declares abandons = "never")')
    reads = stage.described.payload_reads()
    if stage.described.abandons == "cancel":
        reads = tuple(read for read in reads if not read.sync) or reads
    return [partial(_case, stage, read) for read in reads]


def _case(stage: Stage, read: Read) -> Case:
    place = stage.place(read.name, timeout=_PATIENCE)
    command, key = _carrier(stage, place, read)
    with stage.rig(place, (Hold(command=command, key=key, until=_RELEASE),)) as rig:
        given_up, held = _give_up(stage, rig, read)
        later = [_read_while_held(rig, read, command), rig.read(read.name, _NEXT, _KNOWN)]
        later.append(rig.read(read.name, _GIVEN_UP, _KNOWN))
        log = rig.proxy.log()
        alive = rig.trustworthy(stage, None)
    closed = any(event.direction == "close" and event.by == "client" for event in log)
    evidence: dict[str, Any] = {
        "read": read.name,
        "held": f"the reply to {command} {key}",
        "given up": given_up.words,
        "then": [f"{found.chunk}: {found.words}" for found in later],
        "wire": [str(event) for event in log if event.did or event.direction == "close"],
        **next((found.trouble for found in [given_up, *later] if found.trouble), {}),
    }
    verdict, explain = _judge(stage, read, given_up, held, closed, later)
    if verdict == "reproduced" and not alive:
        verdict, explain = "error", f"the server or the proxy did not survive the case ({explain})"
    return Case(read.name, verdict, explain, evidence)


def _judge(
    stage: Stage, read: Read, given_up: Found, held: bool, closed: bool, later: list[Found]
) -> tuple[str, str]:
    name = read.name
    if not held:
        return "not-felt", f"{name}: the reply was never held ({given_up.words})"
    for found in [given_up, *later]:
        if found.outcome == "hit" and not found.own(_KNOWN):
            return "reproduced", (
                f"while the reply to a {name} of {_GIVEN_UP} was held, it was given up; then "
                f"{name} of {found.chunk} returned {found.whose}"
            )
    if not given_up.returned:
        return "error", f"{name}: the read whose reply was held was not given up: {given_up.words}"
    cancels = stage.described.abandons == "cancel"
    ended = given_up.outcome == "hit" and not closed
    if ended or (cancels and not given_up.outcome.startswith(f"failed: {calls.CANCELLED}")):
        return "not-felt", f"{name}: the read was not given up, but ended as {given_up.words}"
    if not any(found.own(_KNOWN) for found in later):
        said = "; ".join(f"{found.chunk}: {found.words}" for found in later)
        return "error", f"{name}: after the read was given up nothing was served any more, so it stays open ({said})"
    way = "was cancelled" if cancels else "timed out"
    served = next(found for found in later if found.own(_KNOWN))
    return "absent", (
        f"{name}: the reply was held, the read {way}, and no later read got it: {served.chunk} got its own value"
    )


def _carrier(stage: Stage, place: Place, read: Read) -> tuple[str, str]:
    """Store both chunks, read one without a fault, and return the request whose reply carries its payload."""
    with stage.rig(place) as rig:
        rig.put(*_KNOWN)
        before = len(rig.proxy.log())
        found = rig.control(read.name, _GIVEN_UP, _KNOWN)
        log = rig.proxy.log()[before:]
    for event in log:
        if event.direction == "reply" and _GIVEN_UP in event.key and event.size >= place.chunk_bytes:
            return event.command, event.key
    raise NotOpened(f"{read.name}: no reply on the wire carried the payload, although the read said {found.outcome}")


def _give_up(stage: Stage, rig: Rig, read: Read) -> tuple[Found, bool]:
    """Begin the read, wait until its reply is held, and let it be given up; return how it ended, and if it was held."""
    with ThreadPoolExecutor(1) as pool:
        if stage.described.abandons == "cancel":
            function = "kvproof.replays.cancel_cross_talk:inside_cancel"
            call = pool.submit(rig.ask, _GIVEN_UP, function, read=read.name, wanted=_GIVEN_UP, known=_KNOWN)
        else:
            call = pool.submit(rig.read, read.name, _GIVEN_UP, _KNOWN)
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
        call = pool.submit(rig.read, read.name, _NEXT, _KNOWN)
        try:
            rig.proxy.wait(f"request:{command} *{_NEXT}*", deadline=rig.place.timeout)
        except DeadlineExceeded:
            # The connection is still taken by the reply that is held, which is a right way to go on.
            pass
        rig.proxy.release(_RELEASE)
        return call.result()


def inside_cancel(session: Session, read: str, wanted: str, known: list[tuple[str, int]]) -> list[dict[str, Any]]:
    """Begin a read and cancel it once the host says so (in the runner); return how it ended and what it left."""
    connector = session.connector
    how = calls.read_named(connector, read)
    [(key, buffer)] = calls.poisoned_items(connector, how, [wanted])
    ended = connector.cancel_read(how, [(key, buffer)], lambda: session.told("cancel"))
    return [calls.examined(calls.cancelled(ended), buffer, known, 0.0)]


REPLAY = Replay(
    "cancel-cross-talk",
    "a command that is cancelled after it was sent leaves its reply on the connection, where the next caller gets it",
    plan,
)

