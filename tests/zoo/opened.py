"""A connector of the zoo behind a proxy, and what a test asks of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kvproof import faults
from kvproof.connectors.adapter import Cancelled, Endpoint, Hit, Outcome, Place, Read
from kvproof.faults.endpoint import Proxy
from kvproof.faults.fault import Fault
from kvproof.faults.servers import Server
from kvproof.models.payloads import POISON, encode
from tests.zoo.honest import ASYNC_GET, GET, Chunk, Honest

SIZE = 4096
POISONED = bytes([POISON]) * SIZE


@contextmanager
def opened(
    server: Server, *schedule: Fault, kind: type[Honest] = Honest, password: str | None = None, size: int = SIZE,
    timeout: float = 0.4, **place: Any,
) -> Iterator[tuple[Honest, Proxy]]:
    """Open a connector behind a proxy with this schedule."""
    with faults.proxy(server.address, schedule) as proxy:
        endpoint = Endpoint(proxy.host, proxy.port, password)
        connector = kind(Place(endpoint, size, timeout=timeout, **{"world_size": 2, **place}))
        try:
            yield connector, proxy
        finally:
            connector.close()


def stored(connector: Honest, *names: str, version: int = 1) -> list[Outcome]:
    """Put chunks."""
    place = connector.place
    return connector.put(
        [(place.key(name), memoryview(bytearray(encode(name, version, place.chunk_bytes)))) for name in names])


def poisoned(connector: Honest, *names: str, size: int = SIZE) -> list[Chunk]:
    """Return keys with poisoned buffers."""
    return [(connector.place.key(name), memoryview(bytearray([POISON]) * size)) for name in names]


def got(connector: Honest, *names: str, how: Read = GET) -> list[tuple[Outcome, bytes]]:
    """Read, and return each outcome with what the buffer holds."""
    chunks = poisoned(connector, *names, size=connector.place.chunk_bytes if how.payload else 0)
    outcomes = connector.read(how, chunks)
    return [(outcome, bytes(buffer)) for outcome, (_, buffer) in zip(outcomes, chunks, strict=True)]


def value(name: str, version: int = 1) -> tuple[Outcome, bytes]:
    """Return a hit and what it fills."""
    return Hit(), encode(name, version, SIZE)


def cancelled(connector: Honest, endpoint: Proxy, held: int = 1) -> tuple[Cancelled | list[Outcome], Chunk]:
    """Cancel an asynchronous read of aa whose reply is number `held` of those that the proxy holds."""
    chunks = poisoned(connector, "aa")

    def when() -> None:
        endpoint.wait("held", held)

    return connector.cancel_read(ASYNC_GET, chunks, when), chunks[0]
