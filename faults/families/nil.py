"""Nil: a key that is there is not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kvproof.faults.families.replace import Replace

NULLS = {"$": b"$-1\r\n", "*": b"*-1\r\n", "_": b"_\r\n"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Nil(Replace):
    """Give a null in place of the reply: ``$`` the null bulk string, ``*`` the null array, ``_`` the null of RESP3.

    With ``reply: "null"`` as the address, one null takes the place of another.
    """

    kind: ClassVar[str] = "nil"

    null: str = "$"

    def check(self) -> None:
        """Check the null."""
        self.require("null", isinstance(self.null, str) and self.null in NULLS, '"$", "*" or "_"')

    def instead(self) -> bytes:
        """Return the null."""
        return NULLS[self.null]
