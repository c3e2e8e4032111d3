"""Half-open: the other end is gone, and nothing tells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kvproof.faults.families.quiet import Quiet
from kvproof.faults.fault import Moment


@dataclass(frozen=True, slots=True, kw_only=True)
class HalfOpen(Quiet):
    """From byte `at` of the frame on nothing passes on this connection, either way, also not that a side closes.

    So it looks to both sides as after a power cut or a lost network: what the client sends is taken, and is lost.
    """

    kind: ClassVar[str] = "half-open"

    async def fall(self, moment: Moment) -> None:
        """Swallow the rest."""
        moment.did("half-open")
        await moment.swallow()
