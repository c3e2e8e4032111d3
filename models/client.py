"""One connection of a RESP client without I/O: requests go out, each reply reaches its own request, in order.

What becomes of a request that is given up while its reply is outstanding: it resolves at once, the caller's buffer
is let go at once, and its reply is drained into scratch when it comes. A connection that owes such a reply is
`tainted`: it takes no further request, and the pool drops it as soon as nobody else waits on it. So a late reply
can reach neither a buffer that was given back nor the next request.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Literal

from kvproof.errors import ProtocolError
from kvproof.models.frames import LIMIT, FrameScanner
from kvproof.models.resp import ErrorReply, Null, SimpleString, Value, encode_command, parse, scatter_command

SCRATCH = 4096
"""Bytes received at once while a reply's header is awaited; at most this much of a payload is ever copied."""
DRAIN = 256 * 1024
"""Bytes received at once of a payload that nobody wants."""
SMALL = 1024 * 1024
"""The longest reply, in bytes, that is kept whole because it is not read into a caller's buffer."""


@dataclass(frozen=True, slots=True)
class Found:
    """The key is there; after a GET the whole buffer holds its value. Also: stored, accepted."""


@dataclass(frozen=True, slots=True)
class Absent:
    """The server said that there is no such key; the buffer is untouched."""


@dataclass(frozen=True, slots=True)
class Failed:
    """There is no answer, or not a usable one; `reason` says why. The buffer may hold part of a value."""

    reason: str


Outcome = Found | Absent | Failed
"""How one operation ended."""

Chunk = bytes | memoryview
"""Bytes to send."""


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """One command and what its reply must be.

    identity: names the operation; unique among those outstanding. expects: "bulk" into the whole of `into`,
    "integer" (more than 0 is found), "ok". payload: the caller's bytes that are sent, kept until they are.
    """

    identity: Hashable
    words: tuple[str, ...]
    expects: Literal["bulk", "integer", "ok"]
    into: memoryview | None = None
    payload: memoryview | None = None

    def encode(self) -> list[Chunk]:
        """Return the bytes to send; the payload is a view on the caller's memory."""
        if self.payload is None:
            return [encode_command(*self.words)]
        return scatter_command(*self.words, payload=self.payload)


def get(identity: Hashable, key: str, into: memoryview) -> Request:
    """Read the value of `key`, which must have exactly `into`'s length in bytes."""
    if into.readonly:
        raise ValueError(f"the buffer for {key!r} is read-only; a GET needs a writable one")
    return Request(identity, ("GET", key), "bulk", into=into.cast("B"))


def put(identity: Hashable, key: str, payload: memoryview) -> Request:
    """Store `payload` under `key`."""
    return Request(identity, ("SET", key), "ok", payload=payload.cast("B"))


def exists(identity: Hashable, key: str) -> Request:
    """Ask whether `key` is there."""
    return Request(identity, ("EXISTS", key), "integer")


def auth(identity: Hashable, password: str) -> Request:
    """Authenticate the connection."""
    return Request(identity, ("AUTH", password), "ok")


@dataclass(frozen=True, slots=True)
class Done:
    """An operation has ended."""

    identity: Hashable
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class BulkString:
    """A bulk string of `size` bytes whose payload was received elsewhere."""

    size: int


class Connection:
    """The protocol of one connection: what to send, where to receive, how each request ended.

    The driver sends what `begin` returns, receives into what `receive_into` returns and reports the count to
    `received`, with no other call between these two. Every request that was begun is reported as `Done` exactly
    once, by whichever method ends it. After `broken` is set nothing more is to be sent or received.
    """

    def __init__(self, *, limit: int = LIMIT) -> None:
        """Start on a fresh connection."""
        self.broken: str | None = None
        self.pushes = self.replies = 0
        self._scanner = FrameScanner(limit=limit)
        self._waiting: deque[tuple[Request, bool]] = deque()
        self._scratch = memoryview(bytearray(SCRATCH))
        self._drain: memoryview | None = None
        self._target: memoryview | None = None
        self._landed = 0
        self._size: int | None = None
        self._small = bytearray()

    @property
    def outstanding(self) -> int:
        """How many replies are due, those of abandoned requests included."""
        return len(self._waiting)

    @property
    def live(self) -> int:
        """How many requests have not ended."""
        return sum(not abandoned for _, abandoned in self._waiting)

    @property
    def tainted(self) -> bool:
        """Whether the reply to an abandoned request is still due."""
        return any(abandoned for _, abandoned in self._waiting)

    @property
    def useless(self) -> bool:
        """Whether the connection is to be dropped: broken, or tainted with nobody left who waits on it."""
        return self.broken is not None or (self.tainted and not self.live)

    def begin(self, request: Request) -> list[Chunk]:
        """Take a request; return the bytes to send for it.

        Raises ProtocolError when the connection is broken or tainted.
        """
        if self.broken is not None or self.tainted:
            raise ProtocolError(f"connection cannot take {request.words[0]}: {self.broken or 'a reply is still due'}")
        self._waiting.append((request, False))
        return request.encode()

    def receive_into(self) -> memoryview:
        """Return the memory, never empty, into which the next bytes are to be received.

        It is the caller's own buffer while the payload of a GET is coming in, and scratch at any other time.
        """
        left = self._scanner.payload
        if not left:
            return self._scratch
        if self._target is not None:
            return self._target[self._landed :]
        if self._drain is None:
            self._drain = memoryview(bytearray(DRAIN))
        return self._drain[:left]

    def received(self, count: int) -> list[Done]:
        """Take note that `count` bytes arrived in what `receive_into` returned last; 0 means that the peer closed."""
        if self.broken is not None:
            return []
        if not count:
            return self.lost("the server closed the connection")
        view = self.receive_into()[:count]
        direct = self._target is not None and bool(self._scanner.payload)
        return self._take_direct(view) if direct else self._take(view)

    def cancel(self, identity: Hashable, reason: str) -> list[Done]:
        """Give up a request because its caller does not want it any more; its reply will reach nobody."""
        return self._abandon(identity, reason)

    def expire(self, identity: Hashable, reason: str) -> list[Done]:
        """Give up a request because its deadline has passed; its reply will reach nobody."""
        return self._abandon(identity, reason)

    def lost(self, reason: str) -> list[Done]:
        """Take note that the connection is gone; whatever had not ended fails with `reason`."""
        if self.broken is not None:
            return []
        self.broken, self._target = reason, None
        ended = [Done(request.identity, Failed(reason)) for request, abandoned in self._waiting if not abandoned]
        self._waiting.clear()
        return ended

    def _abandon(self, identity: Hashable, reason: str) -> list[Done]:
        for index, (request, abandoned) in enumerate(self._waiting):
            if request.identity == identity and not abandoned:
                self._waiting[index] = (replace(request, into=None, payload=None), True)
                if not index:
                    self._target = None
                return [Done(identity, Failed(reason))]
        return []

    def _take_direct(self, view: memoryview) -> list[Done]:
        self._scanner.feed(view)
        self._landed += len(view)
        return []

    def _take(self, view: memoryview) -> list[Done]:
        done: list[Done] = []
        rest = bytes(view)
        while rest:
            left = self._scanner.payload
            if left:
                # Of a payload that is wanted this is the beginning: its header has just come.
                piece, rest = rest[:left], rest[left:]
                if self._target is not None:
                    self._target[: len(piece)] = piece
                self._landed = len(piece)
                self._scanner.feed(piece)
                continue
            # Every header and every frame ends with a line feed, so a piece up to one holds at most one of them.
            line, end, rest = rest.partition(b"\n")
            try:
                done += self._take_line(line + end)
            except ProtocolError as error:
                # What ended before the bad byte has ended; only the rest fails.
                return done + self.lost(str(error))
        return done

    def _take_line(self, piece: bytes) -> list[Done]:
        frames = self._scanner.feed(piece)
        self._small += piece
        if not frames:
            if self._scanner.payload is not None:
                self._open_payload(self._scanner.payload)
            if len(self._small) > SMALL:
                raise ProtocolError(f"a reply of more than {SMALL} bytes that is not a bulk string")
            return []
        [frame], whole, size = frames, bytes(self._small), self._size
        self._small.clear()
        self._target, self._size, self._landed = None, None, 0
        if frame.kind == ">":
            self.pushes += 1
            return []
        return self._reply(parse(whole) if size is None else BulkString(size))

    def _open_payload(self, size: int) -> None:
        """Decide where the payload of a bulk string goes, now that its length is known."""
        if not self._waiting:
            raise ProtocolError(f"a reply of {size} bytes that nobody asked for")
        request, abandoned = self._waiting[0]
        self._size = size
        wanted = not abandoned and request.into is not None and len(request.into) == size
        self._target = request.into if wanted else None

    def _reply(self, reply: Value | BulkString) -> list[Done]:
        """Give the reply to the oldest request."""
        if not self._waiting:
            raise ProtocolError(f"a reply that nobody asked for: {reply!r:.80}")
        self.replies += 1
        request, abandoned = self._waiting.popleft()
        return [] if abandoned else [Done(request.identity, judge(request, reply))]


def judge(request: Request, reply: Value | BulkString) -> Outcome:
    """Return what `reply` means for `request`."""
    if isinstance(reply, ErrorReply):
        return Failed(f"the server answered: {reply.message}")
    if request.into is not None:
        if reply in (Null.BULK, Null.PLAIN):
            return Absent()
        if isinstance(reply, BulkString):
            if reply.size == len(request.into):
                return Found()
            return Failed(f"the value has {reply.size} bytes where {len(request.into)} were expected")
    elif request.expects == "integer" and type(reply) is int:
        return Found() if reply > 0 else Absent()
    elif request.expects == "ok" and reply == SimpleString("OK"):
        return Found()
    return Failed(f"an unexpected reply to {request.words[0]}: {reply!r:.80}")
