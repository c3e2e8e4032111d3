"""Silence: the connection stays open, and nothing is ever said on it again."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import ClassVar

from kvproof.faults.fault import BEFORE, Fault, Moment, is_offset
from kvproof.faults.pieces import Piece, Pieces


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence(Fault):
    """From byte `at` of the frame on nothing more goes that way on this connection, until the client closes.

    The other direction goes on: requests reach the server while its replies are silenced. At the accepting of a
    connection: it is accepted, and nobody ever answers, nor reaches the server.
    """

    kind: ClassVar[str] = "silence"
    accepts: ClassVar[bool] = True

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
        moment.did("silenced")
        await moment.gone()
        await moment.end()
