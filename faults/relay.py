"""One connection through the proxy: bytes both ways, frames into the log, faults at their places."""

from __future__ import annotations

import socket
import struct
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import trio

from kvproof.faults import commands
from kvproof.faults.armed import Armed
from kvproof.faults.fault import Fault, Until
from kvproof.faults.wire import HEAD, Direction, WireEvent, WireLog
from kvproof.models.resp import Frame, FrameScanner, Malformed

BUFFER = 1024 * 1024
"""Bytes that are on their way in one direction of one connection at most, beside the kernel's own buffers."""

_PUSH = ">"
"""The type of frames that answer no request."""

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class Buffers:
    """Buffers to be used again; one is taken only while bytes are on their way, so idle connections hold none."""

    def __init__(self) -> None:
        """Begin with none."""
        self._free: list[bytearray] = []

    def take(self) -> bytearray:
        """Return a buffer of `BUFFER` bytes."""
        return self._free.pop() if self._free else bytearray(BUFFER)

    def give(self, buffer: bytearray) -> None:
        """Take a buffer back."""
        self._free.append(buffer)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request whose reply is still owed, with the faults that strike there."""

    command: str = ""
    key: str = ""
    faults: Sequence[tuple[int, Fault]] = ()


_NOBODY = _Asked()


class Relay:
    """A client's connection and the one to the server that belongs to it.

    Both sockets are non-blocking. Replies are paired with requests in order, which is not so after a subscription in
    RESP2 and after CLIENT REPLY OFF or SKIP: there a reply may be given the command of another, or none.
    """

    def __init__(self, ordinal: int, client: socket.socket, log: WireLog, armed: Armed, buffers: Buffers) -> None:
        """Take over an accepted connection."""
        self.ordinal = ordinal
        self.client_gone = trio.Event()
        self.log = log
        self.armed = armed
        self._client = client
        self._buffers = buffers
        self._pending: deque[_Asked] = deque()
        self._answering: deque[_Asked] = deque()
        self._undelivered: deque[Frame] = deque()
        self._delivered = 0
        self._whole = 0
        self._closed = False
        self.note(direction="open")

    async def run(self, upstream: tuple[str, int]) -> None:
        """Forward until both sides are done. Nothing that happens to this connection is raised."""
        server: socket.socket | None = None
        reset: socket.socket | None = None
        try:
            try:
                server = await _connect(upstream)
            except OSError as error:
                reset = self._client
                self._close("server", f"no connection to {upstream[0]}:{upstream[1]}: {error.__cause__ or error}")
                return
            reset = await self._forward(server)
        except Exception as error:  # a mistake of ours must not take the other connections along
            self._close("proxy", repr(error))
        finally:
            if reset is not None:
                reset.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            self._client.close()
            if server is not None:
                server.close()

    async def _forward(self, server: socket.socket) -> socket.socket | None:
        """Run both directions; return the socket that is to be reset because the other side was."""
        to_reset: list[socket.socket] = []
        async with trio.open_nursery() as nursery:

            async def requests() -> None:
                try:
                    await self._requests(server)
                except OSError:
                    self._close("client", "reset")
                    to_reset.append(server)
                    nursery.cancel_scope.cancel()

            nursery.start_soon(requests)
            try:
                await self._replies(server)
            except _ClientGone:
                self._close("client", "reset")
                to_reset.append(server)
            except OSError:
                self._close("server", "reset")
                to_reset.append(self._client)
            nursery.cancel_scope.cancel()
        return to_reset[0] if to_reset else None

    async def _requests(self, server: socket.socket) -> None:
        """Read the client until it closes; raises OSError when it resets the connection."""
        scanner = FrameScanner(keep_words=True)
        reading = True
        listening = True
        while True:
            await trio.lowlevel.wait_readable(self._client.fileno())
            buffer = self._buffers.take()
            try:
                size = _receive(self._client, buffer)
                if size is None:
                    continue
                if size == 0:
                    break
                data = memoryview(buffer)[:size]
                if reading:
                    frames, malformed = _scan(scanner, data)
                    for frame in frames:
                        self._request(frame)
                    if malformed is not None:
                        reading = False
                        self._raw("request", data[malformed.start :], malformed.reason)
                if listening:
                    try:
                        await _send_all(server, data)
                    except OSError:
                        # How the server ended is for the replies to find out; the client is still watched.
                        listening = False
            finally:
                self._buffers.give(buffer)
        self._close("client", "closed")
        try:
            server.shutdown(socket.SHUT_WR)
        except OSError:
            return

    def _request(self, frame: Frame) -> None:
        words = frame.words or ()
        command, key = commands.name(words), commands.first_key(words)
        asked = _Asked(command, key, self.armed.asked(self.ordinal, command, key))
        if command not in commands.ANSWERED_BY_PUSH:
            self._pending.append(asked)
        self.note(direction="request", command=command, key=key, size=frame.end - frame.start,
                  head=commands.shown("request", command, frame.head), null=frame.null)

    async def _replies(self, server: socket.socket) -> None:
        """Read the server until it closes; raises OSError when it resets, _ClientGone when nobody takes the reply."""
        scanner = FrameScanner()
        reading = True
        while True:
            await trio.lowlevel.wait_readable(server.fileno())
            buffer = self._buffers.take()
            try:
                size = _receive(server, buffer)
                if size is None:
                    continue
                if size == 0:
                    self._close("server", "closed")
                    return
                data = memoryview(buffer)[:size]
                if reading:
                    base = scanner.offset
                    starts = [] if scanner.inside else [0]
                    frames, malformed = _scan(scanner, data)
                    self._undelivered.extend(frames)
                    starts.extend(frame.end - base for frame in frames if frame.end - base < size)
                    await self._deliver(await self._strike(data, starts))
                    if malformed is not None:
                        reading = False
                        self._raw("reply", data[malformed.start :], malformed.reason)
                else:
                    await self._deliver(data)
            finally:
                self._buffers.give(buffer)

    async def _strike(self, data: memoryview, starts: Sequence[int]) -> memoryview:
        """Do what is due at the replies that begin in `data`; return what is still to be delivered of it."""
        done = 0
        for start in starts:
            if data[start] == ord(_PUSH):
                continue
            asked = self._pending.popleft() if self._pending else _NOBODY
            self._answering.append(asked)
            if asked.faults:
                await self._deliver(data[done:start])
                done = start
            for index, fault in asked.faults:
                self.armed.struck[index] = True
                await fault.strike(_AtReply(self, asked, index))
        return data[done:]

    async def _deliver(self, data: memoryview) -> None:
        """Hand bytes to the client's socket, and log each frame in the step in which its last byte went there."""
        while data:
            try:
                sent = self._client.send(data)
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self._client.fileno())
                continue
            except OSError as error:
                raise _ClientGone from error
            data = data[sent:]
            self._delivered += sent
            while self._undelivered and self._undelivered[0].end <= self._delivered:
                self._reply(self._undelivered.popleft())

    def _reply(self, frame: Frame) -> None:
        self._whole = frame.end
        push = frame.kind == _PUSH
        asked = _NOBODY if push or not self._answering else self._answering.popleft()
        self.note(direction="push" if push else "reply", command=asked.command, key=asked.key,
                  size=frame.end - frame.start, head=commands.shown("reply", asked.command, frame.head),
                  null=frame.null)

    def _close(self, by: str, detail: str) -> None:
        """Log who closed, and what was owed then; only the first to close is logged."""
        if by == "client":
            self.client_gone.set()
        if self._closed:
            return
        self._closed = True
        owed = next(iter((*self._answering, *self._pending)), _NOBODY)
        self.note(direction="close", command=owed.command, key=owed.key, size=self._delivered - self._whole, by=by,
                  detail=detail)

    def _raw(self, direction: Direction, data: memoryview, reason: str) -> None:
        head = bytes(data[:HEAD])
        if b"auth" in head.lower():
            head = b""
        self.note(direction=direction, head=head, did="raw", detail=reason)

    def note(self, *, direction: Direction, command: str = "", key: str = "", size: int = 0, head: bytes = b"",
             null: bool = False, did: str = "", by: str = "", fault: int | None = None, detail: str = "") -> None:
        """Log an event of this connection."""
        self.log.add(WireEvent(connection=self.ordinal, direction=direction, command=command, key=key, size=size,
                               head=head, null=null, did=did, by=by, fault=fault, detail=detail))


class _AtReply:
    """The moment in which a fault strikes at a reply; see `kvproof.faults.fault.Moment`."""

    def __init__(self, relay: Relay, asked: _Asked, index: int) -> None:
        self._relay, self._asked, self._index = relay, asked, index

    def did(self, what: str, by: str = "") -> None:
        self._relay.note(direction="reply", command=self._asked.command, key=self._asked.key, did=what, by=by,
                         fault=self._index)

    async def until(self, until: Until) -> None:
        await self._relay.armed.until(until, self._relay.client_gone)


@dataclass(frozen=True, slots=True)
class _NotResp:
    """A stream is malformed: where in the piece the bad frame starts (0 for one that began earlier), and why."""

    start: int
    reason: str


def _scan(scanner: FrameScanner, data: memoryview) -> tuple[list[Frame], _NotResp | None]:
    """Return the frames that end in `data`, and what is wrong with it, if anything is."""
    base = scanner.offset
    try:
        return scanner.feed(data), None
    except Malformed as error:
        return error.frames, _NotResp(error.frames[-1].end - base if error.frames else 0, str(error))


class _ClientGone(Exception):
    """The client no longer takes what is sent to it."""


async def _connect(upstream: tuple[str, int]) -> socket.socket:
    """Return a connected, non-blocking socket; raises OSError."""
    return plain((await trio.open_tcp_stream(*upstream)).socket)


def plain(wrapped: trio.socket.SocketType) -> socket.socket:
    """Return trio's socket as an ordinary non-blocking one, without delay of small frames.

    trio's own methods give way to other tasks after each call, so a frame could be out before it is in the log.
    """
    bare = socket.socket(fileno=wrapped.detach())
    bare.setblocking(False)
    bare.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return bare


def _receive(source: socket.socket, buffer: bytearray) -> int | None:
    """Return how many bytes were read, 0 at the end, None when there was nothing after all."""
    try:
        return source.recv_into(buffer)
    except BlockingIOError:
        return None


async def _send_all(sink: socket.socket, data: memoryview) -> None:
    while data:
        try:
            data = data[sink.send(data):]
        except BlockingIOError:
            await trio.lowlevel.wait_writable(sink.fileno())
