"""One connection through the proxy: requests and replies in pairs, what passes into the log, faults at their places."""

from __future__ import annotations

import socket
import struct
import traceback
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from typing import NoReturn

import trio

from kvproof.faults import commands
from kvproof.faults.armed import Armed, Due
from kvproof.faults.conduit import SinkGone, plain
from kvproof.faults.directions import Replies, Requests
from kvproof.faults.fault import ACCEPT, Until
from kvproof.faults.flow import Flow
from kvproof.faults.pieces import Pieces
from kvproof.faults.pump import Port, Pump
from kvproof.faults.segment import Asked, Segment
from kvproof.faults.stock import Stock
from kvproof.faults.unread import DEADLINE, read_by_peer
from kvproof.faults.wire import HEAD, Direction, WireLog

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)

Connect = Callable[[], Awaitable[socket.socket]]
"""Makes a connection to the server; raises OSError, which says to what."""


_NOBODY = Asked()


class _Ended(Exception):
    """A fault has ended the connection; kept without the frames that it came through, since they hold buffers."""

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
        self._settling: trio.Event | None = None
        self._frozen: tuple[Asked, int] | None = None
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
                resets += [self._client, *([self._server] if self._server is not None else [])]
            else:
                await self._linger()
        except Exception as error:  # a mistake of ours must not take the other connections along
            traceback.print_exc()
            self._close("proxy", repr(error))
            resets.append(self._client)
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
                    ended.append(end.with_traceback(None))
                    nursery.cancel_scope.cancel()
                except OSError:
                    self._close("client", "reset")
                    if not self.swallows:
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
                ended.append(end.with_traceback(None))
            except OSError:
                self._close("server", "reset")
                resets.append(self._client)
            if self.swallows:
                await self.client_gone.wait()
            nursery.cancel_scope.cancel()
        if ended:
            raise ended.pop(0)

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

    def request(self, size: int, head: bytes, asked: Asked, *, null: bool = False, felt: bool = True) -> None:
        """Take note of a request that was read whole; felt: it shows that the client felt what was done before."""
        if felt:
            self.armed.feel(self.ordinal)
        self._log.note(self.ordinal, "request", asked.command, asked.key, size,
                       commands.shown("request", asked.command, head), null)

    def known(self, words: tuple[bytes, ...]) -> Asked:
        """Take note of a request whose command and key are known; return it, as it waits for its reply."""
        command, key = commands.name_and_key(words)
        due = self.armed.asked(self.ordinal, command, key) if command != ACCEPT else ()
        asked = Asked(command, key, due, command in commands.ANSWERED_BY_PUSH)
        self.pending.append(asked)
        return asked

    def reply(self, size: int, head: bytes, asked: Asked, *, push: bool = False, null: bool = False) -> None:
        """Take note of a reply, or a push, that was delivered whole; of no bytes only that it is owed no more."""
        if self._settling is not None:
            self._settling.set()
        if size and not self.swallows:
            self._log.note(self.ordinal, "push" if push else "reply", asked.command, asked.key, size,
                           commands.shown("reply", asked.command, head), null)

    def _close(self, by: str, detail: str, fault: int | None = None) -> None:
        """Log who closed, and what was owed then; only the first to close is logged."""
        if by == "client":
            self.client_gone.set()
            self.armed.feel(self.ordinal)
        if self._closed:
            return
        self._closed = True
        owed, begun = self._frozen or self._owed()
        self.note("close", owed, size=begun, by=by, detail=detail, fault=fault)

    def _owed(self) -> tuple[Asked, int]:
        """Return the oldest request that is not answered in full, and how many bytes of its reply were delivered."""
        begun = self._replies.delivered - self._replies.whole if self._replies is not None else 0
        return next(iter((*self.answering, *self.pending)), _NOBODY), begun

    def client_left(self) -> None:
        """Take note that the client has closed while nobody reads from it."""
        self._close("client", "closed")

    async def settle(self, asked: Asked) -> None:
        """Wait until the replies to all requests before this one have been delivered, `DEADLINE` seconds at most."""
        with trio.move_on_after(DEADLINE):
            while next(iter((*self.answering, *self.pending)), asked) is not asked:
                self._settling = trio.Event()
                await self._settling.wait()
        self._settling = None

    def swallow(self) -> None:
        """Pass nothing on any more."""
        self._frozen = self._owed()
        self.swallows = True
        for flow in (self._requests, self._replies):
            if flow is not None:
                flow.discard()

    def raw(self, direction: Direction, segment: Segment) -> None:
        """Take note that a stream is not RESP any more; what a client sends so may be a password."""
        head = bytes(segment.data[:HEAD]) if direction == "reply" else b""
        self.note(direction, head=head, did="raw", detail=segment.reason)

    def note(self, direction: Direction, asked: Asked = _NOBODY, *, size: int = 0, head: bytes = b"",
             null: bool = False, did: str = "", by: str = "", fault: int | None = None, detail: str = "") -> None:
        """Log an event of this connection."""
        self._log.note(self.ordinal, direction, asked.command, asked.key, size, head, null, did, by, fault, detail)


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

    async def read(self) -> bool:
        """See `Moment`."""
        return self._flow is None or await read_by_peer(self._flow.sink.socket)

    def passed(self) -> None:
        """See `Moment`."""
        if isinstance(self._flow, Replies):
            self._flow.passed_early()

    def gather(self, frames: int) -> None:
        """See `Moment`."""
        if isinstance(self._flow, Replies):
            self._flow.gather_frames(frames)

    async def swallow(self) -> None:
        """See `Moment`."""
        await self._settle()
        self._relay.swallow()

    async def end(self, *, reset: bool = False) -> NoReturn:
        """See `Moment`."""
        await self._settle()
        raise _Ended(self._index, reset=reset)

    async def _settle(self) -> None:
        if self._direction == "request":
            await self._relay.settle(self._asked)
