"""Connectors that are right in ways that are seldom seen: no rule may say otherwise."""

from __future__ import annotations

import time
import zlib
from collections.abc import Sequence
from hashlib import sha256

from kvproof.connectors.adapter import Buffer, Failed, Hit, Miss, Outcome, PayloadRange, Read
from kvproof.models.chunks import ChunkKey
from kvproof.models.resp import Null
from tests.zoo.connected import Command, Reply
from tests.zoo.connection import Call
from tests.zoo.honest import Chunk, Honest, Judge

SHORT = 0.05
"""Seconds that have to be left for it to be worth trying again."""


class Raises(Honest):
    """What fails is raised, as most clients do; nothing is ever `Failed`."""

    def put(self, chunks: Sequence[Chunk]) -> list[Outcome]:
        """Raise what went wrong."""
        return self.unfailed(super().put(chunks))

    def read(self, read: Read, chunks: Sequence[Chunk]) -> list[Outcome]:
        """Raise what went wrong."""
        return self.unfailed(super().read(read, chunks))

    def unfailed(self, outcomes: list[Outcome]) -> list[Outcome]:
        """Return outcomes none of which is a failure."""
        for outcome in outcomes:
            if isinstance(outcome, Failed):
                raise ConnectionError(outcome.reason)
        return outcomes


class TriesAgain(Honest):
    """What failed is tried once more, within the same deadline."""

    def exchange(self, call: Call, commands: Sequence[Command], judges: Sequence[Judge]) -> list[Outcome]:
        """Try twice."""
        outcomes = super().exchange(call, commands, judges)
        failed = any(isinstance(outcome, Failed) for outcome in outcomes)
        given_up = self.closed or call.cancelled or call.deadline - time.monotonic() < SHORT
        return super().exchange(call, commands, judges) if failed and not given_up else outcomes


class InHalves(Honest):
    """A chunk is two keys, with half of the value each."""

    def put(self, chunks: Sequence[Chunk]) -> list[Outcome]:
        """SET both halves of each."""
        outcomes: list[Outcome] = []
        for key, buffer in chunks:
            value = self.sealed(key, buffer)
            halves = value[: len(value) // 2], value[len(value) // 2 :]
            commands = [(b"SET", name, half) for name, half in zip(self.names(key), halves, strict=True)]
            outcomes.append(self.one(self.exchange(self.call(), commands, [self.stored] * 2)))
        return outcomes

    def read_now(self, read: Read, chunks: Sequence[Chunk], call: Call) -> list[Outcome]:
        """Ask for both halves of each."""
        outcomes = [self.asked(read, chunk, call) for chunk in chunks]
        return self.prefix(outcomes) if read.batch and not read.payload else outcomes

    def asked(self, read: Read, chunk: Chunk, call: Call) -> Outcome:
        """Ask for both halves of a chunk."""
        key, buffer = chunk
        if not read.payload:
            return self.one(self.exchange(call, [(b"EXISTS", name) for name in self.names(key)], [self.present] * 2))
        halves: list[bytes] = []

        def half(reply: Reply) -> Outcome:
            if isinstance(reply, bytes):
                halves.append(reply)
                return Hit()
            return Miss() if reply is Null.BULK else self.refused(reply)

        outcome = self.one(self.exchange(call, [(b"GET", name) for name in self.names(key)], [half] * 2))
        return self.opened(b"".join(halves), buffer) if outcome == Hit() else outcome

    def names(self, key: ChunkKey) -> tuple[bytes, bytes]:
        """Return a chunk's two keys."""
        return self.wire_key(key) + b".1", self.wire_key(key) + b".2"

    def one(self, outcomes: list[Outcome]) -> Outcome:
        """Return the outcome of both halves."""
        return next((each for kind in (Failed, Miss) for each in outcomes if isinstance(each, kind)), Hit())


class Compressed(Honest):
    """What is stored is shorter than the chunk."""

    payload = PayloadRange(largest=1 << 16)

    def sealed(self, key: ChunkKey, buffer: Buffer) -> bytes:
        """Return the compressed value."""
        return zlib.compress(super().sealed(key, buffer), 1)

    def opened(self, value: bytes, buffer: Buffer) -> Outcome:
        """Open what the value was before."""
        inflating = zlib.decompressobj()
        try:
            whole = inflating.decompress(value)
        except zlib.error as error:
            return Failed(str(error))
        if inflating.unused_data or not inflating.eof:
            return Failed("the value does not end where its content does")
        return super().opened(whole, buffer)


class Hashed(Honest):
    """The hash of a chunk does not stand in its key."""

    def wire_key(self, key: ChunkKey) -> bytes:
        """Return the hash of all that is in the key."""
        return b"kv:" + sha256(super().wire_key(key)).hexdigest().encode()


class ClosesSlowly(Honest):
    """A call may take 2.6 s, which is declared, and closing waits for those in flight."""

    deadline = 3.0

    def call(self) -> Call:
        """Give it more than it was told."""
        return Call(time.monotonic() + 2.6)

    def close(self) -> None:
        """End nothing that is in flight."""
        with self.changed:
            self.closed = True
            while self.idle:
                self.drop(self.idle.pop())
            self.changed.wait_for(lambda: not self.connections, self.deadline)
