"""Split: a frame comes in pieces, each of which has been read before the next one is sent."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from kvproof.faults.fault import Fault, Moment, is_offset
from kvproof.faults.pieces import Piece, Pieces


@dataclass(frozen=True, slots=True, kw_only=True)
class Split(Fault):
    """Cut the frame before each of the bytes that `at` names, counted from 0; an empty list cuts at every byte.

    The other side gets each piece by itself, however much it asks for: the next one goes out when the kernel says
    that the one before was read. When it is not read for 5 seconds, the rest goes out in one.
    """

    kind: ClassVar[str] = "split"

    at: Sequence[int] = ()

    def __post_init__(self) -> None:
        """Make a tuple of what JSON has as a list."""
        if isinstance(self.at, list):
            object.__setattr__(self, "at", tuple(self.at))
        Fault.__post_init__(self)

    def check(self) -> None:
        """Check the cuts."""
        fits = isinstance(self.at, tuple) and all(is_offset(place) and place > 0 for place in self.at)
        self.require("at", fits and list(self.at) == sorted(set(self.at)),
                     "integers from 1 on, ascending; or none of them: cut at every byte")

    async def strike(self, moment: Moment, pieces: Pieces) -> AsyncGenerator[Piece]:
        """Pass on a piece, and wait until it was read."""
        done, struck, reads, cuts = 0, False, True, iter(self.at)
        while True:
            end = None if not reads else done + 1 if not self.at else next(cuts, None)
            passed = 0
            async for piece in pieces if end is None else pieces.first(end - done):
                if done and not passed:
                    reads = reads and await moment.read()
                    if reads and not struck:
                        moment.did("split")
                        struck = True
                passed += len(piece)
                yield piece
            if end is None or passed < end - done:
                return
            done = end
