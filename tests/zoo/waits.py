"""Wrong about waiting: it never ends (bounded-time), or nothing works any more afterwards (recovers)."""

from __future__ import annotations

import ctypes

from kvproof.connectors.adapter import Place
from kvproof.models.resp import Null
from tests.zoo.connected import LONGEST, PIECE, Reply
from tests.zoo.connection import Call, Connection, Malformed
from tests.zoo.wrong import Wrong

DAY = 86_400.0


class DripsProlong(Wrong):
    """B9: the deadline is that of one step and not of the whole call, so each byte that comes begins it anew."""

    rule = "bounded-time"
    breaks = frozenset({"bounded-time"})

    def more(self, connection: Connection, call: Call) -> None:
        """Wait as long as for the first byte."""
        connection.socket.settimeout(self.place.timeout)
        data = connection.socket.recv(PIECE)
        if not data:
            raise ConnectionResetError("the connection was closed")
        connection.pending += data


class NoDeadlineInside(Wrong):
    """I1: a transfer that has begun has no deadline any more."""

    rule = "bounded-time"
    breaks = frozenset({"bounded-time", "recovers"})

    def exactly(self, connection: Connection, call: Call, size: int) -> bytes:
        """Wait for the payload as long as it takes."""
        call.deadline += DAY
        return super().exactly(connection, call, size)


class ExpiryNeverSet(Wrong):
    """I1: there is a deadline, of six seconds, and nobody sets it where the reply is waited for."""

    rule = "bounded-time"
    breaks = frozenset({"bounded-time", "recovers"})
    deadline = 6.0

    def call(self) -> Call:
        """Declare much, set nothing."""
        call = super().call()
        call.deadline += DAY
        return call


class AllocatesAnnounced(Wrong):
    """B7: an announced length is allocated at once, unchecked; where that much cannot be had the process dies."""

    rule = "bounded-time"
    breaks = frozenset({"bounded-time", "recovers"})

    def bulk(self, connection: Connection, call: Call, size: int, line: bytes) -> bytes | Null:
        """Write to where the allocation should be."""
        if size > LONGEST:
            ctypes.memset(0, 0, 1)
        return super().bulk(connection, call, size, line)


class DeadAfterTimeout(Wrong):
    """B9: after one timeout the request socket is in the wrong phase for ever."""

    rule = "recovers"
    breaks = frozenset({"recovers"})

    def __init__(self, place: Place) -> None:
        """Begin alive."""
        self.dead = False
        super().__init__(place)

    def take(self, call: Call) -> Connection:
        """Refuse once dead."""
        if self.dead:
            raise ConnectionError("not possible in the current state")
        return super().take(call)

    def spoilt(self, connection: Connection, error: OSError) -> None:
        """Die of a timeout."""
        self.dead = self.dead or isinstance(error, TimeoutError)
        super().spoilt(connection, error)


class PoolDrains(Wrong):
    """B2: a connection on which something went wrong is never given back, so that the pool runs empty."""

    rule = "recovers"
    breaks = frozenset({"recovers", "leak-free"})

    def spoilt(self, connection: Connection, error: OSError) -> None:
        """Forget it, but for an orderly end."""
        if self.closed:
            super().spoilt(connection, error)


class BadBytesStay(Wrong):
    """B3: a reply that cannot be parsed is not consumed, so that every later call meets it again."""

    rule = "recovers"
    breaks = frozenset({"recovers"})

    def receive(self, connection: Connection, call: Call) -> Reply:
        """Wind back to where the bad reply begins."""
        try:
            return super().receive(connection, call)
        except Malformed as error:
            connection.pending[:0] = error.line + b"\r\n" if error.line else b""
            raise

    def spoilt(self, connection: Connection, error: OSError) -> None:
        """Go on with the connection after an error of the parser."""
        if not isinstance(error, Malformed) or not error.line:
            super().spoilt(connection, error)
            return
        with self.changed:
            self.idle.append(connection)
            self.changed.notify_all()

    def quiet(self, connection: Connection) -> bool:
        """Not look what else has come."""
        return True
