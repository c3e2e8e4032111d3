"""The client models without I/O: every operation ends exactly once, and no reply reaches anyone but its own request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields, replace
from typing import Any

import pytest

from kvproof.errors import ProtocolError
from kvproof.models.client import (
    SMALL,
    Absent,
    BulkString,
    Connection,
    Done,
    Failed,
    Found,
    Outcome,
    Request,
    auth,
    exists,
    get,
    put,
)
from kvproof.models.payloads import encode
from tests.replies import POISONED, SIZE, V, bulk, is_outcome, poisoned


def deliver(connection: Connection, data: bytes, most: int = 1 << 30) -> list[Done]:
    """Receive `data` as a driver does, at most `most` bytes at once."""
    done: list[Done] = []
    while data and connection.broken is None:
        into = connection.receive_into()
        count = min(len(into), len(data), most)
        assert count, "receive_into returned no room"
        into[:count] = data[:count]
        done += connection.received(count)
        data = data[count:]
    return done


REPLIES: dict[str, tuple[bytes, type[Outcome] | str, bytes]] = {
    "found": (bulk(V), Found, V),
    "nil": (b"$-1\r\n", Absent, POISONED),
    "RESP3 nil": (b"_\r\n", Absent, POISONED),
    "error": (b"-WRONGTYPE Operation against a key\r\n", "WRONGTYPE", POISONED),
    "too short": (bulk(V[:-1]), "36 bytes where 37", POISONED),
    "too long": (bulk(V + b"x"), "38 bytes where 37", POISONED),
    "empty": (bulk(b""), "0 bytes where 37", POISONED),
    "simple string": (b"+OK\r\n", "unexpected reply", POISONED),
    "integer of the right value": (b":37\r\n", "unexpected reply", POISONED),
    "array": (b"*1\r\n" + bulk(V), "unexpected reply", POISONED),
    "push, then found": (b">2\r\n$3\r\nfoo\r\n:1\r\n" + bulk(V), Found, V),
}


@pytest.mark.parametrize("name", REPLIES)
def test_each_reply_to_a_get_has_its_outcome_and_the_next_one_is_intact(name: str) -> None:
    reply, expected, content = REPLIES[name]
    other = encode("next", 1, SIZE)
    for most in (1, 2, 3, 5, 8, 40, 4096):
        first, second, connection = poisoned(), poisoned(), Connection()
        connection.begin(get("first", "k", memoryview(first)))
        connection.begin(get("second", "next", memoryview(second)))
        done = deliver(connection, reply + bulk(other), most)
        assert [item.identity for item in done] == ["first", "second"], f"{name} in pieces of {most}: {done}"
        assert is_outcome(done[0].outcome, expected), f"{name}: {done[0].outcome}"
        assert first == content, f"{name} in pieces of {most}: the buffer holds {bytes(first)!r}"
        assert done[1].outcome == Found()
        assert second == other
        assert connection.outstanding == 0


@pytest.mark.parametrize("size", [0, 1, 5, 4089, 4096, 70_000])
def test_a_payload_lands_in_the_callers_buffer_without_a_copy(size: int) -> None:
    payload, buffer, connection = encode("k", 1, size), poisoned(size), Connection()
    connection.begin(get(1, "k", memoryview(buffer)))
    header = b"$%d\r\n" % size
    assert deliver(connection, header) == []
    if size:
        into = connection.receive_into()
        assert into.obj is buffer, "the payload is to be received straight into the caller's buffer"
        assert len(into) == size, "and never past its end"
    assert deliver(connection, payload + b"\r\n") == [Done(1, Found())]
    assert buffer == payload


def test_other_commands() -> None:
    connection = Connection()
    sent = [connection.begin(request) for request in (exists(1, "k"), exists(2, "k"), put(3, "k", memoryview(V)))]
    assert b"".join(b"".join(chunks) for chunks in sent) == (
        b"*2\r\n$6\r\nEXISTS\r\n$1\r\nk\r\n" * 2 + b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n" + bulk(V))
    assert deliver(connection, b":1\r\n:0\r\n+OK\r\n", 1) == [Done(1, Found()), Done(2, Absent()), Done(3, Found())]
    connection.begin(put(4, "k", memoryview(V)))
    assert is_outcome(deliver(connection, b"-OOM command not allowed\r\n")[0].outcome, "OOM")


UNFIT: dict[str, tuple[Request, bytes, str]] = {
    "nil for an integer": (exists(1, "k"), b"$-1\r\n", "an unexpected reply to EXISTS: <Null.BULK: '$-1'>"),
    "OK for an integer": (exists(1, "k"), b"+OK\r\n", "an unexpected reply to EXISTS: SimpleString(text='OK')"),
    "true for an integer": (exists(1, "k"), b"#t\r\n", "an unexpected reply to EXISTS: True"),
    "payload for an integer": (exists(1, "k"), bulk(b"abc"), "an unexpected reply to EXISTS: BulkString(size=3)"),
    "integer for OK": (put(1, "k", memoryview(V)), b":1\r\n", "an unexpected reply to SET: 1"),
    "another string for OK": (
        put(1, "k", memoryview(V)), b"+QUEUED\r\n", "an unexpected reply to SET: SimpleString(text='QUEUED')"),
    "nil for OK": (put(1, "k", memoryview(V)), b"_\r\n", "an unexpected reply to SET: <Null.PLAIN: '_'>"),
    "integer for the password": (auth(1, "secret"), b":1\r\n", "an unexpected reply to AUTH: 1"),
}


@pytest.mark.parametrize("name", UNFIT)
def test_a_reply_that_does_not_fit_its_command_is_a_failure_that_names_the_command_only(name: str) -> None:
    request, reply, reason = UNFIT[name]
    connection = Connection()
    connection.begin(request)
    assert deliver(connection, reply + b":1\r\n") == [Done(1, Failed(reason))]


def test_a_count_below_zero_finds_nothing() -> None:
    connection = Connection()
    connection.begin(exists(1, "k"))
    assert deliver(connection, b":-1\r\n") == [Done(1, Absent())]


def test_replies_are_counted_and_those_that_nobody_waits_for_are_too() -> None:
    connection = Connection()
    for identity in (1, 2, 3):
        connection.begin(exists(identity, "k"))
    connection.cancel(2, "cancelled")
    assert [(len(deliver(connection, b":1\r\n")), connection.replies) for _ in range(3)] == [(1, 1), (0, 2), (1, 3)]


def test_it_is_named_how_much_is_received_at_once() -> None:
    connection, size = Connection(), 300_000
    connection.begin(get(1, "k", memoryview(poisoned(size))))
    assert len(connection.receive_into()) == 4096
    deliver(connection, b"$%d\r\n" % size)
    connection.cancel(1, "cancelled")
    assert len(connection.receive_into()) == 262_144
    connection.received(262_144)
    assert len(connection.receive_into()) == size - 262_144
    connection.received(size - 262_144)
    assert len(connection.receive_into()) == 4096
    assert deliver(connection, b"\r\n") == []
    assert (connection.outstanding, connection.replies) == (0, 1)


def test_limits_are_given_by_name() -> None:
    with pytest.raises(TypeError, match="positional"):
        Connection(5)  # type: ignore[misc]  # wrong on purpose


PLAIN: tuple[Any, ...] = (Found(), Absent(), Failed("why"), Done(1, Found()), BulkString(3))


@pytest.mark.parametrize("value", PLAIN, ids=repr)
def test_what_is_said_of_an_operation_can_be_compared_and_hashed_and_not_changed(value: Any) -> None:
    assert replace(value) == value
    assert hash(replace(value)) == hash(value)
    assert not hasattr(value, "__dict__")
    for field in fields(value):
        with pytest.raises(FrozenInstanceError):
            setattr(value, field.name, None)


def test_a_request_is_itself_only_and_cannot_be_changed() -> None:
    request = exists(1, "k")
    assert {request: 1}[request] == 1
    assert request != replace(request)
    assert not hasattr(request, "__dict__")
    with pytest.raises(FrozenInstanceError):
        request.identity = 2  # type: ignore[misc]  # wrong on purpose


def test_a_read_only_buffer_is_refused() -> None:
    with pytest.raises(ValueError, match="read-only"):
        get(1, "k", memoryview(bytes(3)))


ENDS: dict[str, Callable[[Connection], list[Done]]] = {
    "cancel": lambda connection: connection.cancel("first", "cancelled"),
    "timeout": lambda connection: connection.expire("first", "deadline"),
    "end of file": lambda connection: connection.received(0),
    "reset": lambda connection: connection.lost("reset"),
    "malformed": lambda connection: deliver(connection, b"\x00" * (SIZE + 8)),
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("name", REPLIES)
def test_an_operation_ends_exactly_once_wherever_it_is_cut_off(name: str, end: str) -> None:
    """At every byte of the reply: no second ending, no byte written afterwards, no reply to another."""
    reply, _, _ = REPLIES[name]
    other = encode("next", 1, SIZE)
    for cut in range(len(reply) + 1):
        first, second, connection = poisoned(), poisoned(), Connection()
        connection.begin(get("first", "k", memoryview(first)))
        connection.begin(get("second", "next", memoryview(second)))
        done = deliver(connection, reply[:cut])
        done += ENDS[end](connection)
        at_the_end = bytes(first)
        done += deliver(connection, reply[cut:] + bulk(other))
        done += connection.lost("closed")
        ended = sorted(str(item.identity) for item in done)
        assert ended == ["first", "second"], f"{name}, {end} after {cut} bytes: ended {ended}"
        assert first == at_the_end, f"{name}, {end} after {cut} bytes: written after the operation had ended"
        outcomes = {item.identity: item.outcome for item in done}
        if outcomes["second"] == Found():
            assert second == other, f"{name}, {end} after {cut} bytes: the second read got another's reply"
        if end in ("cancel", "timeout"):
            assert outcomes["second"] == Found(), f"{name}, {end} after {cut} bytes: {outcomes['second']}"


@pytest.mark.parametrize("end", ["cancel", "timeout"])
@pytest.mark.parametrize("given_up", [0, 1, 2])
def test_giving_up_ends_the_named_request_and_no_other_and_only_once(given_up: int, end: str) -> None:
    names, connection = [("c", 1), ("a", 1), ("b", 1)], Connection()
    give_up = connection.cancel if end == "cancel" else connection.expire
    for name, number in names:
        connection.begin(exists((name, number), "k"))
    name, number = names[given_up]
    assert give_up(("nobody", 1), end) == []
    assert give_up((name, number), end) == [Done((name, number), Failed(end))]
    assert give_up((name, number), end) == []
    assert (connection.outstanding, connection.live, connection.tainted, connection.useless) == (3, 2, True, False)
    others = [Done(other, Found()) for other in names if other != (name, number)]
    assert deliver(connection, b":1\r\n" * 3) == others
    assert (connection.outstanding, connection.live, connection.tainted, connection.useless) == (0, 0, False, False)


@pytest.mark.parametrize("most", [1, 10, 4096])
def test_giving_up_the_next_read_leaves_the_buffer_to_the_one_that_is_coming_in(most: int) -> None:
    raw = bulk(V)
    for cut in range(len(raw)):
        first, second, connection = poisoned(), poisoned(5), Connection()
        connection.begin(get("first", "k", memoryview(first)))
        connection.begin(get("second", "k", memoryview(second)))
        assert deliver(connection, raw[:cut], most) == []
        assert connection.cancel("second", "cancelled") == [Done("second", Failed("cancelled"))]
        assert deliver(connection, raw[cut:] + bulk(b"12345"), most) == [Done("first", Found())]
        assert (bytes(first), second) == (V, poisoned(5)), f"cancelled after {cut} bytes"


@pytest.mark.parametrize("end", ["end of file", "reset", "malformed"])
def test_a_broken_connection_says_why_and_does_nothing_more(end: str) -> None:
    connection = Connection()
    assert (connection.broken, connection.useless) == (None, False)
    connection.begin(exists("first", "k"))
    (done,) = ENDS[end](connection)
    why = connection.broken
    assert why is not None
    assert done == Done("first", Failed(why))
    assert (connection.useless, connection.outstanding) == (True, 0)
    with pytest.raises(ProtocolError, match="cannot take AUTH") as caught:
        connection.begin(auth("second", "secret"))
    assert str(caught.value).endswith(f": {why}")
    assert connection.outstanding == 0
    assert [connection.received(5), connection.received(0), connection.lost("again")] == [[], [], []]
    assert connection.broken == why


def test_a_tainted_connection_takes_nothing_new_until_it_has_drained() -> None:
    connection = Connection()
    buffer = poisoned()
    connection.begin(get("first", "k", memoryview(buffer)))
    connection.cancel("first", "cancelled")
    assert connection.tainted
    assert connection.useless
    with pytest.raises(ProtocolError, match="connection cannot take EXISTS: a reply is still due"):
        connection.begin(exists("second", "k"))
    buffer.extend(b"more")  # Raises BufferError if anything still refers to the caller's memory.
    assert deliver(connection, bulk(V)) == []
    assert not connection.tainted
    connection.begin(exists("third", "k"))
    assert deliver(connection, b":1\r\n") == [Done("third", Found())]


@pytest.mark.parametrize("reply", [b"+OK\r\n", b":1\r\n", bulk(b"x"), b"-ERR max number of clients reached\r\n"])
def test_a_reply_that_nobody_asked_for_breaks_the_connection(reply: bytes) -> None:
    connection = Connection()
    assert deliver(connection, reply) == []
    assert connection.broken is not None
    assert "nobody asked for" in connection.broken


def test_a_push_is_nobodys_reply() -> None:
    connection = Connection()
    deliver(connection, b">1\r\n+hello\r\n")
    assert (connection.pushes, connection.broken) == (1, None)


def test_a_large_reply_that_is_no_payload_is_refused() -> None:
    connection = Connection()
    connection.begin(exists(1, "k"))
    item = b"$%d\r\n%b\r\n" % (60_000, bytes(60_000))
    done = deliver(connection, b"*100\r\n" + item * 100)
    assert is_outcome(done[0].outcome, f"more than {SMALL} bytes")


def test_a_reply_that_is_no_payload_may_have_just_the_longest_size() -> None:
    connection = Connection()
    connection.begin(exists(1, "k"))
    head = b"*2\r\n$1048576\r\n"
    assert deliver(connection, head + bytes(1_048_576 - len(head))) == []
    assert connection.broken is None
    assert deliver(connection, b"\0") == [
        Done(1, Failed("a reply of more than 1048576 bytes that is not a bulk string"))]
