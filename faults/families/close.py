"""Close: the connection is closed in order before, inside or after a frame."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kvproof.faults.families.ending import Ending
from kvproof.faults.fault import Moment


@dataclass(frozen=True, slots=True, kw_only=True)
class Close(Ending):
    """Close the connection in order to both sides once `after` bytes of the frame have passed.

    after: 0 for before the frame, None for after it; a frame that is shorter passes whole.
    """

    kind: ClassVar[str] = "close"

    async def end(self, moment: Moment) -> None:
        """Close it."""
        moment.did("closed")
        await moment.end()
