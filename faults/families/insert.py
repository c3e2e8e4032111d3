"""Insert: a push, or an attribute, comes before a reply."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import ClassVar

from kvproof.faults.fault import Fault, Moment
from kvproof.faults.pieces import Piece, Pieces

FRAMES = {
    "push": b">2\r\n$10\r\ninvalidate\r\n*1\r\n$7\r\nkvproof\r\n",
    "attribute": b"|1\r\n$3\r\nttl\r\n:3600\r\n",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Insert(Fault):
    """Give a push (an invalidation of the key "kvproof") or an attribute (ttl 3600) right before the reply.

    Both are RESP3: a client that speaks RESP2 has no way to know them.
    """

    kind: ClassVar[str] = "insert"
    directions: ClassVar[tuple[str, ...]] = ("reply",)

    frame: str = "push"

    def check(self) -> None:
        """Check the frame."""
        self.require("frame", isinstance(self.frame, str) and self.frame in FRAMES, ", ".join(FRAMES))

    async def strike(self, moment: Moment, pieces: Pieces) -> AsyncGenerator[Piece]:
        """Insert, then go on."""
        moment.did(f"{self.frame} inserted")
        yield FRAMES[self.frame]
        async for piece in pieces:
            yield piece
