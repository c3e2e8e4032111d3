"""Every mistake that spec.framing names, made in the scanner."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kvproof.models.frames import HEAD, RULES, STATES, Bytes, Frame, FrameScanner, Malformed, Rule, compiled

EXPECTED = 12_390_400
"""Bytes of the value that a reader of fixed headers expects."""


def with_rows(change: Callable[[Rule], Sequence[Rule]]) -> Any:
    """Return the table with each row replaced by what `change` makes of it."""
    return compiled(new for rule in RULES for new in change(rule))


class FixedHeader(FrameScanner):
    """A bulk string is handed out once as many bytes have come as its header is taken to have."""

    header = 11

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self._held: list[Frame] = []

    def feed(self, data: Bytes) -> list[Frame]:
        self._held += super().feed(data)
        ready: list[Frame] = []
        while self._held and (self._held[0].kind != "$" or self.offset - self._held[0].start >= self.header):
            ready.append(self._held.pop(0))
        return ready


class ExpectedHeader(FixedHeader):
    header = len(b"$%d\r\n" % EXPECTED)


class NullTakesTwo(FrameScanner):
    rows = with_rows(lambda rule: [rule._replace(to="bulk-lf") if rule.state == "bulk-null" else rule])


class EmptyLeavesEnd(FrameScanner):
    def _act(self, action: str, byte: int) -> str | None:
        if action == "bulk" and self._number == 0:
            self._state = STATES.index("value")
            self._close()
            return None
        return super()._act(action, byte)


class ErrorLeavesRest(FrameScanner):
    rows = with_rows(lambda rule: [Rule("value", b"+", "text", "open"), Rule("value", b"-", "value", "close")]
                     if rule == Rule("value", b"+-", "text", "open") else [rule])


class Wraps(FrameScanner):
    def _open_aggregate(self, action: str) -> str | None:
        self._number %= 2**31 if action == "pairs" else 2**32
        return super()._open_aggregate(action)


class NoNullArray(FrameScanner):
    rows = with_rows(lambda rule: [] if (rule.state, rule.on) == ("array", b"-") else [rule])


class OffByOne(FrameScanner):
    def _act(self, action: str, byte: int) -> str | None:
        wrong = super()._act(action, byte)
        return "a length at the limit" if action == "length" and self._number == self._limit else wrong


class LateCheck(FrameScanner):
    def _act(self, action: str, byte: int) -> str | None:
        if action == "length":
            self._number = self._number * 10 + byte - 48
            return None
        if action in ("bulk", "size", "format") and self._number > self._limit:
            return f"{self._number} is more than {self._limit}"
        return super()._act(action, byte)


class Reserves(FrameScanner):
    def _open_payload(self, action: str) -> str | None:
        self._reserved = bytearray(self._number)
        return super()._open_payload(action)


class ReservesElements(FrameScanner):
    def _open_aggregate(self, action: str) -> str | None:
        self._reserved = [None] * self._number
        return super()._open_aggregate(action)


class NullWithin(FrameScanner):
    def _act(self, action: str, byte: int) -> str | None:
        self._null |= action == "null"
        return None if action == "null" else super()._act(action, byte)


class NullIsEmpty(FrameScanner):
    rows = with_rows(lambda rule: [rule._replace(action="") if rule.state == "bulk-null" else rule])


class JumpsPiece(FrameScanner):
    def _skip(self, data: Bytes, at: int) -> int:
        super()._skip(data, at)
        return len(data) - at


class ForgetsRest(FrameScanner):
    def feed(self, data: Bytes) -> list[Frame]:
        frames = super().feed(data)
        self._remaining = 0
        return frames


class HeadAgain(FrameScanner):
    def feed(self, data: Bytes) -> list[Frame]:
        self._head.clear()
        return super().feed(data)


class PieceStartsReply(FrameScanner):
    def feed(self, data: Bytes) -> list[Frame]:
        self._state = STATES.index("value")
        return super().feed(data)


MISTAKES: dict[str, type[FrameScanner]] = {
    "framing.never-waits:header-11": FixedHeader,
    "framing.never-waits:header-expected": ExpectedHeader,
    "framing.never-waits:null-two-more": NullTakesTwo,
    "framing.exact:empty-leaves-end": EmptyLeavesEnd,
    "framing.exact:error-leaves-rest": ErrorLeavesRest,
    "framing.exact:overflow": Wraps,
    "framing.accepts:no-null-array": NoNullArray,
    "framing.accepts:limit-refused": OffByOne,
    "framing.refuses:late": LateCheck,
    "framing.refuses:overflow": Wraps,
    "framing.memory:reserves": Reserves,
    "framing.memory:reserves-elements": ReservesElements,
    "framing.value:null-within": NullWithin,
    "framing.value:null-is-empty": NullIsEmpty,
    "framing.split:whole-piece": JumpsPiece,
    "framing.split:forgets-rest": ForgetsRest,
    "framing.split:head-again": HeadAgain,
    "framing.split:starts-reply": PieceStartsReply,
}
"""Each mistake, by the obligation's and the mutant's id."""

NULLS = (b"$-1\r\n", b"*-1\r\n", b"_\r\n")
REPLIES = (
    *NULLS, b"+OK\r\n", b"-ERR no\r\n", b":12\r\n", b"$0\r\n\r\n", b"$2\r\nab\r\n", b"$10\r\n0123456789\r\n",
    b"!2\r\nno\r\n", b"=7\r\ntxt:abc\r\n", b"*0\r\n", b"*1\r\n$-1\r\n", b"*2\r\n_\r\n*1\r\n:1\r\n",
    b"%1\r\n+k\r\n$1\r\nv\r\n", b"~1\r\n#t\r\n", b">1\r\n,1.5\r\n", b"|1\r\n+k\r\n:1\r\n(12\r\n",
)
"""Replies whose lengths are at most 10."""
LONG = b"%2147483648\r\n"
"""The header of a map of 2^31 pairs."""


def taken(kind: type[FrameScanner], raw: bytes, limit: int = 10) -> tuple[list[int], int | None]:
    """Feed byte by byte; return after which bytes a frame came, and which was refused."""
    scanner, ends = kind(limit=limit), []
    for at in range(len(raw)):
        try:
            ends += [at + 1] * len(scanner.feed(raw[at : at + 1]))
        except Malformed:
            return ends, at
    return ends, None


def never_waits(kind: type[FrameScanner]) -> str:
    """Say which whole reply is not taken for whole."""
    for raw in REPLIES:
        ends, refused = taken(kind, raw)
        if refused is None and not ends:
            return f"the receiver waits for more than {raw!r}"
    return ""


def exact(kind: type[FrameScanner]) -> str:
    """Say which reply is taken for whole before its last byte."""
    for raw, limit, whole in (*((raw, 10, len(raw)) for raw in REPLIES), (LONG, 2**32, len(LONG) + 1)):
        ends, _ = taken(kind, raw, limit)
        if ends and ends[0] < whole:
            return f"{raw!r} is taken for whole after {ends[0]} bytes"
    return ""


def accepts(kind: type[FrameScanner]) -> str:
    """Say which right reply within the limits is refused."""
    for raw in REPLIES:
        _, refused = taken(kind, raw)
        if refused is not None:
            return f"{raw!r} is refused at byte {refused}"
    return ""


def refuses(kind: type[FrameScanner]) -> str:
    """Say what is not refused at the byte that exceeds a limit."""
    over = ((b"$11\r\n", 10, 2), (b"*6\r\n", 5, 1), (b"%6\r\n", 10, 3), (b"=3\r\n", 10, 3),
            (LONG, 2**31, len(LONG) - 1))
    for raw, limit, at in over:
        _, refused = taken(kind, raw, limit)
        if refused != at:
            return f"{raw!r} with a limit of {limit} is refused at byte {refused}; expected {at}"
    return ""


def memory(kind: type[FrameScanner]) -> str:
    """Say by which header more is set aside than bytes have come."""
    for raw in (b"$4096\r\n", b"*4096\r\n", b"%2048\r\n", b"+" + bytes(200) + b"\r\n"):
        scanner = kind()
        scanner.feed(raw)
        kept = [len(value) for value in vars(scanner).values() if isinstance(value, bytes | bytearray | list)]
        if max(kept) > min(len(raw), HEAD):
            return f"{max(kept)} bytes or elements are kept of {raw[:20]!r}, of which {len(raw)} bytes have come"
    return ""


def value(kind: type[FrameScanner]) -> str:
    """Say which reply is wrongly taken for a null, or not for one."""
    for raw in REPLIES:
        for frame in kind(limit=10).feed(raw):
            if frame.null != (raw in NULLS):
                return f"{raw!r} is{'' if frame.null else ' not'} taken for a null"
    return ""


def split(kind: type[FrameScanner]) -> str:
    """Say where a cut changes what is read."""
    raw = b"".join(REPLIES)
    whole = FrameScanner(keep_words=True).feed(raw)
    for at in range(1, len(raw)):
        scanner = kind(keep_words=True)
        try:
            frames = scanner.feed(raw[:at]) + scanner.feed(raw[at:])
        except Malformed as error:
            return f"cut at {at}: {error}"
        if frames != whole:
            return f"cut at {at}: {[frame for frame in frames if frame not in whole]}"
    return ""


PROPERTIES: dict[str, Callable[[type[FrameScanner]], str]] = {
    "never-waits": never_waits, "exact": exact, "accepts": accepts, "refuses": refuses, "memory": memory,
    "value": value, "split": split}
"""What each obligation claims, of a kind of scanner."""
