"""Unknown type: a reply begins with a byte that no kind of reply begins with."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import ClassVar

from kvproof.faults.fault import KINDS, Fault, Moment
from kvproof.faults.pieces import Piece, Pieces


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownType(Fault):
    """Give `byte` in place of the reply's first one; all that follows is as it was."""

    kind: ClassVar[str] = "unknown-type"
    directions: ClassVar[tuple[str, ...]] = ("reply",)

    byte: str = "@"

    def check(self) -> None:
        """Check the byte."""
        known = "".join(KINDS.values()) + "|_"
        self.require("byte", isinstance(self.byte, str) and len(self.byte) == 1 and self.byte.isascii()
                     and self.byte not in known, "one ASCII character that no reply begins with")

    async def strike(self, moment: Moment, pieces: Pieces) -> AsyncGenerator[Piece]:
        """Exchange the first byte."""
        async for _ in pieces.first(1):
            moment.did("unknown-type")
            yield self.byte.encode()
        async for piece in pieces:
            yield piece
