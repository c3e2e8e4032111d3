"""The wire log: the same schedule gives the same one, times aside, per connection and key."""

from __future__ import annotations

import socket
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor

import pytest

from kvproof import faults
from kvproof.faults.families import (
    Coalesce,
    Delay,
    Drip,
    Duplicate,
    Error,
    Flip,
    Hold,
    Insert,
    Nil,
    Split,
    WrongLength,
)
from kvproof.faults.servers import Server
from kvproof.models.resp import encode_command
from tests.wire import bare

RUNS = 50
SCHEDULE = (
    Nil(command="GET", key="a*", match=2),
    Error(command="GET", key="b*", match=1, times=3),
    Split(command="GET", key="c*", match=3),
    Split(command="SET", key="d*", direction="request", match=2, at=[5, 17]),
    Flip(command="GET", key="a*", match=4, byte=7),
    Delay(command="GET", key="b*", match=5, seconds=0.002),
    Drip(command="GET", key="c*", match=6, seconds=0.0001, drop=40),
    Hold(command="GET", key="d*", match=3, until="go"),
    Duplicate(command="GET", key="b*", match=7),
    Insert(command="GET", key="c*", match=8),
    WrongLength(command="GET", key="a*", match=9, by=3),
    Coalesce(command="GET", key="d*", match=8, replies=2),
)
LETTERS = "abcd"
KEYS = 10


def conversation(server: Server) -> dict[tuple[int, str], list[tuple[object, ...]]]:
    """Let four clients speak at once, each on its own connection; return the log without its times, by key."""
    with faults.proxy(server.address, SCHEDULE) as endpoint:
        endpoint.release("go")
        clients = []
        for number in range(len(LETTERS)):
            clients.append(bare(endpoint))
            endpoint.wait("open", number + 1)

        def speak(number: int) -> None:
            letter, client = LETTERS[number], clients[number]
            for key in range(KEYS):
                client.sendall(encode_command("SET", f"{letter}-{key}", letter * 100))
                assert client.recv(100) == b"+OK\r\n"
            client.sendall(b"".join(encode_command("GET", f"{letter}-{key}") for key in range(KEYS)))
            while client.recv(1 << 16):
                pass

        with ThreadPoolExecutor(len(LETTERS)) as pool:
            speaking = [pool.submit(speak, number) for number in range(len(LETTERS))]
            for letter in LETTERS:
                endpoint.wait(f"reply:GET {letter}-{KEYS - 1}", deadline=20)
            events = endpoint.log()
            for client in clients:
                client.shutdown(socket.SHUT_RDWR)
            for each in speaking:
                each.result(20)
        assert endpoint.struck() == (True,) * len(SCHEDULE), endpoint.struck()
        for client in clients:
            client.close()
    logs = defaultdict(list)
    for event in events:
        logs[event.connection, event.key].append(event._replace(sequence=0, seconds=0.0))
    return dict(logs)


def test_the_same_schedule_gives_the_same_log(server: Server) -> None:
    first = conversation(server)
    assert sum(map(len, first.values())) > 2 * len(LETTERS) * KEYS
    for run in range(2, RUNS + 1):
        again = conversation(server)
        different = [where for where in {*first, *again} if first.get(where) != again.get(where)]
        for where in different:
            pytest.fail(f"run {run} of {RUNS}, {where}: first {first.get(where)}, now {again.get(where)}")
