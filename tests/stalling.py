"""What the tests of the reference connector stand on: an instance, a buffer, and a server that answers when told to."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from kvproof.connectors.adapter import Endpoint, Place
from kvproof.connectors.reference import Reference
from kvproof.models.payloads import POISON


@contextmanager
def opened(place: Place, kind: type[Reference] = Reference) -> Iterator[Reference]:
    connector = kind(place)
    try:
        yield connector
    finally:
        connector.close()


class Stall:
    """A server that takes every request and answers when it is told to."""

    def __init__(self, port: int = 0) -> None:
        self._listener = socket.create_server(("127.0.0.1", port))
        self.endpoint = Endpoint("127.0.0.1", self._listener.getsockname()[1])
        self.peers: list[socket.socket] = []

    def accept(self) -> socket.socket:
        self._listener.settimeout(5)
        peer, _ = self._listener.accept()
        peer.settimeout(5)
        self.peers.append(peer)
        return peer

    def close(self) -> None:
        for each in (self._listener, *self.peers):
            each.close()


def poisoned(size: int) -> memoryview:
    return memoryview(bytearray([POISON]) * size)
