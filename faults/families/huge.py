"""Huge: a reply announces more than anybody could hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kvproof.faults.families.replace import Replace
from kvproof.faults.fault import is_count

MOST = 10**40


@dataclass(frozen=True, slots=True, kw_only=True)
class Huge(Replace):
    """Give only a header in place of the reply: of a bulk string of so many bytes, or of so many elements.

    of: the type byte, ``$ ! = * % ~ > |``. announces: the number in the header. What would come after it never does;
    the connection stays open.
    """

    kind: ClassVar[str] = "huge"

    of: str = "$"
    announces: int = 2**40

    def check(self) -> None:
        """Check both."""
        self.require("of", isinstance(self.of, str) and len(self.of) == 1 and self.of in "$!=*%~>|",
                     "one of $ ! = * % ~ > |")
        self.require("announces", is_count(self.announces) and self.announces < MOST,
                     "an integer from 1 on, below 10**40")

    def instead(self) -> bytes:
        """Return the header."""
        return f"{self.of}{self.announces}\r\n".encode()
