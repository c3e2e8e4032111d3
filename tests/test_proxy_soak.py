"""Many clients, random schedules, for long: whatever happens, nothing is left behind in the proxy's process."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest
import redis

from kvproof import faults
from kvproof.errors import UsageError
from kvproof.faults.endpoint import Proxy
from kvproof.faults.families import FAMILIES
from kvproof.faults.fault import ACCEPT, KINDS, Fault
from kvproof.faults.schedule import from_json, to_json
from kvproof.faults.servers import Server
from kvproof.models.payloads import encode
from kvproof.models.resp import encode_command

CLIENTS = 32
KEYS = [f"k{number}" for number in range(6)]
SIZES = [0, 10, 5_000, 300_000]
SECONDS = {"quick": 4.0, "nightly": 600.0}
PATIENCE = 0.2
"""Seconds that a client waits for anything."""

_CHOICES: dict[str, Callable[[random.Random], Any]] = {
    "at": lambda draw: draw.choice([0, 1, 7, 100]),
    "after": lambda draw: draw.choice([0, 1, 9, 5000, None]),
    "seconds": lambda draw: draw.choice([0.001, 0.01, 0.3]),
    "until": lambda draw: draw.choice(["close", "go", "request:GET k1"]),
    "rate": lambda draw: draw.choice([10_000, 10_000_000]),
    "drop": lambda draw: draw.choice([10, 1000]),
    "replies": lambda draw: draw.choice([2, 5]),
    "null": lambda draw: draw.choice("$*_"),
    "by": lambda draw: draw.choice([-3, -1, 1, 4]),
    "honest": lambda draw: draw.choice([True, False]),
    "missing": lambda draw: draw.choice([1, 30]),
    "match": lambda draw: draw.randint(1, 20),
    "times": lambda draw: draw.choice([1, 1, 5, None]),
    "command": lambda draw: draw.choice(["GET", "GET", "SET", "PING", "*"]),
    "key": lambda draw: draw.choice(["*", "k1", "k[2-4]"]),
    "direction": lambda draw: draw.choice(["reply", "reply", "request"]),
    "reply": lambda draw: draw.choice([None, None, *KINDS]),
}


def drawn(draw: random.Random) -> Fault:
    """Return a fault of any family, with any of its fields set; those that do not go together are drawn again."""
    family = FAMILIES[draw.choice(sorted(FAMILIES))]
    while True:
        names = [name for name in family.__dataclass_fields__ if name in _CHOICES]
        given = {name: _CHOICES[name](draw) for name in names
                 if draw.random() < 0.5 or name in ("seconds", "until", "rate")}
        if family.kind == "split":
            given["at"] = draw.choice([[1], [3, 200], [1, 2, 3, 4, 5]])
        if family.kind == "refuse":
            given = {"match": draw.randint(2, 40), "until": "go"}
        if family.accepts and draw.random() < 0.2:
            given["command"] = ACCEPT
        try:
            return family(**given)
        except UsageError:
            continue


def disturb(endpoint: Proxy, draw: random.Random, until: float) -> None:
    """Be one client, of one kind or another, that takes whatever happens."""
    while time.monotonic() < until:
        try:
            if draw.random() < 0.5:
                with redis.Redis(endpoint.host, endpoint.port, socket_timeout=PATIENCE, retry=None) as client:
                    for _ in range(draw.randint(1, 8)):
                        client.get(draw.choice(KEYS))
                        client.set(draw.choice(KEYS), bytes(draw.choice(SIZES)))
            else:
                with socket.create_connection((endpoint.host, endpoint.port), timeout=PATIENCE) as bare:
                    words = [("GET", draw.choice(KEYS)) for _ in range(draw.randint(1, 5))]
                    bare.sendall(b"".join(encode_command(*each) for each in words))
                    bare.recv(draw.choice([1, 1 << 16]))
        except (OSError, redis.RedisError, ValueError, TypeError, IndexError, AttributeError):
            continue


def left(endpoint: Proxy) -> tuple[int, int, int]:
    """Return how many descriptors, threads and tasks there are in the process of an endpoint."""
    process = Path("/proc", str(endpoint.pid))
    return len(list(process.joinpath("fd").iterdir())), len(list(process.joinpath("task").iterdir())), endpoint.tasks()


@pytest.mark.parametrize("length", ["quick", pytest.param("nightly", marks=pytest.mark.nightly)])
def test_nothing_is_left_behind(server: Server, length: str) -> None:
    seed = 0 if length == "quick" else random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    draw, rounds = random.Random(seed), 0
    with server.connect() as truth, faults.proxy(server.address) as witness:
        for key, size in zip(KEYS, SIZES * 2, strict=False):
            truth.command("SET", key, encode(key, 1, size))
        before, threads = left(witness), threading.active_count()
        end = time.monotonic() + SECONDS[length]
        while time.monotonic() < end:
            rounds += 1
            schedule = from_json(to_json(tuple(drawn(draw) for _ in range(draw.randint(1, 6)))))
            until = time.monotonic() + 1
            with ThreadPoolExecutor(CLIENTS) as pool, faults.proxy(server.address, schedule) as endpoint:
                clients = [pool.submit(disturb, endpoint, random.Random(draw.randrange(2**32)), until)
                           for _ in range(CLIENTS)]
                wait(clients, timeout=1.5)
                if any("go" in fault.names() for fault in schedule):
                    endpoint.release("go")
                # A client that is dripped on waits on; it ends with the endpoint.
            for each in clients:
                each.result(20)
            _settled(witness, before, f"seed {seed}, round {rounds}: {to_json(schedule)}")
        assert witness._process.said() == "it said nothing"
        assert threading.active_count() <= threads
    print(f"{rounds} rounds of {CLIENTS} clients")
    assert rounds > 1


def _settled(witness: Proxy, before: tuple[int, int, int], what: str) -> None:
    deadline = time.monotonic() + 10
    while (now := left(witness)) != before:
        assert time.monotonic() < deadline, f"{what}: {before} descriptors, threads and tasks before, {now} after"
