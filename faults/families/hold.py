"""Hold: a reply waits in the proxy until something has happened."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kvproof.faults.fault import Fault, Moment, Until


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold(Fault):
    """Hold the reply to the addressed request, from its first byte on, and all that follows it on that connection.

    until: a name, given later to ``release``; ``"request:COMMAND KEY-GLOB"``, the next such request that the proxy
    reads on any connection once the reply is held; or ``"close"``, the client of this connection has closed.
    The hold begins when the reply's first byte has arrived, so a reply that is held is one that the server gave.
    """

    kind: ClassVar[str] = "hold"

    until: str

    def check(self) -> None:
        """Check `until` too."""
        Fault.check(self)
        try:
            fits = isinstance(self.until, str) and Until.parse(self.until) is not None
        except ValueError:
            fits = False
        self.require("until", fits, Until.ALLOWED)

    def names(self) -> tuple[str, ...]:
        """Return the name that ends the hold, if it is one."""
        name = Until.parse(self.until).name
        return (name,) if name is not None else ()

    async def strike(self, moment: Moment) -> None:
        """Hold, then let go."""
        moment.did("held")
        await moment.until(Until.parse(self.until))
        moment.did("released", by=self.until)
