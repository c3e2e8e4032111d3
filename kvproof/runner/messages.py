"""Messages between the suite and a runner: length-prefixed JSON, so that nothing a runner sends is ever executed."""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

_LENGTH = struct.Struct("!I")
LIMIT = 64 * 1024 * 1024
"""Bytes in one message at most."""


def send(channel: socket.socket, message: dict[str, Any]) -> None:
    """Send one message; raises OSError when the other side is gone."""
    data = json.dumps(message).encode()
    channel.sendall(_LENGTH.pack(len(data)) + data)


class Reader:
    """Puts messages together from whatever pieces arrive."""

    def __init__(self, channel: socket.socket) -> None:
        """Read from `channel`, which the caller has seen to be readable."""
        self._channel = channel
        self._buffer = bytearray()
        self.closed = False

    def receive(self) -> None:
        """Take in what has arrived; sets `closed` at the end of the stream."""
        try:
            data = self._channel.recv(1 << 16)
        except (ConnectionResetError, BlockingIOError) as error:
            self.closed = isinstance(error, ConnectionResetError)
            return
        self.closed = not data
        self._buffer += data

    def next(self) -> dict[str, Any] | None:
        """Return the next whole message, or None; raises ValueError for bytes that are no message."""
        if len(self._buffer) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._buffer)
        if length > LIMIT:
            raise ValueError(f"a message of {length} bytes; at most {LIMIT} are allowed")
        end = _LENGTH.size + length
        if len(self._buffer) < end:
            return None
        message = json.loads(self._buffer[_LENGTH.size : end])
        del self._buffer[:end]
        if not isinstance(message, dict):
            raise ValueError(f"a message that is no object: {message!r}")
        return message

    def wait(self) -> dict[str, Any] | None:
        """Block until the next message; None at the end of the stream."""
        while (message := self.next()) is None:
            self.receive()
            if self.closed:
                return None
        return message
