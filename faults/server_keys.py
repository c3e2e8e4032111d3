"""Keys that go: evicted ones between two commands, all of them, or those that do not fit into memory any more."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

from kvproof.errors import UsageError
from kvproof.faults.raw_resp import RawResp
from kvproof.faults.server_fault import (
    Report,
    ServerFault,
    configure,
    number,
    running,
    second_channel,
    setting,
    wait_until,
)
from kvproof.faults.servers import Server

Key = str | bytes


def subsets(keys: Sequence[Key]) -> Iterator[tuple[Key, ...]]:
    """Return each subset of an object's keys but the empty one, smallest first, then in the order of `keys`."""
    for size in range(1, len(keys) + 1):
        yield from itertools.combinations(keys, size)


@dataclass(frozen=True)
class Evicted(ServerFault):
    """Chosen keys are gone, by a DEL through the second channel: what a client sees of an eviction.

    To strike between two commands of a client, call `strike` there; where the client does not return in between, hold
    the reply to the first with the fault proxy, strike, and release it.
    """

    kind: ClassVar[str] = "evicted"
    servers: ClassVar[frozenset[str]] = frozenset({"valkey", "fakeredis"})

    keys: Sequence[Key]

    def __post_init__(self) -> None:
        """Refuse one key by itself, which would be taken for a sequence of letters."""
        if isinstance(self.keys, str | bytes):
            raise UsageError(f"evicted, keys: got {self.keys!r}; expected a sequence of keys, such as [{self.keys!r}]")

    @contextmanager
    def on(self, server: Server) -> Iterator[Report]:
        """Strike for good; the report says which of the keys had not been there."""
        report = self.begin(server)
        with second_channel(server) as raw:
            for key in self.keys:
                there = raw.command("DEL", key) == 1
                report.count += there
                if there:
                    report.did.append(f"deleted {key!r}")
                else:
                    report.missed.append(f"{key!r} was not there")
        yield report


@dataclass(frozen=True)
class Flushed(ServerFault):
    """Every key is gone, by FLUSHALL."""

    kind: ClassVar[str] = "flushed"
    servers: ClassVar[frozenset[str]] = frozenset({"valkey", "fakeredis"})

    @contextmanager
    def on(self, server: Server) -> Iterator[Report]:
        """Strike for good."""
        report = self.begin(server)
        with second_channel(server) as raw:
            report.count = number(raw.command("DBSIZE"))
            raw.command("FLUSHALL")
        report.did.append(f"flushed {report.count} keys")
        yield report


@dataclass(frozen=True)
class OutOfMemory(ServerFault):
    """The server is over its `limit` (bytes) and evicts by its `policy`, as Valkey itself does it.

    keys: the ones to evict, and no others; for a policy that begins with "volatile", under which only keys with an
    expiry are candidates: these get one of 11 days. Keys with an expiry of their own are candidates too. Without
    `keys`, which ones go is Valkey's choice (its LRU is a sample), except that a limit of 1 byte takes every candidate.

    While it lasts, and once there is no candidate left, the server answers writes that need memory with an OOM error.
    """

    kind: ClassVar[str] = "out-of-memory"
    elsewhere: ClassVar[str] = "it answers OK to CONFIG SET maxmemory and evicts nothing"

    policy: str = "allkeys-lru"
    limit: int = 1
    keys: tuple[Key, ...] = ()

    def __post_init__(self) -> None:
        """Raise UsageError for a limit or keys that evict nothing."""
        if self.limit < 1:
            raise UsageError(f"out-of-memory: a limit of {self.limit} bytes is none in Valkey; give 1 or more")
        if self.keys and not self.policy.startswith("volatile"):
            raise UsageError(f"out-of-memory: with chosen keys the policy must be a volatile one, not {self.policy!r}")

    @contextmanager
    def on(self, server: Server) -> Iterator[Report]:
        """Strike; at the end put the limit and the policy back and count what was evicted until then."""
        report = self.begin(server)
        with second_channel(server) as raw:
            before = _evictions(raw)
            old = {name: setting(raw, name) for name in ("maxmemory", "maxmemory-policy")}
        given: list[Key] = []
        gone: set[Key] = set()
        try:
            with second_channel(server) as raw:
                there = [key for key in self.keys if raw.command("EXISTS", key) == 1]
                given += [key for key in there if raw.command("PEXPIRE", key, 10**9, "NX") == 1]
                configure(raw, {"maxmemory": str(self.limit), "maxmemory-policy": self.policy})
                wait_until(lambda: self._evicted(raw), "the server had evicted all that it had to")
                report.count = _evictions(raw) - before
                report.did.append(f"evicted {report.count} keys under {self.policy} at {self.limit} bytes")
                gone.update(key for key in there if raw.command("EXISTS", key) == 0)
            for key in self.keys:
                if key in gone:
                    report.did.append(f"evicted {key!r}")
                else:
                    report.missed.append(f"{key!r} " + ("is still there" if key in there else "was not there"))
            yield report
        finally:
            if running(server):
                with second_channel(server) as raw:
                    configure(raw, old)
                    for key in given:
                        if key not in gone:
                            raw.command("PERSIST", key)
                    report.count = max(report.count, _evictions(raw) - before)

    def _evicted(self, raw: RawResp) -> bool:
        if _used(raw) <= self.limit or self.policy == "noeviction":
            return True
        if self.policy.startswith("volatile"):
            return not any(int(found) for found in re.findall(r"expires=(\d+)", str(raw.info("keyspace"))))
        return raw.command("DBSIZE") == 0


def used_memory(server: Server) -> int:
    """Return how many bytes the server uses now, as its limit counts them."""
    with second_channel(server) as raw:
        return _used(raw)


def _used(raw: RawResp) -> int:
    memory = raw.info("memory")
    return int(memory["used_memory"]) - int(memory.get("mem_not_counted_for_evict", 0))


def _evictions(raw: RawResp) -> int:
    return int(raw.info("stats")["evicted_keys"])
