"""Where a fault strikes, how often, and when it does not: at a reply, a request, the accepting of a connection."""

from __future__ import annotations

import errno
import socket

import pytest

from kvproof import faults
from kvproof.errors import UsageError
from kvproof.faults.endpoint import Mark
from kvproof.faults.families import (
    Bandwidth,
    Blank,
    Close,
    Coalesce,
    Delay,
    Drip,
    Duplicate,
    Error,
    Flip,
    HalfOpen,
    Hold,
    Nil,
    Refuse,
    Reset,
    Silence,
    Split,
    Truncate,
    WrongLength,
)
from kvproof.faults.fault import Fault
from kvproof.faults.servers import Server
from kvproof.models.resp import encode_command
from tests.wire import FELT, PONG, REPLY, SIZE, V, bare, take

ACCEPTED: dict[str, tuple[Fault, str]] = {
    "silence": (Silence(command="ACCEPT"), "open"),
    "close": (Close(command="ACCEPT"), "closed"),
    "reset": (Reset(command="ACCEPT"), "reset"),
    "hold": (Hold(command="ACCEPT", until="go"), "open"),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_a_connection_is_struck_as_it_is_accepted(server: Server, name: str) -> None:
    fault, end = ACCEPTED[name]
    with faults.proxy(server.address, (fault,)) as endpoint:
        connection = socket.socket()
        with connection:
            connection.settimeout(5)
            # A reset may come while connecting, or right after.
            error = connection.connect_ex((endpoint.host, endpoint.port))
            assert error == 0 or (error, end) == (errno.ECONNRESET, "reset")
            endpoint.wait("struck")
            if end == "open":
                connection.sendall(encode_command("PING"))
                connection.setblocking(False)
                with pytest.raises(BlockingIOError):
                    connection.recv(1)
                connection.setblocking(True)
                if name == "hold":
                    endpoint.release("go")
                    assert take(connection, 7) == (PONG, "open")
            else:
                with endpoint.call():
                    assert error or take(connection, 1) == (b"", end)
        with bare(endpoint) as second:
            second.sendall(encode_command("PING"))
            assert take(second, 7) == (PONG, "open"), "only the first connection is struck"
        assert endpoint.marks() == (FELT,)


REQUEST = encode_command("SET", "q", V)
AT_REQUESTS: dict[str, tuple[Fault, str, bool]] = {
    "split": (Split(direction="request", command="SET", at=[1, 9, 500]), "answered", True),
    "split at every byte": (Split(direction="request", command="SET", key="q"), "answered", True),
    "delay": (Delay(direction="request", command="SET", seconds=0.02), "answered", True),
    "drip": (Drip(direction="request", command="SET", seconds=0.0005, drop=100), "answered", True),
    "bandwidth": (Bandwidth(direction="request", command="SET", rate=100_000), "answered", True),
    "hold": (Hold(direction="request", command="SET", until="close"), "open", False),
    "silence": (Silence(direction="request", command="SET", at=20), "open", False),
    "half-open": (HalfOpen(direction="request", command="SET", at=20), "open", False),
    "close before": (Close(direction="request", command="SET"), "closed", False),
    "close inside": (Close(direction="request", command="SET", after=100), "closed", False),
    "truncate": (Truncate(direction="request", command="SET"), "closed", False),
    "reset before": (Reset(direction="request", command="SET"), "reset", False),
    "reset inside": (Reset(direction="request", command="SET", after=600), "reset", False),
}


@pytest.mark.parametrize("name", AT_REQUESTS)
def test_a_request_is_struck_on_its_way(server: Server, name: str) -> None:
    fault, end, stored = AT_REQUESTS[name]
    with server.connect() as truth, faults.proxy(server.address, (fault,)) as endpoint:
        truth.command("DEL", "q")
        with bare(endpoint) as connection:
            connection.sendall(encode_command("GET", "q") + REQUEST)
            assert take(connection, 5) == (b"$-1\r\n", "open"), "the request before it passes"
            if end == "answered":
                assert take(connection, 5) == (b"+OK\r\n", "open")
                connection.sendall(encode_command("PING"))
                assert take(connection, 7) == (PONG, "open")
            elif end == "open":
                endpoint.wait("struck")
                connection.setblocking(False)
                with pytest.raises(BlockingIOError):
                    connection.recv(1)
            else:
                assert take(connection, 1) == (b"", end)
        with endpoint.call():
            assert truth.get("q") == (V if stored else None)
        assert endpoint.marks() == (FELT,)


NOT_STRUCK: dict[str, Fault] = {
    "another key": Nil(command="GET", key="other"),
    "another command": Nil(command="MGET"),
    "a later match": Nil(command="GET", match=2),
    "another connection": Nil(command="GET", connection=2),
    "another kind of reply": Nil(command="GET", reply="null"),
    "no such byte": Flip(command="GET", byte=SIZE),
    "nothing to blank": Blank(command="GET", at=SIZE),
    "shorter than nothing": WrongLength(command="GET", by=-SIZE - 1),
    "one reply alone": Coalesce(command="GET"),
    "a push": Close(reply="push"),
    "a second connection": Refuse(match=3),
    "a command of RESP that is not asked": Hold(direction="request", command="SET", until="close"),
}


@pytest.mark.parametrize("name", NOT_STRUCK)
def test_what_cannot_strike_is_not_struck(server: Server, name: str) -> None:
    with server.connect() as truth, faults.proxy(server.address, (NOT_STRUCK[name],)) as endpoint:
        truth.command("SET", "k", V)
        with bare(endpoint) as connection, endpoint.call():
            connection.sendall(encode_command("GET", "k"))
            assert take(connection, len(REPLY)) == (REPLY, "open")
        assert endpoint.marks() == (Mark(),)
        assert not [event for event in endpoint.log() if event.did and event.direction != "call"]


def test_struck_is_not_felt_before_the_client_does_something(server: Server) -> None:
    with server.connect() as truth, faults.proxy(server.address, (Nil(command="GET"),)) as endpoint:
        truth.command("SET", "k", V)
        with bare(endpoint) as connection, bare(endpoint) as another:
            connection.sendall(encode_command("GET", "k"))
            assert take(connection, 5) == (b"$-1\r\n", "open")
            another.sendall(encode_command("PING"))
            assert take(another, 7) == (PONG, "open")
            assert endpoint.marks() == (Mark(struck=True),), "what another connection does says nothing"
            assert str(endpoint.marks()[0]) == "struck, not felt"
            connection.sendall(encode_command("PING"))
            assert take(connection, 7) == (PONG, "open")
            assert endpoint.marks() == (FELT,)


def test_faults_strike_so_many_times(server: Server) -> None:
    schedule = (Error(command="GET", match=2, times=2), Nil(command="GET", match=5, times=None))
    with server.connect() as truth, faults.proxy(server.address, schedule) as endpoint, bare(endpoint) as connection:
        truth.command("SET", "k", "v")
        got = []
        for _ in range(7):
            connection.sendall(encode_command("GET", "k"))
            got.append(connection.recv(4096)[:2])
    assert got == [b"$1", b"-L", b"-L", b"$1", b"$-", b"$-", b"$-"]


def test_several_faults_strike_one_reply_in_their_order(server: Server) -> None:
    schedule = (Flip(command="GET", byte=0), WrongLength(command="GET", by=1), Split(command="GET", at=[2]),
                Duplicate(command="GET"), Delay(command="GET", seconds=0.01))
    with server.connect() as truth, faults.proxy(server.address, schedule) as endpoint, bare(endpoint) as connection:
        truth.command("SET", "k", "ab")
        connection.sendall(encode_command("GET", "k"))
        assert take(connection, 18) == (b"$3\r\n`b\0\r\n" * 2, "open")
        assert all(endpoint.struck())


def test_a_null_takes_the_place_of_a_null_and_of_nothing_else(server: Server) -> None:
    with server.connect() as truth:
        truth.command("SET", "k", "v")
    schedule = (Nil(reply="null", null="_", match=2), Error(reply="error", text="MINE"))
    with faults.proxy(server.address, schedule) as endpoint, bare(endpoint) as connection:
        for key in ("k", "absent", "k", "absent"):
            connection.sendall(encode_command("GET", key))
        connection.sendall(encode_command("LPUSH", "k", "1"))
        expected = b"$1\r\nv\r\n$-1\r\n$1\r\nv\r\n_\r\n-MINE\r\n"
        assert take(connection, len(expected)) == (expected, "open")


def test_a_family_says_where_it_cannot_strike() -> None:
    with pytest.raises(UsageError, match='nil, field direction: got \'request\'; allowed: "reply"'):
        Nil(direction="request")
    with pytest.raises(UsageError, match="split, field command: got 'ACCEPT'; allowed: a command; this family cannot"):
        Split(command="ACCEPT")
    with pytest.raises(UsageError, match=r'close, field reply: got .push.; allowed: with "push" the'):
        Close(command="GET", reply="push")
