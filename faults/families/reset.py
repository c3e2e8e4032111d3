"""Reset: the connection is reset before, inside or after a frame."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kvproof.faults.families.ending import Ending
from kvproof.faults.fault import Moment


@dataclass(frozen=True, slots=True, kw_only=True)
class Reset(Ending):
    """Reset the connection to both sides once `after` bytes of the frame have passed.

    after: 0 for before the frame, None for after it; a frame that is shorter passes whole.
    """

    kind: ClassVar[str] = "reset"

    async def end(self, moment: Moment) -> None:
        """Reset it once the other side has read what was passed on, since a reset throws away what it has not."""
        await moment.read()
        moment.did("reset")
        await moment.end(reset=True)
