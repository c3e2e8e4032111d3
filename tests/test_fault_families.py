"""Every family of faults, felt by real clients on a real Valkey: what they are given, and what they make of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import redis
import valkey

from kvproof import faults
from kvproof.faults.endpoint import Proxy
from kvproof.faults.families import (
    FAMILIES,
    Bandwidth,
    Blank,
    Close,
    Coalesce,
    Delay,
    Drip,
    Duplicate,
    Empty,
    Error,
    Flip,
    HalfOpen,
    Hold,
    Huge,
    Insert,
    Nil,
    Refuse,
    Reset,
    Silence,
    Split,
    Truncate,
    UnknownType,
    WrongLength,
    WrongType,
)
from kvproof.faults.families.error import TEXTS
from kvproof.faults.families.insert import FRAMES
from kvproof.faults.families.wrong_type import REPLIES
from kvproof.faults.fault import Fault, bulk_size
from kvproof.faults.servers import Server
from kvproof.models.resp import encode_command
from tests.wire import FELT, PONG, REPLY, SIZE, V, bare, take


class Felt(NamedTuple):
    """What a fault at the GET of k gives to a bare socket, and what redis-py and valkey-py make of it.

    end: "in step" (the next command gets its own reply), "open" (nothing more comes), "closed", "reset". outcome:
    "value", "nil", "other value", or the name of an exception and a word of its text.
    """

    fault: Fault
    given: bytes
    end: str
    outcome: str


def at_get(family: type[Fault], **fields: Any) -> Fault:
    return family(command="GET", key="k", **fields)


def flipped(byte: int, bit: int) -> bytes:
    return REPLY[: 7 + byte] + bytes([REPLY[7 + byte] ^ 1 << bit]) + REPLY[8 + byte :]


CASES: dict[str, Felt] = {
    "bandwidth": Felt(at_get(Bandwidth, rate=100_000), REPLY, "in step", "value"),
    "blank": Felt(at_get(Blank, at=10), REPLY[:17] + bytes(SIZE - 10) + b"\r\n", "in step", "other value"),
    "close before": Felt(at_get(Close), b"", "closed", "ConnectionError closed"),
    "close inside": Felt(at_get(Close, after=500), REPLY[:500], "closed", "ConnectionError closed"),
    "close after": Felt(at_get(Close, after=None), REPLY, "closed", "value"),
    "delay": Felt(at_get(Delay, seconds=0.02), REPLY, "in step", "value"),
    "delay inside": Felt(at_get(Delay, seconds=0.02, at=3), REPLY, "in step", "value"),
    "drip": Felt(at_get(Drip, seconds=0.0005, drop=100), REPLY, "in step", "value"),
    "duplicate": Felt(at_get(Duplicate), REPLY + REPLY, "in step", "value"),
    "empty": Felt(at_get(Empty), b"$0\r\n\r\n", "in step", "other value"),
    **{f"error {code}": Felt(at_get(Error, code=code), b"-%b\r\n" % text.encode(), "in step", "Error")
       for code, text in TEXTS.items()},
    "error of one's own": Felt(at_get(Error, text="ERR no"), b"-ERR no\r\n", "in step", "ResponseError no"),
    "flip": Felt(at_get(Flip, byte=999, bit=7), flipped(999, 7), "in step", "other value"),
    "half-open": Felt(at_get(HalfOpen), b"", "open", "TimeoutError"),
    "half-open inside": Felt(at_get(HalfOpen, at=100), REPLY[:100], "open", "TimeoutError"),
    "hold": Felt(at_get(Hold, until="close"), b"", "open", "TimeoutError"),
    "hold inside": Felt(at_get(Hold, until="close", at=20), REPLY[:20], "open", "TimeoutError"),
    "huge string": Felt(at_get(Huge), b"$1099511627776\r\n", "open", "Error"),
    "huge array": Felt(at_get(Huge, of="*", announces=2**31 - 1), b"*2147483647\r\n", "open", "Error"),
    "insert push": Felt(at_get(Insert), FRAMES["push"] + REPLY, "in step", "value"),
    "insert attribute": Felt(at_get(Insert, frame="attribute"), FRAMES["attribute"] + REPLY, "in step", "other value"),
    "nil": Felt(at_get(Nil), b"$-1\r\n", "in step", "nil"),
    "nil array": Felt(at_get(Nil, null="*"), b"*-1\r\n", "in step", "nil"),
    "nil of RESP3": Felt(at_get(Nil, null="_"), b"_\r\n", "in step", "nil"),
    "reset before": Felt(at_get(Reset), b"", "reset", "ConnectionError reset"),
    "reset inside": Felt(at_get(Reset, after=500), REPLY[:500], "reset", "ConnectionError reset"),
    "silence": Felt(at_get(Silence), b"", "open", "TimeoutError"),
    "silence inside": Felt(at_get(Silence, at=8), REPLY[:8], "open", "TimeoutError"),
    "split": Felt(at_get(Split, at=[1, 6, 7, 1007, 1008]), REPLY, "in step", "value"),
    "split at every byte": Felt(at_get(Split), REPLY, "in step", "value"),
    "truncate": Felt(at_get(Truncate, missing=3), REPLY[:-3], "closed", "ConnectionError closed"),
    "truncate all": Felt(at_get(Truncate, missing=5000), b"", "closed", "ConnectionError closed"),
    "unknown type": Felt(at_get(UnknownType), b"@" + REPLY[1:], "in step", "InvalidResponse @"),
    "shorter": Felt(at_get(WrongLength, by=-1), b"$999\r\n" + V[:-1] + b"\r\n", "in step", "other value"),
    "longer": Felt(at_get(WrongLength, by=2), b"$1002\r\n" + V + b"\0\0\r\n", "in step", "other value"),
    "announced shorter": Felt(at_get(WrongLength, by=-5, honest=False), b"$995\r\n" + V + b"\r\n", "in step",
                              "other value"),
    "announced longer": Felt(at_get(WrongLength, by=5, honest=False), b"$1005\r\n" + V + b"\r\n", "in step",
                             "TimeoutError"),
    **{f"wrong type {kind}": Felt(at_get(WrongType, gives=kind), raw, "in step", "other value")
       for kind, raw in REPLIES.items()},
}
OTHERWISE = {"coalesce", "refuse"}
"""Families that have a test of their own: they need more than one reply, or none."""


def test_every_family_is_here() -> None:
    here = {case.fault.kind for case in CASES.values()} | OTHERWISE
    assert here == set(FAMILIES), f"in CASES and in FAMILIES: one and not the other: {here ^ set(FAMILIES)}"


@pytest.fixture
def endpoint(server: Server, request: pytest.FixtureRequest) -> Any:
    with server.connect() as truth:
        truth.command("SET", "k", V)
    with faults.proxy(server.address, (CASES[request.param].fault,)) as opened:
        yield opened


@pytest.mark.parametrize(("name", "endpoint"), [(name, name) for name in CASES], indirect=["endpoint"])
def test_a_bare_socket_is_given_just_this(name: str, endpoint: Proxy) -> None:
    case = CASES[name]
    with bare(endpoint) as connection:
        connection.sendall(encode_command("GET", "k"))
        got, end = take(connection, len(case.given))
        assert (got, end) == (case.given, "open"), f"{name}: got {got[:40]!r}..., {len(got)} bytes, {end}"
        if case.end == "in step":
            connection.sendall(encode_command("PING"))
            assert take(connection, len(PONG)) == (PONG, "open"), f"{name}: the next reply is not the next one's"
        elif case.end == "open":
            endpoint.wait("struck")
            connection.setblocking(False)
            with pytest.raises(BlockingIOError):
                connection.recv(1)
        else:
            assert take(connection, 1) == (b"", case.end)
    if case.end != "in step":
        with endpoint.call():
            pass
    assert endpoint.marks() == (FELT,)


def outcome(call: Callable[[], Any]) -> str:
    try:
        value = call()
    except Exception as error:
        return f"{type(error).__name__} {error}"
    return "value" if value == V else "nil" if value is None else "other value"


@pytest.mark.parametrize("client", [redis.Redis, valkey.Valkey], ids=["redis-py", "valkey-py"])
@pytest.mark.parametrize(("name", "endpoint"), [(name, name) for name in CASES], indirect=["endpoint"])
def test_a_client_feels_it(name: str, endpoint: Proxy, client: Any) -> None:
    case = CASES[name]
    patience = 0.3 if case.outcome.startswith("Timeout") or case.end == "open" else 10
    more = {"driver_info": None} if client is redis.Redis else {"lib_name": None, "lib_version": None}
    with client(endpoint.host, endpoint.port, protocol=2, socket_timeout=patience, retry=None, **more) as through:
        with endpoint.call():
            seen = outcome(lambda: through.get("k"))
    kind, _, word = case.outcome.partition(" ")
    if case.outcome in ("value", "nil", "other value"):
        # With a reply of another type a client may have its own ideas, as long as it does not say "value".
        fits = seen == case.outcome or (case.fault.kind == "wrong-type" and seen != "value")
        # valkey-py reads with its own parser here, which knows no RESP3 as long as it speaks RESP2.
        fits |= client is valkey.Valkey and case.fault.kind in ("insert", "nil") and "InvalidResponse" in seen
    else:
        fits = kind in seen.partition(" ")[0] and word.lower() in seen.lower()
    assert fits, f"{name}: expected {case.outcome}, got {seen}"
    assert endpoint.marks() == (FELT,)


def test_replies_are_coalesced(server: Server) -> None:
    schedule = (Coalesce(command="GET", key="a", replies=3),)
    with server.connect() as truth, faults.proxy(server.address, schedule) as endpoint, bare(endpoint) as connection:
        for key in "abc":
            truth.command("SET", key, key * 3)
        connection.sendall(b"".join(encode_command("GET", key) for key in "abc"))
        endpoint.wait("reply:GET", 3)
        assert connection.recv(4096) == b"$3\r\naaa\r\n$3\r\nbbb\r\n$3\r\nccc\r\n"
        events = [str(event) for event in endpoint.log() if event.direction == "reply"]
        assert events[0] == "connection 1 reply GET a coalesced"
        assert [event.rpartition(" ")[0] for event in events[1:]] == [
            f"connection 1 reply GET {key} 9" for key in "abc"]


def test_more_replies_than_are_owed_are_not_waited_for(server: Server) -> None:
    schedule = (Coalesce(command="PING", replies=9), Coalesce(command="PING", match=3))
    with faults.proxy(server.address, schedule) as endpoint, bare(endpoint) as connection:
        connection.sendall(encode_command("PING") * 2)
        assert take(connection, 14) == (PONG * 2, "open")
        connection.sendall(encode_command("PING"))
        assert take(connection, 7) == (PONG, "open")
        assert [mark.struck for mark in endpoint.marks()] == [True, False], "one reply alone cannot be coalesced"


def test_connecting_is_refused_until_it_is_released(server: Server) -> None:
    with faults.proxy(server.address, (Refuse(match=2, until="again"),)) as endpoint:
        with bare(endpoint) as first:
            endpoint.wait("struck")
            with pytest.raises(ConnectionRefusedError), endpoint.call():
                bare(endpoint)
            assert endpoint.marks() == (FELT,)
            first.sendall(encode_command("PING"))
            assert take(first, 7) == (PONG, "open"), "a connection that was there before stays"
        endpoint.release("again")
        with bare(endpoint) as second:
            second.sendall(encode_command("PING"))
            assert take(second, 7) == (PONG, "open")


def test_the_page_has_every_family() -> None:
    page = Path(__file__).parents[1].joinpath("docs", "faults.md").read_text()
    assert set(re.findall(r"^\| `([a-z-]+)` \|.*\|.*\|$", page, re.MULTILINE)) - {
        "command", "key", "match", "times", "connection", "direction", "reply"} == set(FAMILIES)
    assert all(f"`{code}`" in page for code in TEXTS)


@pytest.mark.parametrize(("header", "size"), [
    (b"$12\r\n", 12), (b"$0\r\n", 0), (b"$-1\r\n", None), (b"*2\r\n", None), (b"$", None), (b"$1", None),
    (b"$12\r", None), (b"", None),
])
def test_the_size_of_a_bulk_string_is_in_its_whole_header(header: bytes, size: int | None) -> None:
    assert bulk_size(header) == size
