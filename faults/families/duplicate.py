"""Duplicate: a reply comes twice."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import ClassVar

from kvproof.faults.fault import Fault, Moment
from kvproof.faults.pieces import Piece, Pieces


@dataclass(frozen=True, slots=True, kw_only=True)
class Duplicate(Fault):
    """Give the reply twice; whoever asks next gets the second one."""

    kind: ClassVar[str] = "duplicate"
    directions: ClassVar[tuple[str, ...]] = ("reply",)

    async def strike(self, moment: Moment, pieces: Pieces) -> AsyncGenerator[Piece]:
        """Keep the reply, and give it again."""
        whole = await pieces.whole()
        moment.did("duplicated")
        yield whole + whole
