"""Blank: the rest of a payload is zero, as in memory that was never filled."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import ClassVar

from kvproof.faults.fault import Fault, Moment, bulk_size, is_offset
from kvproof.faults.pieces import Piece, Pieces


@dataclass(frozen=True, slots=True, kw_only=True)
class Blank(Fault):
    """Give zero bytes in place of a bulk string's payload, from byte `at` on (from 0): a torn value, of the right size.

    A reply that is no bulk string, has no such byte, or is zero from there on, is left as it is.
    """

    kind: ClassVar[str] = "blank"
    directions: ClassVar[tuple[str, ...]] = ("reply",)

    at: int = 0

    def check(self) -> None:
        """Check the place."""
        self.require("at", is_offset(self.at), "an integer from 0 on")

    async def strike(self, moment: Moment, pieces: Pieces) -> AsyncGenerator[Piece]:
        """Go up to the place, then give zeros."""
        header = await pieces.line()
        yield header
        size = bulk_size(header)
        if size is not None and self.at < size:
            async for piece in pieces.first(self.at):
                yield piece
            struck = False
            async for piece in pieces.first(size - self.at):
                if not struck and any(piece):
                    moment.did("blanked")
                    struck = True
                yield bytes(len(piece))
        async for piece in pieces:
            yield piece
