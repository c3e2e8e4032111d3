"""Replies that the proxy holds: the one that is named, until it is released, and no other."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from kvproof import faults
from kvproof.errors import DeadlineExceeded
from kvproof.faults.families import Hold
from kvproof.faults.servers import Server
from kvproof.models.payloads import encode
from tests.wire import CHUNK, bare, client, read, silent, told


def test_a_reply_is_held_until_it_is_released(server: Server) -> None:
    with faults.proxy(server.address, (Hold(command="GET", key="held:*", until="go"),)) as endpoint:
        with bare(endpoint) as connection, bare(endpoint) as other:
            connection.sendall(b"*2\r\n$3\r\nGET\r\n$6\r\nheld:1\r\n*1\r\n$4\r\nPING\r\n")
            held = endpoint.wait("held")
            assert (held.command, held.key, held.fault) == ("GET", "held:1", 0)
            other.sendall(b"*1\r\n$4\r\nPING\r\n")
            assert read(other, 7) == b"+PONG\r\n", "another connection is not held"
            assert silent(connection), "neither the held reply nor what follows it may pass"
            assert endpoint.struck() == (True,)
            with pytest.raises(DeadlineExceeded):
                endpoint.wait("reply:GET held:*", deadline=0)
            endpoint.release("go")
            assert read(connection, 12) == b"$-1\r\n+PONG\r\n"
        events = [e for e in endpoint.log() if e.connection == held.connection]
    assert [(e.direction, e.did, e.command, e.by) for e in events if e.direction == "reply"] == [
        ("reply", "held", "GET", ""), ("reply", "released", "GET", "go"), ("reply", "", "GET", ""),
        ("reply", "", "PING", ""),
    ], told(events)


def test_replies_before_a_held_one_pass(server: Server) -> None:
    with faults.proxy(server.address, (Hold(command="ECHO", until="go"),)) as endpoint, bare(endpoint) as connection:
        connection.sendall(b"*1\r\n$4\r\nPING\r\n*2\r\n$4\r\nECHO\r\n$1\r\nx\r\n")
        assert read(connection, 7) == b"+PONG\r\n"
        endpoint.wait("held")
        assert silent(connection)
        endpoint.release("go")
        assert read(connection, 7) == b"$1\r\nx\r\n"


def test_a_hold_ends_when_another_request_is_seen(server: Server) -> None:
    schedule = (Hold(command="GET", key="first", until="request:GET second*"),)
    with faults.proxy(server.address, schedule) as endpoint, bare(endpoint) as one, bare(endpoint) as two:
        two.sendall(b"*2\r\n$3\r\nGET\r\n$8\r\nsecond:0\r\n")
        assert read(two, 5) == b"$-1\r\n", "a request before the hold does not count"
        one.sendall(b"*2\r\n$3\r\nGET\r\n$5\r\nfirst\r\n")
        endpoint.wait("held")
        two.sendall(b"*2\r\n$3\r\nGET\r\n$5\r\nthird\r\n")
        assert read(two, 5) == b"$-1\r\n"
        two.sendall(b"*2\r\n$3\r\nGET\r\n$8\r\nsecond:1\r\n")
        assert read(one, 5) == b"$-1\r\n"
        released = endpoint.wait("released")
        assert released.by == "request:GET second*"
        [seen] = [event for event in endpoint.log() if (event.direction, event.key) == ("request", "second:1")]
        assert seen.sequence < released.sequence, f"released too early, by another key: {told(endpoint.log())}"


def test_a_hold_ends_when_its_client_closes(server: Server) -> None:
    with faults.proxy(server.address, (Hold(command="GET", key="closing", until="close"),)) as endpoint:
        with bare(endpoint) as one, bare(endpoint) as other:
            one.sendall(b"*2\r\n$3\r\nGET\r\n$7\r\nclosing\r\n")
            endpoint.wait("held")
            other.close()
            endpoint.wait("close")
            assert [e for e in endpoint.log() if e.did == "released"] == [], "somebody else's close does not count"
            one.close()
            endpoint.wait("released")
        closed = [event for event in endpoint.log() if event.direction == "close"][1]
    assert (closed.by, closed.command, closed.key) == ("client", "GET", "closing"), f"what was owed: {closed}"


def test_the_match_that_is_named_is_held_and_no_other(server: Server) -> None:
    schedule = (Hold(command="get", key="k[12]", match=3, until="go"), Hold(command="GET", match=9, until="never"))
    with faults.proxy(server.address, schedule) as endpoint, bare(endpoint) as one, bare(endpoint) as two:
        for connection, key in ((one, b"k1"), (two, b"k3"), (two, b"k2")):
            connection.sendall(b"*2\r\n$3\r\nGET\r\n$2\r\n" + key + b"\r\n")
            assert read(connection, 5) == b"$-1\r\n"
        assert endpoint.struck() == (False, False)
        one.sendall(b"*2\r\n$3\r\nGET\r\n$2\r\nk1\r\n")
        assert (endpoint.wait("held").key, endpoint.struck()) == ("k1", (True, False))
        two.sendall(b"*2\r\n$3\r\nGET\r\n$2\r\nk1\r\n")
        assert read(two, 5) == b"$-1\r\n", "the fourth match is not held"
        endpoint.release("go")
        assert read(one, 5) == b"$-1\r\n"


def test_a_connection_can_be_named(server: Server) -> None:
    with faults.proxy(server.address, (Hold(command="PING", connection=2, until="go"),)) as endpoint:
        with bare(endpoint) as one:
            one.sendall(b"*1\r\n$4\r\nPING\r\n")
            assert read(one, 7) == b"+PONG\r\n"
            with bare(endpoint) as two:
                two.sendall(b"*1\r\n$4\r\nPING\r\n")
                assert endpoint.wait("held").connection == 2


def test_a_release_before_the_hold_counts(server: Server) -> None:
    with faults.proxy(server.address, (Hold(command="PING", until="go"),)) as endpoint, client(endpoint) as through:
        endpoint.release("go")
        assert through.ping() is True
        assert [event.did for event in endpoint.log() if event.did] == ["held", "released"]


def test_a_large_reply_is_held_and_released_intact(server: Server) -> None:
    value = encode("large", 7, CHUNK)
    with redis.Redis("127.0.0.1", server.port) as direct:
        direct.set("large", value)
    with faults.proxy(server.address, (Hold(command="GET", key="large", until="go"),)) as endpoint:
        with client(endpoint) as through, ThreadPoolExecutor(1) as pool:
            reading = pool.submit(through.get, "large")
            endpoint.wait("held")
            assert not reading.done()
            endpoint.release("go")
            assert reading.result(10) == value, "every byte of the held value arrives"
            [reply] = [e for e in endpoint.log() if e.direction == "reply" and not e.did]
    assert reply.size == CHUNK + len(b"$12400000\r\n\r\n")
    assert len(reply.head) == 64, f"only the first bytes are kept: {len(reply.head)}"


def test_a_large_reply_before_a_held_one_passes_whole(server: Server) -> None:
    value = encode("before", 1, 3_000_000)
    with redis.Redis("127.0.0.1", server.port) as direct:
        direct.set("before", value)
    with faults.proxy(server.address, (Hold(command="ECHO", until="go"),)) as endpoint, bare(endpoint) as connection:
        connection.sendall(b"*2\r\n$3\r\nGET\r\n$6\r\nbefore\r\n*2\r\n$4\r\nECHO\r\n$1\r\nx\r\n")
        assert read(connection, 3_000_012) == b"$3000000\r\n" + value + b"\r\n", "the hold begins at the ECHO's reply"
        endpoint.wait("held")
        assert silent(connection)
        endpoint.release("go")
        assert read(connection, 7) == b"$1\r\nx\r\n"
