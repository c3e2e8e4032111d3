"""A connector that is small and right, made to be wrong in one place at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from hashlib import blake2b

from kvproof.connectors.adapter import Buffer, Cancelled, Failed, Hit, Miss, Outcome, PayloadRange, Place, Read
from kvproof.models.chunks import ChunkKey
from kvproof.models.resp import ErrorReply, Null, SimpleString
from tests.zoo.connected import LONGEST, Command, Connected, Reply
from tests.zoo.connection import Call, Connection, Malformed

Chunk = tuple[ChunkKey, Buffer]
Judge = Callable[[Reply], Outcome]
"""What turns a reply into an outcome; raises Malformed for a reply of the wrong kind."""

EXISTS = Read("exists", payload=False)
BATCHED_EXISTS = Read("batched_exists", payload=False, batch=True)
GET = Read("get")
BATCHED_GET = Read("batched_get", batch=True)
ASYNC_GET = Read("async_get", sync=False)

CHECKSUM = 8
"""Bytes at the end of each value."""


class Honest(Connected):
    """Blocking sockets, RESP2, one deadline a call, and a connection that owes a reply is never used again.

    One command a chunk goes out, all of them before the first reply is read. Each value ends with a checksum.
    """

    name = "honest"
    distribution = "kvproof"
    reads = (EXISTS, BATCHED_EXISTS, GET, BATCHED_GET, ASYNC_GET)
    capabilities = frozenset({"integrity", "salt", "adapter"})
    payload = PayloadRange(largest=LONGEST - CHECKSUM)
    abandons = "cancel"

    def __init__(self, place: Place) -> None:
        """Open the first connection; the others follow when they are needed."""
        super().__init__(place)
        self.threads: set[threading.Thread] = set()
        try:
            self.release(self.take(self.call()))
        except OSError as error:
            self.unopened(error)

    def unopened(self, error: OSError) -> None:
        """Say that the server cannot be reached or refuses, without the password."""
        endpoint = self.place.endpoint
        raise ConnectionError(f"no usable server at {endpoint.host}:{endpoint.port}: {error}") from None

    def put(self, chunks: Sequence[Chunk]) -> list[Outcome]:
        """SET each."""
        commands = [(b"SET", self.wire_key(key), self.sealed(key, buffer)) for key, buffer in chunks]
        return self.exchange(self.call(), commands, [self.stored for _ in chunks])

    def read(self, read: Read, chunks: Sequence[Chunk]) -> list[Outcome]:
        """Ask for each, in this thread or, asynchronously, in one of its own."""
        if read.sync:
            return self.read_now(read, chunks, self.call())
        return self.wait(*self.begin(read, chunks, self.call()))

    def read_now(self, read: Read, chunks: Sequence[Chunk], call: Call) -> list[Outcome]:
        """Ask for each and wait for the answers."""
        if not read.payload:
            commands = [(b"EXISTS", self.asked_key(read, key)) for key, _ in chunks]
            found = self.exchange(call, commands, [self.present for _ in chunks])
            return self.prefix(found) if read.batch else found
        commands = [(b"GET", self.asked_key(read, key)) for key, _ in chunks]
        return self.exchange(call, commands, [self.filling(buffer) for _, buffer in chunks])

    def cancel_read(
        self, read: Read, chunks: Sequence[Chunk], when: Callable[[], None]
    ) -> Cancelled | list[Outcome]:
        """Begin, and cancel when the moment has come."""
        call = self.call()
        begun = self.begin(read, chunks, call)
        when()
        self.cancel(call)
        found = self.wait(*begun)
        return Cancelled("cancelled") if Failed("cancelled") in found else found

    def begin(self, read: Read, chunks: Sequence[Chunk], call: Call) -> tuple[threading.Thread, list[Outcome]]:
        """Begin a read in a thread of its own; its outcomes are there when the thread has ended."""
        outcomes = list[Outcome]()
        thread = threading.Thread(target=lambda: outcomes.extend(self.read_now(read, chunks, call)), daemon=True)
        with self.changed:
            self.threads.add(thread)
            thread.start()
        return thread, outcomes

    def wait(self, thread: threading.Thread, outcomes: list[Outcome]) -> list[Outcome]:
        """Wait for a read that has begun; its own deadline ends it."""
        thread.join()
        with self.changed:
            self.threads.discard(thread)
        return outcomes

    def cancel(self, call: Call) -> None:
        """Give a call up: its connection is of no use to anybody any more, because it owes a reply."""
        with self.changed:
            call.cancelled = True
            if call.connection is not None:
                self.shut(call.connection)
            self.changed.notify_all()

    def close(self) -> None:
        """End every call in flight, then every connection and thread."""
        with self.changed:
            self.closed = True
            while self.idle:
                self.drop(self.idle.pop())
            for connection in self.connections:
                self.shut(connection)
            self.changed.notify_all()
        self.settle()

    def settle(self) -> None:
        """Wait until whoever uses a connection has closed it, and for our threads."""
        with self.changed:
            self.changed.wait_for(lambda: not self.connections, self.place.timeout)
            threads = list(self.threads)
        for thread in threads:
            thread.join()

    def call(self) -> Call:
        """Return a call that begins now."""
        return Call(time.monotonic() + self.place.timeout)

    def exchange(self, call: Call, commands: Sequence[Command], judges: Sequence[Judge]) -> list[Outcome]:
        """Send all commands and read a reply to each; whatever goes wrong is the outcome of those not answered yet."""
        outcomes: list[Outcome] = []
        try:
            connection = self.take(call)
            try:
                self.send(connection, call, commands)
                self.answers(connection, call, judges, outcomes)
            except OSError as error:
                self.spoilt(connection, error)
                raise
            except BaseException:
                self.drop(connection)
                raise
            self.release(connection)
        except OSError as error:
            failed = Failed("closed" if self.closed else "cancelled" if call.cancelled else str(error))
            outcomes += [failed] * (len(commands) - len(outcomes))
        finally:
            call.connection = None
        return outcomes

    def answers(self, connection: Connection, call: Call, judges: Sequence[Judge], outcomes: list[Outcome]) -> None:
        """Read a reply for each judge."""
        for judge in judges:
            outcomes.append(judge(self.receive(connection, call)))

    def wire_key(self, key: ChunkKey) -> bytes:
        """Return the key under which a chunk is stored."""
        stored = key.stored(replicated=self.place.replicated)
        return replace(stored, adapter=self.place.adapter, salt=self.place.salt).format().encode()

    def asked_key(self, read: Read, key: ChunkKey) -> bytes:
        """Return the key for which a read asks."""
        return self.wire_key(key)

    def checksum(self, payload: bytes | memoryview) -> bytes:
        """Return what tells this payload from another one."""
        return blake2b(payload, digest_size=CHECKSUM).digest()

    def sealed(self, key: ChunkKey, buffer: Buffer) -> bytes:
        """Return the value that is stored for a chunk."""
        return bytes(buffer) + self.checksum(buffer)

    def opened(self, value: bytes, buffer: Buffer) -> Outcome:
        """Fill a buffer with the chunk that was stored as this value, if it is that."""
        if len(value) != len(buffer) + CHECKSUM:
            return Failed(f"a value of {len(value)} bytes, expected {len(buffer) + CHECKSUM}")
        payload = memoryview(value)[:-CHECKSUM]
        if value[-CHECKSUM:] != self.checksum(payload):
            return Failed("the checksum is wrong")
        buffer[:] = payload
        return Hit()

    def filling(self, buffer: Buffer) -> Judge:
        """Return what judges the reply to a GET into this buffer."""
        return lambda reply: self.filled(reply, buffer)

    def filled(self, reply: Reply, buffer: Buffer) -> Outcome:
        """Judge the reply to a GET."""
        if isinstance(reply, bytes):
            return self.opened(reply, buffer)
        return Miss() if reply is Null.BULK else self.refused(reply)

    def present(self, reply: Reply) -> Outcome:
        """Judge the reply to an EXISTS."""
        if reply == 1:
            return Hit()
        return Miss() if reply == 0 else self.refused(reply)

    def stored(self, reply: Reply) -> Outcome:
        """Judge the reply to a SET."""
        return Hit() if reply == SimpleString("OK") else self.refused(reply)

    def refused(self, reply: Reply) -> Outcome:
        """Judge a reply that is not the one hoped for."""
        if isinstance(reply, ErrorReply):
            return Failed(reply.message)
        raise Malformed(f"a reply of the wrong kind: {type(reply).__name__}")

    def prefix(self, found: list[Outcome]) -> list[Outcome]:
        """Return the leading hits; from the first chunk that is not there on, nothing counts."""
        count = next((index for index, outcome in enumerate(found) if outcome != Hit()), len(found))
        return found[:count] + [Miss() if outcome == Hit() else outcome for outcome in found[count:]]


class Unsealed(Honest):
    """As honest, without a checksum: it promises no integrity and sees the length of a value only."""

    capabilities = Honest.capabilities - {"integrity"}
    payload = PayloadRange(largest=LONGEST)

    def sealed(self, key: ChunkKey, buffer: Buffer) -> bytes:
        """Return the chunk itself."""
        return bytes(buffer)

    def opened(self, value: bytes, buffer: Buffer) -> Outcome:
        """Fill the buffer with a value of its length."""
        if len(value) != len(buffer):
            return Failed(f"a value of {len(value)} bytes, expected {len(buffer)}")
        buffer[:] = value
        return Hit()
