"""`reference+<bug>`: each planted bug shows itself and no other, and the right design shows none."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from kvproof.connectors.adapter import Cancelled, Endpoint, Failed, Hit, Miss, Outcome, Place
from kvproof.connectors.reference import Reference
from kvproof.connectors.reference_bugs import BUGS, faulty
from kvproof.errors import UsageError
from kvproof.faults.gates import Arrival, Gap, WatchedNative, pause_before, substitute
from kvproof.faults.servers import valkey
from kvproof.models.payloads import encode, identify
from kvproof.models.resp import encode_command
from tests.stalling import Stall, opened, poisoned

READS = {read.name: read for read in Reference.reads}
GET_REPLY = b"$4\r\n%b\r\n"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Endpoint]:
    with valkey() as server:
        yield Endpoint(server.host, server.port)


def one(connector: Reference, name: str, chunk: str, buffer: memoryview) -> Outcome:
    (outcome,) = connector.read(READS[name], [(connector.place.key(chunk), buffer)])
    return outcome


@contextmanager
def masked(place: Place, kind: type[Reference]) -> Iterator[Reference]:
    """Open a connector whose completions wait until somebody is registered: its other bugs can then be seen."""
    with opened(place, kind) as connector:
        client = connector.client
        with substitute(client, "native", WatchedNative(client.native, client.registry.registered, mask=True)):
            yield connector


# Each probe returns True when its bug shows.


def shows_lost_completion(endpoint: Endpoint, kind: type[Reference]) -> bool:
    shown = {}
    for call in ("exists", "batched_exists", "get", "put"):
        for hold in (0.0, 5.0):
            with opened(Place(endpoint, 100, timeout=5.0), kind) as connector:
                shown[call, hold] = is_blocked_in_gap(endpoint, connector, call, hold)
    assert len(set(shown.values())) == 1, f"some calls and not others: {shown}"
    return shown["get", 0.0]


def is_blocked_in_gap(endpoint: Endpoint, connector: Reference, call: str, hold: float) -> bool:
    """Let the completion arrive between submission and wait, and say whether the caller then never returns.

    With `hold` the submission itself returns late; without, the caller is paused before the line that waits.
    """
    key = connector.place.key("aa")
    payload = memoryview(bytearray(stored_raw(endpoint, key.format(), 100)))
    (gap,) = (gap for gap in connector.gaps() if gap.call == call)
    arrived: list[Arrival | None] = []
    caller = threading.Thread(target=run_in_gap, args=(gap, hold, (key, payload), arrived), daemon=True)
    caller.start()
    caller.join(0.3)
    blocked = caller.is_alive()
    if not hold:
        expected = "nobody had registered" if blocked else "its future was registered"
        assert arrived, f"{call}: the gap was not reached"
        assert arrived[0] is not None
        assert expected in arrived[0].words, f"{call}: {arrived[0]}"
    return blocked


def run_in_gap(gap: Gap, hold: float, chunk: tuple[object, object], arrived: list[Arrival | None]) -> None:
    with gap.watch(hold) as watch:
        if hold:
            gap.run(*chunk)
            return
        with pause_before(gap.wait, lambda: arrived.append(watch.arrived(5.0))):
            gap.run(*chunk)


def stored_raw(endpoint: Endpoint, key: str, size: int) -> bytes:
    payload = encode(key, 1, size)
    with socket.create_connection((endpoint.host, endpoint.port)) as channel:
        channel.sendall(encode_command("SET", key, payload))
        assert channel.recv(100) == b"+OK\r\n"
    return payload


def shows_nil_get(endpoint: Endpoint, kind: type[Reference]) -> bool:
    seen = []
    for size in (10, 100, 1000, 10_000_000):
        with masked(Place(endpoint, size, timeout=0.15), kind) as connector:
            payload = stored_raw(endpoint, connector.place.key("aa").format(), size)
            buffer = poisoned(size)
            assert one(connector, "get", "aa", buffer) == Hit(), "a chunk that is there is read by either"
            assert buffer == payload
            buffer = poisoned(size)
            outcome = one(connector, "get", "dead", buffer)
            assert identify(buffer, []).whose == "poison"
            after = one(connector, "get", "aa", poisoned(size))
            seen.append((type(outcome), type(after)))
    if seen == [(Miss, Hit)] * 4:
        return False
    assert seen == [(Hit, Hit), (Failed, Failed), (Failed, Failed), (Failed, Failed)], seen
    return True


def shows_worker_key(endpoint: Endpoint, kind: type[Reference]) -> bool:
    worker = Place(endpoint, 16, replicated=True, world_size=2, rank=1, timeout=5.0)
    stored_raw(endpoint, worker.key("aa").stored(replicated=True).format(), 16)
    with masked(worker, kind) as connector:
        missed = {name for name in READS if one(connector, name, "aa", poisoned(16)) == Miss()}
    assert missed <= {"batched_async_get"}
    return bool(missed)


def shows_cancel_cross_talk(endpoint: Endpoint, kind: type[Reference]) -> bool:
    server = Stall()
    try:
        with masked(Place(server.endpoint, 4, timeout=5.0), kind) as connector:
            peer = server.accept()
            chunks = [(connector.place.key("old"), poisoned(4))]
            ended = connector.cancel_read(READS["get"], chunks, lambda: peer.recv(100) and None)
            assert ended == Cancelled("cancelled")
            buffer, outcomes = poisoned(4), []
            reader = threading.Thread(target=lambda: outcomes.append(one(connector, "get", "new", buffer)))
            reader.start()
            # Either the request comes on the old connection, or that one is closed and a new one opened.
            same = b"new" in peer.recv(100)
            if same:
                peer.sendall(GET_REPLY % b"old!")
            else:
                other = server.accept()
                assert b"new" in other.recv(100)
                other.sendall(GET_REPLY % b"new!")
            reader.join(5)
            assert outcomes == [Hit()]
            return bytes(buffer) != b"new!"
    finally:
        server.close()


PROBES: dict[str, Callable[[Endpoint, type[Reference]], bool]] = {
    "lost-completion": shows_lost_completion,
    "nil-get": shows_nil_get,
    "worker-key": shows_worker_key,
    "cancel-cross-talk": shows_cancel_cross_talk,
}


@pytest.mark.parametrize("probe", PROBES)
@pytest.mark.parametrize("bug", [None, *BUGS])
def test_each_bug_shows_itself_and_no_other_and_the_right_design_none(
    endpoint: Endpoint, bug: str | None, probe: str,
) -> None:
    kind = Reference if bug is None else BUGS[bug]
    assert PROBES[probe](endpoint, kind) == (bug == probe)


def test_bugs_are_found_by_name() -> None:
    assert set(BUGS) == set(PROBES)
    assert [faulty(bug).name for bug in BUGS] == [f"reference+{bug}" for bug in BUGS]
    with pytest.raises(UsageError, match="no such bug"):
        faulty("everything")
