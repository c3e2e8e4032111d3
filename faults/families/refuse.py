"""Refuse: nobody listens at the endpoint's port."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kvproof.faults.fault import ACCEPT, Fault, Until


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse(Fault):
    """From the connection `match` on the port is closed, until it is released: connecting is refused by the kernel.

    With ``match: 1`` it is closed from the beginning. until: a name, given to ``release``. The address is that of the
    accepting of a connection; `key`, `times` and `connection` mean nothing here.
    """

    kind: ClassVar[str] = "refuse"
    directions: ClassVar[tuple[str, ...]] = ("reply",)
    accepts: ClassVar[bool] = True
    listens: ClassVar[bool] = True

    command: str = ACCEPT
    until: str = "listen"

    def check(self) -> None:
        """Check the name."""
        self.require("command", self.command == ACCEPT, f'"{ACCEPT}"')
        self.require("times", self.times == 1, "1")
        self.require("connection", self.connection is None, "null")
        self.require("reply", self.reply is None, "null")
        try:
            fits = Until.parse(self.until).name is not None
        except (ValueError, TypeError, AttributeError):
            fits = False
        self.require("until", fits, "a name (letters, digits, - and _) to be released")

    def names(self) -> tuple[str, ...]:
        """Return the name that opens the port again."""
        return (self.until,)
