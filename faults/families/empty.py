"""Empty: a value without bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kvproof.faults.families.replace import Replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Empty(Replace):
    """Give the empty bulk string in place of the reply: a value of no bytes, which is not the same as no value."""

    kind: ClassVar[str] = "empty"

    def instead(self) -> bytes:
        """Return the empty bulk string."""
        return b"$0\r\n\r\n"
