"""Wrong about threads: several at once (sync-from-any-thread), and the end of all (close-resolves, leak-free)."""

from __future__ import annotations

import socket
import subprocess
import threading
import time
from collections.abc import Sequence
from typing import ClassVar

from kvproof.connectors.adapter import Buffer, Failed, Hit, Outcome, Place, Read
from tests.zoo.connected import Command
from tests.zoo.connection import Call, Connection
from tests.zoo.honest import Chunk, Judge
from tests.zoo.wrong import Wrong

TURN = 0.001
"""Seconds until a copy out of the staging buffer has its turn."""


class OneForAll(Wrong):
    """A1: two commands in flight are taken for one another; here all threads use one connection at the same time."""

    rule = "sync-from-any-thread"
    breaks = frozenset({"sync-from-any-thread", "no-cross-talk", "linearizable"})

    def take(self, call: Call) -> Connection:
        """Return the one that there is."""
        with self.changed:
            if self.connections and not self.closed:
                call.connection = next(iter(self.connections))
                return call.connection
        return super().take(call)

    def release(self, connection: Connection) -> None:
        """Keep it, where no reply that nobody asked for lies on it."""
        with self.changed:
            if self.closed or (connection.pending and not connection.owed):
                self.drop(connection)
            elif connection not in self.idle:
                self.idle.append(connection)

    def drop(self, connection: Connection) -> None:
        """Close it for all who use it."""
        with self.changed:
            if connection in self.idle:
                self.idle.remove(connection)
            self.shut(connection)
            super().drop(connection)


class OneStagingBuffer(Wrong):
    """F5: a pooled buffer is recycled too early; here all threads have one, from which each copies its chunk."""

    rule = "sync-from-any-thread"
    breaks = frozenset({"sync-from-any-thread", "no-cross-talk", "linearizable"})

    def __init__(self, place: Place) -> None:
        """Begin with an empty one."""
        self.staging = memoryview(bytearray())
        super().__init__(place)

    def read_now(self, read: Read, chunks: Sequence[Chunk], call: Call) -> list[Outcome]:
        """Read a chunk into the staging buffer, and copy it."""
        if not read.payload or read.batch:
            return super().read_now(read, chunks, call)
        [(key, buffer)] = chunks
        if len(self.staging) != len(buffer):
            self.staging = memoryview(bytearray(len(buffer)))
        staging = self.staging
        found = super().read_now(read, [(key, staging)], call)
        if found == [Hit()]:
            time.sleep(TURN)
            buffer[:] = staging
        return found


class StrictTurns(Wrong):
    """B9: a request socket takes no second request before the first is answered, whoever asks."""

    rule = "sync-from-any-thread"
    breaks = frozenset({"sync-from-any-thread"})

    def __init__(self, place: Place) -> None:
        """Begin with nothing asked."""
        self.turn = threading.Lock()
        super().__init__(place)

    def exchange(self, call: Call, commands: Sequence[Command], judges: Sequence[Judge]) -> list[Outcome]:
        """Refuse out of turn."""
        if not self.turn.acquire(blocking=False):
            return [Failed("not possible in the current state")] * len(commands)
        try:
            return super().exchange(call, commands, judges)
        finally:
            self.turn.release()


class EarlyReturnKeepsLock(Wrong):
    """A3: a read that returns early, because something is absent, keeps its lock: no other thread reads any more."""

    rule = "sync-from-any-thread"
    breaks = frozenset({"sync-from-any-thread", "bounded-time"})

    def __init__(self, place: Place) -> None:
        """Begin unlocked; the thread that has the lock can take it again, and so never notices."""
        self.reading = threading.RLock()
        super().__init__(place)

    def read(self, read: Read, chunks: Sequence[Chunk]) -> list[Outcome]:
        """Lock, read, and unlock where everything was there."""
        self.reading.acquire()
        found = super().read(read, chunks)
        if found == [Hit()] * len(found):
            self.reading.release()
        return found


class CloseTellsNobody(Wrong):
    """F7: the way out of an operation that is ended by somebody else never reports, so its caller waits on."""

    rule = "close-resolves"
    breaks = frozenset({"close-resolves", "bounded-time"})

    def read(self, read: Read, chunks: Sequence[Chunk]) -> list[Outcome]:
        """Wait for a report that does not come."""
        found = super().read(read, chunks)
        if Failed("closed") in found:
            threading.Event().wait()
        return found


class CloseHoldsLock(Wrong):
    """A3 (LMCache #3533): the end takes a lock that those for whom it waits need."""

    rule = "close-resolves"
    breaks = frozenset({"close-resolves", "bounded-time"})

    def settle(self) -> None:
        """Wait for the calls in flight and let none of them go on."""
        with self.changed:
            while self.connections:
                time.sleep(TURN)
        super().settle()


class SocketsStayOpen(Wrong):
    """E6: what was acquired is released on no path; here no socket is ever closed."""

    rule = "leak-free"
    breaks = frozenset({"leak-free"})
    kept: ClassVar[list[socket.socket]] = []

    def discard(self, connection: Connection) -> None:
        """Keep it."""
        self.kept.append(connection.socket)


class BuffersStay(Wrong):
    """E6: what was acquired is released on no path; here nobody's buffer is ever let go."""

    rule = "leak-free"
    breaks = frozenset({"leak-free"})
    kept: ClassVar[list[Buffer]] = []

    def read(self, read: Read, chunks: Sequence[Chunk]) -> list[Outcome]:
        """Keep a view of each."""
        self.kept += [memoryview(buffer)[:1] for _, buffer in chunks if len(buffer)]
        return super().read(read, chunks)


class PoolShrinks(Wrong):
    """E2 (LMCache #3022): references are not given back; here no buffer that a read takes from the pool is."""

    rule = "leak-free"
    breaks = frozenset({"leak-free"})

    def __init__(self, place: Place) -> None:
        """Begin with all of them at home."""
        super().__init__(place)
        self.out = 0

    def read(self, read: Read, chunks: Sequence[Chunk]) -> list[Outcome]:
        """Take one for each chunk."""
        self.out += len(chunks)
        return super().read(read, chunks)

    def lent(self) -> int:
        """Return how many are out."""
        return self.out


class ThreadStays(Wrong):
    """A2 (LMCache #2850): waiters stay behind; here each connector has a thread that no close ends."""

    rule = "leak-free"
    breaks = frozenset({"leak-free"})

    def __init__(self, place: Place) -> None:
        """Start it."""
        super().__init__(place)
        threading.Thread(target=threading.Event().wait, daemon=True).start()


class ProcessStays(Wrong):
    """A2: each connector has a helper process that no close ends."""

    rule = "leak-free"
    breaks = frozenset({"leak-free"})

    def __init__(self, place: Place) -> None:
        """Start it."""
        super().__init__(place)
        subprocess.Popen(["sleep", "60"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
