"""The reference connector on a real server: round trips, misses, threads, cancels and deadlines."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from kvproof.connectors.adapter import Cancelled, Endpoint, Failed, Hit, Miss, Outcome, Place
from kvproof.connectors.reference import Reference
from kvproof.faults.servers import valkey
from kvproof.models.payloads import POISON, encode, identify
from kvproof.models.resp import encode_command
from tests.stalling import Stall, opened, poisoned

CHUNK = 256 * 48_400
READS = {read.name: read for read in Reference.reads}
PAYLOAD_READS = [name for name, read in READS.items() if read.payload]
PASSWORD = "opens-only-this-server"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Endpoint]:
    with valkey() as server:
        yield Endpoint(server.host, server.port)


@pytest.fixture
def place(endpoint: Endpoint) -> Place:
    command(endpoint, "FLUSHALL")
    return Place(endpoint, CHUNK, timeout=5.0)


def command(endpoint: Endpoint, *words: str) -> bytes:
    """Say one thing to the server through a channel of our own; return the first bytes of the reply."""
    with socket.create_connection((endpoint.host, endpoint.port)) as channel:
        channel.sendall(encode_command(*words))
        return channel.recv(4096)


@pytest.fixture
def stall() -> Iterator[Stall]:
    server = Stall()
    yield server
    server.close()


def stored(connector: Reference, chunk: str, size: int, version: int = 1) -> bytes:
    key = connector.place.key(chunk)
    payload = encode(key.format(), version, size)
    assert connector.put([(key, memoryview(payload))]) == [Hit()]
    return payload


def one(connector: Reference, name: str, chunk: str, buffer: memoryview) -> Outcome:
    (outcome,) = connector.read(READS[name], [(connector.place.key(chunk), buffer)])
    return outcome


@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 4096, CHUNK])
def test_what_is_stored_is_read_back_by_every_read(place: Place, size: int) -> None:
    with opened(place) as connector:
        payload = stored(connector, "aa", size)
        for name in READS:
            buffer = poisoned(size if READS[name].payload else 0)
            assert one(connector, name, "aa", buffer) == Hit(), name
            assert buffer == (payload if READS[name].payload else b""), f"{name}: {identify(buffer, [])}"


@pytest.mark.parametrize("size", [1, 16, 100, 4096, CHUNK])
def test_a_miss_is_a_miss_and_leaves_the_buffer_alone(place: Place, size: int) -> None:
    with opened(place) as connector:
        for name in READS:
            buffer = poisoned(size)
            assert one(connector, name, "dead", buffer) == Miss(), name
            assert identify(buffer, []).whose == "poison", name
        payload, buffer = stored(connector, "aa", size), poisoned(size)
        assert one(connector, "get", "aa", buffer) == Hit()
        assert buffer == payload


@pytest.mark.parametrize("connections", [1, 3])
def test_a_batch_with_holes_stays_aligned(place: Place, connections: int) -> None:
    with opened(replace(place, connections=connections)) as connector:
        there = {"a0": 100, "a1": 0, "a3": 5000}
        payloads = {chunk: stored(connector, chunk, size) for chunk, size in there.items()}
        names = ["a0", "a1", "a2", "a3", "a4"]
        for read in ("batched_get", "batched_async_get"):
            buffers = [poisoned(there.get(name, 50)) for name in names]
            chunks = [(place.key(name), buffer) for name, buffer in zip(names, buffers, strict=True)]
            assert connector.read(READS[read], chunks) == [Hit(), Hit(), Miss(), Hit(), Miss()], read
            for name, buffer in zip(names, buffers, strict=True):
                assert buffer == payloads.get(name, bytes([POISON]) * 50), f"{read}: {name}"
        counted = connector.read(READS["batched_exists"], [(place.key(name), poisoned(0)) for name in names])
        assert counted == [Hit(), Hit(), Miss(), Miss(), Miss()], "a counted prefix ends at the first hole"
        assert connector.read(READS["batched_get"], []) == []


def test_a_batch_is_stored_and_a_value_of_another_length_is_a_failure(place: Place) -> None:
    with opened(place) as connector:
        payloads = [encode(name, 1, 1000) for name in "ab"]
        keys = [place.key(name) for name in "ab"]
        chunks = [(key, memoryview(payload)) for key, payload in zip(keys, payloads, strict=True)]
        assert connector.put(chunks) == [Hit(), Hit()]
        for size in (999, 1001, 0):
            buffer = poisoned(size)
            outcome = one(connector, "get", "a", buffer)
            assert outcome == Failed(f"the value has 1000 bytes where {size} were expected")
            assert buffer == bytes([POISON]) * size
        buffer = poisoned(1000)
        assert one(connector, "get", "b", buffer) == Hit()
        assert buffer == payloads[1]


def test_an_error_reply_is_a_failure_with_the_servers_words(place: Place) -> None:
    with opened(place) as connector:
        command(place.endpoint, "LPUSH", place.key("a").format(), "x")
        outcome = one(connector, "get", "a", poisoned(1))
        assert isinstance(outcome, Failed)
        assert "WRONGTYPE" in outcome.reason
        assert one(connector, "exists", "a", poisoned(0)) == Hit()


def test_many_threads_each_get_their_own(place: Place) -> None:
    with opened(replace(place, connections=3)) as connector:
        sizes = {f"{index:02x}": 1 + 997 * index for index in range(24)}
        payloads = {chunk: stored(connector, chunk, size) for chunk, size in sizes.items()}

        def work(index: int) -> list[str]:
            wrong = []
            for turn in range(25):
                chunk = list(sizes)[(index * 7 + turn) % len(sizes)]
                buffer = poisoned(sizes[chunk])
                name = PAYLOAD_READS[(index + turn) % len(PAYLOAD_READS)]
                outcome = one(connector, name, chunk, buffer)
                if outcome != Hit() or buffer != payloads[chunk]:
                    wrong.append(f"{name} of {chunk}: {outcome}")
            return wrong

        with ThreadPoolExecutor(8) as threads:
            wrong = [text for texts in threads.map(work, range(8)) for text in texts]
        assert wrong == []


@pytest.mark.parametrize("world_size", [2, 4])
def test_every_read_of_every_worker_asks_for_worker_0s_key(place: Place, world_size: int) -> None:
    workers = [replace(place, replicated=True, world_size=world_size, rank=rank) for rank in range(world_size)]
    with opened(workers[0]) as connector:
        payload = stored(connector, "aa", 100)
    for worker in workers[1:]:
        with opened(worker) as connector:
            assert connector.put([(worker.key("bb"), memoryview(payload))]) == [Miss()]
            for name in READS:
                buffer = poisoned(100)
                assert one(connector, name, "aa", buffer) == Hit(), f"worker {worker.rank} of {world_size}: {name}"
                assert not READS[name].payload or buffer == payload
    assert command(place.endpoint, "DBSIZE") == b":1\r\n"


def test_workers_that_are_not_replicated_keep_apart(place: Place) -> None:
    for rank in range(2):
        with opened(replace(place, world_size=2, rank=rank)) as connector:
            assert one(connector, "exists", "aa", poisoned(0)) == Miss()
            stored(connector, "aa", 10)
    assert command(place.endpoint, "DBSIZE") == b":2\r\n"


GET_REPLY = b"$4\r\n%b\r\n"


@pytest.mark.parametrize("cut", [0, 1, 4, 6, 9])
def test_after_a_cancel_the_next_read_gets_its_own_value(stall: Stall, cut: int) -> None:
    reply = GET_REPLY % b"old!"
    with opened(Place(stall.endpoint, 4, timeout=5.0)) as connector:
        peer = stall.accept()
        first, second = bytearray([POISON]) * 4, poisoned(4)

        def when() -> None:
            peer.recv(100)
            peer.sendall(reply[:cut])

        chunks = [(connector.place.key("old"), memoryview(first))]
        assert connector.cancel_read(READS["get"], chunks, when) == Cancelled("cancelled")
        at_the_end = bytes(first)
        outcomes: list[Outcome] = []
        reader = threading.Thread(target=lambda: outcomes.append(one(connector, "get", "new", second)))
        reader.start()
        try:
            peer.sendall(reply[cut:])
        except OSError:
            pass  # The connection was dropped, as it has to be.
        other = stall.accept()
        assert b"new" in other.recv(100)
        other.sendall(GET_REPLY % b"new!")
        reader.join(5)
        assert (outcomes, bytes(second)) == ([Hit()], b"new!")
        assert bytes(first) == at_the_end, "the cancelled read's buffer was written after it had ended"


def test_a_call_after_its_deadline_fails_and_leaves_the_connector_usable(stall: Stall) -> None:
    with opened(Place(stall.endpoint, 4, timeout=0.2)) as connector:
        stall.accept()
        begin = time.monotonic()
        outcome = one(connector, "get", "old", poisoned(4))
        assert isinstance(outcome, Failed)
        assert "deadline" in outcome.reason
        assert time.monotonic() - begin < 1.2
        buffer, outcomes = poisoned(4), []
        call = threading.Thread(target=lambda: outcomes.append(one(connector, "get", "new", buffer)))
        call.start()
        again = stall.accept()
        assert b"new" in again.recv(100)
        again.sendall(GET_REPLY % b"new!")
        call.join(5)
        assert (outcomes, bytes(buffer)) == ([Hit()], b"new!")


def test_a_call_that_waits_for_a_connection_has_its_deadline_too(stall: Stall) -> None:
    with opened(Place(stall.endpoint, 4, timeout=0.2)) as connector:
        begin = time.monotonic()
        with ThreadPoolExecutor(3) as threads:
            outcomes = list(threads.map(lambda _: one(connector, "get", "a", poisoned(4)), range(3)))
        assert time.monotonic() - begin < 1.2
        assert outcomes == [Failed("deadline exceeded: no answer within 0.2 s")] * 3


def test_close_resolves_what_is_in_flight_and_later_calls_end_at_once(stall: Stall) -> None:
    connector = Reference(Place(stall.endpoint, 4, timeout=30.0))
    peer = stall.accept()
    outcomes: list[Outcome] = []
    calls = [threading.Thread(target=lambda: outcomes.append(one(connector, "get", "a", poisoned(4)))) for _ in "123"]
    for call in calls:
        call.start()
    peer.recv(100)
    until = time.monotonic() + 5
    while len(connector.client.registry) < 3 and time.monotonic() < until:
        threading.Event().wait(0.001)
    connector.close()
    for call in calls:
        call.join(5)
    assert outcomes == [Failed("the client was closed")] * 3
    assert one(connector, "exists", "a", poisoned(0)) == Failed("the client was closed")
    connector.close()
    assert peer.recv(1) == b"", "close ends the connections"
    assert "kvproof-reference" not in {thread.name for thread in threading.enumerate()}


def test_a_lost_connection_fails_its_call_and_is_opened_again(stall: Stall) -> None:
    with opened(Place(stall.endpoint, 4, timeout=5.0)) as connector:
        peer = stall.accept()
        outcomes: list[Outcome] = []
        call = threading.Thread(target=lambda: outcomes.append(one(connector, "get", "a", poisoned(4))))
        call.start()
        peer.recv(100)
        peer.sendall(b"$4\r\nab")
        peer.close()
        call.join(5)
        assert outcomes == [Failed("the server closed the connection")]
        buffer = poisoned(4)
        call = threading.Thread(target=lambda: outcomes.append(one(connector, "get", "b", buffer)))
        call.start()
        again = stall.accept()
        again.recv(100)
        again.sendall(GET_REPLY % b"new!")
        call.join(5)
        assert (outcomes[1:], bytes(buffer)) == ([Hit()], b"new!")


def test_a_server_that_went_away_and_came_back_is_found_again(stall: Stall) -> None:
    with opened(Place(stall.endpoint, 4, timeout=5.0)) as connector:
        stall.accept()
        stall.close()
        begin = time.monotonic()
        for _ in range(3):
            assert isinstance(one(connector, "get", "aa", poisoned(4)), Failed)
        assert time.monotonic() - begin < 2, "a refused connection is no reason to wait for the deadline"
        again = Stall(stall.endpoint.port)
        try:
            buffer, outcomes = poisoned(4), []
            call = threading.Thread(target=lambda: outcomes.append(one(connector, "get", "new", buffer)))
            call.start()
            peer = again.accept()
            peer.recv(100)
            peer.sendall(GET_REPLY % b"new!")
            call.join(5)
            assert (outcomes, bytes(buffer)) == ([Hit()], b"new!")
        finally:
            again.close()


def test_the_password_is_used_and_a_wrong_one_fails_loud() -> None:
    with valkey(password=PASSWORD) as server:
        endpoint = Endpoint(server.host, server.port)
        with opened(Place(replace(endpoint, password=PASSWORD), 10, connections=2)) as connector:
            payload, buffer = stored(connector, "aa", 10), poisoned(10)
            assert one(connector, "get", "aa", buffer) == Hit()
            assert buffer == payload
        with pytest.raises(ConnectionError, match="WRONGPASS"):
            Reference(Place(replace(endpoint, password="guess"), 10))
        with opened(Place(endpoint, 10)) as connector:
            outcome = one(connector, "exists", "aa", poisoned(0))
            assert isinstance(outcome, Failed)
            assert "NOAUTH" in outcome.reason


def test_a_server_that_is_not_there_cannot_be_opened() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with pytest.raises(ConnectionError, match=str(port)):
        Reference(Place(Endpoint("127.0.0.1", port), 10))


def test_tensors_go_through_staging(place: Place) -> None:
    torch = pytest.importorskip("torch")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with opened(replace(place, device="cuda")) as connector:
        key, size = place.key("aa"), 4096
        payload = torch.frombuffer(bytearray(encode("aa", 1, size)), dtype=torch.uint8).to(device)
        assert connector.put([(key, payload)]) == [Hit()]
        for name in PAYLOAD_READS:
            buffer = torch.full((size,), POISON, dtype=torch.uint8, device=device)
            assert connector.read(READS[name], [(key, buffer)]) == [Hit()]
            assert torch.equal(buffer, payload), name
            buffer = torch.full((size,), POISON, dtype=torch.uint8, device=device)
            assert connector.read(READS[name], [(place.key("dead"), buffer)]) == [Miss()]
            assert bool((buffer == POISON).all()), name
