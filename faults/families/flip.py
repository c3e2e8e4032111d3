"""Flip: a bit of a payload is wrong."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import ClassVar

from kvproof.faults.fault import Fault, Moment, bulk_size, is_offset
from kvproof.faults.pieces import Piece, Pieces


@dataclass(frozen=True, slots=True, kw_only=True)
class Flip(Fault):
    """Flip bit `bit` (0 the least) of byte `byte` (from 0 on) of a bulk string's payload.

    A reply that is no bulk string, or has no such byte, is left as it is.
    """

    kind: ClassVar[str] = "flip"
    directions: ClassVar[tuple[str, ...]] = ("reply",)

    byte: int = 0
    bit: int = 0

    def check(self) -> None:
        """Check both."""
        self.require("byte", is_offset(self.byte), "an integer from 0 on")
        self.require("bit", is_offset(self.bit) and self.bit < 8, "an integer from 0 to 7")

    async def strike(self, moment: Moment, pieces: Pieces) -> AsyncGenerator[Piece]:
        """Go up to the byte, change it, and go on."""
        header = await pieces.line()
        yield header
        size = bulk_size(header)
        if size is not None and self.byte < size:
            async for piece in pieces.first(self.byte):
                yield piece
            async for piece in pieces.first(1):
                moment.did("flipped")
                yield bytes([piece[0] ^ 1 << self.bit])
        async for piece in pieces:
            yield piece
