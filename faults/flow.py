"""A flow: what a task does with a conduit's bytes where something strikes, waits or is kept back."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable

import trio

from kvproof.faults.conduit import Conduit, SinkGone
from kvproof.faults.pump import TURN, Port, Pump
from kvproof.faults.scanner import Scanner
from kvproof.faults.segment import Segment
from kvproof.faults.stock import Stock
from kvproof.models.resp import Frame


class Flow(Conduit):
    """One direction of one connection, with its task: `run` does what `pass_on` says with the segments at hand.

    last: the frame that `frame` has yielded to its end.
    """

    def __init__(self, pump: Pump, source: Port, sink: Port, stock: Stock, scanner: Scanner) -> None:
        """Join two sockets; nothing moves before `run`."""
        super().__init__(pump, source, sink, stock, scanner)
        self.last: Frame | None = None
        self._turn = 0.0
        self._gathered: bytearray | None = None

    async def pass_on(self) -> None:
        """Take the segments at hand, and as many more (`more`) as it needs."""
        raise NotImplementedError

    async def run(self) -> None:
        """Pass on until the source ends; raises OSError when it fails, SinkGone when nobody takes what is passed on."""
        try:
            while not self.ended:
                if not self.segments:
                    self.start()
                    await self.stopped.wait()
                    if self.failure is not None:
                        raise self.failure
                if self.segments:
                    await self.pass_on()
                if not self.segments:
                    self.give_back()
        finally:
            self.end()

    async def more(self) -> bool:
        """Read until there is a segment more; False when the source ends before that. Raises OSError."""
        while not self.segments:
            if self.ended:
                return False
            await trio.lowlevel.wait_readable(self.source.socket.fileno())
            self.give_back()
            self.receive()
            if self.failure is not None:
                raise self.failure
        return True

    async def put(self, data: bytes | memoryview) -> None:
        """Hand bytes to the sink; raises SinkGone."""
        if self._gathered is not None:
            self._gathered += data
            return
        left = memoryview(data)
        if time.monotonic() > self._turn:
            await trio.lowlevel.checkpoint()
            self._turn = time.monotonic() + TURN
        while left and not self.discards:
            try:
                sent = self.sink.socket.send(left)
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self.sink.socket.fileno())
                continue
            except OSError as error:
                if not self.sink_lost():
                    raise SinkGone from error
                self.discards = True
                return
            self.delivered += sent
            left = left[sent:]

    def gather(self) -> None:
        """Keep back what is put, until `scatter`."""
        self._gathered = self._gathered or bytearray()

    @property
    def gathers(self) -> bool:
        """Whether what is put is kept back."""
        return self._gathered is not None

    async def scatter(self) -> None:
        """Hand all that was kept back to the sink, at once."""
        kept, self._gathered = self._gathered, None
        await self.put(bytes(kept or b""))

    async def frame(self, begin: bytes | memoryview, segment: Segment) -> AsyncGenerator[bytes | memoryview]:
        """Yield the bytes of a frame, of which `begin` has those up to the end of `segment`.

        They end with the frame, which is `last` then, or with the stream, or where that is not RESP any more.
        """
        self.last = segment.frame
        yield begin
        while self.last is None and await self.more() and not self.segments[0].raw:
            segment = self.segments.popleft()
            self.last = segment.frame
            yield segment.data

    async def gather_until(self, segment: Segment, enough: Callable[[bytes, Segment], bool]) -> tuple[bytes, Segment]:
        """Take segments of a frame until the bytes of all of them are enough, or it ends; return them and the last."""
        begin = bytes(segment.data)
        while not enough(begin, segment) and segment.frame is None and await self.more() and not self.segments[0].raw:
            segment = self.segments.popleft()
            begin += segment.data
        return begin, segment
