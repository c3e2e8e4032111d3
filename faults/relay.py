"""One connection through the proxy: requests and replies in pairs, what passes into the log, faults at their places."""

from __future__ import annotations

import socket
import struct
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from functools import partial
from typing import NoReturn

import trio

from kvproof.faults import commands
from kvproof.faults.armed import Armed, Due
from kvproof.faults.fault import ACCEPT, Until, kind_of
from kvproof.faults.flow import Asked, Flow, Segment, SinkGone, Stock, plain
from kvproof.faults.pieces import Pieces
from kvproof.faults.pump import Port, Pump
from kvproof.faults.unread import read_by_peer
from kvproof.faults.wire import HEAD, Direction, WireLog
from kvproof.faults.scanner import Scanner
from kvproof.models.resp import Frame

_PUSH = ord(">")
"""The type of frames that answer no request."""
_NULLS = (b"$-1\r\n", b"*-1\r\n", b"_\r\n")
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)

Connect = Callable[[], Awaitable[socket.socket]]
"""Makes a connection to the server; raises OSError, which says to what."""


_NOBODY = Asked()


class _Ended(Exception):
    """A fault has ended the connection."""

    def __init__(self, index: int, *, reset: bool) -> None:
        super().__init__(index)
        self.index, self.reset = index, reset


class Relay:
    """A client's connection and the one to the server that belongs to it.

    Replies are paired with requests in order, which is not so after a subscription in RESP2 and after CLIENT REPLY OFF
    or SKIP: there a reply may be given the command of another, or none.
    """

    def __init__(self, ordinal: int, client: socket.socket, log: WireLog, armed: Armed, pump: Pump,
                 stock: Stock) -> None:
        """Take over an accepted connection."""
        self.ordinal = ordinal
        self.client_gone = trio.Event()
        self.armed = armed
        self.pump, self.stock = pump, stock
        self.pending: deque[Asked] = deque()
        self.answering: deque[Asked] = deque()
        self.swallows = False
        self._requests: Requests | None = None
        self._replies: Replies | None = None
        self._log = log
        self._client = Port(pump, client)
        self._server: Port | None = None
        self._closed = False
        self.note("open")

    async def run(self, connect: Connect) -> None:
        """Pass on until both sides are done. Nothing that happens to this connection is raised."""
        resets: list[Port] = []
        try:
            await self._accept()
            try:
                server = self._server = Port(self.pump, plain(await connect()))
            except OSError as error:
                self._close("server", str(error))
                resets.append(self._client)
                return
            await self._both(server, resets)
        except _Ended as end:
            self._close("proxy", "reset" if end.reset else "closed", end.index)
            if end.reset:
                resets.append(self._client)
            else:
                await self._linger()
        except Exception as error:  # a mistake of ours must not take the other connections along
            self._close("proxy", repr(error))
        finally:
            for port in resets:
                port.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            self._client.close()
            if self._server is not None:
                self._server.close()

    async def _accept(self) -> None:
        """Do what strikes at the accepting of the connection."""
        due = self.armed.asked(self.ordinal, ACCEPT, "")
        if not due:
            return
        asked = Asked(ACCEPT, "", due)

        async def nothing() -> AsyncGenerator[bytes]:
            for piece in tuple[bytes, ...]():
                yield piece

        def sends() -> None:
            self.armed.feel(self.ordinal)
            self._client.watch_read(None)

        def closes() -> None:
            self._close("client", "closed")
            self._client.watch_hangup(None)
            self._client.watch_read(None)

        self._client.watch_read(sends)
        self._client.watch_hangup(closes)
        async with aclosing(self.struck(asked, due, nothing(), "open", None)) as pieces:
            async for _ in pieces:
                pass
        self._client.watch_read(None)
        self._client.watch_hangup(None)

    async def _both(self, server: Port, resets: list[Port]) -> None:
        """Run both directions; add to `resets` the port that is to be reset because the other side was."""
        replies = self._replies = Replies(self, server, self._client)
        requests = self._requests = Requests(self, self._client, server, careful=self.armed.strikes_requests)
        ended: list[_Ended] = []
        async with trio.open_nursery() as nursery:

            async def ask() -> None:
                try:
                    await requests.run()
                except _Ended as end:
                    ended.append(end)
                    nursery.cancel_scope.cancel()
                except OSError:
                    self._close("client", "reset")
                    resets.append(server)
                    nursery.cancel_scope.cancel()
                else:
                    self._close("client", "closed")
                    if not self.swallows:
                        requests.shutdown()

            nursery.start_soon(ask)
            try:
                await replies.run()
                self._close("server", "closed")
            except SinkGone:
                self._close("client", "reset")
                resets.append(server)
            except _Ended as end:
                ended.append(end)
            except OSError:
                self._close("server", "reset")
                resets.append(self._client)
            if self.swallows:
                await self.client_gone.wait()
            nursery.cancel_scope.cancel()
        if ended:
            raise ended[0]

    async def _linger(self) -> None:
        """Close for writing, and see what the client does with that; whatever it sends now gets a reset."""
        try:
            self._client.socket.shutdown(socket.SHUT_WR)
            while self._client.socket.recv(1 << 16):
                pass
        except BlockingIOError:
            pass
        except OSError:
            return
        else:
            return
        if self._server is not None:
            self._server.close()
            self._server = None
        await trio.lowlevel.wait_readable(self._client.socket.fileno())
        self.armed.feel(self.ordinal)

    async def struck(self, asked: Asked, due: Sequence[Due], source: AsyncGenerator[bytes | memoryview],
                     direction: Direction, flow: Flow | None) -> AsyncGenerator[bytes | memoryview]:
        """Yield what the faults make of a frame, the first of the schedule being the first to get it."""
        async with AsyncExitStack() as stack:
            pieces = Pieces(source)
            for each in due:
                made = each.fault.strike(AtFrame(self, asked, each.place, direction, flow), pieces)
                stack.push_async_callback(made.aclose)
                pieces = Pieces(made)
            async for piece in pieces:
                yield piece

    def request(self, frame: Frame, asked: Asked) -> None:
        """Take note of a request that was read whole."""
        self.note("request", asked, size=frame.end - frame.start,
                  head=commands.shown("request", asked.command, frame.head), null=frame.null)

    def known(self, words: tuple[bytes, ...]) -> Asked:
        """Take note of a request whose command and key are known; return it, as it waits for its reply."""
        command, key = commands.name_and_key(words)
        asked = Asked(command, key, self.armed.asked(self.ordinal, command, key))
        if command not in commands.ANSWERED_BY_PUSH:
            self.pending.append(asked)
        return asked

    def reply(self, size: int, head: bytes, *, push: bool, null: bool) -> None:
        """Take note of a reply, or a push, that was delivered whole; of one without bytes only that it is owed no more.
        """
        asked = _NOBODY if push or not self.answering else self.answering.popleft()
        if not size or self.swallows:
            return
        self.note("push" if push else "reply", asked, size=size, head=commands.shown("reply", asked.command, head),
                  null=null)

    def _close(self, by: str, detail: str, fault: int | None = None) -> None:
        """Log who closed, and what was owed then; only the first to close is logged."""
        if by == "client":
            self.client_gone.set()
            self.armed.feel(self.ordinal)
        if self._closed:
            return
        self._closed = True
        owed = next(iter((*self.answering, *self.pending)), _NOBODY)
        begun = self._replies.delivered - self._replies.whole if self._replies is not None else 0
        self.note("close", owed, size=begun, by=by, detail=detail, fault=fault)

    def swallow(self) -> None:
        """Pass nothing on any more."""
        self.swallows = True
        for flow in (self._requests, self._replies):
            if flow is not None:
                flow.discards = True

    def raw(self, direction: Direction, segment: Segment) -> None:
        """Take note that a stream is not RESP any more."""
        head = bytes(segment.data[:HEAD])
        if b"auth" in head.lower():
            head = b""
        self.note(direction, head=head, did="raw", detail=segment.reason)

    def note(self, direction: Direction, asked: Asked = _NOBODY, *, size: int = 0, head: bytes = b"",
             null: bool = False, did: str = "", by: str = "", fault: int | None = None, detail: str = "") -> None:
        """Log an event of this connection."""
        if direction == "request" and not did:
            self.armed.feel(self.ordinal)
        self._log.note(self.ordinal, direction, asked.command, asked.key, size, head, null, did, by, fault, detail)


class Requests(Flow):
    """The client's bytes on their way to the server."""

    _MOST = 64 * 1024
    """Bytes of a request within which its command and key are looked for before it is passed on."""

    def __init__(self, relay: Relay, client: Port, server: Port, *, careful: bool) -> None:
        """With care, a request is known by command and key before any of it is passed on."""
        super().__init__(relay.pump, client, server, relay.stock, Scanner(keep_words=True))
        self._relay, self._careful = relay, careful

    def cut(self, data: memoryview) -> list[Segment]:
        """Cut at each line end too, where care is taken."""
        return self._cut_lines(data) if self._careful else super().cut(data)

    def _cut_lines(self, data: memoryview) -> list[Segment]:
        segments: list[Segment] = []
        whole, at = bytes(data), 0
        while at < len(whole):
            # A line is the most that can come before one more word is known.
            end = at + self.scanner.skippable
            if end == at:
                end = whole.find(b"\n", at) + 1 or len(whole)
            for segment in super().cut(data[at:end]):
                segment.words = segment.frame.words if segment.frame is not None else self.scanner.words
                segments.append(segment)
            at = end
        return segments

    def begins(self, segment: Segment) -> bool:
        """Leave it to the task where care is to be taken."""
        return self._careful

    async def pass_on(self) -> None:
        """Take one request, or one piece of what is none."""
        segment = self.segments.popleft()
        if segment.raw:
            if segment.reason:
                self.malformed(segment)
            await self.put(segment.data)
            return
        begin, segment = await self.gather_until(
            segment, lambda bytes_, at: commands.has_key(at.words) or len(bytes_) > self._MOST)
        asked = self._relay.known(segment.words)
        due = asked.struck("request")
        source = self.frame(begin, segment)
        async with aclosing(source), aclosing(self._relay.struck(asked, due, source, "request", self)) as pieces:
            async for piece in pieces:
                await self.put(piece)
            async for _ in source:
                pass
        if self.last is not None:
            self._relay.request(self.last, asked)

    def came(self, frame: Frame) -> None:
        """Log a request as it is read; with care it is the task that does so."""
        if not self._careful:
            self._relay.request(frame, self._relay.known(frame.words))

    def malformed(self, segment: Segment) -> None:
        """Log it."""
        self._relay.raw("request", segment)

    def sink_lost(self) -> bool:
        """How the server ended is for the replies to find out; the client is still watched."""
        return True

    def shutdown(self) -> None:
        """Tell the server that nothing more comes."""
        try:
            self.sink.socket.shutdown(socket.SHUT_WR)
        except OSError:
            return


class Replies(Flow):
    """The server's bytes on their way to the client."""

    def __init__(self, relay: Relay, server: Port, client: Port) -> None:
        """Nothing is owed yet."""
        super().__init__(relay.pump, server, client, relay.stock, Scanner())
        self._relay = relay
        self._gathering = 0
        self._unlogged: list[Callable[[], None]] = []

    def begins(self, segment: Segment) -> bool:
        """Give the reply to the oldest request; one that is struck, or may be, is for the task."""
        relay = self._relay
        if segment.data[0] == _PUSH:
            return relay.armed.reads_pushes
        asked = segment.asked = relay.pending.popleft() if relay.pending else Asked()
        relay.answering.append(asked)
        return relay.armed.reads_kinds or any(due.fault.direction == "reply" for due in asked.due)

    async def pass_on(self) -> None:
        """Take all that is at hand, and more while it is kept back."""
        while self.segments or (self.gathers and await self.more()):
            await self._one()
            if self.gathers and (self._gathering <= 0 or not self._relay.pending):
                await self._scatter()
        if self.gathers:
            await self._scatter()

    async def _one(self) -> None:
        segment = self.segments.popleft()
        if segment.begins and not segment.told:
            self.begins(segment)
        if segment.reason:
            self.malformed(segment)
        if not segment.begins:
            await self.put(segment.data)
            if segment.frame is not None:
                self._log(partial(self.passed, segment.frame))
            return
        begin: bytes | memoryview = segment.data
        asked, due = segment.asked or _NOBODY, []
        if self._relay.armed.reads_kinds:
            begin, segment = await self.gather_until(segment, lambda bytes_, at: kind_of(bytes_) is not None)
            kind = kind_of(begin) or ""
            due = self._relay.armed.answered(self._relay.ordinal, asked.command, asked.key, kind)
        due = sorted([*due, *asked.struck("reply")], key=lambda due: due.place)
        push = begin[0] == _PUSH
        source = self.frame(begin, segment)
        size, head = 0, b""
        async with aclosing(source), aclosing(self._relay.struck(asked, due, source, "reply", self)) as pieces:
            async for piece in pieces:
                size += len(piece)
                head += bytes(piece[: HEAD - len(head)])
                await self.put(piece)
            async for _ in source:
                pass
        if self.last is not None:
            null = head in _NULLS
            self._log(partial(self._relay.reply, size, head, push=push, null=null))

    def gather_frames(self, frames: int) -> None:
        """Keep back this frame and those after it, until there are so many."""
        self._gathering = frames
        self.gather()

    async def _scatter(self) -> None:
        await self.scatter()
        for log in self._unlogged:
            log()
        self._unlogged.clear()
        self.whole = self.delivered

    def _log(self, log: Callable[[], None]) -> None:
        """Take note of a frame, once it has been delivered."""
        if self.gathers:
            self._gathering -= 1
            self._unlogged.append(log)
        else:
            self.whole = self.delivered
            log()

    def passed(self, frame: Frame) -> None:
        """Log it."""
        self._relay.reply(frame.end - frame.start, frame.head, push=frame.kind == ">", null=frame.null)

    def malformed(self, segment: Segment) -> None:
        """Log it."""
        self._relay.raw("reply", segment)


class AtFrame:
    """The moment in which a fault strikes; see `kvproof.faults.fault.Moment`."""

    def __init__(self, relay: Relay, asked: Asked, index: int, direction: Direction, flow: Flow | None) -> None:
        """At a frame of `flow`, or at the accepting of the connection."""
        self._relay, self._asked, self._index, self._direction, self._flow = relay, asked, index, direction, flow

    @property
    def owed(self) -> int:
        """See `Moment`."""
        return len(self._relay.pending) + len(self._relay.answering)

    def did(self, what: str, by: str = "") -> None:
        """See `Moment`."""
        self._relay.armed.strike(self._index, self._relay.ordinal)
        self._relay.note(self._direction, self._asked, did=what, by=by, fault=self._index)

    async def until(self, until: Until) -> None:
        """See `Moment`."""
        await self._relay.armed.until(until, self._relay.client_gone)

    async def gone(self) -> None:
        """See `Moment`."""
        await self._relay.client_gone.wait()

    async def wait(self, seconds: float) -> None:
        """See `Moment`."""
        await trio.sleep(seconds)

    async def read(self) -> None:
        """See `Moment`."""
        if self._flow is not None:
            await read_by_peer(self._flow.sink.socket)

    def gather(self, frames: int) -> None:
        """See `Moment`."""
        if isinstance(self._flow, Replies):
            self._flow.gather_frames(frames)

    def swallow(self) -> None:
        """See `Moment`."""
        self._relay.swallow()

    def end(self, *, reset: bool = False) -> NoReturn:
        """See `Moment`."""
        raise _Ended(self._index, reset=reset)
