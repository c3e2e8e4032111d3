"""The connections of the zoo's honest connector: a small pool, and one reply for each command."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress

from kvproof.connectors.adapter import Adapter, Place
from kvproof.models.resp import ErrorReply, Null, SimpleString, encode_command
from tests.zoo.connection import Call, Connection, Malformed, Refused

Command = tuple[bytes, ...]
Reply = SimpleString | ErrorReply | int | bytes | Null

LONGEST = 64 << 20
"""Bytes in a value, at most; one that is announced longer is not waited for."""
PIECE = 1 << 20
LINE = 64 << 10


class Connected(Adapter):
    """Holds at most `place.connections` connections; one that owes a reply is never used again.

    `changed` guards all that threads share, the closing of sockets included: a socket that is shut by another thread
    must not have become somebody else's.
    """

    def __init__(self, place: Place) -> None:
        """Begin without a connection."""
        super().__init__(place)
        self.changed = threading.Condition()
        self.closed = False
        self.connections: set[Connection] = set()
        self.idle: list[Connection] = []

    def take(self, call: Call) -> Connection:
        """Return a connection that nobody else uses, opened if need be."""
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self.closed or call.cancelled or self.free(), call.left())
                if self.closed or call.cancelled:
                    raise ConnectionAbortedError("given up")
                if not self.free():
                    raise TimeoutError("no connection was free in time")
                fresh = not self.idle
                connection = Connection() if fresh else self.idle.pop()
                self.connections.add(connection)
                call.connection = connection
            if fresh:
                return self.connected(connection, call)
            if self.quiet(connection):
                return connection
            self.drop(connection)

    def free(self) -> bool:
        """Whether there is an idle connection, or room for one more."""
        return bool(self.idle) or len(self.connections) < self.place.connections

    def quiet(self, connection: Connection) -> bool:
        """Whether nothing has come on an idle connection, neither its end nor a reply that nobody asked for."""
        connection.socket.settimeout(0)
        try:
            connection.socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False

    def connected(self, connection: Connection, call: Call) -> Connection:
        """Connect, and say the password."""
        endpoint = self.place.endpoint
        try:
            connection.socket.settimeout(call.left())
            connection.socket.connect((endpoint.host, endpoint.port))
            connection.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if endpoint.password is not None:
                self.authenticate(connection, call, endpoint.password)
        except BaseException:
            self.drop(connection)
            raise
        return connection

    def authenticate(self, connection: Connection, call: Call, password: str) -> None:
        """Say the password; raises Refused with the error's code alone, for servers repeat what they were told."""
        self.send(connection, call, [(b"AUTH", password.encode())])
        reply = self.receive(connection, call)
        if reply != SimpleString("OK"):
            raise Refused(reply.message.partition(" ")[0] if isinstance(reply, ErrorReply) else "AUTH was not accepted")

    def release(self, connection: Connection) -> None:
        """Let others use a connection, unless something is still to come on it."""
        with self.changed:
            if self.closed or connection.owed or connection.pending:
                self.drop(connection)
            else:
                self.idle.append(connection)
                self.changed.notify_all()

    def spoilt(self, connection: Connection, error: OSError) -> None:
        """Let go of a connection on which something went wrong."""
        self.drop(connection)

    def drop(self, connection: Connection) -> None:
        """Close a connection."""
        with self.changed:
            self.connections.discard(connection)
            self.discard(connection)
            self.changed.notify_all()

    def discard(self, connection: Connection) -> None:
        """Close the socket."""
        connection.socket.close()

    def shut(self, connection: Connection) -> None:
        """End a connection that another thread uses, which sees that and closes it."""
        with suppress(OSError):
            connection.socket.shutdown(socket.SHUT_RDWR)

    def send(self, connection: Connection, call: Call, commands: Sequence[Command]) -> None:
        """Send all commands."""
        connection.owed += len(commands)
        connection.socket.settimeout(call.left())
        connection.socket.sendall(b"".join(encode_command(*command) for command in commands))

    def receive(self, connection: Connection, call: Call) -> Reply:
        """Return the next reply."""
        reply = self.decoded(connection, call, self.line(connection, call))
        connection.owed -= 1
        return reply

    def decoded(self, connection: Connection, call: Call, line: bytes) -> Reply:
        """Return the reply with this header."""
        kind, rest = line[:1], line[1:]
        if kind == b"+":
            return SimpleString(rest.decode(errors="surrogateescape"))
        if kind == b"-":
            return ErrorReply(rest.decode(errors="replace"))
        if kind not in (b":", b"$") or not re.fullmatch(rb"-?[0-9]{1,18}", rest):
            raise Malformed(f"{line[:32]!r} is no reply that was asked for", line)
        number = int(rest)
        if kind == b":":
            return number
        return self.bulk(connection, call, number, line)

    def bulk(self, connection: Connection, call: Call, size: int, line: bytes) -> bytes | Null:
        """Return the bulk string of the announced size, or the null that is announced as -1."""
        if size == -1:
            return Null.BULK
        if not 0 <= size <= LONGEST:
            raise Malformed(f"a value of {size} bytes, expected {LONGEST} at most", line)
        return self.exactly(connection, call, size)

    def line(self, connection: Connection, call: Call) -> bytes:
        """Return what comes before the next end of line."""
        while (end := connection.pending.find(b"\r\n")) < 0:
            if len(connection.pending) > LINE:
                raise Malformed(f"a line of more than {LINE} bytes")
            self.more(connection, call)
        line = bytes(connection.pending[:end])
        del connection.pending[: end + 2]
        return line

    def exactly(self, connection: Connection, call: Call, size: int) -> bytes:
        """Return so many bytes; what is announced takes memory only as it comes."""
        while len(connection.pending) < size + 2:
            self.more(connection, call)
        if connection.pending[size : size + 2] != b"\r\n":
            raise Malformed("a value without its end")
        value = bytes(memoryview(connection.pending)[:size])
        del connection.pending[: size + 2]
        return value

    def more(self, connection: Connection, call: Call) -> None:
        """Wait for more bytes, as long as the whole call still may take: drops that come slowly do not prolong it."""
        connection.socket.settimeout(call.left())
        data = connection.socket.recv(PIECE)
        if not data:
            raise ConnectionResetError("the connection was closed")
        connection.pending += data
