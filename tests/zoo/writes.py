"""Wrong about errors (honest-error), and about which write was the last (linearizable)."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from kvproof.connectors.adapter import Buffer, Hit, Outcome, Place, Read
from kvproof.models.chunks import ChunkKey
from kvproof.models.resp import ErrorReply
from tests.zoo.connected import Command, Reply
from tests.zoo.connection import Call
from tests.zoo.honest import Chunk
from tests.zoo.wrong import Wrong

BEHIND = 0.05
"""Seconds by which a write comes later than its acknowledgement."""


class RefusedIsStored(Wrong):
    """I2: what was to be stored is counted before the write, which may be refused."""

    rule = "honest-error"
    breaks = frozenset({"honest-error", "linearizable", "auth-fails-loud"})

    def stored(self, reply: Reply) -> Outcome:
        """Take an error for an answer."""
        return Hit() if isinstance(reply, ErrorReply) else super().stored(reply)


class ErrorIsFinished(Wrong):
    """E1: a read that failed is logged, and then reported as a finished load."""

    rule = "honest-error"
    breaks = frozenset({"honest-error", "no-stale-hit", "auth-fails-loud", "linearizable"})

    def filled(self, reply: Reply, buffer: Buffer) -> Outcome:
        """Finish."""
        return Hit() if isinstance(reply, ErrorReply) else super().filled(reply, buffer)


class OldVersions(Wrong):
    """H3: an index of what was seen keeps its entries when the truth moves on; a value read once is served for ever."""

    rule = "linearizable"
    breaks = frozenset({"linearizable", "round-trip", "lookup-coherent", "miss-is-miss"})

    def __init__(self, place: Place) -> None:
        """Begin with none."""
        self.seen: dict[ChunkKey, bytes] = {}
        super().__init__(place)

    def read_now(self, read: Read, chunks: Sequence[Chunk], call: Call) -> list[Outcome]:
        """Serve a chunk from what was seen."""
        if not read.payload or read.batch:
            return super().read_now(read, chunks, call)
        [(key, buffer)] = chunks
        old = self.seen.get(key)
        if old is not None and len(old) == len(buffer):
            buffer[:] = old
            return [Hit()]
        found = super().read_now(read, chunks, call)
        if found == [Hit()]:
            self.seen[key] = bytes(buffer)
        return found


class WritesBehind(Wrong):
    """I1 (LMCache #2972): "done" says nothing of the write; here an overwrite is acknowledged before it is sent."""

    rule = "linearizable"
    breaks = frozenset({"linearizable", "honest-error", "round-trip"})

    def __init__(self, place: Place) -> None:
        """Begin with nothing written."""
        self.written: set[ChunkKey] = set()
        super().__init__(place)

    def put(self, chunks: Sequence[Chunk]) -> list[Outcome]:
        """Write what is new now, and the rest soon."""
        keys = {key for key, _ in chunks}
        if not keys <= self.written:
            found = super().put(chunks)
            self.written |= keys if found == [Hit()] * len(found) else set()
            return found
        commands = [(b"SET", self.wire_key(key), self.sealed(key, buffer)) for key, buffer in chunks]
        thread = threading.Thread(target=self.write, args=[commands], daemon=True)
        with self.changed:
            self.threads.add(thread)
            thread.start()
        return [Hit() for _ in chunks]

    def write(self, commands: Sequence[Command]) -> None:
        """Write, and tell nobody how that went."""
        time.sleep(BEHIND)
        self.exchange(self.call(), commands, [self.stored for _ in commands])
        with self.changed:
            self.threads.discard(threading.current_thread())
