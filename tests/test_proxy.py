"""The fault proxy on a real Valkey: transparent, exact in its log, holding what it is told to and nothing else."""

from __future__ import annotations

import contextlib

import pytest

from kvproof import faults
from kvproof.faults.families import Hold
from kvproof.faults.servers import Server
from kvproof.models.payloads import encode
from tests.wire import CHUNK, bare, client, read, scripted, silent


@pytest.mark.parametrize("size", [0, 1, 16 * 1024, CHUNK])
def test_set_and_get_pass_unchanged(server: Server, size: int) -> None:
    value = encode("k", 1, size)
    with faults.proxy(server.address) as endpoint, client(endpoint) as through:
        through.set("k", value)
        got = through.get("k")
    assert got == value, f"{size} bytes: expected them back, got {len(got or b'')} bytes, or other ones"


def test_a_pipeline_of_mixed_sizes_passes_in_order(server: Server) -> None:
    values = {f"p{number}": encode(f"p{number}", 1, number * 977) for number in range(60)}
    values["p7"] = encode("p7", 1, 3_000_000)
    with faults.proxy(server.address) as endpoint, client(endpoint) as through:
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
    with faults.proxy(server.address) as endpoint:
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
    push, reply = b">3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n", b"$1\r\nv\r\n"
    with contextlib.ExitStack() as stack:
        upstream = stack.enter_context(scripted())
        endpoint = stack.enter_context(faults.proxy(upstream.getsockname(), schedule))
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
    assert [(e.direction, e.command, e.key, e.size) for e in passed] == [("push", "", "", 30), ("reply", "GET", "k", 7)]
