"""Where RESP frames begin and end in a stream of bytes, found by one table-driven automaton that keeps no payload."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, NoReturn

from kvproof.errors import ProtocolError

LIMIT = 512 * 1024 * 1024
"""The longest bulk string and the largest aggregate that are believed by default (bytes, elements)."""
TEXT_LIMIT = 64 * 1024
"""The longest line (simple string or error, number) that is believed, in bytes."""
HEAD = 64
"""How many of a frame's first bytes are kept."""
WORD, WORDS = 512, 1024
"""How many bytes of a request's bulk string, and how many bulk strings, are kept."""

Bytes = bytes | bytearray | memoryview


class Rule(NamedTuple):
    """In `state`, a byte out of `on` leads to the state `to` and does `action`; a byte that no rule names is malformed.

    Registers: `number` (the length or integer being read), `remaining` (payload bytes to come), `line` (bytes of text
    so far), `stack` (for each open aggregate, how many elements are to come).

    Actions: "open" a value begins; "length", "positive", "negative" one more digit, bounded by the limit or by 64
    bits; "text" one more byte of a line, bounded; "null" the value is a null; "bulk", "size", "format" `remaining`
    payload bytes follow ("format": after the four that name a verbatim string's format); "count", "pairs",
    "attribute" that many elements follow (2n for n pairs, 2n + 1 for an attribute, which decorates the value after
    it); "close" the value ends, and with it every aggregate that it was the last element of; "" nothing.

    Payload bytes do not go through the table: in the state "payload", while `remaining` > 0, any byte is skipped.
    """

    state: str
    on: bytes
    to: str
    action: str = ""


_DIGIT, _NONZERO, _SIGN = b"0123456789", b"123456789", b"+-"
_ANY = bytes(range(256))
_TEXT = bytes(byte for byte in _ANY if byte not in b"\r\n")


def _line_rules() -> Iterator[Rule]:
    yield Rule("value", b"+-", "text", "open")
    yield Rule("text", _TEXT, "text", "text")
    yield Rule("text", b"\r", "end")
    yield Rule("end", b"\n", "value", "close")
    yield Rule("value", b"_", "null", "open")
    yield Rule("null", b"\r", "end", "null")
    yield Rule("value", b"#", "boolean", "open")
    yield Rule("boolean", b"tf", "line-end")
    yield Rule("line-end", b"\r", "end")


def _integer_rules() -> Iterator[Rule]:
    yield Rule("value", b":", "integer", "open")
    for state in ("integer", "integer-plus"):
        yield Rule(state, b"0", "line-end")
        yield Rule(state, _NONZERO, "integer-digits", "positive")
    yield Rule("integer", b"+", "integer-plus")
    yield Rule("integer", b"-", "integer-minus")
    yield Rule("integer-digits", _DIGIT, "integer-digits", "positive")
    yield Rule("integer-digits", b"\r", "end")
    yield Rule("integer-minus", _NONZERO, "negative-digits", "negative")
    yield Rule("negative-digits", _DIGIT, "negative-digits", "negative")
    yield Rule("negative-digits", b"\r", "end")
    yield Rule("value", b"(", "big", "open")
    yield Rule("big", _SIGN, "big-sign")
    for state in ("big", "big-sign", "big-digits"):
        yield Rule(state, _DIGIT, "big-digits", "text")
    yield Rule("big-digits", b"\r", "end")


def _double_rules() -> Iterator[Rule]:
    yield Rule("value", b",", "double", "open")
    yield Rule("double", _SIGN, "double-sign")
    for state in ("double", "double-sign"):
        yield Rule(state, _DIGIT, "double-whole", "text")
        yield Rule(state, b"i", "inf-i")
        yield Rule(state, b"n", "nan-n")
    yield Rule("double-whole", _DIGIT, "double-whole", "text")
    yield Rule("double-whole", b".", "double-fraction")
    yield Rule("double-fraction", _DIGIT, "double-fraction", "text")
    for state in ("double-whole", "double-fraction"):
        yield Rule(state, b"eE", "exponent")
        yield Rule(state, b"\r", "end")
    yield Rule("exponent", _SIGN, "exponent-sign")
    for state in ("exponent", "exponent-sign", "exponent-digits"):
        yield Rule(state, _DIGIT, "exponent-digits", "text")
    yield Rule("exponent-digits", b"\r", "end")
    yield Rule("inf-i", b"n", "inf-n")
    yield Rule("inf-n", b"f", "line-end")
    yield Rule("nan-n", b"a", "nan-a")
    yield Rule("nan-a", b"n", "line-end")


def _length_rules(name: str, types: bytes, to: str, action: str, *, null: bool = False) -> Iterator[Rule]:
    yield Rule("value", types, name, "open")
    yield Rule(name, b"0", f"{name}-cr")
    yield Rule(name, _NONZERO, f"{name}-digits", "length")
    yield Rule(f"{name}-digits", _DIGIT, f"{name}-digits", "length")
    yield Rule(f"{name}-digits", b"\r", f"{name}-lf")
    yield Rule(f"{name}-cr", b"\r", f"{name}-lf")
    yield Rule(f"{name}-lf", b"\n", to, action)
    if null:
        yield Rule(name, b"-", f"{name}-minus")
        yield Rule(f"{name}-minus", b"1", f"{name}-null")
        yield Rule(f"{name}-null", b"\r", "end", "null")


RULES: tuple[Rule, ...] = (
    *_line_rules(),
    *_integer_rules(),
    *_double_rules(),
    *_length_rules("bulk", b"$", "payload", "bulk", null=True),
    *_length_rules("bulk-error", b"!", "payload", "size"),
    *_length_rules("verbatim", b"=", "format-1", "format"),
    Rule("format-1", _ANY, "format-2"),
    Rule("format-2", _ANY, "format-3"),
    Rule("format-3", _ANY, "format-4"),
    Rule("format-4", b":", "payload"),
    Rule("payload", b"\r", "end"),
    *_length_rules("array", b"*", "value", "count", null=True),
    *_length_rules("set", b"~>", "value", "count"),
    *_length_rules("map", b"%", "value", "pairs"),
    *_length_rules("attribute", b"|", "value", "attribute"),
)
"""The automaton: all of RESP2 and RESP3 but streamed strings and aggregates (``$?``, ``*?``), which no server sends."""

STATES: tuple[str, ...] = ("value", *sorted({rule.state for rule in RULES} - {"value"}))
"""Every state; the automaton starts, and stands between two frames, in the first one."""


Rows = tuple[tuple[tuple[int, str] | None, ...], ...]
"""For each state, by its index in `STATES`, and each byte: the next state and the action, None for a malformed byte."""


def compiled(rules: Iterable[Rule]) -> Rows:
    """Return the table that a scanner runs; raises AssertionError for two rules on one byte in one state."""
    rows: list[list[tuple[int, str] | None]] = [[None] * 256 for _ in STATES]
    for rule in rules:
        entry = (STATES.index(rule.to), rule.action)
        row = rows[STATES.index(rule.state)]
        for byte in rule.on:
            if row[byte] is not None:
                raise AssertionError(f"two rules for byte {byte} in state {rule.state}")
            row[byte] = entry
    return tuple(tuple(row) for row in rows)


_VALUE, _PAYLOAD = STATES.index("value"), STATES.index("payload")


@dataclass(frozen=True, slots=True)
class Frame:
    """One whole RESP value in a stream: a request, a reply (with its attributes) or a push.

    start, end: stream offsets of its first byte and one past its last. kind: its type byte, such as "$". head: its
    first bytes, at most 64. null: it is a null (``$-1``, ``*-1`` or ``_``). words: with `keep_words`, the first 512
    bytes of each of the first 1024 bulk strings in it.
    """

    start: int
    end: int
    kind: str
    head: bytes
    null: bool
    words: tuple[bytes, ...] = ()


class Malformed(ProtocolError):
    """The stream stopped being RESP at the byte `offset`; `frames` ended inside the same piece before it."""

    def __init__(self, message: str, offset: int, frames: list[Frame]) -> None:
        """Keep what came whole before the bad byte: those frames reached their readers."""
        super().__init__(message)
        self.offset = offset
        self.frames = frames


class FrameScanner:
    """Says where frames begin and end, however the stream is cut, without keeping payloads.

    limit: the longest bulk string (bytes) and the largest aggregate (elements) that are believed. depth: how deep
    aggregates may be nested. Time is linear in bytes of headers and lines; the inside of a bulk string is skipped in
    one step for each piece. Memory is bounded by depth, 64 bytes of head and, with `keep_words`, 512 KiB of words.
    """

    rows: Rows = compiled(RULES)
    """The table that it runs."""

    def __init__(self, *, keep_words: bool = False, limit: int = LIMIT, depth: int = 16) -> None:
        """Start between two frames, at offset 0."""
        self.offset = 0
        self._keep_words, self._limit, self._depth = keep_words, limit, depth
        self._state = _VALUE
        self._number = self._remaining = self._line = 0
        self._stack: list[int] = []
        self._error: str | None = None
        self._start: int | None = None
        self._kind = ""
        self._null = False
        self._head = bytearray()
        self._words: list[bytes] = []
        self._word: bytearray | None = None

    @property
    def inside(self) -> bool:
        """Whether the stream stands in the middle of a frame."""
        return self._start is not None

    @property
    def state(self) -> str:
        """The state of the table that it stands in."""
        return STATES[self._state]

    @property
    def depth(self) -> int:
        """In how many aggregates it stands."""
        return len(self._stack)

    @property
    def payload(self) -> int | None:
        """Bytes of payload still to come of a bulk string that is a frame by itself, None anywhere else.

        It is 0 between the payload and its terminator.
        """
        if self._state == _PAYLOAD and self._kind == "$" and not self._stack:
            return self._remaining
        return None

    def feed(self, data: Bytes) -> list[Frame]:
        """Take the next piece of the stream; return the frames that end inside it.

        Raises Malformed (a ProtocolError) at the first byte that cannot be RESP, or whose length or depth exceeds
        the limits; a scanner that raised once raises for ever.
        """
        if self._error is not None:
            raise Malformed(self._error, self.offset, [])
        frames: list[Frame] = []
        at, size, origin, rows = 0, len(data), self.offset, self.rows
        while at < size:
            if self._state == _PAYLOAD and self._remaining:
                at += self._skip(data, at)
                continue
            byte = data[at]
            entry = rows[self._state][byte]
            if entry is None:
                self._fail(f"byte {bytes([byte])!r} in state {STATES[self._state]!r}", origin + at, frames)
            if self._start is None:
                self._begin(origin + at, byte)
            if len(self._head) < HEAD:
                self._head.append(byte)
            at += 1
            self._state, action = entry
            if action:
                wrong = self._act(action, byte)
                if wrong:
                    self._fail(wrong, origin + at - 1, frames)
                if self._state == _VALUE and not self._stack:
                    frames.append(self._finish(origin + at))
        self.offset = origin + size
        return frames

    def _skip(self, data: Bytes, at: int) -> int:
        count = min(self._remaining, len(data) - at)
        self._remaining -= count
        room = HEAD - len(self._head)
        if room > 0:
            self._head += data[at : at + min(room, count)]
        if self._word is not None and len(self._word) < WORD:
            self._word += data[at : at + min(WORD - len(self._word), count)]
        return count

    def _begin(self, offset: int, byte: int) -> None:
        self._start, self._kind, self._null = offset, chr(byte), False
        self._head.clear()
        self._words = []

    def _finish(self, end: int) -> Frame:
        assert self._start is not None
        frame = Frame(self._start, end, self._kind, bytes(self._head), self._null, tuple(self._words))
        self._start = None
        return frame

    def _act(self, action: str, byte: int) -> str | None:
        """Do one action of the table; return what is wrong, if anything is."""
        if action == "open":
            self._number = self._line = 0
        elif action in ("length", "positive", "negative"):
            self._number = self._number * 10 + byte - 48
            most = {"length": self._limit, "positive": 2**63 - 1, "negative": 2**63}[action]
            if self._number > most:
                return f"{self._number} is more than {most}"
        elif action == "text":
            self._line += 1
            if self._line > TEXT_LIMIT:
                return f"a line of more than {TEXT_LIMIT} bytes"
        elif action == "null":
            self._null = not self._stack
        elif action == "close":
            self._close()
        elif action in ("bulk", "size", "format"):
            return self._open_payload(action)
        else:
            return self._open_aggregate(action)
        return None

    def _open_payload(self, action: str) -> str | None:
        self._remaining = self._number
        if action == "format":
            if self._number < 4:
                return f"a verbatim string of {self._number} bytes has no format"
            self._remaining -= 4
        elif action == "bulk" and self._keep_words and len(self._words) < WORDS:
            self._word = bytearray()
        return None

    def _open_aggregate(self, action: str) -> str | None:
        elements = {"count": self._number, "pairs": 2 * self._number, "attribute": 2 * self._number + 1}[action]
        if elements > self._limit:
            return f"{elements} elements are more than {self._limit}"
        if len(self._stack) >= self._depth:
            return f"nested deeper than {self._depth}"
        if elements:
            self._stack.append(elements)
        else:
            self._close()
        return None

    def _close(self) -> None:
        if self._word is not None:
            self._words.append(bytes(self._word))
            self._word = None
        while self._stack:
            self._stack[-1] -= 1
            if self._stack[-1]:
                return
            self._stack.pop()

    def _fail(self, what: str, offset: int, frames: list[Frame]) -> NoReturn:
        self.offset = offset
        self._error = f"malformed RESP at byte {offset}: {what}"
        raise Malformed(self._error, offset, frames)
