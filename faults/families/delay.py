"""Delay: a frame comes later."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import ClassVar

from kvproof.faults.fault import BEFORE, Fault, Moment, is_offset, is_positive
from kvproof.faults.pieces import Piece, Pieces


@dataclass(frozen=True, slots=True, kw_only=True)
class Delay(Fault):
    """Keep the frame for so many `seconds`, from its byte `at` on, and all that follows it on that connection."""

    kind: ClassVar[str] = "delay"
    accepts: ClassVar[bool] = True

    seconds: float
    at: int = 0

    def check(self) -> None:
        """Check the seconds."""
        self.require("seconds", is_positive(self.seconds, 86_400), "a number of seconds above 0, at most 86400")
        self.require("at", is_offset(self.at), BEFORE)

    async def strike(self, moment: Moment, pieces: Pieces) -> AsyncGenerator[Piece]:
        """Wait, then go on."""
        async for piece in pieces.first(self.at):
            yield piece
        if self.at and not await pieces.more():
            return
        moment.did("delayed")
        await moment.wait(self.seconds)
        async for piece in pieces:
            yield piece
