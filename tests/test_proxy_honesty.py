"""What the proxy says of a fault and of what passed is true, and nothing that one connection does stops another one."""

from __future__ import annotations

import contextlib
import socket
import struct
import subprocess
import sys
import time
from typing import Any

import pytest

from kvproof import faults
from kvproof.errors import UsageError
from kvproof.faults.endpoint import Mark, Proxy
from kvproof.faults.families import (
    Bandwidth,
    Blank,
    Close,
    Coalesce,
    Delay,
    Drip,
    Empty,
    Error,
    HalfOpen,
    Hold,
    Nil,
    Refuse,
    Reset,
    Silence,
    Split,
    Truncate,
    WrongType,
)
from kvproof.faults.fault import Fault
from kvproof.faults.schedule import Schedule, from_json
from kvproof.faults.servers import Server, valkey
from kvproof.models.resp import encode_command
from tests.wire import bare, read, scripted, told

FELT, STRUCK, UNTOUCHED = Mark(struck=True, felt=True), Mark(struck=True), Mark()
GET = encode_command("GET", "k")
VALUE = b"$5\r\nvalue\r\n"


def seeded(server: Server) -> None:
    with server.connect() as truth:
        for key, value in (("k", b"value"), ("empty", b""), ("zero", bytes(5))):
            truth.command("SET", key, value)
        truth.command("DEL", "absent", "list")
        truth.command("LPUSH", "list", "x")


AS_BEFORE: dict[str, tuple[Fault, tuple[str, ...]]] = {
    "a nil for a nil": (Nil(command="GET"), ("GET", "absent")),
    "an empty value for an empty value": (Empty(command="GET"), ("GET", "empty")),
    "zeros for zeros": (Blank(command="GET"), ("GET", "zero")),
    "OK for OK": (WrongType(command="SET", gives="simple-string"), ("SET", "k", "value")),
    "the server's own error": (Error(command="GET", code="WRONGTYPE"), ("GET", "list")),
    "one drop": (Drip(command="PING", drop=1000, seconds=0.2), ("PING",)),
    "a rate that nobody could tell": (Bandwidth(command="PING", rate=1e9), ("PING",)),
    "a hold behind the end": (Hold(command="GET", at=1000, until="never"), ("GET", "k")),
    "a delay behind the end": (Delay(command="GET", at=1000, seconds=60), ("GET", "k")),
    "silence behind the end": (Silence(command="GET", at=1000), ("GET", "k")),
    "half-open behind the end": (HalfOpen(command="GET", at=1000), ("GET", "k")),
}


@pytest.mark.parametrize("name", AS_BEFORE)
def test_what_changes_nothing_has_not_struck(server: Server, name: str) -> None:
    fault, words = AS_BEFORE[name]
    seeded(server)
    with faults.proxy(server.address, (fault,)) as endpoint, bare(endpoint) as through, socket.create_connection(
            server.address, timeout=10) as direct:
        for connection in (direct, through):
            connection.sendall(encode_command(*words) + encode_command("ECHO", "end"))
        expected = read(direct, 9)
        while not expected.endswith(b"$3\r\nend\r\n"):
            expected += direct.recv(1)
        assert read(through, len(expected)) == expected
        with endpoint.call():
            pass
        assert endpoint.marks() == (UNTOUCHED,)


@pytest.mark.parametrize("fault", [
    Delay(direction="request", command="GET", seconds=0.01), Split(direction="request", command="GET", at=[3]),
    Hold(direction="request", command="GET", until="go"), Bandwidth(direction="request", command="GET", rate=1000),
], ids=lambda fault: fault.kind)
def test_a_struck_request_does_not_show_that_it_was_felt(server: Server, fault: Fault) -> None:
    with faults.proxy(server.address, (fault,)) as endpoint, bare(endpoint) as connection:
        if "go" in fault.names():
            endpoint.release("go")
        connection.sendall(encode_command("GET", "absent"))
        assert read(connection, 5) == b"$-1\r\n"
        assert endpoint.marks() == (STRUCK,)
        passed = [event.direction for event in endpoint.log() if event.key and not event.did]
        assert passed == ["request", "reply"], "a request is in the log before its reply"
        connection.sendall(encode_command("PING"))
        assert read(connection, 7) == b"+PONG\r\n"
        assert endpoint.marks() == (FELT,)


def test_nobody_feels_what_somebody_else_met(server: Server) -> None:
    with faults.proxy(server.address, (Refuse(), Close(command="GET"))) as endpoint:
        endpoint.release("listen")
        endpoint.wait("released")
        first = bare(endpoint)
        with first:
            first.sendall(GET)
            assert first.recv(1) == b""
        with bare(endpoint) as second:
            second.sendall(encode_command("PING"))
            assert read(second, 7) == b"+PONG\r\n"
            assert endpoint.marks()[0] == STRUCK, "nobody tried to connect while that was refused"


def test_a_fault_that_strikes_twice_is_felt_where_it_was_felt(server: Server) -> None:
    seeded(server)
    with faults.proxy(server.address, (Nil(command="GET", times=None),)) as endpoint:
        with bare(endpoint) as one, bare(endpoint) as two:
            for connection in (one, two):
                connection.sendall(GET)
                assert read(connection, 5) == b"$-1\r\n"
            one.sendall(encode_command("PING"))
            assert read(one, 7) == b"+PONG\r\n"
            assert endpoint.marks() == (FELT,)


@pytest.mark.parametrize("fault", [
    Close(command="GET", after=None), Close(command="GET", after=10**6), Reset(command="GET", after=None)],
    ids=lambda fault: f"{fault.kind} {fault.after}")
def test_a_reply_that_passed_whole_is_in_the_log_and_owed_no_more(server: Server, fault: Fault) -> None:
    seeded(server)
    with faults.proxy(server.address, (fault,)) as endpoint, bare(endpoint) as connection:
        connection.sendall(GET)
        assert read(connection, len(VALUE)) == VALUE
        endpoint.wait("close")
        assert told(endpoint.log())[2:] == [
            f"connection 1 reply GET k {len(VALUE)} bytes", f"connection 1 reply GET k {endpoint.log()[3].did}",
            f"connection 1 close by proxy ({endpoint.log()[4].detail})"]


def test_a_close_after_half_open_says_what_was_owed(server: Server) -> None:
    seeded(server)
    with faults.proxy(server.address, (HalfOpen(command="GET", at=5),)) as endpoint:
        with bare(endpoint) as connection:
            connection.sendall(GET)
            assert read(connection, 5) == VALUE[:5]
        close = endpoint.wait("close")
        assert (close.command, close.key, close.size, close.by) == ("GET", "k", 5, "client")


@pytest.mark.parametrize("fault", [
    Hold(direction="request", command="GET", until="close"), Silence(direction="request", command="GET"),
    Hold(direction="request", command="GET", until="never")], ids=["hold until close", "silence", "hold"])
def test_a_client_that_leaves_while_its_request_is_struck_is_seen(server: Server, fault: Fault) -> None:
    with faults.proxy(server.address, (fault,)) as endpoint:
        connection = bare(endpoint)
        connection.sendall(GET)
        endpoint.wait("struck")
        connection.close()
        assert endpoint.wait("close").by == "client"
        assert endpoint.marks() == (FELT,)


SECRET = b"hunter2-secret"
SPOKEN: dict[str, list[bytes]] = {
    "AUTH": [encode_command("AUTH", SECRET)],
    "AUTH in pieces, malformed": [b"*2\r\n$4\r\nAUTH\r\n$6\r\n", SECRET + b"\r\n"],
    "inline": [b"CONFIG SET requirepass " + SECRET + b"\r\n"],
    "sentinel": [encode_command("SENTINEL", "SET", "m", "auth-pass", SECRET)],
    "hello": [encode_command("HELLO", "3", "AUTH", "default", SECRET)],
}


@pytest.mark.parametrize("name", SPOKEN)
def test_no_secret_is_in_the_log(name: str) -> None:
    with valkey() as server, faults.proxy(server.address) as endpoint, bare(endpoint) as connection:
        for piece in SPOKEN[name]:
            connection.sendall(piece)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(4096):
            pass
        assert not [event for event in endpoint.log() if SECRET in event.head or SECRET.decode() in str(event)]


def test_a_secret_in_a_transaction_is_not_in_the_log() -> None:
    with valkey(password="hunter2") as server, faults.proxy(server.address) as endpoint, bare(endpoint) as connection:
        connection.sendall(b"".join([encode_command("AUTH", "hunter2"), encode_command("MULTI"),
                                     encode_command("CONFIG", "GET", "requirepass"), encode_command("EXEC")]))
        endpoint.wait("reply:EXEC")
        assert not [event for event in endpoint.log() if b"hunter2" in event.head]


def test_a_subscription_that_fails_gets_its_own_reply(server: Server) -> None:
    seeded(server)
    with faults.proxy(server.address, (Nil(command="GET"),)) as endpoint, bare(endpoint) as connection:
        connection.sendall(encode_command("HELLO", "3") + encode_command("ECHO", "go"))
        got = b""
        while not got.endswith(b"$2\r\ngo\r\n"):
            got += connection.recv(1)
        connection.sendall(encode_command("SUBSCRIBE") + GET + encode_command("ECHO", "end"))
        got = b""
        while not got.endswith(b"$3\r\nend\r\n"):
            got += connection.recv(1)
        assert got.startswith(b"-ERR wrong number of arguments")
        assert got.endswith(b"$-1\r\n$3\r\nend\r\n"), "the GET is struck, and not what comes before it"


def segments(connection: socket.socket) -> int:
    """Return how many data segments this socket has received (TCP_INFO)."""
    information = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    found: int = struct.unpack_from("=I", information, 152)[0]
    return found


def test_replies_that_come_together_stay_together(server: Server) -> None:
    seeded(server)
    with faults.proxy(server.address, (Coalesce(command="GET", replies=3),)) as endpoint, bare(endpoint) as connection:
        connection.sendall(GET * 3)
        assert read(connection, 3 * len(VALUE)) == VALUE * 3
        assert segments(connection) == 1
        assert endpoint.struck() == (True,)


@pytest.mark.parametrize(("fault", "kept"), [
    (Close(command="GET", key="b", after=None), b"+A\r\n+B\r\n"), (Truncate(command="GET", key="b"), b"+A\r\n+B\r"),
    (Silence(command="GET", key="b", at=2), b"+A\r\n+B"), (Reset(command="GET", key="b", after=None), b"+A\r\n+B\r\n"),
], ids=lambda each: each.kind if isinstance(each, Fault) else "")
def test_what_was_kept_back_is_not_lost_when_a_later_reply_is_struck(fault: Fault, kept: bytes) -> None:
    schedule = (Coalesce(command="GET", key="a", replies=3), fault)
    with scripted() as upstream, faults.proxy(upstream.getsockname(), schedule) as endpoint:
        with bare(endpoint) as connection:
            connection.sendall(b"".join(encode_command("GET", key) for key in "abc"))
            serving, _ = upstream.accept()
            with serving:
                read(serving, 60)
                for reply in (b"+A\r\n", b"+B\r\n", b"+C\r\n"):
                    serving.sendall(reply)
                assert read(connection, len(kept)) == kept


def test_both_sides_are_reset_and_half_open_hides_a_reset() -> None:
    for fault, expected in ((Reset(command="GET"), ConnectionResetError), (HalfOpen(command="GET"), TimeoutError)):
        with scripted() as upstream, faults.proxy(upstream.getsockname(), (fault,)) as endpoint:
            connection = bare(endpoint)
            connection.sendall(GET)
            serving, _ = upstream.accept()
            with serving:
                read(serving, len(GET))
                serving.sendall(VALUE)
                endpoint.wait("struck")
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                connection.close()
                endpoint.wait("close")
                serving.settimeout(0.2)
                with pytest.raises(expected):
                    serving.recv(1)


def test_a_command_of_the_name_accept_is_none(server: Server) -> None:
    with faults.proxy(server.address, (Close(command="ACCEPT", match=2),)) as endpoint, bare(endpoint) as connection:
        connection.sendall(encode_command("ACCEPT") + encode_command("PING"))
        got = b""
        while not got.endswith(b"+PONG\r\n"):
            got += connection.recv(100)
        assert endpoint.marks() == (UNTOUCHED,)


def stall(endpoint: Proxy, busy: socket.socket, data: bytes) -> float:
    """Return the longest that a call takes while another connection sends all this and reads its replies."""
    busy.setblocking(False)
    longest, sent, end = 0.0, 0, time.monotonic() + 5
    while sent < len(data) and time.monotonic() < end:
        try:
            with contextlib.suppress(BlockingIOError):
                sent += busy.send(data[sent : sent + 100_000])
            with contextlib.suppress(BlockingIOError):
                busy.recv(1 << 20)
        except OSError:
            return longest  # The server has had enough of it.
        begin = time.monotonic()
        endpoint.marks()
        longest = max(longest, time.monotonic() - begin)
    return longest


@pytest.mark.parametrize("schedule", [
    (), (Delay(direction="request", command="NEVER", seconds=1),), (Nil(reply="map"),),
], ids=["none", "a request", "a kind of reply"])
def test_a_busy_connection_does_not_stop_another_endpoint(server: Server, schedule: tuple[Fault, ...]) -> None:
    with faults.proxy(server.address, schedule) as endpoint, faults.proxy(server.address) as other:
        with bare(endpoint) as busy:
            assert stall(other, busy, encode_command("PING") * 40_000) < 1.5
        with bare(endpoint) as busy:
            assert stall(other, busy, b"a\n" * 300_000) < 1.5


_FULL = """
import resource, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (60, 60))
from kvproof import faults
from kvproof.models.resp import encode_command
server = ("127.0.0.1", int(sys.argv[1]))
with faults.proxy(server) as endpoint, faults.proxy(server) as other:
    connections = [socket.create_connection((endpoint.host, endpoint.port), timeout=20) for _ in range(30)]
    for connection in connections:
        connection.sendall(encode_command("GET", "big"))
    for connection in connections:
        got = 0
        while got < 5_000_000 + 12:
            got += len(connection.recv(1 << 20))
        connection.close()
    print(got, len(other.log()), len(endpoint.log()) >= 120, endpoint._process.said(), flush=True)
"""


def test_a_proxy_with_few_descriptors_lets_clients_wait(server: Server) -> None:
    with server.connect() as truth:
        truth.command("SET", "big", bytes(5_000_000))
    done = subprocess.run([sys.executable, "-c", _FULL, str(server.port)], capture_output=True, text=True, timeout=60)
    assert done.stdout == "5000012 0 True it said nothing\n", done.stdout + done.stderr


def resident(endpoint: Proxy) -> int:
    """Return the MiB of memory of an endpoint's process."""
    with open(f"/proc/{endpoint.pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) // 1024


def test_long_requests_are_kept_nowhere(server: Server) -> None:
    with faults.proxy(server.address) as endpoint, bare(endpoint) as connection:
        before = resident(endpoint)
        for number in range(150):
            connection.sendall(encode_command("DEL", *(f"{number}-{word}-{'x' * 480}" for word in range(900))))
            assert read(connection, 4) == b":0\r\n"
        assert resident(endpoint) - before < 40


@pytest.mark.parametrize("schedule", [(), (Close(command="GET", after=20_000),), (Silence(command="GET", at=20_000),)],
                         ids=["nothing", "close", "silence"])
def test_endpoints_that_were_closed_leave_no_buffers_behind(schedule: Schedule, server: Server) -> None:
    with server.connect() as truth:
        truth.command("SET", "some", bytes(40_000))
    with faults.proxy(server.address) as first:
        before = resident(first)
        for _ in range(60):
            with faults.proxy(server.address, schedule) as endpoint, bare(endpoint) as connection:
                connection.sendall(encode_command("SET", "other", bytes(40_000)) + encode_command("GET", "some"))
                assert read(connection, 20_005)[:5] == b"+OK\r\n"
                assert endpoint.pid == first.pid
        assert resident(first) - before < 20


HOSTILE: dict[str, tuple[str, str]] = {
    "a list for a kind": ('[{"fault": "nil", "reply": []}]', "nil, field reply: got []; allowed: null, or"),
    "very deep": ("[" * 200_000, "a schedule is a JSON array of faults; this is not JSON"),
    "half a character": ('[{"fault": "nil", "key": "\\ud800"}]', "nil, field key: got"),
    "an error of half a character": ('[{"fault": "error", "text": "\\ud800"}]', "error, field text: got"),
    "endless": ('[{"fault": "delay", "seconds": 1' + "0" * 400 + "}]", "delay, field seconds: got"),
    "huge": ('[{"fault": "wrong-length", "by": 10000000000000}]', "wrong-length, field by: got 10000000000000;"),
    "a request of ACCEPT": ('[{"fault": "close", "command": "ACCEPT", "direction": "request"}]',
                            'close, field direction: got \'request\'; allowed: "reply" with the command "ACCEPT"'),
    "two refusals at once": ('[{"fault": "refuse"}, {"fault": "refuse", "until": "b"}]',
                             "schedule entry 2 of 2, field match: got 1, as in entry 1; allowed: another connection"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_schedule_is_refused_in_one_line(name: str) -> None:
    text, said = HOSTILE[name]
    with pytest.raises(UsageError) as caught:
        from_json(text)
    assert said in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("upstream", [
    ("127.0.0.1", "x"), (1, 2), ("h",), ("127.0.0.1", 99_999), "h:" + "9" * 5000, None])
def test_what_is_no_upstream_is_refused(upstream: Any) -> None:
    with pytest.raises(UsageError, match=r"^upstream "):
        faults.proxy(upstream)


def test_what_is_no_wait_is_refused(server: Server) -> None:
    with faults.proxy(server.address) as endpoint:
        for deadline, count in ((float("nan"), 1), (float("inf"), 1), (-1.0, 1), (1.0, 0)):
            with pytest.raises(UsageError, match="expected a count from 1 on"):
                endpoint.wait("open", count, deadline)
