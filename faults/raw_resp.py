"""A raw RESP connection: the second channel, through which the truth is set and read past any connector."""

from __future__ import annotations

import socket
from types import TracebackType

from kvproof.errors import KvproofError
from kvproof.models.resp import Decoder, ErrorReply, Null, SimpleString, Value, encode_command

_LIMIT = 512 * 1024 * 1024


class ReplyError(KvproofError):
    """The server answered with an error reply; the message is the server's own."""


class RawResp:
    """One blocking connection. Every command has the connection's timeout; replies are decoded whole."""

    def __init__(self, connection: socket.socket) -> None:
        """Take over a connected socket."""
        self._socket = connection
        self._decoder = Decoder(limit=_LIMIT)
        self._waiting: list[Value] = []

    @classmethod
    def connect(cls, host: str, port: int, *, password: str | None = None, timeout: float = 5.0) -> RawResp:
        """Connect, and authenticate if there is a password. Raises OSError or ReplyError."""
        raw = cls(socket.create_connection((host, port), timeout=timeout))
        if password is not None:
            try:
                raw.command("AUTH", password)
            except BaseException:
                raw.close()
                raise
        return raw

    def command(self, *words: str | bytes | int) -> Value:
        """Send one command and return its reply; raises ReplyError for an error reply, EOFError when cut off."""
        self._socket.sendall(encode_command(*words))
        return self.receive()

    def receive(self) -> Value:
        """Return the next reply, or what the server says unasked; raises as `command` does."""
        while not self._waiting:
            data = self._socket.recv(1 << 16)
            if not data:
                raise EOFError("the server closed the connection")
            self._waiting += self._decoder.feed(data)
        reply = self._waiting.pop(0)
        if isinstance(reply, ErrorReply):
            raise ReplyError(reply.message)
        return reply

    def get(self, key: str | bytes) -> bytes | None:
        """Return the value of `key`, None when there is none."""
        reply = self.command("GET", key)
        if isinstance(reply, Null):
            return None
        if isinstance(reply, SimpleString):
            # fakeredis answers GET so when the value has no line end in it.
            return reply.text.encode("utf-8", "surrogateescape")
        if not isinstance(reply, bytes):
            raise ReplyError(f"GET was answered with {type(reply).__name__}")
        return reply

    def delete_prefix(self, prefix: str) -> int:
        """Delete every key that begins with `prefix`; return how many there were."""
        found = self.keys(prefix)
        for key in found:
            self.command("DEL", key.encode("utf-8", "surrogateescape"))
        return len(found)

    def keys(self, prefix: str) -> list[str]:
        """Return every key that begins with `prefix`."""
        pattern = "".join(f"\\{letter}" if letter in "*?[]\\^" else letter for letter in prefix) + "*"
        cursor = b"0"
        found: set[bytes] = set()
        while True:
            reply = self.command("SCAN", cursor, "MATCH", pattern, "COUNT", 1000)
            if not (isinstance(reply, tuple) and len(reply) == 2 and isinstance(reply[1], tuple)):
                raise ReplyError(f"SCAN was answered with {reply!r}")
            found.update(key for key in reply[1] if isinstance(key, bytes))
            cursor = reply[0] if isinstance(reply[0], bytes) else b"0"
            if cursor == b"0":
                return sorted(key.decode("utf-8", "surrogateescape") for key in found)

    def info(self, section: str = "server") -> dict[str, str]:
        """Return the fields of one section of INFO."""
        reply = self.command("INFO", section)
        text = reply.decode(errors="replace") if isinstance(reply, bytes) else ""
        return dict(line.split(":", 1) for line in text.splitlines() if ":" in line and not line.startswith("#"))

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def __enter__(self) -> RawResp:
        """Return the connection itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Close the connection."""
        self.close()
