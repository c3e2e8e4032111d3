"""Wrong length: a value of another size, or a header that lies about it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import ClassVar

from kvproof.faults.fault import Fault, Moment, bulk_size
from kvproof.faults.pieces import Piece, Pieces

MOST = 2**30
"""Bytes by which a value can be made longer or shorter."""
_BLOCK = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class WrongLength(Fault):
    """Make a bulk string `by` bytes longer, or shorter with a minus sign.

    honest: whether header and value agree: then the value is cut, or filled up with zero bytes. Else the header alone
    is changed, and the stream is out of step. A reply that is no bulk string, or too short, is left as it is.
    """

    kind: ClassVar[str] = "wrong-length"
    directions: ClassVar[tuple[str, ...]] = ("reply",)

    by: int = -1
    honest: bool = True

    def check(self) -> None:
        """Check both."""
        fits = isinstance(self.by, int) and not isinstance(self.by, bool) and 0 < abs(self.by) <= MOST
        self.require("by", fits, f"an integer other than 0, at most {MOST} either way: bytes more or less")
        self.require("honest", isinstance(self.honest, bool), "true or false")

    async def strike(self, moment: Moment, pieces: Pieces) -> AsyncGenerator[Piece]:
        """Change the header, and the value with it."""
        header = await pieces.line()
        size = bulk_size(header)
        if size is None or size + self.by < 0:
            yield header
        else:
            moment.did("longer" if self.by > 0 else "shorter")
            yield b"$%d\r\n" % (size + self.by)
            if self.honest:
                async for piece in pieces.first(min(size, size + self.by)):
                    yield piece
                async for _ in pieces.first(max(0, -self.by)):
                    pass
                for begin in range(0, max(0, self.by), _BLOCK):
                    yield bytes(min(_BLOCK, self.by - begin))
        async for piece in pieces:
            yield piece
