"""The fault proxy on a real Valkey: transparent, exact in its log, holding what it is told to and nothing else."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import redis

from kvproof.errors import DeadlineExceeded, ProxyFailed, UsageError
from kvproof.faults import proxy, servers
from kvproof.faults.proxy import Hold, Proxy, WireEvent
from kvproof.faults.servers import Server
from kvproof.models.payloads import encode

CHUNK = 12_400_000
ROOT = Path(__file__).resolve().parent.parent


def client(endpoint: Proxy) -> redis.Redis:
    """Return a client whose only frames are the caller's."""
    return redis.Redis(endpoint.host, endpoint.port, protocol=2, driver_info=None, socket_timeout=10)


def bare(endpoint: Proxy) -> socket.socket:
    return socket.create_connection((endpoint.host, endpoint.port), timeout=10)


def read(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = connection.recv(size - len(data))
        assert part, f"expected {size} bytes, the connection ended after {len(data)}: {bytes(data[:64])!r}"
        data += part
    return bytes(data)


def silent(connection: socket.socket) -> bool:
    return not select.select([connection], [], [], 0)[0]


def told(events: list[WireEvent]) -> list[str]:
    return [str(event) for event in events]


def scripted() -> socket.socket:
    """Return a listener in a server's place, whose every byte the test sends itself."""
    return socket.create_server(("127.0.0.1", 0))


@pytest.mark.parametrize("size", [0, 1, 16 * 1024, CHUNK])
def test_set_and_get_pass_unchanged(server: Server, size: int) -> None:
    value = encode("k", 1, size)
    with proxy.start(server.address) as endpoint, client(endpoint) as through:
        through.set("k", value)
        got = through.get("k")
    assert got == value, f"{size} bytes: expected them back, got {len(got or b'')} bytes, or other ones"


def test_a_pipeline_of_mixed_sizes_passes_in_order(server: Server) -> None:
    values = {f"p{number}": encode(f"p{number}", 1, number * 977) for number in range(60)}
    values["p7"] = encode("p7", 1, 3_000_000)
    with proxy.start(server.address) as endpoint, client(endpoint) as through:
        pipeline = through.pipeline(transaction=False)
        for key, value in values.items():
            pipeline.set(key, value)
        for key in values:
            pipeline.get(key)
        got = pipeline.execute()
        events = endpoint.log()
    assert got == [True] * 60 + list(values.values()), "each reply is the one to its own request"
    asked = [(event.command, event.key) for event in events if event.direction == "request"]
    answered = [(event.command, event.key) for event in events if event.direction == "reply"]
    assert asked == answered == [("SET", key) for key in values] + [("GET", key) for key in values]


def test_the_log_of_a_scripted_conversation_is_exact(server: Server) -> None:
    with proxy.start(server.address) as endpoint:
        with bare(endpoint) as first, bare(endpoint) as second:
            endpoint.wait("open", 2)
            for connection, request, reply in (
                (first, b"*1\r\n$4\r\nPING\r\n", b"+PONG\r\n"),
                (second, b"*3\r\n$3\r\nset\r\n$5\r\nlog:\xff\r\n$3\r\nabc\r\n", b"+OK\r\n"),
                (first, b"*2\r\n$3\r\nGET\r\n$5\r\nlog:\xff\r\n", b"$3\r\nabc\r\n"),
                (first, b"*2\r\n$3\r\nGET\r\n$6\r\nabsent\r\n", b"$-1\r\n"),
                (first, b"*2\r\n$4\r\nAUTH\r\n$6\r\nsecret\r\n", b""),
            ):
                connection.sendall(request)
                assert read(connection, len(reply)) == reply
            endpoint.wait("reply:AUTH")
            second.close()
            endpoint.wait("close")
        endpoint.wait("close", 2)
        events = endpoint.log()
    key = "log:\udcff"
    got = [(e.connection, e.direction, e.command, e.key, e.size, e.head, e.null, e.by) for e in events
           if (e.direction, e.command) != ("reply", "AUTH")]
    expected = [
        (1, "open", "", "", 0, b"", False, ""),
        (2, "open", "", "", 0, b"", False, ""),
        (1, "request", "PING", "", 14, b"*1\r\n$4\r\nPING\r\n", False, ""),
        (1, "reply", "PING", "", 7, b"+PONG\r\n", False, ""),
        (2, "request", "SET", key, 33, b"*3\r\n$3\r\nset\r\n$5\r\nlog:\xff\r\n$3\r\nabc\r\n", False, ""),
        (2, "reply", "SET", key, 5, b"+OK\r\n", False, ""),
        (1, "request", "GET", key, 24, b"*2\r\n$3\r\nGET\r\n$5\r\nlog:\xff\r\n", False, ""),
        (1, "reply", "GET", key, 9, b"$3\r\nabc\r\n", False, ""),
        (1, "request", "GET", "absent", 25, b"*2\r\n$3\r\nGET\r\n$6\r\nabsent\r\n", False, ""),
        (1, "reply", "GET", "absent", 5, b"$-1\r\n", True, ""),
        (1, "request", "AUTH", "", 26, b"", False, ""),
        (2, "close", "", "", 0, b"", False, "client"),
        (1, "close", "", "", 0, b"", False, "client"),
    ]
    assert got == expected
    assert [event.sequence for event in events] == list(range(len(events)))
    assert sorted(event.seconds for event in events) == [event.seconds for event in events]
    assert "secret" not in repr(events), "a password must not reach the log"


def test_a_push_is_not_taken_for_a_reply() -> None:
    schedule = (Hold(command="GET", until="go"),)
    push, reply = b">2\r\n$4\r\nnews\r\n$1\r\nx\r\n", b"$1\r\nv\r\n"
    with contextlib.ExitStack() as stack:
        upstream = stack.enter_context(scripted())
        endpoint = stack.enter_context(proxy.start(upstream.getsockname(), schedule))
        connection = stack.enter_context(bare(endpoint))
        connection.sendall(b"*2\r\n$9\r\nSUBSCRIBE\r\n$1\r\nc\r\n*2\r\n$3\r\nGET\r\n$1\r\nk\r\n")
        serving, _ = upstream.accept()
        with serving:
            read(serving, 46)
            serving.sendall(push + reply)
            assert read(connection, len(push)) == push, "the push before a held reply passes"
            endpoint.wait("held")
            assert silent(connection)
            endpoint.release("go")
            assert read(connection, len(reply)) == reply
        passed = [e for e in endpoint.log() if e.direction in ("push", "reply") and not e.did]
    assert [(e.direction, e.command, e.key, e.size) for e in passed] == [("push", "", "", 21), ("reply", "GET", "k", 7)]


def test_a_reply_is_held_until_it_is_released(server: Server) -> None:
    with proxy.start(server.address, (Hold(command="GET", key="held:*", until="go"),)) as endpoint:
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
    with proxy.start(server.address, (Hold(command="ECHO", until="go"),)) as endpoint, bare(endpoint) as connection:
        connection.sendall(b"*1\r\n$4\r\nPING\r\n*2\r\n$4\r\nECHO\r\n$1\r\nx\r\n")
        assert read(connection, 7) == b"+PONG\r\n"
        endpoint.wait("held")
        assert silent(connection)
        endpoint.release("go")
        assert read(connection, 7) == b"$1\r\nx\r\n"


def test_a_hold_ends_when_another_request_is_seen(server: Server) -> None:
    schedule = (Hold(command="GET", key="first", until="request:GET second*"),)
    with proxy.start(server.address, schedule) as endpoint, bare(endpoint) as one, bare(endpoint) as two:
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
    with proxy.start(server.address, (Hold(command="GET", key="closing", until="close"),)) as endpoint:
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
    with proxy.start(server.address, schedule) as endpoint, bare(endpoint) as one, bare(endpoint) as two:
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
    with proxy.start(server.address, (Hold(command="PING", connection=2, until="go"),)) as endpoint:
        with bare(endpoint) as one:
            one.sendall(b"*1\r\n$4\r\nPING\r\n")
            assert read(one, 7) == b"+PONG\r\n"
            with bare(endpoint) as two:
                two.sendall(b"*1\r\n$4\r\nPING\r\n")
                assert endpoint.wait("held").connection == 2


def test_a_release_before_the_hold_counts(server: Server) -> None:
    with proxy.start(server.address, (Hold(command="PING", until="go"),)) as endpoint, client(endpoint) as through:
        endpoint.release("go")
        assert through.ping() is True
        assert [event.did for event in endpoint.log() if event.did] == ["held", "released"]


def test_a_large_reply_is_held_and_released_intact(server: Server) -> None:
    value = encode("large", 7, CHUNK)
    with redis.Redis("127.0.0.1", server.port) as direct:
        direct.set("large", value)
    with proxy.start(server.address, (Hold(command="GET", key="large", until="go"),)) as endpoint:
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
    with proxy.start(server.address, (Hold(command="ECHO", until="go"),)) as endpoint, bare(endpoint) as connection:
        connection.sendall(b"*2\r\n$3\r\nGET\r\n$6\r\nbefore\r\n*2\r\n$4\r\nECHO\r\n$1\r\nx\r\n")
        assert read(connection, 3_000_012) == b"$3000000\r\n" + value + b"\r\n", "the hold begins at the ECHO's reply"
        endpoint.wait("held")
        assert silent(connection)
        endpoint.release("go")
        assert read(connection, 7) == b"$1\r\nx\r\n"


def test_two_endpoints_are_independent(server: Server) -> None:
    with proxy.start(server.address, (Hold(command="PING", until="go"),)) as one, proxy.start(server.address) as two:
        assert one.port != two.port
        with bare(one) as held, client(two) as free:
            held.sendall(b"*1\r\n$4\r\nPING\r\n")
            one.wait("held")
            assert free.ping() is True
            assert [event for event in two.log() if event.did] == []
            with pytest.raises(UsageError, match="release 'go': no hold of the schedule waits for it"):
                two.release("go")
        one.close()
        assert two.wait("reply:PING").command == "PING", "closing one endpoint leaves the other"


def test_closing_an_endpoint_closes_its_port_and_connections(server: Server) -> None:
    with proxy.start(server.address, (Hold(command="PING", until="go"),)) as endpoint, bare(endpoint) as connection:
        connection.sendall(b"*1\r\n$4\r\nPING\r\n")
        endpoint.wait("held")
        endpoint.close()
        assert connection.recv(1) == b""
        with pytest.raises(ConnectionRefusedError):
            bare(endpoint)
        with pytest.raises(ProxyFailed):
            endpoint.log()


def test_64_connections_at_once(server: Server) -> None:
    start = threading.Barrier(64)

    def work(number: int) -> bool:
        value = encode(f"c{number}", 1, 20_000 + number)
        with client(endpoint) as through:
            start.wait(10)
            through.set(f"c{number}", value)
            return all(through.get(f"c{number}") == value for _ in range(5))

    with proxy.start(server.address) as endpoint, ThreadPoolExecutor(64) as pool:
        assert list(pool.map(work, range(64))) == [True] * 64
        endpoint.wait("close", 64)
        assert {event.connection for event in endpoint.log()} == set(range(1, 65))


def test_threads_may_wait_and_release_on_one_endpoint(server: Server) -> None:
    schedule = tuple(Hold(command="GET", key=f"t{number}", until=f"go{number}") for number in range(8))
    with proxy.start(server.address, schedule) as endpoint, ThreadPoolExecutor(16) as pool:

        def get(number: int) -> bytes | None:
            with client(endpoint) as through:
                value: bytes | None = through.get(f"t{number}")
                return value

        reads = [pool.submit(get, number) for number in range(8)]
        waits = [pool.submit(endpoint.wait, f"reply:GET t{number}") for number in range(8)]
        endpoint.wait("held", 8)
        for number in reversed(range(8)):
            endpoint.release(f"go{number}")
        assert [done.result(10).key for done in waits] == [f"t{number}" for number in range(8)]
        assert [done.result(10) for done in reads] == [None] * 8


def test_a_wait_that_expires_says_what_was_seen(server: Server) -> None:
    with proxy.start(server.address) as endpoint, client(endpoint) as through:
        through.get("seen")
        with pytest.raises(DeadlineExceeded) as caught:
            endpoint.wait("held", 2, deadline=0.01)
        for part in ("'held'", "2 times", "seen 0 times", "connection 1 reply GET seen 5 bytes null"):
            assert part in str(caught.value), f"{part!r} is missing from: {caught.value}"
        with pytest.raises(UsageError, match="event 'helt': allowed"):
            endpoint.wait("helt")


def test_a_client_that_leaves_in_the_middle_of_a_reply_is_logged() -> None:
    with scripted() as upstream, proxy.start(upstream.getsockname()) as endpoint:
        with bare(endpoint) as leaving:
            leaving.sendall(b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n")
            serving, _ = upstream.accept()
            read(serving, 20)
            serving.sendall(b"$1000000\r\n" + bytes(1000))
            read(leaving, 1010)
        with serving:
            closed = endpoint.wait("close")
            assert (closed.by, closed.command, closed.key, closed.size) == ("client", "GET", "k", 1010), str(closed)
            assert serving.recv(1) == b"", "the server hears that the client left"
        _still_works(endpoint, upstream)


def test_a_client_that_leaves_with_a_large_reply_unread_is_logged(server: Server) -> None:
    with redis.Redis("127.0.0.1", server.port) as direct:
        direct.set("unread", encode("unread", 1, CHUNK))
    with proxy.start(server.address) as endpoint:
        with bare(endpoint) as leaving:
            leaving.sendall(b"*2\r\n$3\r\nGET\r\n$6\r\nunread\r\n")
            read(leaving, 1000)
        closed = endpoint.wait("close")
        assert (closed.by, closed.command, closed.key) == ("client", "GET", "unread"), str(closed)
        assert 1000 <= closed.size < CHUNK, f"only a part had been delivered, the log says {closed.size} bytes"
        with client(endpoint) as through:
            assert through.ping() is True


def test_a_server_that_dies_in_the_middle_of_a_reply_is_logged() -> None:
    with scripted() as upstream, proxy.start(upstream.getsockname()) as endpoint:
        with bare(endpoint) as waiting:
            waiting.sendall(b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n")
            serving, _ = upstream.accept()
            read(serving, 20)
            serving.sendall(b"$1000000\r\n" + bytes(1000))
            serving.close()
            read(waiting, 1010)
            assert waiting.recv(1) == b"", "the client hears that the server is gone"
            closed = endpoint.wait("close")
            assert (closed.by, closed.command, closed.key, closed.size) == ("server", "GET", "k", 1010), str(closed)
        _still_works(endpoint, upstream)


def test_a_killed_server_is_logged_and_another_may_take_its_place() -> None:
    with servers.valkey() as mortal, proxy.start(mortal.address) as endpoint, bare(endpoint) as connection:
        connection.sendall(b"*1\r\n$4\r\nPING\r\n")
        read(connection, 7)
        assert mortal.process is not None
        mortal.process.send_signal(signal.SIGKILL)
        assert mortal.process.wait(5) is not None
        assert endpoint.wait("close").by == "server"
        with pytest.raises(ConnectionResetError), bare(endpoint) as late:
            late.recv(1)
        assert "no connection to 127.0.0.1" in endpoint.wait("close", 2).detail
        with socket.create_server(mortal.address) as upstream:
            _still_works(endpoint, upstream)


def _still_works(endpoint: Proxy, upstream: socket.socket) -> None:
    with bare(endpoint) as connection:
        connection.sendall(b"*1\r\n$4\r\nPING\r\n")
        serving, _ = upstream.accept()
        with serving:
            assert read(serving, 14) == b"*1\r\n$4\r\nPING\r\n"
            serving.sendall(b"+PONG\r\n")
            assert read(connection, 7) == b"+PONG\r\n"


def test_what_a_client_sends_to_a_dead_server_is_still_seen() -> None:
    with scripted() as upstream, proxy.start(upstream.getsockname(), (Hold(match=1, until="go"),)) as endpoint:
        with bare(endpoint) as connection:
            connection.sendall(b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n")
            serving, _ = upstream.accept()
            with serving:
                read(serving, 20)
                serving.sendall(b"$-1\r\n")
                endpoint.wait("held")
            for count in (1, 2, 3):
                connection.sendall(b"*1\r\n$4\r\nPING\r\n")
                endpoint.wait("request:PING", count)
            endpoint.release("go")
            assert read(connection, 5) == b"$-1\r\n", "what the server had answered still arrives"
            closed = endpoint.wait("close")
            assert (closed.by, closed.command) == ("server", "PING"), f"the server closed, owing PING: {closed}"


def test_a_reset_is_passed_on_as_a_reset() -> None:
    with scripted() as upstream, proxy.start(upstream.getsockname()) as endpoint, bare(endpoint) as connection:
        connection.sendall(b"*1\r\n$4\r\nPING\r\n")
        serving, _ = upstream.accept()
        read(serving, 14)
        serving.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        serving.close()
        with pytest.raises(ConnectionResetError):
            connection.recv(1)
        assert (endpoint.wait("close").by, endpoint.wait("close").detail) == ("server", "reset")


def test_malformed_streams_pass_unread() -> None:
    with scripted() as upstream, proxy.start(upstream.getsockname()) as endpoint, bare(endpoint) as connection:
        connection.sendall(b"*1\r\n$4\r\nPING\r\n@what\r\n")
        serving, _ = upstream.accept()
        with serving:
            assert read(serving, 21) == b"*1\r\n$4\r\nPING\r\n@what\r\n"
            serving.sendall(b"+PONG\r\n?who\r\n")
            assert read(connection, 13) == b"+PONG\r\n?who\r\n"
            serving.sendall(bytes(100_000))
            assert read(connection, 100_000) == bytes(100_000)
            connection.sendall(bytes(100_000))
            assert read(serving, 100_000) == bytes(100_000)
        assert endpoint.wait("close").size == 100_006, "bytes that passed after the last whole frame"
        events = endpoint.log()
    assert [(e.direction, e.command, e.did, e.head) for e in events if e.direction in ("request", "reply")] == [
        ("request", "PING", "", b"*1\r\n$4\r\nPING\r\n"), ("request", "", "raw", b"@what\r\n"),
        ("reply", "PING", "", b"+PONG\r\n"), ("reply", "", "raw", b"?who\r\n"),
    ]


def test_a_half_closed_client_still_gets_its_reply() -> None:
    with scripted() as upstream, proxy.start(upstream.getsockname()) as endpoint, bare(endpoint) as connection:
        connection.sendall(b"*1\r\n$4\r\nPING\r\n")
        connection.shutdown(socket.SHUT_WR)
        serving, _ = upstream.accept()
        with serving:
            read(serving, 14)
            assert serving.recv(1) == b""
            serving.sendall(b"+PONG\r\n")
        assert read(connection, 7) == b"+PONG\r\n"
        assert connection.recv(1) == b""


_VICTIM = """
import sys
from kvproof.faults import proxy
endpoint = proxy.start(("127.0.0.1", int(sys.argv[1])))
print(endpoint.port, proxy._running().process.pid, flush=True)
sys.stdin.read()
"""


def test_nothing_is_left_of_a_killed_process(server: Server) -> None:
    with subprocess.Popen([sys.executable, "-c", _VICTIM, str(server.port)], cwd=ROOT, stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE) as victim:
        assert victim.stdout is not None
        port, pid = map(int, victim.stdout.readline().split())
        serving = os.pidfd_open(pid)
        try:
            assert Path(f"/proc/{pid}/cmdline").read_bytes().count(b"proxy_server") == 1
            assert port in _listening()
            victim.send_signal(signal.SIGKILL)
            assert select.select([serving], [], [], 5)[0], f"proxy process {pid} outlived its parent by 5 s"
            assert port not in _listening(), f"port {port} is still open"
        finally:
            os.close(serving)


def _listening() -> set[int]:
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return {int(line.split()[1].partition(":")[2], 16) for line in lines if line.split()[3] == "0A"}


def test_a_forked_child_has_a_proxy_process_of_its_own(server: Server) -> None:
    with proxy.start(server.address) as endpoint:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            said = "nothing"
            try:
                with contextlib.suppress(ProxyFailed):
                    endpoint.log()
                    said = "the parent's endpoint answers the child"
                with proxy.start(server.address) as own, client(own) as through:
                    through.ping()
                    said = f"own {proxy._running().process.pid} {said}"
                proxy._stop()
            finally:
                os.write(writing, said.encode())
                os._exit(0)
        os.close(writing)
        with open(reading, "rb") as pipe:
            said = pipe.read().decode()
        os.waitpid(child, 0)
        whose, pid, seen = said.split(maxsplit=2)
        assert (whose, seen) == ("own", "nothing"), said
        assert int(pid) != proxy._running().process.pid
        with client(endpoint) as through:
            assert through.ping() is True, "the parent's endpoint lives on"


def test_a_dead_proxy_process_is_reported_and_replaced(server: Server) -> None:
    with proxy.start(server.address) as endpoint:
        running = proxy._running()
        running.process.send_signal(signal.SIGKILL)
        assert running.process.wait(5) is not None
        with pytest.raises(ProxyFailed, match="the proxy process killed by signal 9"):
            endpoint.wait("held")
        with proxy.start(server.address) as another, client(another) as through:
            assert through.ping() is True
