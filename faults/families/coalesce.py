"""Coalesce: several replies come in one piece."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import ClassVar

from kvproof.faults.fault import Fault, Moment, is_count
from kvproof.faults.pieces import Piece, Pieces


@dataclass(frozen=True, slots=True, kw_only=True)
class Coalesce(Fault):
    """Keep the reply back until `replies` of them, this one included, can be sent at once.

    Only as many are waited for as the client has asked for by then; when it waits for this one alone, nothing is
    done.
    """

    kind: ClassVar[str] = "coalesce"
    directions: ClassVar[tuple[str, ...]] = ("reply",)

    replies: int = 2

    def check(self) -> None:
        """Check the number."""
        self.require("replies", is_count(self.replies) and self.replies > 1, "an integer from 2 on")

    async def strike(self, moment: Moment, pieces: Pieces) -> AsyncGenerator[Piece]:
        """Pass on, into what is kept back."""
        if moment.owed > 1:
            moment.gather(self.replies)
            moment.did("coalesced")
        async for piece in pieces:
            yield piece
