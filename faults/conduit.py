"""Bytes from one socket to another within the step in which they come, as long as nothing strikes."""

from __future__ import annotations

import os
import socket
from collections import deque

import trio

from kvproof.faults.pump import Port, Pump
from kvproof.faults.scanner import Scanner
from kvproof.faults.segment import Segment
from kvproof.faults.stock import BUFFER, Pipe, Stock
from kvproof.models.resp import Frame, Malformed

SMALL = 4096
"""Bytes up to which a piece may be a frame by itself, to be passed on at once."""
PORTION = 64 * 1024
"""Bytes that are taken at once outside of a payload."""
SPLICED = 64 * 1024
"""Bytes of a payload from which on they are moved within the kernel, and not through a buffer."""
BATCH = 512 * 1024
"""Bytes of a payload that are waited for at once, for as long as more than twice as many are to come."""
_NOTHING = memoryview(b"")
_MOVE = os.SPLICE_F_MOVE | os.SPLICE_F_NONBLOCK


class SinkGone(Exception):
    """Nobody takes any more what is passed on."""


class Conduit:
    """One direction of one connection, with the pump: it passes on what comes until something is for its task.

    That is so when a frame begins that is struck (`begins` says so), when the source ends, and when something fails:
    then `stopped` is set, and nothing moves any more before the task hands it back (`Flow`).

    delivered: bytes that the sink has taken; whole: those of them that were in frames that it has whole. ended: the
    source has. quick: a small frame that comes by itself needs no care. discards: what comes is read, and passed on
    to nobody. reading: what comes is RESP.
    """

    def __init__(self, pump: Pump, source: Port, sink: Port, stock: Stock, scanner: Scanner) -> None:
        """Join two sockets; nothing moves yet."""
        self.source, self.sink = source, sink
        self.segments: deque[Segment] = deque()
        self.ended = False
        self.discards = False
        self.quick = True
        self.delivered = 0
        self.whole = 0
        self.scanner = scanner
        self._pump, self._stock = pump, stock
        self.reading = True
        self.failure: Exception | None = None
        self._small = True
        self._piece = _NOTHING
        self._buffer: memoryview | None = None
        self._unsent: memoryview | None = None
        self._marks: deque[tuple[int, Frame | Segment]] = deque()
        self._pipe: Pipe | None = None
        self.stopped = trio.Event()

    # What the two directions differ in.

    def begins(self, segment: Segment) -> bool:
        """Take note that a frame begins; return whether the task has to see to it."""
        raise NotImplementedError

    def came(self, frame: Frame) -> None:
        """Take note that a frame was read whole."""

    def passed(self, frame: Frame) -> None:
        """Take note that a frame has been passed on whole and unchanged."""

    def malformed(self, segment: Segment) -> None:
        """Take note that the stream is not RESP any more, from this segment on."""
        raise NotImplementedError

    def pass_small(self, raw: bytes) -> bool:
        """Pass on a piece that is one frame by itself, at once; False, and nothing done, when it needs more care."""
        raise NotImplementedError

    def sink_lost(self) -> bool:
        """Return whether the source is to be read on although the sink takes nothing any more."""
        return False

    # What they have in common.

    def start(self) -> None:
        """Be with the pump."""
        self.stopped = trio.Event()
        self.source.watch_read(self._readable)

    def end(self) -> None:
        """Be with nobody any more, and hold nothing any more: also a failure holds the buffer that it came in."""
        self.source.watch_read(None)
        self.sink.watch_write(None)
        self.failure = None
        self.segments.clear()
        self.give_back()
        if self._pipe is not None:
            self._stock.give_pipe(self._pipe)
            self._pipe = None

    def discard(self) -> None:
        """Pass nothing on any more, also not what was on its way; go on reading."""
        self.discards = True
        if self._unsent is not None or (self._pipe is not None and self._pipe.inside):
            self._unsent = None
            self._marks.clear()
            if self._pipe is not None:
                self._stock.give_pipe(self._pipe)
                self._pipe = None
            self.give_back()
            self.sink.watch_write(None)
            self.source.watch_read(self._readable)

    def cut(self, data: memoryview) -> list[Segment]:
        """Return the segments of a piece of the stream."""
        if not self.reading:
            return [Segment(data, raw=True)]
        inside, origin = self.scanner.inside, self.scanner.offset
        reason = ""
        try:
            frames = self.scanner.feed(data)
        except Malformed as error:
            frames, reason = error.frames, str(error)
        segments, at = [], 0
        for frame in frames:
            end = frame.end - origin
            segments.append(Segment(data[at:end], not inside, frame))
            at, inside = end, False
        if reason:
            self.reading = self.quick = False
            segments.append(Segment(data[at:], raw=True, reason=reason))
        elif at < len(data):
            segments.append(Segment(data[at:], not inside))
        for segment in segments:
            if segment.frame is not None:
                self.came(segment.frame)
        return segments

    def _stop(self) -> None:
        self.source.watch_read(None)
        self.stopped.set()
        self._pump.give_way()

    def _readable(self) -> None:
        try:
            self._take_turn()
        except Exception as error:  # a mistake of ours must not take the other connections along
            self.failure = error
            self._stop()

    def _take_turn(self) -> None:
        if self._small and self.quick:
            try:
                raw = self.source.socket.recv(SMALL)
            except BlockingIOError:
                return
            except OSError as error:
                self.failure = error
                self._stop()
                return
            if raw and self.pass_small(raw):
                return
            self._small = len(raw) < SMALL
            self.ended = not raw
            self._take(memoryview(raw))
        elif self.scanner.skippable >= SPLICED and self.reading and not self.discards and self._has_pipe():
            self._splice()
            return
        else:
            self.receive()
        if self.ended or self.failure is not None:
            self._stop()
        elif self.segments:
            if self._struck():
                self._stop()
            else:
                self._send()

    def send_small(self, raw: bytes) -> int:
        """Send such a piece; return how much of it is still unsent, and is sent when that can be done."""
        try:
            sent = self.sink.socket.send(raw)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self._failed(error)
            return len(raw)
        self.delivered += sent
        left = len(raw) - sent
        if left:
            self._unsent = memoryview(raw)[sent:]
            self.source.watch_read(None)
            self.sink.watch_write(self._writable_again)
        else:
            self.whole = self.delivered
        return left

    def mark(self, frame: Frame, left: int) -> None:
        """Tell of a frame once `left` bytes more have been delivered."""
        self._marks.append((self.delivered + left, frame))

    def receive(self) -> None:
        """Receive what is there, if there is something, into a buffer."""
        buffer = self._stock.take_buffer()
        try:
            # Many small frames are taken in small portions, so that others have their turn.
            most = BUFFER if self.scanner.skippable else PORTION
            size = self.source.socket.recv_into(buffer, most)
        except BlockingIOError:
            self._stock.give_buffer(buffer)
            return
        except OSError as error:
            self._stock.give_buffer(buffer)
            self.failure = error
            return
        self.ended = not size
        self._small = size < SMALL
        if size:
            self._buffer = buffer
            self._take(buffer[:size])
        else:
            self._stock.give_buffer(buffer)

    def _take(self, piece: memoryview) -> None:
        if piece:
            self._piece = piece
            self.segments.extend(self.cut(piece))

    def _struck(self) -> bool:
        """Tell of every frame that begins at hand; return whether one of them is for the task."""
        found = False
        for segment in self.segments:
            if segment.begins:
                segment.told = True
                found |= self.begins(segment)
        return found

    def _send(self) -> None:
        """Pass all segments at hand on as they are."""
        total = self.delivered
        for segment in self.segments:
            if segment.reason:
                self._marks.append((total, segment))
            total += len(segment.data)
            if segment.frame is not None:
                self._marks.append((total, segment.frame))
        self.segments.clear()
        if self.discards:
            self.delivered = total
        else:
            # They are one piece, one after the other.
            self._unsent = self._piece[: total - self.delivered]
        self._writable()

    def _writable_again(self) -> None:
        try:
            self._writable()
        except Exception as error:  # as in `_readable`
            self.failure = error
            self.sink.watch_write(None)
            self._stop()

    def _writable(self) -> None:
        """Go on with what could not be sent before."""
        try:
            if self._pipe is not None:
                self._from_pipe(self._pipe)
            while self._unsent:
                sent = self.sink.socket.send(self._unsent)
                self.delivered += sent
                self._unsent = self._unsent[sent:]
        except BlockingIOError:
            self._mark()
            self.source.watch_read(None)
            self.sink.watch_write(self._writable_again)
            return
        except OSError as error:
            self._unsent = None
            self.sink.watch_write(None)
            self._failed(error)
            return
        self._unsent = None
        self._mark()
        self.give_back()
        if self._pipe is not None:
            self._stock.give_pipe(self._pipe)
            self._pipe = None
        if self.sink.on_writable is not None:
            self.sink.watch_write(None)
            self.source.watch_read(self._readable)

    def _failed(self, error: OSError) -> None:
        """Take note that the sink takes nothing any more."""
        self.give_back()
        if self.sink_lost():
            self.discards = True
            self.source.watch_read(self._readable)
        else:
            self.failure = SinkGone()
            self.failure.__cause__ = error
            self._stop()

    def _mark(self) -> None:
        while self._marks and self._marks[0][0] <= self.delivered:
            end, what = self._marks.popleft()
            if isinstance(what, Segment):
                self.malformed(what)
            else:
                self.whole = end
                self.passed(what)

    def _has_pipe(self) -> bool:
        if self._pipe is None:
            self._pipe = self._stock.take_pipe()
        return self._pipe is not None

    def _splice(self) -> None:
        """Move what is there of a payload, and while it moves on at once, what comes meanwhile."""
        pipe = self._pipe
        assert pipe is not None
        source, sink = self.source.socket.fileno(), self.sink.socket.fileno()
        left = self.scanner.skippable
        while left and not pipe.inside:
            try:
                moved = os.splice(source, pipe.entry, min(left, BUFFER), flags=_MOVE)
            except BlockingIOError:
                break
            except OSError as error:
                self.failure = error
                self._stop()
                return
            if moved == 0:
                self.ended = True
                self._stop()
                return
            self.scanner.skip(moved)
            left -= moved
            pipe.inside = moved
            try:
                gone = os.splice(pipe.exit, sink, moved, flags=_MOVE)
            except OSError:
                break  # `_writable` meets it again, and knows what to do.
            pipe.inside -= gone
            self.delivered += gone
        self.source.wait_for(BATCH if left > 2 * BATCH else 1)
        self._writable()

    def _from_pipe(self, pipe: Pipe) -> None:
        while pipe.inside:
            moved = os.splice(pipe.exit, self.sink.socket.fileno(), pipe.inside, flags=_MOVE)
            pipe.inside -= moved
            self.delivered += moved

    def give_back(self) -> None:
        """Give the buffer back, if nothing at hand lies in it."""
        if self._buffer is not None and not self.segments:
            self._stock.give_buffer(self._buffer)
            # Nothing of ours is to hold a buffer that is in stock: it may be let go of there.
            self._buffer, self._piece = None, _NOTHING


def plain(bare: socket.socket) -> socket.socket:
    """Return a socket made non-blocking, without delay of small frames."""
    bare.setblocking(False)
    if bare.family != socket.AF_UNIX:
        bare.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return bare


