"""What ends under the proxy: clients, servers, endpoints, its own process; and many connections at once."""

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

from kvproof import faults
from kvproof.errors import DeadlineExceeded, ProxyFailed, UsageError
from kvproof.faults import endpoint as endpoints
from kvproof.faults import servers
from kvproof.faults.endpoint import Proxy
from kvproof.faults.families import Hold
from kvproof.faults.servers import Server
from kvproof.models.payloads import encode
from tests.wire import CHUNK, ROOT, bare, client, read, scripted


def test_two_endpoints_are_independent(server: Server) -> None:
    with faults.proxy(server.address, (Hold(command="PING", until="go"),)) as one, faults.proxy(server.address) as two:
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
    with faults.proxy(server.address, (Hold(command="PING", until="go"),)) as endpoint, bare(endpoint) as connection:
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

    with faults.proxy(server.address) as endpoint, ThreadPoolExecutor(64) as pool:
        assert list(pool.map(work, range(64))) == [True] * 64
        endpoint.wait("close", 64)
        assert {event.connection for event in endpoint.log()} == set(range(1, 65))


def test_threads_may_wait_and_release_on_one_endpoint(server: Server) -> None:
    schedule = tuple(Hold(command="GET", key=f"t{number}", until=f"go{number}") for number in range(8))
    with faults.proxy(server.address, schedule) as endpoint, ThreadPoolExecutor(16) as pool:

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
    with faults.proxy(server.address) as endpoint, client(endpoint) as through:
        through.get("seen")
        with pytest.raises(DeadlineExceeded) as caught:
            endpoint.wait("held", 2, deadline=0.01)
        for part in ("'held'", "2 times", "seen 0 times", "connection 1 reply GET seen 5 bytes null"):
            assert part in str(caught.value), f"{part!r} is missing from: {caught.value}"
        with pytest.raises(UsageError, match="event 'helt': allowed"):
            endpoint.wait("helt")


def test_a_client_that_leaves_in_the_middle_of_a_reply_is_logged() -> None:
    with scripted() as upstream, faults.proxy(upstream.getsockname()) as endpoint:
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
    with faults.proxy(server.address) as endpoint:
        with bare(endpoint) as leaving:
            leaving.sendall(b"*2\r\n$3\r\nGET\r\n$6\r\nunread\r\n")
            read(leaving, 1000)
        closed = endpoint.wait("close")
        assert (closed.by, closed.command, closed.key) == ("client", "GET", "unread"), str(closed)
        assert 1000 <= closed.size < CHUNK, f"only a part had been delivered, the log says {closed.size} bytes"
        with client(endpoint) as through:
            assert through.ping() is True


def test_a_server_that_dies_in_the_middle_of_a_reply_is_logged() -> None:
    with scripted() as upstream, faults.proxy(upstream.getsockname()) as endpoint:
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
    with contextlib.ExitStack() as stack, contextlib.ExitStack() as life:
        mortal = life.enter_context(servers.valkey())
        endpoint = stack.enter_context(faults.proxy(mortal.address))
        connection = stack.enter_context(bare(endpoint))
        connection.sendall(b"*1\r\n$4\r\nPING\r\n")
        read(connection, 7)
        assert mortal.process is not None
        mortal.process.send_signal(signal.SIGKILL)
        assert mortal.process.wait(5) is not None
        assert endpoint.wait("close").by == "server"
        with pytest.raises(ConnectionResetError), bare(endpoint) as late:
            late.recv(1)
        assert "no connection to 127.0.0.1" in endpoint.wait("close", 2).detail
        life.close()  # As long as the server is ours, its port is held for it.
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
    with scripted() as upstream, faults.proxy(upstream.getsockname(), (Hold(match=1, until="go"),)) as endpoint:
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
    with scripted() as upstream, faults.proxy(upstream.getsockname()) as endpoint, bare(endpoint) as connection:
        connection.sendall(b"*1\r\n$4\r\nPING\r\n")
        serving, _ = upstream.accept()
        read(serving, 14)
        serving.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        serving.close()
        with pytest.raises(ConnectionResetError):
            connection.recv(1)
        assert (endpoint.wait("close").by, endpoint.wait("close").detail) == ("server", "reset")


def test_malformed_streams_pass_unread() -> None:
    with scripted() as upstream, faults.proxy(upstream.getsockname()) as endpoint, bare(endpoint) as connection:
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
        ("request", "PING", "", b"*1\r\n$4\r\nPING\r\n"), ("request", "", "raw", b""),
        ("reply", "PING", "", b"+PONG\r\n"), ("reply", "", "raw", b"?who\r\n"),
    ]


def test_a_half_closed_client_still_gets_its_reply() -> None:
    with scripted() as upstream, faults.proxy(upstream.getsockname()) as endpoint, bare(endpoint) as connection:
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
from kvproof import faults
endpoint = faults.proxy(("127.0.0.1", int(sys.argv[1])))
print(endpoint.port, endpoint.pid, flush=True)
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
    with faults.proxy(server.address) as endpoint:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            said = "nothing"
            try:
                with contextlib.suppress(ProxyFailed):
                    endpoint.log()
                    said = "the parent's endpoint answers the child"
                with faults.proxy(server.address) as own, client(own) as through:
                    through.ping()
                    said = f"own {endpoints._running().process.pid} {said}"
                endpoints._stop()
            finally:
                os.write(writing, said.encode())
                os._exit(0)
        os.close(writing)
        with open(reading, "rb") as pipe:
            said = pipe.read().decode()
        os.waitpid(child, 0)
        whose, pid, seen = said.split(maxsplit=2)
        assert (whose, seen) == ("own", "nothing"), said
        assert int(pid) != endpoints._running().process.pid
        with client(endpoint) as through:
            assert through.ping() is True, "the parent's endpoint lives on"


def test_a_dead_proxy_process_is_reported_and_replaced(server: Server) -> None:
    with faults.proxy(server.address) as endpoint:
        running = endpoints._running()
        running.process.send_signal(signal.SIGKILL)
        assert running.process.wait(5) is not None
        with pytest.raises(ProxyFailed, match="the proxy process killed by signal 9"):
            endpoint.wait("held")
        with faults.proxy(server.address) as another, client(another) as through:
            assert through.ping() is True


def test_what_a_server_has_sent_of_a_large_reply_is_passed_on_when_it_stalls() -> None:
    with scripted() as upstream, faults.proxy(upstream.getsockname()) as endpoint, bare(endpoint) as connection:
        connection.sendall(b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n")
        serving, _ = upstream.accept()
        with serving:
            read(serving, 20)
            serving.sendall(b"$9000000\r\n")
            for size in (3_000_000, 1, 100_000, 700_000, 5_000_000, 199_999):
                serving.sendall(bytes(size))
                read(connection, size + (10 if size == 3_000_000 else 0))
            serving.sendall(b"\r\n+OK\r\n")
            assert read(connection, 7) == b"\r\n+OK\r\n"
