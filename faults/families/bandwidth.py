"""Bandwidth: a frame comes no faster than a given rate."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import ClassVar

from kvproof.faults.fault import Fault, Moment, is_positive
from kvproof.faults.pieces import Piece, Pieces

_STEP = 0.01
"""Seconds between two pieces."""
_LEAST = 0.001
"""Seconds of waiting below which nobody could tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bandwidth(Fault):
    """Pass the frame on at `rate` bytes a second, on average over any hundredth of a second."""

    kind: ClassVar[str] = "bandwidth"

    rate: float

    def check(self) -> None:
        """Check the rate."""
        self.require("rate", is_positive(self.rate, 1e12), "a number of bytes a second above 0, at most 1e12")

    async def strike(self, moment: Moment, pieces: Pieces) -> AsyncGenerator[Piece]:
        """Pass a piece on, and wait for what it is worth."""
        size, waited, struck = max(1, int(self.rate * _STEP)), 0.0, False
        while True:
            passed = 0
            async for piece in pieces.first(size):
                passed += len(piece)
                yield piece
            if not passed:
                return
            waited += passed / self.rate
            if not struck and waited >= _LEAST:
                moment.did("slowed")
                struck = True
            await moment.wait(passed / self.rate)
