"""What silence and half-open have in common: from some byte of a frame on the connection says nothing more."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass

from kvproof.faults.fault import BEFORE, Fault, Moment, is_offset
from kvproof.faults.pieces import Piece, Pieces


@dataclass(frozen=True, slots=True, kw_only=True)
class Quiet(Fault):
    """From byte `at` of the frame on nothing more goes that way on this connection."""

    at: int = 0

    def check(self) -> None:
        """Check the place."""
        self.require("at", is_offset(self.at), BEFORE)

    async def strike(self, moment: Moment, pieces: Pieces) -> AsyncGenerator[Piece]:
        """Say so much, and nothing more."""
        async for piece in pieces.first(self.at):
            yield piece
        if self.at and not await pieces.more():
            return
        await self.fall(moment)

    async def fall(self, moment: Moment) -> None:
        """Be quiet in the family's own way, until the connection ends."""
        raise NotImplementedError
