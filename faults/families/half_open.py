"""Half-open: the other end is gone, and nothing tells."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import ClassVar

from kvproof.faults.fault import BEFORE, Fault, Moment, is_offset
from kvproof.faults.pieces import Piece, Pieces


@dataclass(frozen=True, slots=True, kw_only=True)
class HalfOpen(Fault):
    """From byte `at` of the frame on nothing passes on this connection, either way, also not that a side closes.

    So it looks to both sides as after a power cut or a lost network: what the client sends is taken, and is lost.
    """

    kind: ClassVar[str] = "half-open"

    at: int = 0

    def check(self) -> None:
        """Check the place."""
        self.require("at", is_offset(self.at), BEFORE)

    async def strike(self, moment: Moment, pieces: Pieces) -> AsyncGenerator[Piece]:
        """Say so much, and swallow the rest."""
        async for piece in pieces.first(self.at):
            yield piece
        if self.at and not await pieces.more():
            return
        moment.did("half-open")
        await moment.swallow()
