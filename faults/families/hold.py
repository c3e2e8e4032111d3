"""Hold: a frame waits in the proxy until something has happened."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import ClassVar

from kvproof.faults.fault import BEFORE, Fault, Moment, Until, is_offset
from kvproof.faults.pieces import Piece, Pieces


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold(Fault):
    """Hold the frame from its byte `at` on, and all that follows it on that connection.

    until: a name, given later to ``release``; ``"request:COMMAND KEY-GLOB"``, the next such request that the proxy
    reads on any connection once the frame is held; or ``"close"``, the client of this connection has closed.
    The hold begins when the frame's first byte has arrived, so a reply that is held is one that the server gave.
    """

    kind: ClassVar[str] = "hold"
    accepts: ClassVar[bool] = True

    until: str
    at: int = 0

    def check(self) -> None:
        """Check `until`."""
        try:
            fits = isinstance(self.until, str) and Until.parse(self.until) is not None
        except ValueError:
            fits = False
        self.require("until", fits, Until.ALLOWED)
        self.require("at", is_offset(self.at), BEFORE)

    def names(self) -> tuple[str, ...]:
        """Return the name that ends the hold, if it is one."""
        name = Until.parse(self.until).name
        return (name,) if name is not None else ()

    async def strike(self, moment: Moment, pieces: Pieces) -> AsyncGenerator[Piece]:
        """Hold, then let go."""
        async for piece in pieces.first(self.at):
            yield piece
        if self.at and not await pieces.more():
            return
        moment.did("held")
        await moment.until(Until.parse(self.until))
        moment.did("released", by=self.until)
        async for piece in pieces:
            yield piece
