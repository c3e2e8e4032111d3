"""The frame scanner as the proxy uses it: in strides where it can, past payloads that it never sees, with early words.

It says of every stream what `kvproof.models.frames.FrameScanner` says, whose table does whatever is not done here; a
test holds the two together.
"""

from __future__ import annotations

import re

from kvproof.models.frames import HEAD, STATES, WORD, WORDS, Bytes, Frame, FrameScanner, Malformed

_HEADER = re.compile(rb"[$*]([1-9][0-9]{0,8})\r\n").match
NULL = b"$-1\r\n"
"""The null bulk string."""
_BULK, _CR, _LF = b"$\r\n"
_VALUE, _PAYLOAD = STATES.index("value"), STATES.index("payload")


class Scanner(FrameScanner):
    """A `FrameScanner` that takes a bulk string that is at hand, and the header of an array, in one step each."""

    @property
    def words(self) -> tuple[bytes, ...]:
        """With `keep_words`, those of the frame under way that are whole."""
        return tuple(self._words)

    @property
    def skippable(self) -> int:
        """How many bytes of payload come next of which nothing is kept, so that `skip` may stand for feeding them."""
        if self._state != _PAYLOAD or len(self._head) < HEAD or (self._word is not None and len(self._word) < WORD):
            return 0
        return self._remaining

    def skip(self, count: int) -> None:
        """Take note that `count` bytes, at most `skippable`, have come in the stream; raises ValueError for more."""
        if not 0 <= count <= self.skippable:
            raise ValueError(f"{count} bytes cannot be skipped where {self.skippable} of a payload are to come")
        self._remaining -= count
        self.offset += count

    def whole(self, raw: bytes) -> tuple[bytes, ...] | None:
        """Take a small piece that is one plain frame, and return its words, if words are kept and else none.

        None, and nothing taken, when it may be anything else. Plain are an array of bulk strings where words are kept,
        else a bulk string, a simple string or an error.
        """
        if self._start is not None or self._error is not None:
            return None
        words: tuple[bytes, ...] = ()
        if self._keep_words:
            words = self._words_of(raw)
            if not words:
                return None
        elif raw == NULL:
            pass
        elif raw[0] == _BULK:
            end = raw.find(b"\r\n")
            size = len(raw) - end - 4
            if size < 0 or size > self._limit or raw[1:end] != b"%d" % size or not raw.endswith(b"\r\n"):
                return None
        elif raw[0] not in b"+-" or raw.find(b"\n") != len(raw) - 1 or raw.find(b"\r") != len(raw) - 2:
            return None
        self.offset += len(raw)
        return words

    def _words_of(self, raw: bytes) -> tuple[bytes, ...]:
        """Return the words of an array of bulk strings that is `raw`; none when it is something else."""
        parts = raw.split(b"\r\n")
        count = len(parts) // 2 - 1
        if len(parts) % 2 or parts[-1] or parts[0] != b"*%d" % count:
            return ()
        if count > min(WORDS, self._limit) or not self._depth:
            return ()
        words = parts[2::2]
        for length, word in zip(parts[1::2], words, strict=False):
            if length != b"$%d" % len(word) or len(word) > min(WORD, self._limit):
                return ()
        return tuple(words)

    def feed(self, data: Bytes) -> list[Frame]:
        """See `FrameScanner.feed`."""
        frames: list[Frame] = []
        at, size, origin = 0, len(data), self.offset
        if self._error is None and self._state == _VALUE:
            while end := self._stride(data, at, size):
                at = end
                if not self._stack:
                    frames.append(self._finish(origin + at))
        if at == size:
            self.offset = origin + at
            return frames
        self.offset = origin + at
        try:
            frames += super().feed(data[at:] if at else data)
        except Malformed as error:
            error.frames[:0] = frames
            raise
        return frames

    def _stride(self, data: Bytes, at: int, size: int) -> int:
        """Return where the bulk string ends, or the header of an array, that begins here; 0 for neither.

        What is cut, empty, large or wrong is left to the table.
        """
        header = _HEADER(data, at)
        if header is None:
            return 0
        number, end = int(header[1]), header.end()
        begins = self._start is None
        kind = data[at]
        if number > self._limit:
            return 0
        if kind == _BULK:
            begin, end = end, end + number + 2
            if end > size or data[end - 2] != _CR or data[end - 1] != _LF:
                return 0
            if begins:
                self._begin(self.offset + at, kind)
            if self._keep_words and len(self._words) < WORDS:
                self._words.append(bytes(data[begin : begin + min(number, WORD)]))
            if self._stack:
                self._close()
        else:
            if len(self._stack) >= self._depth:
                return 0
            if begins:
                self._begin(self.offset + at, kind)
            self._stack.append(number)
        room = HEAD - len(self._head)
        if room > 0:
            self._head += data[at : min(at + room, end)]
        return end
