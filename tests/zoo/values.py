"""Wrong about values: they do not come back as they were (round-trip), or others are taken for them (no-stale-hit)."""

from __future__ import annotations

from collections.abc import Sequence

from kvproof.connectors.adapter import Buffer, Failed, Hit, Miss, Outcome
from kvproof.models.chunks import ChunkKey
from tests.zoo.connected import Reply
from tests.zoo.connection import Call, Connection, Malformed
from tests.zoo.honest import CHECKSUM, Chunk, Unsealed
from tests.zoo.wrong import Wrong

SMALL = 16 << 10
"""Up to this size a value is treated in another way than above it."""


class TypedByFirstByte(Wrong):
    """B6: a value of more than 16 KB that begins like an aggregate is taken for one."""

    rule = "round-trip"
    breaks = frozenset({"round-trip"})

    def filled(self, reply: Reply, buffer: Buffer) -> Outcome:
        """Look at the first byte."""
        if isinstance(reply, bytes) and len(reply) > SMALL and reply[:1] in (b"*", b"%"):
            raise Malformed("an aggregate where a value was expected")
        return super().filled(reply, buffer)


class SplitEnd(Wrong):
    """B6: a value whose end of line comes in two pieces is taken for a malformed one."""

    rule = "round-trip"
    breaks = frozenset({"round-trip"})

    def exactly(self, connection: Connection, call: Call, size: int) -> bytes:
        """Look at the end as soon as a part of it is there."""
        while len(connection.pending) < size + 2:
            if len(connection.pending) == size + 1:
                raise Malformed("a value without its end")
            self.more(connection, call)
        return super().exactly(connection, call, size)


class EmptyIsAbsent(Wrong):
    """E4: an empty chunk is taken for none."""

    rule = "round-trip"
    breaks = frozenset({"round-trip"})

    def opened(self, value: bytes, buffer: Buffer) -> Outcome:
        """Ask for the length where presence is meant."""
        return super().opened(value, buffer) if len(buffer) else Miss()


class ElementsOfTwoBytes(Wrong):
    """F5 (glide #6310): the length is counted in elements, and an element taken to have two bytes."""

    rule = "round-trip"
    breaks = frozenset({"round-trip"})

    def sealed(self, key: ChunkKey, buffer: Buffer) -> bytes:
        """Store two bytes an element."""
        elements = len(buffer) // 4 if key.dtype == "float32" else len(buffer)
        return super().sealed(key, buffer[: 2 * elements])


class ChecksumUnread(Wrong):
    """LMCache #4533: the value's bits are believed, though a checksum was promised."""

    rule = "no-stale-hit"
    breaks = frozenset({"no-stale-hit"})

    def opened(self, value: bytes, buffer: Buffer) -> Outcome:
        """Look at the length only."""
        if len(value) != len(buffer) + CHECKSUM:
            return Failed(f"a value of {len(value)} bytes, expected {len(buffer) + CHECKSUM}")
        buffer[:] = memoryview(value)[:-CHECKSUM]
        return Hit()


class ShortIsWhole(Wrong, Unsealed):
    """E2: a shorter value is a hit, and the rest of the buffer was never filled."""

    rule = "no-stale-hit"
    breaks = frozenset({"no-stale-hit"})

    def opened(self, value: bytes, buffer: Buffer) -> Outcome:
        """Fill as much as there is."""
        if len(value) > len(buffer):
            return super().opened(value, buffer)
        buffer[: len(value)] = value
        return Hit()


class LongIsCut(Wrong, Unsealed):
    """D4: a longer value, such as another dtype's, is a hit with its beginning."""

    rule = "no-stale-hit"
    breaks = frozenset({"no-stale-hit"})

    def opened(self, value: bytes, buffer: Buffer) -> Outcome:
        """Take as much as there is room for."""
        return super().opened(value[: len(buffer)], buffer)


class TakesNoOddSize(Wrong):
    """D7: what a chunk is made of is guessed; here one that is not a multiple of two bytes is not taken."""

    rule = "round-trip"
    breaks = frozenset({"round-trip"})

    def put(self, chunks: Sequence[Chunk]) -> list[Outcome]:
        """Refuse it."""
        if any(len(buffer) % 2 for _, buffer in chunks):
            raise ValueError("a chunk of an odd size")
        return super().put(chunks)
