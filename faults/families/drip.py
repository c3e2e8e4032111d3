"""Drip: a frame comes in drops."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import ClassVar

from kvproof.faults.fault import Fault, Moment, is_count, is_positive
from kvproof.faults.pieces import Piece, Pieces


@dataclass(frozen=True, slots=True, kw_only=True)
class Drip(Fault):
    """Pass the frame on `drop` bytes at a time, with `seconds` between two of them."""

    kind: ClassVar[str] = "drip"

    seconds: float
    drop: int = 1

    def check(self) -> None:
        """Check both."""
        self.require("seconds", is_positive(self.seconds, 86_400), "a number of seconds above 0, at most 86400")
        self.require("drop", is_count(self.drop), "an integer from 1 on: bytes")

    async def strike(self, moment: Moment, pieces: Pieces) -> AsyncGenerator[Piece]:
        """Pass a drop on, and wait."""
        first, struck = True, False
        while True:
            passed = 0
            async for piece in pieces.first(self.drop):
                if not first and not passed:
                    if not struck:
                        moment.did("dripping")
                        struck = True
                    await moment.wait(self.seconds)
                passed += len(piece)
                yield piece
            first = False
            if passed < self.drop:
                return
