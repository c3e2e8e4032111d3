"""What three clients feel of a disturbed server, in one word each: redis-py, valkey-py and a bare socket."""

from __future__ import annotations

import socket
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import redis
import valkey

from kvproof.faults.raw_resp import ReplyError
from kvproof.faults.servers import Server
from kvproof.models.resp import encode_command

CLIENTS = ("redis-py", "valkey-py", "bare")
PATIENCE = 10.0
"""Seconds after which a client that gets no answer gives up."""
IMPATIENCE = 0.3
"""The same for one that is to get none."""


class Felt:
    """A client with one connection that neither retries nor hides anything.

    `get` and `set` return "hit", "nil", "ok", "refused", "cut off", "no answer", or the first word of an error reply.
    """

    kinds: ClassVar[dict[str, Callable[[Server, str | None, float], Any]]]

    def __init__(self, kind: str, server: Server, password: str | None = None, patience: float = PATIENCE) -> None:
        """Connect at the first command."""
        self._made: Any = None
        self._make = partial(self.kinds[kind], server, password, patience)

    @property
    def client(self) -> Any:
        """The client itself; redis-py and valkey-py connect when they are made."""
        if self._made is None:
            self._made = self._make()
        return self._made

    def get(self, key: str) -> str:
        return self._feel(lambda: "hit" if self.client.get(key) is not None else "nil")

    def set(self, key: str, value: bytes) -> str:
        return self._feel(lambda: "ok" if self.client.set(key, value) else "not stored")

    def close(self) -> None:
        if self._made is not None:
            self._made.close()

    def __enter__(self) -> Felt:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @staticmethod
    def _feel(call: Callable[[], str]) -> str:
        try:
            return call()
        except Exception as error:
            name, text = type(error).__name__, str(error)
            if isinstance(error, TimeoutError) or name == "TimeoutError":
                return "no answer"
            if "refused" in text:
                return "refused"
            if name == "OutOfMemoryError":
                return "OOM"
            for word in ("NOAUTH", "WRONGPASS", "OOM"):
                if word in text:
                    return word
            if "invalid username-password pair" in text:
                return "WRONGPASS"
            if "Authentication required" in text:
                return "NOAUTH"
            if isinstance(error, (OSError, EOFError)) or name == "ConnectionError":
                return "cut off"
            raise


class Bare:
    """A socket and two commands."""

    def __init__(self, server: Server, password: str | None, patience: float) -> None:
        self.server, self.password, self.patience = server, password, patience
        self.socket: socket.socket | None = None

    def get(self, key: str) -> bytes | None:
        reply = self.ask("GET", key)
        return None if reply.startswith(b"$-1") else reply

    def set(self, key: str, value: bytes) -> bool:
        return self.ask("SET", key, value) == b"+OK\r\n"

    def ask(self, *words: str | bytes) -> bytes:
        if self.socket is None:
            self.socket = socket.create_connection(self.server.address, timeout=self.patience)
            if self.password is not None:
                self.ask("AUTH", self.password)
        try:
            self.socket.sendall(encode_command(*words))
            reply = self.socket.recv(4096)
            if not reply:
                raise EOFError("the server closed the connection")
        except (OSError, EOFError):
            self.close()
            raise
        if reply.startswith(b"-"):
            raise ReplyError(reply.decode())
        return reply

    def close(self) -> None:
        if self.socket is not None:
            self.socket.close()
            self.socket = None


def _redis(server: Server, password: str | None, patience: float) -> Any:
    retry = redis.retry.Retry(redis.backoff.NoBackoff(), 0)
    return redis.Redis(server.host, server.port, password=password, protocol=2, driver_info=None, retry=retry,
                       socket_timeout=patience, single_connection_client=True)


def _valkey(server: Server, password: str | None, patience: float) -> Any:
    return valkey.Valkey(server.host, server.port, password=password, socket_timeout=patience,
                         single_connection_client=True)


Felt.kinds = {"redis-py": _redis, "valkey-py": _valkey, "bare": Bare}


def present(server: Server, *keys: str) -> set[str]:
    with server.connect() as raw:
        return {key for key in keys if raw.get(key) is not None}


def fill(server: Server, *keys: str, size: int = 1) -> None:
    with server.connect() as raw:
        raw.command("FLUSHALL")
        for key in keys:
            raw.command("SET", key, b"v" * size)
