"""What the zoo's connectors keep of a connection and of a call."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass, field


class Malformed(OSError):
    """What came is no reply that was asked for; `line` is the header at which that was seen."""

    def __init__(self, text: str, line: bytes = b"") -> None:
        """Say what is wrong with it."""
        super().__init__(text)
        self.line = line


class Refused(OSError):
    """The server does not take the password."""


@dataclass(eq=False)
class Connection:
    """A socket, the bytes that came on it and are not read yet, and how many replies it owes."""

    socket: socket.socket = field(default_factory=socket.socket)
    pending: bytearray = field(default_factory=bytearray)
    owed: int = 0


@dataclass(eq=False)
class Call:
    """An operation: by when it has to end, on which connection it is, and whether it was given up."""

    deadline: float
    connection: Connection | None = None
    cancelled: bool = False

    def left(self) -> float:
        """Return how many seconds are left; raises TimeoutError when there are none."""
        seconds = self.deadline - time.monotonic()
        if seconds <= 0:
            raise TimeoutError("timed out")
        return seconds
