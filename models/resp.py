"""RESP2 and RESP3: commands to bytes, bytes to small replies, and where frames end (`FrameScanner`)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from kvproof.errors import ProtocolError
from kvproof.models.frames import Bytes, Frame, FrameScanner, Malformed

__all__ = [
    "Attributed",
    "Decoder",
    "ErrorReply",
    "Frame",
    "FrameScanner",
    "Malformed",
    "Map",
    "Null",
    "Push",
    "Set",
    "SimpleString",
    "Value",
    "Verbatim",
    "encode_command",
    "parse",
    "scatter_command",
]

Word = str | bytes | bytearray | memoryview | int
"""One word of a command; text is encoded as UTF-8."""


class Null(Enum):
    """The nulls of RESP, each a value of its own: never None, never empty bytes."""

    BULK = "$-1"
    ARRAY = "*-1"
    PLAIN = "_"


@dataclass(frozen=True, slots=True)
class SimpleString:
    """A simple string such as ``+OK``; bytes that are not UTF-8 are kept, as surrogates (``surrogateescape``)."""

    text: str


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """An error in the band of replies (``-ERR ...`` or a bulk error): the stream goes on after it."""

    message: str


@dataclass(frozen=True, slots=True)
class Verbatim:
    """A verbatim string with its format of three letters, such as "txt"."""

    format: str
    text: bytes


@dataclass(frozen=True, slots=True)
class Map:
    """A map, as pairs in the order sent; keys may be of any kind."""

    pairs: tuple[tuple[Value, Value], ...]


@dataclass(frozen=True, slots=True)
class Set:
    """A set, as items in the order sent."""

    items: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Push:
    """Out-of-band data, which is the reply to no request."""

    items: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Attributed:
    """A value with the attributes that were sent before it."""

    attributes: Map
    value: Value


Value = (
    SimpleString | ErrorReply | int | float | bool | bytes | Null | Verbatim | Map | Set | Push | Attributed
    | tuple["Value", ...]
)
"""A decoded reply: bulk strings are bytes, arrays tuples, integers and big numbers int."""


def encode_command(*words: Word) -> bytes:
    """Return a command as the array of bulk strings that a server expects."""
    parts = [b"*%d\r\n" % len(words)]
    for word in words:
        raw = _raw(word)
        parts += (b"$%d\r\n" % len(raw), raw, b"\r\n")
    return b"".join(parts)


def scatter_command(*words: Word, payload: Bytes) -> list[bytes | memoryview]:
    """Return a command whose last word is `payload` as [head, payload, tail], the payload as a view and not a copy."""
    view = memoryview(payload).cast("B")
    head = [b"*%d\r\n" % (len(words) + 1)]
    for word in words:
        raw = _raw(word)
        head += (b"$%d\r\n" % len(raw), raw, b"\r\n")
    head.append(b"$%d\r\n" % len(view))
    return [b"".join(head), view, b"\r\n"]


def _raw(word: Word) -> bytes:
    if isinstance(word, str):
        return word.encode()
    return b"%d" % word if isinstance(word, int) else bytes(word)


class Decoder:
    """Decodes replies from a stream, however it is cut. For small replies: one of at most `limit` bytes is kept whole.

    What a reply is made of is decided by `FrameScanner`; values are built only once a frame is whole, so a length
    that was announced never allocates anything.
    """

    def __init__(self, *, limit: int = 1024 * 1024, depth: int = 16) -> None:
        """Start between two replies."""
        self._scanner = FrameScanner(limit=limit, depth=depth)
        self._limit = limit
        self._kept = bytearray()
        self._error: ProtocolError | None = None

    @property
    def offset(self) -> int:
        """Bytes fed so far."""
        return self._scanner.offset

    def feed(self, data: Bytes) -> list[Value]:
        """Take the next piece of the stream; return the replies that end inside it.

        Raises ProtocolError for malformed bytes and for a reply of more than `limit` bytes. Replies that ended
        before the bad byte are returned first; the next call raises.
        """
        if self._error is not None:
            raise self._error
        origin = self._scanner.offset - len(self._kept)
        try:
            frames = self._scanner.feed(data)
        except Malformed as error:
            self._error, frames = error, error.frames
            if error.offset - (frames[-1].end if frames else origin) > self._limit:
                # In smaller pieces it would have been too long before the bad byte came.
                self._error = self._too_long()
        self._kept += data
        values = []
        for frame in frames:
            if frame.end - frame.start > self._limit:
                self._error = self._too_long()
                break
            values.append(parse(memoryview(self._kept)[frame.start - origin : frame.end - origin]))
        if frames:
            del self._kept[: frames[-1].end - origin]
        if self._error is None and len(self._kept) > self._limit:
            self._error = self._too_long()
        if self._error is not None:
            self._kept.clear()
            if not values:
                raise self._error
        return values

    def _too_long(self) -> ProtocolError:
        return ProtocolError(f"a reply of more than {self._limit} bytes")


def parse(frame: Bytes) -> Value:
    """Return the value of one whole frame, as `FrameScanner` delimits it; what that has checked is not checked again.

    Raises ProtocolError when `frame` does not end where its value does.
    """
    raw = bytes(frame)
    try:
        value, end = _parse(raw, 0)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"not a whole RESP frame: {raw[:64]!r}") from error
    if rest := raw[end:]:
        raise ProtocolError(f"{len(rest)} bytes after the end of a RESP frame: {raw[:64]!r}")
    return value


def _parse(raw: bytes, at: int) -> tuple[Value, int]:
    stop = raw.index(b"\r\n", at)
    kind, line, end = raw[at : at + 1], raw[at + 1 : stop], stop + 2
    if kind in (b"$", b"!", b"="):
        return _parse_payload(kind, int(line), raw, end)
    if kind in (b"*", b"~", b">", b"%", b"|"):
        return _parse_aggregate(kind, int(line), raw, end)
    if kind == b"+":
        return SimpleString(line.decode(errors="surrogateescape")), end
    if kind == b"-":
        return ErrorReply(line.decode(errors="replace")), end
    if kind in (b":", b"("):
        return _number(line), end
    if kind == b",":
        return float(line), end
    if kind == b"#":
        return line == b"t", end
    if kind == b"_":
        return Null.PLAIN, end
    raise ValueError(kind)


def _number(line: bytes) -> int:
    # int() refuses more than 4300 digits by default; a big number may be as long as a line.
    value = 0
    digits = line.lstrip(b"+-")
    for start in range(0, len(digits), 4000):
        piece = digits[start : start + 4000]
        value = value * 10 ** len(piece) + int(piece)
    return -value if line.startswith(b"-") else value


def _parse_payload(kind: bytes, size: int, raw: bytes, at: int) -> tuple[Value, int]:
    if size < 0:
        return Null.BULK, at
    end = at + size
    if raw[end : end + 2] != b"\r\n":
        raise ValueError("no terminator")
    payload = raw[at:end]
    if kind == b"!":
        return ErrorReply(payload.decode(errors="replace")), end + 2
    if kind == b"=":
        return Verbatim(payload[:3].decode(errors="replace"), payload[4:]), end + 2
    return payload, end + 2


def _parse_aggregate(kind: bytes, count: int, raw: bytes, at: int) -> tuple[Value, int]:
    if count < 0:
        return Null.ARRAY, at
    items: list[Value] = []
    for _ in range(count * 2 if kind in (b"%", b"|") else count):
        item, at = _parse(raw, at)
        items.append(item)
    if kind in (b"%", b"|"):
        table = Map(tuple(zip(items[0::2], items[1::2], strict=True)))
        if kind == b"%":
            return table, at
        value, at = _parse(raw, at)
        return Attributed(table, value), at
    sequence = tuple(items)
    if kind == b"*":
        return sequence, at
    return (Set(sequence) if kind == b"~" else Push(sequence)), at
