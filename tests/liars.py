"""Connectors made to get a wrong verdict: with a bug that is easily overlooked, or right and easily accused."""

from __future__ import annotations

import ctypes
import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from kvproof.connectors.adapter import Adapter, Buffer, Cancelled, Failed, Hit, Miss, Outcome, PayloadRange, Place, Read
from kvproof.connectors.reference import Reference
from kvproof.faults.gates import Gap
from kvproof.models.chunks import ChunkKey
from kvproof.models.resp import encode_command

Chunks = Sequence[tuple[ChunkKey, Buffer]]


class Honest(Adapter):
    """A plain cache over one socket, and right: it opens a new connection after every failure."""

    name = "honest"
    distribution = "kvproof"
    reads = (Read("get"),)
    abandons = "timeout"

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.connect()

    def connect(self) -> None:
        """Open the connection."""
        address = (self.place.endpoint.host, self.place.endpoint.port)
        self.stream = socket.create_connection(address, self.place.timeout).makefile("rwb")

    def send(self, *words: bytes) -> None:
        """Send a command."""
        self.stream.write(encode_command(*words))
        self.stream.flush()

    def reply(self) -> bytes | None:
        """Read a reply: a bulk string, a line, or None for a nil."""
        line = self.stream.readline()
        if not line:
            raise OSError("the connection is closed")
        if line[:1] != b"$":
            return line.rstrip()
        size = int(line[1:])
        return self.stream.read(size + 2)[:-2] if size >= 0 else None

    def command(self, *words: bytes) -> bytes | None:
        """Send a command and read its reply."""
        self.send(*words)
        return self.reply()

    def wire_key(self, key: ChunkKey) -> bytes:
        """Return the key on the wire."""
        return key.stored(replicated=self.place.replicated).format().encode()

    def put(self, chunks: Chunks) -> list[Outcome]:
        """SET each."""
        return [
            Hit() if self.command(b"SET", self.wire_key(key), bytes(buffer)) == b"+OK" else Failed("SET was refused")
            for key, buffer in chunks
        ]

    def read(self, read: Read, chunks: Chunks) -> list[Outcome]:
        """GET each."""
        return [self.get(key, buffer) for key, buffer in chunks]

    def get(self, key: ChunkKey, buffer: Buffer) -> Outcome:
        """GET one."""
        try:
            found = self.command(b"GET", self.wire_key(key))
        except OSError as error:
            self.failed()
            return Failed(str(error))
        if found is None:
            return self.nil()
        if len(found) != len(buffer):
            return Failed(f"{len(found)} bytes, expected {len(buffer)}")
        buffer[:] = found
        return Hit()

    def failed(self) -> None:
        """A reply may still be on its way, so the connection is not used again."""
        self.connect()

    def nil(self) -> Outcome:
        """The key is absent."""
        return Miss()

    def close(self) -> None:
        """Close."""
        self.stream.close()


class KeepsConnection(Honest):
    """Uses the connection again after a timeout, unbuffered, with another command behind each GET."""

    def connect(self) -> None:
        """Open the connection, with a buffer of our own that survives a timeout."""
        self.socket = socket.create_connection((self.place.endpoint.host, self.place.endpoint.port))
        self.socket.settimeout(self.place.timeout)
        self.pending = b""

    def send(self, *words: bytes) -> None:
        """Send a command."""
        self.socket.sendall(encode_command(*words))

    def more(self) -> None:
        """Take in what comes."""
        data = self.socket.recv(1 << 16)
        if not data:
            raise OSError("the connection is closed")
        self.pending += data

    def reply(self) -> bytes | None:
        """Read a reply from what has come."""
        while b"\r\n" not in self.pending:
            self.more()
        line, _, rest = self.pending.partition(b"\r\n")
        if line[:1] != b"$" or int(line[1:]) < 0:
            self.pending = rest
            return line if line[:1] != b"$" else None
        size = int(line[1:])
        while len(self.pending) < len(line) + 2 + size + 2:
            self.more()
        found = self.pending[len(line) + 2 :][:size]
        self.pending = self.pending[len(line) + 2 + size + 2 :]
        return found

    def failed(self) -> None:
        """The bug: nothing."""

    def close(self) -> None:
        """Close."""
        self.socket.close()


class Pipelines(KeepsConnection):
    """The same with EXPIRE behind each GET in one pipeline, so that the last reply is not the payload."""

    def command(self, *words: bytes) -> bytes | None:
        """Send both, read both."""
        if words[0] != b"GET":
            return super().command(*words)
        self.send(*words)
        self.send(b"EXPIRE", words[1], b"3600")
        found = self.reply()
        self.reply()
        return found


class StuckAfterTimeout(Honest):
    """Hangs in every call after one has timed out."""

    dead = False

    def get(self, key: ChunkKey, buffer: Buffer) -> Outcome:
        """Hang once dead."""
        if self.dead:
            threading.Event().wait()
        return super().get(key, buffer)

    def failed(self) -> None:
        """Die."""
        self.dead = True


class RaisesAfterTimeout(StuckAfterTimeout):
    """Raises in every call after one has timed out."""

    def get(self, key: ChunkKey, buffer: Buffer) -> Outcome:
        """Raise once dead."""
        if self.dead:
            raise RuntimeError("poisoned for ever")
        return super().get(key, buffer)


class NeverCancels(Honest):
    """Says that it has cancelled, and has not even begun."""

    abandons = "cancel"

    def cancel_read(self, read: Read, chunks: Chunks, when: Callable[[], None]) -> Cancelled | list[Outcome]:
        """Lie."""
        return Cancelled("done")


class EndsBeforeCancel(Honest):
    """Waits for the reply instead of cancelling."""

    abandons = "cancel"

    def cancel_read(self, read: Read, chunks: Chunks, when: Callable[[], None]) -> Cancelled | list[Outcome]:
        """Read to the end."""
        ended = [self.get(*chunks[0])]
        when()
        return ended


class FixedHeader(Honest):
    """The nil-get bug, with a second connection to go on with and a timeout that is called a miss."""

    lost: tuple[object, ...] = ()

    def get(self, key: ChunkKey, buffer: Buffer) -> Outcome:
        """Read a header of the length that the value would have."""
        self.send(b"GET", self.wire_key(key))
        try:
            self.stream.read(len(b"$%d\r\n" % len(buffer)))
            buffer[:] = self.stream.read(len(buffer) + 2)[:-2]
        except OSError:
            self.lost = (*self.lost, self.stream)
            self.connect()
            return Miss()
        return Hit()


class SecondMissHangs(Honest):
    """Loses a connection with each miss, and hangs when none is left."""

    misses = 0

    def nil(self) -> Outcome:
        """Count."""
        self.misses += 1
        if self.misses == 2:
            threading.Event().wait()
        return Miss()


class MasksItself(Honest):
    """Takes a nil for a hit, and declares a mask for just that."""

    masks = "nil-get"
    hidden = False

    @contextmanager
    def masked(self) -> Iterator[object]:
        """Behave."""
        self.hidden = True
        yield

    def nil(self) -> Outcome:
        """Lie unless masked."""
        return Miss() if self.hidden else Hit()


class CrashesOnNil(Honest):
    """Dies of a nil."""

    def nil(self) -> Outcome:
        """Die."""
        ctypes.string_at(8)
        return Miss()


class HangsInBatches(Honest):
    """Reads one chunk well, and hangs on a nil within a batch."""

    reads = (Read("batched_get", batch=True),)

    def read(self, read: Read, chunks: Chunks) -> list[Outcome]:
        """Hang on the nil."""
        found = super().read(read, chunks)
        if len(chunks) > 1 and Miss() in found:
            threading.Event().wait()
        return found


class Forgets(Honest):
    """Right: a cache may always miss, and this one does after its first read."""

    count = 0

    def get(self, key: ChunkKey, buffer: Buffer) -> Outcome:
        """Serve once."""
        self.count += 1
        found = super().get(key, buffer)
        return found if self.count == 1 else Miss()


class MissRaises(Honest):
    """Right, if unusual: a miss is an exception."""

    def nil(self) -> Outcome:
        """Raise."""
        raise KeyError("absent")


class AsksFirst(Honest):
    """Right: asks EXISTS before it GETs."""

    def get(self, key: ChunkKey, buffer: Buffer) -> Outcome:
        """Ask, then get."""
        return super().get(key, buffer) if self.command(b"EXISTS", self.wire_key(key)) == b":1" else Miss()


class NotesAccess(Honest):
    """Right: looks under its own key as well, and writes down when a chunk was used."""

    def get(self, key: ChunkKey, buffer: Buffer) -> Outcome:
        """Do more than needed."""
        self.command(b"EXISTS", key.format().encode())
        found = super().get(key, buffer)
        self.command(b"SET", self.wire_key(key) + b":used", b"now")
        return found


class WritesBehind(Honest):
    """Says hit before anything is stored, which never happens."""

    def put(self, chunks: Chunks) -> list[Outcome]:
        """Promise."""
        return [Hit() for _ in chunks]


class SlowGap(Reference):
    """Right, but its calls take long."""

    def gaps(self) -> Sequence[Gap]:
        """Add a wait that never ends to the end of a call."""
        def slow(gap: Gap) -> Gap:
            def run(key: object, buffer: object) -> object:
                gap.run(key, buffer)
                return threading.Event().wait()
            return replace(gap, run=run)
        return [slow(gap) for gap in super().gaps()][:1]


class RaisingGap(Reference):
    """Right, but its adapter has a mistake of its own."""

    def gaps(self) -> Sequence[Gap]:
        """Raise after the call."""
        def raising(gap: Gap) -> Gap:
            def run(key: object, buffer: object) -> object:
                gap.run(key, buffer)
                raise NameError("name 'outcom' is not defined")
            return replace(gap, run=run)
        return [raising(gap) for gap in super().gaps()][:1]


class WritesNonsense(Honest):
    """Writes into the channel between the suite and its runner."""

    def get(self, key: ChunkKey, buffer: Buffer) -> Outcome:
        """Write what is no JSON."""
        os.write(200, b"\0\0\0\4abcd")
        return super().get(key, buffer)


class AnswersForUs(Honest):
    """Sends an answer to a later call."""

    def get(self, key: ChunkKey, buffer: Buffer) -> Outcome:
        """Forge one."""
        forged = b'{"number": 99, "returned": [{"outcome": "hit", "holds": "aa11 version 1", "exact": true}]}'
        os.write(200, len(forged).to_bytes(4, "big") + forged)
        return super().get(key, buffer)


class SaysTooMuch(Honest):
    """Fails with a reason of 70 MB, in colours."""

    def get(self, key: ChunkKey, buffer: Buffer) -> Outcome:
        """Say it."""
        return Failed("\x1b[31m\udcff" + "x" * 70_000_000)


class Unprintable(Exception):
    """An exception that cannot be printed."""

    def __str__(self) -> str:
        raise RuntimeError("no")


class RaisesUnprintable(Honest):
    """Raises what cannot be printed."""

    def get(self, key: ChunkKey, buffer: Buffer) -> Outcome:
        """Raise it."""
        raise Unprintable


class SmallOnly(Honest):
    """Holds small chunks only, and says so."""

    payload = PayloadRange(smallest=16, largest=1024, step=16)


class ReturnsNone(Honest):
    """Forgets to return."""

    def read(self, read: Read, chunks: Chunks) -> list[Outcome]:
        """Forget."""
        super().read(read, chunks)
        return None  # type: ignore[return-value]  # that is the mistake


class ReturnsClass(Honest):
    """Returns a class instead of a value."""

    def nil(self) -> Outcome:
        """Leave out the brackets."""
        return Miss  # type: ignore[return-value]  # that is the mistake


class WrongAbandons(Honest):
    """Declares something that there is not."""

    abandons = "canceled"  # type: ignore[assignment]  # that is the mistake


class WrongReads(Honest):
    """Declares names instead of reads."""

    reads = ("get",)  # type: ignore[assignment]  # that is the mistake


class CannotCancel(Honest):
    """Declares to cancel and cannot."""

    abandons = "cancel"


class NoAdapter:
    """Is none."""
