"""What the tests of the proxy speak with: clients without manners of their own, and a server that is scripted."""

from __future__ import annotations

import select
import socket
from pathlib import Path

import redis

from kvproof.faults.endpoint import Mark, Proxy
from kvproof.faults.wire import WireEvent
from kvproof.models.payloads import encode

CHUNK = 12_400_000
PONG = b"+PONG\r\n"
SIZE = 1000
V = encode("k", 1, SIZE)
"""What is stored under k where a test speaks of it, and the reply to its GET."""
REPLY = b"$1000\r\n" + V + b"\r\n"
FELT = Mark(struck=True, felt=True)
ROOT = Path(__file__).resolve().parent.parent


def client(endpoint: Proxy) -> redis.Redis:
    """Return a client whose only frames are the caller's."""
    return redis.Redis(endpoint.host, endpoint.port, protocol=2, driver_info=None, socket_timeout=10)


def bare(endpoint: Proxy) -> socket.socket:
    return socket.create_connection((endpoint.host, endpoint.port), timeout=10)


def read(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = connection.recv(size - len(data))
        assert part, f"expected {size} bytes, the connection ended after {len(data)}: {bytes(data[:64])!r}"
        data += part
    return bytes(data)


def silent(connection: socket.socket) -> bool:
    return not select.select([connection], [], [], 0)[0]


def told(events: list[WireEvent]) -> list[str]:
    return [str(event) for event in events]


def scripted() -> socket.socket:
    """Return a listener in a server's place, whose every byte the test sends itself."""
    return socket.create_server(("127.0.0.1", 0))


def take(connection: socket.socket, size: int) -> tuple[bytes, str]:
    """Receive `size` bytes, or up to the end; say how that was."""
    got = b""
    try:
        while len(got) < size:
            piece = connection.recv(size - len(got))
            if not piece:
                return got, "closed"
            got += piece
    except ConnectionResetError:
        return got, "reset"
    return got, "open"
