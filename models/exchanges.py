"""Requests and replies of one connection: its callers, its server and the bytes between, as a value.

The connection is the real one. Requests are numbered as they are written; the server answers each with a value or an
error that tells its number, and sends pushes between frames, which arrive in pieces of any size and are read at any
time. One caller borrows the connection at a time, and gives it back when no reply is due.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kvproof.models.client import Connection, Done, Failed, Found, get

PUSHED = -2
"""The number that a push frame would have, if it were a reply."""
TORN = -3
"""The number of a reply that is said to be there, while the buffer holds none."""
PUSH = b">1\r\n:7\r\n"
WHERE = ("end of file", "reset", "malformed", "unasked")
"""How a connection may come to its end."""


class Event(NamedTuple):
    """One thing that happens; `receive` is a piece of a frame, `read` and `read_push` are the piece that ends one."""

    name: str
    request: int = -1
    size: int = 0
    how: str = ""


def reply(request: int, error: bool) -> bytes:
    """Return what the server answers."""
    return b"-ERR %d\r\n" % request if error else b"$2\r\n%02d\r\n" % request


def pieces(left: int) -> list[int]:
    """Return the sizes of a next piece that are tried when `left` bytes are to come; any cut is reached by them."""
    return sorted({1, left // 2} - {0, left})


def deliver(connection: Connection, data: bytes) -> list[Done]:
    """Receive `data` as a driver does; return what has ended."""
    done: list[Done] = []
    while data and connection.broken is None:
        into = connection.receive_into()
        count = min(len(into), len(data))
        into[:count] = data[:count]
        done += connection.received(count)
        data = data[count:]
    return done


class Exchange:
    """One connection, its callers and its server, in the middle of it all; `kind` makes the connection."""

    def __init__(self, errors: tuple[bool, ...], kind: type[Connection]) -> None:
        """Begin with nothing sent."""
        self.errors = errors
        self.connection = kind()
        self.sent = self.taken = self.turn = self.arrived = 0
        self.pushed = self.lent = False
        self.open = True
        self.wanted: set[int] = set()
        self.cancelled: set[int] = set()
        self.got: dict[int, int] = {}
        self._buffers: dict[Hashable, bytearray] = {}

    def happen(self, event: Event) -> None:
        """Do what the event says."""
        match event.name:
            case "send":
                self.send()
            case "push":
                self.pushed = True
            case "receive" | "read" | "read_push":
                self.receive(event.size)
            case "give_up":
                self.give_up(event.request, event.how)
            case "give_back":
                self.lent = False
            case "drop":
                self.drop(event.how)
            case name:
                raise ValueError(f"there is no event {name!r} on a connection")
        if self.connection.broken is None:
            self.turn = self.sent - self.connection.outstanding

    def frame(self) -> bytes:
        """Return the frame that is coming, b"" when none is due."""
        if self.pushed:
            return PUSH
        return reply(self.taken, self.errors[self.taken]) if self.taken < self.sent else b""

    def send(self) -> None:
        """Write the next request."""
        buffer = self._buffers[self.sent] = bytearray(2)
        self.connection.begin(get(self.sent, "key", memoryview(buffer)))
        self.wanted.add(self.sent)
        self.sent, self.lent = self.sent + 1, True

    def receive(self, size: int) -> None:
        """Let `size` more bytes of the frame arrive."""
        self._end(deliver(self.connection, self.piece(size)))

    def piece(self, size: int) -> bytes:
        """Return the next bytes of the frame that is coming, and note whether it is whole by them."""
        frame = self.frame()
        piece, self.arrived = frame[self.arrived : self.arrived + size], self.arrived + size
        if self.arrived == len(frame):
            self.arrived, self.taken, self.pushed = 0, self.taken + (not self.pushed), False
        return piece

    def give_up(self, request: int, how: str) -> None:
        """Let a caller cancel, or its deadline pass."""
        give_up = self.connection.cancel if how == "cancel" else self.connection.expire
        self._end(give_up(request, how))

    def drop(self, how: str) -> None:
        """Lose the connection in one of the ways."""
        match how:
            case "end of file":
                self._end(self.connection.received(0))
            case "reset":
                self._end(self.connection.lost(how))
            case "malformed":
                self._end(deliver(self.connection, b"\0"))
            case _:
                self._end(deliver(self.connection, b"+OK\r\n"))

    def shown(self) -> dict[str, Any]:
        """Return what there is to see, as `World` has it."""
        return {
            **{name: getattr(self, name) for name in (
                "errors", "sent", "taken", "turn", "arrived", "pushed", "lent", "open")},
            "room": self.open and not self.connection.tainted,
            "wanted": frozenset(self.wanted), "cancelled": frozenset(self.cancelled),
            "got": tuple(self.got.get(k, -1) for k in range(len(self.errors))),
        }

    def number(self, name: Hashable) -> int:
        """Return the number under which a request was written; its caller names it so."""
        assert isinstance(name, int)
        return name

    def _end(self, done: list[Done]) -> None:
        self.open = self.open and self.connection.broken is None
        self.lent = self.lent and self.open
        for ended in done:
            request, answer = self.number(ended.identity), self._answer(ended)
            self.wanted.discard(request)
            if answer is None:
                self.cancelled.add(request)
            else:
                self.got[request] = answer

    def _answer(self, ended: Done) -> int | None:
        """Return the number of the reply that an operation ended with, None when it ended without one."""
        match ended.outcome:
            case Found():
                held = bytes(self._buffers[ended.identity])
                return int(held) if held.isdigit() else TORN
            case Failed(reason) if reason.startswith("the server answered: ERR "):
                return int(reason.rpartition(" ")[2])
            case Failed(reason) if reason.startswith("an unexpected reply"):
                return PUSHED
        return None


@dataclass(frozen=True, slots=True)
class World:
    """Where a schedule has led: a value; `after` runs the schedule again, with one more event.

    errors: which requests the server answers with an error. turn: the request that the connection takes the next reply
    to be for, at its end when it is not open. arrived: bytes of the frame that is coming. got: the number of the reply
    that each request has ended with, -1 for none. room: the connection itself would take a request.
    """

    errors: tuple[bool, ...]
    sent: int = 0
    taken: int = 0
    turn: int = 0
    arrived: int = 0
    pushed: bool = False
    lent: bool = False
    open: bool = True
    room: bool = True
    wanted: frozenset[int] = frozenset()
    cancelled: frozenset[int] = frozenset()
    got: tuple[int, ...] = ()
    history: tuple[Event, ...] = field(default=(), compare=False)
    kind: type[Connection] = field(default=Connection, compare=False)

    @classmethod
    def begin(cls, errors: tuple[bool, ...], kind: type[Connection] = Connection) -> World:
        """Return a connection that nobody has borrowed, which is to carry as many requests as `errors` has places."""
        return cls(errors, got=(-1,) * len(errors), kind=kind)

    def events(self) -> Iterator[Event]:
        """Return everything that can happen now."""
        if not self.open:
            return
        due = self.turn < self.sent
        if self.room and self.sent < len(self.errors):
            yield Event("send")
        if not self.pushed and not self.arrived:
            yield Event("push")
        if due or self.pushed:
            frame = PUSH if self.pushed else reply(self.taken, self.errors[self.taken])
            left = len(frame) - self.arrived
            yield from (Event("receive", size=size) for size in pieces(left))
            yield Event("read_push" if self.pushed else "read", size=left)
        for request in sorted(self.wanted):
            yield from (Event("give_up", request, how=how) for how in ("cancel", "expire"))
        if self.lent and not due:
            yield Event("give_back")
        for how in WHERE:
            if how in ("end of file", "reset") or (not self.arrived and (how == "malformed" or not due)):
                yield Event("drop", how=how)

    def after(self, event: Event) -> World:
        """Return what the event makes of this world; it must be one of `events`."""
        history = (*self.history, event)
        run = Exchange(self.errors, self.kind)
        for each in history:
            run.happen(each)
        return World(**run.shown(), history=history, kind=self.kind)
