"""Truncate: the end of a frame is missing, and the connection closes in its place."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import ClassVar

from kvproof.faults.fault import Fault, Moment, is_count
from kvproof.faults.pieces import Piece, Pieces


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncate(Fault):
    """Pass the frame on without its last `missing` bytes, then close the connection in order.

    A frame that is no longer than that is dropped whole. (`Close` counts from the frame's beginning.)
    """

    kind: ClassVar[str] = "truncate"

    missing: int = 1

    def check(self) -> None:
        """Check the number."""
        self.require("missing", is_count(self.missing), "an integer from 1 on: bytes at the end of the frame")

    async def strike(self, moment: Moment, pieces: Pieces) -> AsyncGenerator[Piece]:
        """Keep so many bytes back, always."""
        kept: deque[bytes] = deque()
        size = 0
        async for piece in pieces:
            kept.append(bytes(piece))
            size += len(piece)
            while size - len(kept[0]) >= self.missing:
                size -= len(kept[0])
                yield kept.popleft()
        rest = b"".join(kept)
        if len(rest) > self.missing:
            yield rest[: -self.missing]
        moment.did("truncated")
        await moment.end()
