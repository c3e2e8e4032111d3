"""What a stream is cut into on its way, and the request that a part of it belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvproof.faults.armed import Due
from kvproof.models.resp import Frame


@dataclass(slots=True)
class Segment:
    """A part of one frame: `begins` and `frame`, which ends here, say which part. Raw: the stream is not RESP any more.

    told: `Conduit.begins` was told of it. asked: the request that the frame is, or answers, once that is known. words:
    those of the request so far, where requests are read with care. reason: why the stream is not RESP from here on.
    """

    data: memoryview
    begins: bool = False
    frame: Frame | None = None
    raw: bool = False
    told: bool = False
    asked: Asked | None = None
    words: tuple[bytes, ...] = ()
    reason: str = ""


@dataclass(slots=True)
class Asked:
    """A request whose reply is still owed, with the faults that strike it or its reply.

    by_push: in RESP3 it is answered by a push, unless it fails or is queued.
    """

    command: str = ""
    key: str = ""
    due: Sequence[Due] = ()
    by_push: bool = False

    def struck(self, direction: str) -> list[Due]:
        """Return the faults of one direction."""
        return [due for due in self.due if due.fault.direction == direction]
