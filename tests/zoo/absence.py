"""Wrong about what is not there: absent chunks (miss-is-miss), or evicted ones after a look-up (lookup-coherent)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

from kvproof.connectors.adapter import Buffer, Hit, Miss, Outcome, Place, Read
from kvproof.models.chunks import ChunkKey
from kvproof.models.resp import Null
from tests.zoo.connected import Reply
from tests.zoo.connection import Call
from tests.zoo.honest import Chunk
from tests.zoo.wrong import Wrong

PAUSE = 0.01
"""Seconds until what was not there is asked for again."""


class NilIsHit(Wrong):
    """E1: a read that found nothing is reported as finished like any other."""

    rule = "miss-is-miss"
    breaks = frozenset({"miss-is-miss", "batch-aligned", "no-stale-hit", "lookup-coherent", "linearizable"})

    def filled(self, reply: Reply, buffer: Buffer) -> Outcome:
        """Make no difference."""
        return Hit() if reply is Null.BULK else super().filled(reply, buffer)


class ZeroIsPresent(Wrong):
    """E4 (#3151): any number, also 0, is the answer that a chunk is there."""

    rule = "miss-is-miss"
    breaks = frozenset({"miss-is-miss", "prefix-count", "batch-aligned"})

    def present(self, reply: Reply) -> Outcome:
        """Ask whether there was an answer, and not which."""
        return Hit() if isinstance(reply, int) else super().present(reply)


class WaitsForAbsent(Wrong):
    """A2: it waits until what it wants is there, and nothing brings it."""

    rule = "miss-is-miss"
    breaks = frozenset({"miss-is-miss", "batch-aligned", "bounded-time", "lookup-coherent", "linearizable"})

    def read_now(self, read: Read, chunks: Sequence[Chunk], call: Call) -> list[Outcome]:
        """Read until everything is there."""
        while Miss() in (found := super().read_now(read, chunks, call)) and read.payload:
            time.sleep(PAUSE)
            call.deadline = time.monotonic() + self.place.timeout
        return found


class Remembers(Wrong):
    """Remembers for which chunks a look-up has said that they are there."""

    def __init__(self, place: Place) -> None:
        """Begin with none."""
        self.promised: set[ChunkKey] = set()
        super().__init__(place)

    def read_now(self, read: Read, chunks: Sequence[Chunk], call: Call) -> list[Outcome]:
        """Read, and remember."""
        found = super().read_now(read, chunks, call)
        if not read.payload:
            self.promised |= {key for (key, _), outcome in zip(chunks, found, strict=True) if outcome == Hit()}
        return found


class PromisedIsThere(Remembers):
    """E8: a chunk that was counted as a hit is taken to be there still when it is read."""

    rule = "lookup-coherent"
    breaks = frozenset({"lookup-coherent", "miss-is-miss", "no-stale-hit"})

    def read_now(self, read: Read, chunks: Sequence[Chunk], call: Call) -> list[Outcome]:
        """Count what was promised."""
        found = super().read_now(read, chunks, call)
        return [
            Hit() if read.payload and outcome == Miss() and key in self.promised else outcome
            for (key, _), outcome in zip(chunks, found, strict=True)
        ]


class VerdictStays(Remembers):
    """A5: a read that fails does not take the look-up's verdict back, so it is tried again for ever."""

    rule = "lookup-coherent"
    breaks = frozenset({"lookup-coherent", "miss-is-miss", "bounded-time"})

    def read_now(self, read: Read, chunks: Sequence[Chunk], call: Call) -> list[Outcome]:
        """Read until everything that was promised is there."""
        while True:
            found = super().read_now(read, chunks, call)
            missed = {key for (key, _), outcome in zip(chunks, found, strict=True) if outcome == Miss()}
            if not read.payload or not missed & self.promised:
                return found
            time.sleep(PAUSE)
            call.deadline = time.monotonic() + self.place.timeout


class KeptByLookup(Wrong):
    """E4: what a look-up leaves behind outlives the chunk: here its value, which the next read gets."""

    rule = "lookup-coherent"
    breaks = frozenset({"lookup-coherent", "miss-is-miss", "linearizable"})

    def __init__(self, place: Place) -> None:
        """Begin with none."""
        self.kept: dict[ChunkKey, bytes] = {}
        super().__init__(place)

    def read_now(self, read: Read, chunks: Sequence[Chunk], call: Call) -> list[Outcome]:
        """Keep what a look-up finds; read the others only."""
        if read.payload:
            asked = [chunk for chunk in chunks if chunk[0] not in self.kept]
            others = iter(super().read_now(read, asked, call) if asked else [])
            return [
                self.opened(self.kept.pop(key), buffer) if key in self.kept else next(others)
                for key, buffer in chunks
            ]
        found = super().read_now(read, chunks, call)
        for (key, _), outcome in zip(chunks, found, strict=True):
            if outcome == Hit():
                self.exchange(call, [(b"GET", self.wire_key(key))], [partial(self.keep, key)])
        return found

    def keep(self, key: ChunkKey, reply: Reply) -> Outcome:
        """Keep a value."""
        if isinstance(reply, bytes):
            self.kept[key] = reply
        return Hit()
