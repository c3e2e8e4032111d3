"""Wrong about passwords: a refusal that nobody sees, or a secret that everybody does (auth-fails-loud)."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from kvproof.connectors.adapter import Miss, Outcome, Place, Read
from kvproof.models.resp import ErrorReply
from tests.zoo.connected import Reply
from tests.zoo.connection import Call, Connection, Refused
from tests.zoo.honest import Chunk
from tests.zoo.wrong import Wrong


class DegradesSilently(Wrong):
    """G2: a start that fails leaves a cache that misses for ever, as if that were its way to recompute."""

    rule = "auth-fails-loud"
    breaks = frozenset({"auth-fails-loud"})

    def __init__(self, place: Place) -> None:
        """Begin with hope."""
        self.degraded = False
        super().__init__(place)

    def unopened(self, error: OSError) -> None:
        """Do without the server that does not take the password."""
        if not isinstance(error, Refused):
            super().unopened(error)
        self.degraded = True

    def put(self, chunks: Sequence[Chunk]) -> list[Outcome]:
        """Accept nothing."""
        return [Miss() for _ in chunks] if self.degraded else super().put(chunks)

    def read(self, read: Read, chunks: Sequence[Chunk]) -> list[Outcome]:
        """Find nothing."""
        return [Miss() for _ in chunks] if self.degraded else super().read(read, chunks)


class NoAuthIsMiss(Wrong):
    """G2: a server that wants a password is a cache in which nothing is."""

    rule = "auth-fails-loud"
    breaks = frozenset({"auth-fails-loud"})

    def refused(self, reply: Reply) -> Outcome:
        """Miss."""
        if isinstance(reply, ErrorReply) and reply.message.startswith("NOAUTH"):
            return Miss()
        return super().refused(reply)


class TellsPassword(Wrong):
    """G1: the report of a start that failed says too much: the address, with the password in it."""

    rule = "auth-fails-loud"
    breaks = frozenset({"auth-fails-loud"})

    def unopened(self, error: OSError) -> None:
        """Name the address."""
        endpoint = self.place.endpoint
        address = f"redis://:{endpoint.password or ''}@{endpoint.host}:{endpoint.port}"
        raise ConnectionError(f"{address}: {error}") from None


class LogsPassword(Wrong):
    """G1: the log of a start says too much: each command of it, with its words."""

    rule = "auth-fails-loud"
    breaks = frozenset({"auth-fails-loud"})

    def authenticate(self, connection: Connection, call: Call, password: str) -> None:
        """Log the command."""
        print(f"sending AUTH {password}", file=sys.stderr, flush=True)
        super().authenticate(connection, call, password)
