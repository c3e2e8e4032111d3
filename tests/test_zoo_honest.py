"""The zoo's honest connector is honest, whatever the wire does."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from kvproof.connectors.adapter import Cancelled, Endpoint, Failed, Hit, Miss, Place, Read
from kvproof.faults import servers
from kvproof.faults.families import (
    Blank,
    Close,
    Drip,
    Error,
    Flip,
    HalfOpen,
    Hold,
    Huge,
    Nil,
    Reset,
    Silence,
    Split,
    Truncate,
    UnknownType,
    WrongLength,
    WrongType,
)
from kvproof.faults.fault import Fault
from kvproof.faults.servers import Server
from kvproof.models.payloads import encode
from tests.waiting import until
from tests.zoo.honest import ASYNC_GET, BATCHED_EXISTS, BATCHED_GET, EXISTS, GET, Honest
from tests.zoo.opened import POISONED, SIZE, cancelled, got, opened, poisoned, stored, value

SECRET = "hunter2-secret"


@pytest.fixture(autouse=True)
def _empty(server: Server) -> None:
    with server.connect() as truth:
        truth.command("FLUSHALL")


@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 16383, 16384, 16385, 12_400_000])
def test_a_chunk_comes_back_bit_for_bit(server: Server, size: int) -> None:
    with opened(server, Split(command="GET", at=[1, 5, 6], times=None), size=size, timeout=5.0) as (connector, _):
        assert stored(connector, "aa") == [Hit()]
        for how in (GET, BATCHED_GET, ASYNC_GET):
            assert got(connector, "aa", how=how) == [(Hit(), encode("aa", 1, size))]
        assert got(connector, "aa", how=EXISTS) == [(Hit(), b"")]


def test_a_chunk_that_looks_like_resp_comes_back_however_its_reply_is_cut(server: Server) -> None:
    chunk = b"*1\r\n$-1\r\n-ERR\r\n"
    for at in range(1, 30):
        with opened(server, Split(command="GET", at=[at]), size=len(chunk)) as (connector, _):
            connector.put([(connector.place.key("aa"), memoryview(bytearray(chunk)))])
            assert got(connector, "aa") == [(Hit(), chunk)]


def test_an_absent_chunk_is_a_miss_and_holes_stay_holes(server: Server) -> None:
    with opened(server) as (connector, _):
        for how in (GET, ASYNC_GET, BATCHED_GET):
            assert got(connector, "aa", how=how) == [(Miss(), POISONED)]
        stored(connector, "bb", "dd")
        assert got(connector, "aa", "bb", "cc", "dd", how=BATCHED_GET) == [
            (Miss(), POISONED), value("bb"), (Miss(), POISONED), value("dd")]
        assert [one for one, _ in got(connector, "bb", "dd", "cc", "bb", how=BATCHED_EXISTS)] == [
            Hit(), Hit(), Miss(), Miss()]


UNWELL: list[Fault] = [
    Silence(command="GET"), Silence(command="GET", at=100), HalfOpen(command="GET"), Drip(command="GET", seconds=0.05),
    Truncate(command="GET"), Close(command="GET"), Close(command="GET", after=20), Reset(command="GET"),
    Huge(command="GET"), Huge(command="GET", of="*"), UnknownType(command="GET"), WrongLength(command="GET"),
    WrongType(command="GET", gives="integer"), Error(command="GET"), Blank(command="GET"), Flip(command="GET"),
    Hold(command="GET", until="never"), Silence(direction="request", command="GET"),
]


@pytest.mark.parametrize("fault", UNWELL, ids=lambda fault: fault.kind)
def test_a_read_fails_in_time_and_the_next_one_does_not(server: Server, fault: Fault) -> None:
    with opened(server, fault) as (connector, _):
        stored(connector, "aa", "bb")
        began = time.monotonic()
        [(outcome, held)] = got(connector, "aa")
        assert isinstance(outcome, Failed)
        assert held == POISONED
        assert time.monotonic() - began < 0.8
        assert got(connector, "bb") == [value("bb")]


def test_a_nil_and_an_error_are_one_chunks_own(server: Server) -> None:
    with opened(server, Nil(command="GET", match=1), Error(command="GET", match=3)) as (connector, _):
        stored(connector, "aa", "bb", "cc", "dd")
        first, second, third, fourth = got(connector, "aa", "bb", "cc", "dd", how=BATCHED_GET)
        assert (first, second, fourth) == ((Miss(), POISONED), value("bb"), value("dd"))
        assert isinstance(third[0], Failed)


@pytest.mark.parametrize("code", ["OOM", "READONLY"])
def test_a_refused_put_is_seen(server: Server, code: str) -> None:
    with opened(server, Error(command="SET", code=code, match=2)) as (connector, _):
        first, second, third = stored(connector, "aa", "bb", "cc")
        assert (first, third) == (Hit(), Hit())
        assert isinstance(second, Failed)
        assert code in second.reason


def test_a_late_reply_goes_to_nobody(server: Server) -> None:
    with opened(server, Hold(command="GET", until="go"), timeout=0.2) as (connector, endpoint):
        stored(connector, "aa", "bb")
        chunks = poisoned(connector, "aa")
        assert connector.read(GET, chunks) == [Failed("timed out")]
        endpoint.release("go")
        assert got(connector, "bb") == [value("bb")]
        assert bytes(chunks[0][1]) == POISONED


def test_a_cancelled_read_writes_nothing_and_leaves_no_reply(server: Server) -> None:
    with opened(server, Hold(command="GET", until="go"), timeout=5.0) as (connector, endpoint):
        stored(connector, "aa", "bb")
        ended, (_, buffer) = cancelled(connector, endpoint)
        assert ended == Cancelled("cancelled")
        endpoint.release("go")
        assert got(connector, "bb") == [value("bb")]
        assert bytes(buffer) == POISONED


def test_a_read_that_has_ended_cannot_be_cancelled(server: Server) -> None:
    with opened(server) as (connector, _):
        stored(connector, "aa")
        chunks = poisoned(connector, "aa")
        assert connector.cancel_read(
            ASYNC_GET, chunks, lambda: until(lambda: bytes(chunks[0][1]) != POISONED, "the read") and None) == [Hit()]


def test_each_rank_finds_its_own_and_all_find_the_replicated_one(server: Server) -> None:
    for replicated in (False, True):
        with opened(server, rank=0, replicated=replicated) as (zero, _), opened(
                server, rank=1, replicated=replicated) as (one, _):
            stored(zero, "aa")
            for how in (GET, BATCHED_GET, ASYNC_GET, EXISTS, BATCHED_EXISTS):
                assert got(one, "aa", how=how)[0][0] == (Hit() if replicated else Miss())


def test_salts_and_adapters_are_kept_apart(server: Server) -> None:
    with opened(server, salt="b", adapter="a") as (connector, _):
        stored(connector, "aa")
    for salt, adapter in (("", ""), ("b", ""), ("", "a"), ("", "ab"), ("a", "b"), ("", "a@sb")):
        with opened(server, salt=salt, adapter=adapter) as (other, _):
            assert got(other, "aa") == [(Miss(), POISONED)]


@pytest.mark.parametrize("connections", [1, 3])
def test_any_thread_may_call(server: Server, connections: int) -> None:
    with opened(server, connections=connections, timeout=10.0) as (connector, _), ThreadPoolExecutor(6) as pool:
        names = [f"{number:04x}" for number in range(120)]
        assert list(pool.map(lambda name: stored(connector, name), names)) == [[Hit()]] * 120
        assert list(pool.map(lambda name: got(connector, name), names)) == [[value(name)] for name in names]
        assert 0 < len(connector.connections) <= connections


def test_closing_ends_every_call(server: Server) -> None:
    with opened(server, Silence(command="GET"), timeout=60.0) as (connector, endpoint), ThreadPoolExecutor(4) as pool:
        reads: Sequence[Read] = (GET, ASYNC_GET, BATCHED_GET)
        calls = [pool.submit(got, connector, "aa", how=how) for how in reads]
        endpoint.wait("request:GET")
        began = time.monotonic()
        connector.close()
        assert [call.result(5) for call in calls] == [[(Failed("closed"), POISONED)]] * 3
        assert time.monotonic() - began < 2.0
        assert got(connector, "aa") == [(Failed("closed"), POISONED)]
        assert stored(connector, "aa") == [Failed("closed")]


def test_nothing_is_left_behind(server: Server) -> None:
    def held() -> tuple[int, int, int]:
        with server.connect() as truth:
            clients = int(truth.info("clients")["connected_clients"])
        return len(os.listdir("/proc/self/fd")), threading.active_count(), clients

    def cycle() -> None:
        with opened(server, Silence(command="GET"), Close(command="GET"), timeout=0.1) as (connector, _):
            for how in (GET, ASYNC_GET, ASYNC_GET):
                got(connector, "aa", how=how)

    cycle()
    before = held()
    for _ in range(5):
        cycle()
    until(lambda: held() <= before, f"{before} descriptors, threads and clients")


def test_a_password_is_said_and_never_shown() -> None:
    with servers.valkey(password=SECRET) as locked:
        with opened(locked, password=SECRET) as (connector, _):
            assert stored(connector, "aa") == [Hit()]
        with opened(locked) as (connector, _):
            assert "NOAUTH" in str(got(connector, "aa"))
        with pytest.raises(ConnectionError, match="WRONGPASS"), opened(locked, password="other"):
            pass
        telling = Error(command="AUTH", text=f"ERR unknown command AUTH {SECRET}")
        with pytest.raises(ConnectionError) as raised, opened(locked, telling, password=SECRET):
            pass
        assert SECRET not in str(raised.value)


def test_nobody_there_is_an_error() -> None:
    with pytest.raises(ConnectionError, match="refused"):
        Honest(Place(Endpoint("127.0.0.1", servers.free_port()), SIZE))
