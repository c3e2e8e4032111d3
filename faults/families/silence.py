"""Silence: the connection stays open, and nothing is ever said on it again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kvproof.faults.families.quiet import Quiet
from kvproof.faults.fault import Moment


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence(Quiet):
    """From byte `at` of the frame on nothing more goes that way on this connection, until the client closes.

    The other direction goes on: requests reach the server while its replies are silenced. At the accepting of a
    connection: it is accepted, and nobody ever answers, nor reaches the server.
    """

    kind: ClassVar[str] = "silence"
    accepts: ClassVar[bool] = True

    async def fall(self, moment: Moment) -> None:
        """Wait until the client has gone."""
        moment.did("silenced")
        await moment.gone()
        await moment.end()
