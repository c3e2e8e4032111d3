"""Connections that suffer: the password is another one, they are closed, or their commands wait."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import ClassVar, Literal, get_args

from kvproof.errors import UsageError
from kvproof.faults.raw_resp import RawResp
from kvproof.faults.server_fault import (
    DEADLINE,
    Report,
    ServerFault,
    configure,
    in_words,
    number,
    running,
    second_channel,
)
from kvproof.faults.servers import Server
from kvproof.models.resp import SimpleString


@dataclass(frozen=True)
class PasswordChanged(ServerFault):
    """The server's password is another one, by CONFIG SET requirepass.

    A connection that was authenticated stays so in Valkey, so the change alone is felt only by the next connection;
    with `kick` those that there are get closed as well. While it lasts, `server.password` is the new one.
    """

    kind: ClassVar[str] = "password-changed"
    elsewhere: ClassVar[str] = "it answers OK to CONFIG SET requirepass and has no passwords"

    password: str = field(default="kvproof-another", repr=False)
    kick: bool = False

    def __post_init__(self) -> None:
        """Raise UsageError for a password that means none."""
        if not self.password:
            raise UsageError("password-changed: an empty password means that everybody may connect; give another one")

    @contextmanager
    def on(self, server: Server) -> Iterator[Report]:
        """Strike; put the old password back at the end, where an authenticated connection again stays so."""
        report = self.begin(server)
        old = server.password
        if old == self.password:
            raise UsageError("password-changed: this is the password that the server has; give another one")
        self._change(server, self.password)
        report.did.append("changed the password")
        try:
            if self.kick:
                kicked = Kicked().strike(server)
                report.count = kicked.count
                report.did += kicked.did
            yield report
        finally:
            if running(server):
                self._change(server, old)
            server.password = old

    @staticmethod
    def _change(server: Server, password: str | None) -> None:
        with second_channel(server) as raw:
            configure(raw, {"requirepass": password or ""})
        server.password = password


@dataclass(frozen=True)
class ConnectedClient:
    """A connection as the server lists it. address: the client's own, "127.0.0.1:41234"."""

    id: int
    address: str
    name: str


def clients(raw: RawResp, kind: str = "normal") -> list[ConnectedClient]:
    """Return the connections of a type ("normal", "pubsub", "replica"), oldest first, with that of `raw` itself."""
    reply = raw.command("CLIENT", "LIST", "TYPE", kind)
    text = reply.decode(errors="replace") if isinstance(reply, bytes) else ""
    found = [dict(word.partition("=")[::2] for word in line.split()) for line in text.splitlines() if line]
    listed = [ConnectedClient(int(each["id"]), each["addr"], each.get("name", "")) for each in found]
    return sorted(listed, key=lambda client: client.id)


_TYPES = Literal["normal", "pubsub", "replica"]


@dataclass(frozen=True)
class Kicked(ServerFault):
    """Connections are closed by CLIENT KILL: all of a type, or those of the `ids`.

    spare: second channels of the caller's that stay; the fault's own always does.
    """

    kind: ClassVar[str] = "kicked"
    elsewhere: ClassVar[str] = "it answers CLIENT KILL with 0 and closes nothing"

    ids: tuple[int, ...] = ()
    type: _TYPES = "normal"
    spare: tuple[RawResp, ...] = ()

    def __post_init__(self) -> None:
        """Refuse a type that there is not."""
        if self.type not in get_args(_TYPES):
            raise UsageError(f"kicked, type: got {self.type!r}; expected {' or '.join(get_args(_TYPES))}")

    @contextmanager
    def on(self, server: Server) -> Iterator[Report]:
        """Strike for good; an id that is not connected is said in the report."""
        report = self.begin(server)
        kept = {number(raw.command("CLIENT", "ID")) for raw in self.spare}
        with second_channel(server) as raw:
            kept.add(number(raw.command("CLIENT", "ID")))
            listed = {client.id: client for client in clients(raw, self.type)} if not self.ids else {}
            for identity in self.ids or listed:
                if identity in kept:
                    continue
                killed = raw.command("CLIENT", "KILL", "ID", identity) == 1
                report.count += killed
                of = f" of {listed[identity].address}" if identity in listed else ""
                if killed:
                    report.did.append(f"closed connection {identity}{of}")
                else:
                    report.missed.append(f"connection {identity} was not there")
        yield report


@dataclass(frozen=True)
class Paused(ServerFault):
    """Commands wait, by CLIENT PAUSE: "ALL" of them, or those that "WRITE".

    at_most: seconds after which Valkey ends the pause by itself, whatever becomes of us.
    """

    kind: ClassVar[str] = "paused"
    elsewhere: ClassVar[str] = "it answers OK to CLIENT PAUSE and pauses nothing"

    mode: Literal["ALL", "WRITE"] = "ALL"
    at_most: float = 5.0

    def __post_init__(self) -> None:
        """Raise UsageError for what Valkey does not know."""
        if self.mode not in ("ALL", "WRITE"):
            raise UsageError(f"paused: got {self.mode!r}; allowed: 'ALL' and 'WRITE'")
        if not 0 < self.at_most <= 60:
            raise UsageError(f"paused: got at most {self.at_most} s; allowed: more than 0 and up to 60")

    @contextmanager
    def on(self, server: Server) -> Iterator[Report]:
        """Strike; end the pause at the end, unless it has ended by itself or its server has."""
        report = self.begin(server)
        with in_words(server):
            raw = server.connect(DEADLINE)
        with raw:
            with in_words(server):
                # CLIENT UNPAUSE waits for the end of a pause of ALL like any other command, unless it comes on one of
                # the connections that are never paused, such as one that monitors.
                if self.mode == "ALL":
                    raw.command("MONITOR")
                _past_monitored(raw, "CLIENT", "PAUSE", int(1000 * self.at_most), self.mode)
            report.did.append(f"paused {self.mode} for {self.at_most:g} s at most")
            try:
                yield report
            finally:
                self._end(server, raw)

    def _end(self, server: Server, raw: RawResp) -> None:
        with suppress(OSError, EOFError):
            _past_monitored(raw, "CLIENT", "UNPAUSE")
            return
        # Our connection was closed, perhaps by another fault; this one may have to wait, but not beyond `at_most`.
        if running(server):
            with second_channel(server, self.at_most + DEADLINE) as another:
                another.command("CLIENT", "UNPAUSE")


def _past_monitored(raw: RawResp, *words: str | int) -> None:
    reply = raw.command(*words)
    while isinstance(reply, SimpleString) and reply.text != "OK":
        reply = raw.receive()
