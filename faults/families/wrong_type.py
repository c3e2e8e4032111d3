"""Wrong type: a reply of a kind that the command does not have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kvproof.faults.families.replace import Replace

REPLIES: dict[str, bytes] = {
    "simple-string": b"+OK\r\n",
    "integer": b":1\r\n",
    "bulk": b"$2\r\nOK\r\n",
    "array": b"*2\r\n$1\r\na\r\n$1\r\nb\r\n",
    "map": b"%1\r\n$1\r\na\r\n$1\r\nb\r\n",
    "set": b"~1\r\n$1\r\na\r\n",
    "boolean": b"#t\r\n",
    "double": b",1.5\r\n",
    "big-number": b"(12345678901234567890\r\n",
    "verbatim": b"=6\r\ntxt:ok\r\n",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WrongType(Replace):
    """Give a small reply of the kind `gives` in place of the right one."""

    kind: ClassVar[str] = "wrong-type"

    gives: str = "integer"

    def check(self) -> None:
        """Check the kind."""
        self.require("gives", isinstance(self.gives, str) and self.gives in REPLIES, ", ".join(REPLIES))

    def instead(self) -> bytes:
        """Return the reply."""
        return REPLIES[self.gives]
