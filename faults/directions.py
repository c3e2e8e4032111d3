"""The two directions of a connection: requests, which are known by command and key, and the replies to them."""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from kvproof.faults import commands
from kvproof.faults.fault import kind_of
from kvproof.faults.flow import Flow
from kvproof.faults.pump import Port
from kvproof.faults.scanner import NULL, Scanner
from kvproof.faults.segment import Asked, Segment
from kvproof.faults.wire import HEAD
from kvproof.models.resp import Frame

if TYPE_CHECKING:
    from kvproof.faults.relay import Relay

_PUSH = ord(">")
"""The type of frames that answer no request."""
_NULLS = (NULL, b"*-1\r\n", b"_\r\n")


@dataclass(slots=True)
class _Passing:
    """What has been passed on so far in place of one reply."""

    push: bool
    size: int = 0
    head: bytes = b""


class Requests(Flow):
    """The client's bytes on their way to the server."""

    _MOST = 64 * 1024
    """Bytes of a request within which its command and key are looked for before it is passed on."""

    def __init__(self, relay: Relay, client: Port, server: Port, *, careful: bool) -> None:
        """With care, a request is known by command and key before any of it is passed on."""
        super().__init__(relay.pump, client, server, relay.stock, Scanner(keep_words=True))
        self._relay, self._careful, self.quick = relay, careful, not careful

    def cut(self, data: memoryview) -> list[Segment]:
        """Cut at each line end too, where care is taken."""
        return self._cut_lines(data) if self._careful else super().cut(data)

    def _cut_lines(self, data: memoryview) -> list[Segment]:
        segments: list[Segment] = []
        whole, at = bytes(data), 0
        while at < len(whole):
            if not self.reading:
                return [*segments, *super().cut(data[at:])]
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
        if segment.frame is None and not commands.has_key(segment.words) and len(begin) <= self._MOST:
            await self.put(begin)  # The stream ends, or is not RESP any more, before it is known what is asked.
            return
        asked = self._relay.known(segment.words)
        due = asked.struck("request")
        source = self._logged(begin, segment, asked, struck=bool(due))
        if due:
            # Nobody reads from the client meanwhile, so its close is to be seen otherwise.
            self.source.watch_hangup(self._hung_up)
        try:
            async with aclosing(source), aclosing(self._relay.struck(asked, due, source, "request", self)) as pieces:
                async for piece in pieces:
                    await self.put(piece)
                async for _ in source:
                    pass
        finally:
            self.source.watch_hangup(None)

    def _hung_up(self) -> None:
        self.source.watch_hangup(None)
        self._relay.client_left()

    async def _logged(self, begin: bytes, segment: Segment, asked: Asked, *,
                      struck: bool) -> AsyncGenerator[bytes | memoryview]:
        """Yield the request's bytes; log it as its last ones have been read."""
        async with aclosing(self.frame(begin, segment)) as source:
            async for piece in source:
                if self.last is not None:
                    # A request that is struck was sent before that, so it does not show that this was felt.
                    self._relay.request(self.last.end - self.last.start, self.last.head, asked, null=self.last.null,
                                        felt=not struck)
                yield piece

    def pass_small(self, raw: bytes) -> bool:
        """Log it and pass it on."""
        words = None if self.discards else self.scanner.whole(raw)
        if words is None:
            return False
        self._relay.request(len(raw), raw[:HEAD], self._relay.known(words))
        self.send_small(raw)
        return True

    def came(self, frame: Frame) -> None:
        """Log a request as it is read; with care it is the task that does so."""
        if not self._careful:
            asked = self._relay.known(frame.words)
            self._relay.request(frame.end - frame.start, frame.head, asked, null=frame.null)

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
        self.quick = not relay.armed.reads_kinds
        self._gathering = 0
        self._passing: _Passing | None = None
        self._unlogged: list[Callable[[], None]] = []

    def begins(self, segment: Segment) -> bool:
        """Give the reply to the oldest request; one that is struck, or may be, is for the task."""
        relay = self._relay
        if segment.data[0] == _PUSH:
            if relay.pending and relay.pending[0].by_push and b"subscribe" in bytes(segment.data[:HEAD]).lower():
                relay.pending.popleft()
            return relay.armed.reads_pushes
        asked = segment.asked = relay.pending.popleft() if relay.pending else Asked()
        relay.answering.append(asked)
        return relay.armed.reads_kinds or any(due.fault.direction == "reply" for due in asked.due)

    def pass_small(self, raw: bytes) -> bool:
        """Pass it on, and log it, unless the request that it answers is struck."""
        relay = self._relay
        pending = relay.pending
        if self.discards or relay.answering or not pending or pending[0].due or self.scanner.whole(raw) is None:
            return False
        asked = pending.popleft()
        left = self.send_small(raw)
        if left:
            relay.answering.append(asked)
            end = self.scanner.offset
            self.mark(Frame(end - len(raw), end, chr(raw[0]), raw[:HEAD], raw == NULL), left)
        else:
            relay.reply(len(raw), raw[:HEAD], asked, null=raw == NULL)
        return True

    async def pass_on(self) -> None:
        """Take all that is at hand, and more while it is kept back."""
        while self.segments or (self.gathers and await self.more()):
            await self._one()
            if self.gathers and (self._gathering <= 0 or not (
                    self._relay.pending or any(segment.begins for segment in self.segments))):
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
        asked, due = segment.asked or Asked(), []
        if self._relay.armed.reads_kinds:
            begin, segment = await self.gather_until(segment, lambda bytes_, at: kind_of(bytes_) is not None)
            kind = kind_of(begin) or ""
            due = self._relay.armed.answered(self._relay.ordinal, asked.command, asked.key, kind)
        due = sorted([*due, *asked.struck("reply")], key=lambda due: due.place)
        push = begin[0] == _PUSH
        if due and self.gathers:
            await self._scatter()
        source = self.frame(begin, segment)
        self._passing = passing = _Passing(push)
        async with aclosing(source), aclosing(self._relay.struck(asked, due, source, "reply", self)) as pieces:
            async for piece in pieces:
                passing.size += len(piece)
                passing.head += bytes(piece[: HEAD - len(passing.head)])
                await self.put(piece)
            async for _ in source:
                pass
        if self.last is not None and self._passing is not None:
            self.passed_early()
        self._passing = None

    def passed_early(self) -> None:
        """Log the reply that the task has in hand: all of it has been passed on."""
        passing, self._passing = self._passing, None
        if passing is not None:
            self._log(partial(self._answered, passing.size, passing.head, push=passing.push,
                              null=passing.head in _NULLS))

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
        self._answered(frame.end - frame.start, frame.head, push=frame.kind == ">", null=frame.null)

    def _answered(self, size: int, head: bytes, *, push: bool, null: bool) -> None:
        answering = self._relay.answering
        asked = Asked() if push or not answering else answering.popleft()
        self._relay.reply(size, head, asked, push=push, null=null)

    def malformed(self, segment: Segment) -> None:
        """Log it."""
        self._relay.raw("reply", segment)
