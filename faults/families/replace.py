"""What the families that give other bytes in place of a reply have in common."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import ClassVar

from kvproof.faults.fault import Fault, Moment
from kvproof.faults.pieces import Piece, Pieces


@dataclass(frozen=True, slots=True, kw_only=True)
class Replace(Fault):
    """Give `instead` of a reply. The server has done what it was asked, and its reply is dropped."""

    directions: ClassVar[tuple[str, ...]] = ("reply",)

    def instead(self) -> bytes:
        """Return what the client gets."""
        raise NotImplementedError

    async def strike(self, moment: Moment, pieces: Pieces) -> AsyncGenerator[Piece]:
        """Drop the reply first, so that it is whole before the next one begins; the same reply is no fault."""
        instead = self.instead()
        begin = b"".join([bytes(piece) async for piece in pieces.first(len(instead) + 1)])
        await pieces.drop()
        if begin != instead:
            moment.did(self.kind)
        yield instead
