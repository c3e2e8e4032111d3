"""One disturbance of a server: what every one offers, where it can be done, and what it reports.

Each is data until it strikes, and strikes at a place in code, never at a time:

    with Paused("WRITE").on(server) as report:
        ...                                 # the server is disturbed
                                            # and is not any more

One that leaves nothing to be undone (keys that are gone, connections that are closed) has struck for good once its
context is entered; `strike` enters and leaves.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import ClassVar

from kvproof.errors import DeadlineExceeded, KvproofError, ServerFailed, UsageError
from kvproof.faults.raw_resp import RawResp, ReplyError
from kvproof.faults.servers import Server
from kvproof.models.resp import Value

DEADLINE = 10.0
"""Seconds within which a server does what a fault asks of it."""


class Unsupported(KvproofError):
    """This server cannot be disturbed so. The message says why, and what to use instead."""


@dataclass
class Report:
    """What a fault has done so far.

    did: in words, one line each, in order; empty while nothing was done. missed: the same for what could not be done,
    because the key or connection was not there. count: how many keys or connections are gone.
    """

    fault: str
    did: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    count: int = 0

    @property
    def struck(self) -> bool:
        """Whether anything was done; whether a client felt it is seen on the client."""
        return bool(self.did)


class ServerFault:
    """One disturbance of one server."""

    kind: ClassVar[str]
    servers: ClassVar[frozenset[str]] = frozenset({"valkey"})
    """The kinds of server on which it can be done."""
    elsewhere: ClassVar[str] = ""
    """What fakeredis does instead, where it is not among them."""

    def on(self, server: Server) -> AbstractContextManager[Report]:
        """Strike, yield what was done, and undo at the end what can be undone.

        Raises Unsupported before anything is done, ServerFailed when the server does not do it, and DeadlineExceeded.
        """
        raise NotImplementedError

    def strike(self, server: Server) -> Report:
        """Strike, undo at once what can be undone, and return what was done."""
        with self.on(server) as report:
            return report

    def begin(self, server: Server) -> Report:
        """Return an empty report; raises Unsupported where this fault cannot be done, or UsageError."""
        if server.kind not in self.servers:
            why = ("it is your own, which kvproof does not disturb" if server.kind == "own" else
                   self.elsewhere or "it cannot do that")
            raise Unsupported(f"{self.kind} is unsupported on {server.description or server.kind}: {why}; "
                              f"use --server {' or '.join(sorted(self.servers))}")
        if not running(server):
            raise UsageError(f"{self.kind}: the server on port {server.port} is not running; start it first")
        return Report(self.kind)


def running(server: Server) -> bool:
    """Whether the server is a process of ours that has not ended; where it has, there is nothing to be undone."""
    return server.process is not None and server.process.alive


@contextmanager
def in_words(server: Server) -> Iterator[None]:
    """Raise what fails when speaking to the server as ServerFailed or DeadlineExceeded."""
    try:
        yield
    except TimeoutError:
        raise DeadlineExceeded(f"the server on port {server.port} did not answer in time") from None
    except (OSError, EOFError, ReplyError) as error:
        raise ServerFailed(f"the server on port {server.port} did not do what a fault asks for: {error}") from error


@contextmanager
def second_channel(server: Server, timeout: float | None = None) -> Iterator[RawResp]:
    """Connect past any client; raises what `in_words` does. Not to be held while somebody else's code runs."""
    with in_words(server), server.connect(DEADLINE if timeout is None else timeout) as raw:
        yield raw


def wait_until(done: Callable[[], bool], what: str) -> None:
    """Return once `done`; raises DeadlineExceeded, which says `what` was waited for."""
    until = time.monotonic() + DEADLINE
    while not done():
        if time.monotonic() > until:
            raise DeadlineExceeded(f"waited {DEADLINE:g} s until {what}")
        time.sleep(0.001)


def number(reply: Value) -> int:
    """Return a reply that is a number."""
    if isinstance(reply, int):
        return reply
    raise ServerFailed(f"expected a number, the server answered {reply!r}")


def configure(raw: RawResp, settings: dict[str, str]) -> None:
    """Change settings, all of them or none."""
    raw.command("CONFIG", "SET", *(word for setting in settings.items() for word in setting))


def setting(raw: RawResp, name: str) -> str:
    """Return the value of a setting."""
    reply = raw.command("CONFIG", "GET", name)
    if isinstance(reply, tuple) and len(reply) == 2 and isinstance(reply[1], bytes):
        return reply[1].decode(errors="surrogateescape")
    raise ServerFailed(f"CONFIG GET {name} was answered with {reply!r}")
