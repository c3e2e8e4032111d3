"""Delay: a frame comes later."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import ClassVar

from kvproof.faults.fault import Fault, Moment, is_offset, is_positive
from kvproof.faults.pieces import Piece, Pieces


@dataclass(frozen=True, slots=True, kw_only=True)
class Delay(Fault):
    """Keep the frame for so many `seconds`, from its byte `at` on, and all that follows it on that connection."""

    kind: ClassVar[str] = "delay"
    accepts: ClassVar[bool] = True

    seconds: float
    at: int = 0

    def check(self) -> None:
        """Check the seconds too."""
        Fault.check(self)
        self.require("seconds", is_positive(self.seconds), "a number of seconds above 0")
        self.require("at", is_offset(self.at), "an integer from 0 on: bytes of the frame that pass before")

    async def strike(self, moment: Moment, pieces: Pieces) -> AsyncGenerator[Piece]:
        """Wait, then go on."""
        async for piece in pieces.first(self.at):
            yield piece
        moment.did("delayed")
        await moment.wait(self.seconds)
        async for piece in pieces:
            yield piece
