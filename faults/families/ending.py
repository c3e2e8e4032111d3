"""What close and reset have in common: the connection ends before, inside or after a frame."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import ClassVar

from kvproof.faults.fault import Fault, Moment, is_offset
from kvproof.faults.pieces import Piece, Pieces


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending(Fault):
    """End the connection to both sides once `after` bytes of the frame have passed.

    after: 0 for before the frame, None for after it; a frame that is shorter passes whole.
    """

    accepts: ClassVar[bool] = True

    after: int | None = 0

    def check(self) -> None:
        """Check the place."""
        self.require("after", self.after is None or is_offset(self.after),
                     "an integer from 0 on: bytes of the frame that pass; or null: all of them")

    async def strike(self, moment: Moment, pieces: Pieces) -> AsyncGenerator[Piece]:
        """Pass so much, and end."""
        async for piece in pieces if self.after is None else pieces.first(self.after):
            yield piece
        if not await pieces.more():
            moment.passed()
        await self.end(moment)

    async def end(self, moment: Moment) -> None:
        """End the connection in the family's own way."""
        raise NotImplementedError
