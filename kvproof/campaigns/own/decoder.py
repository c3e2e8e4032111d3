"""The RESP decoder and both frame scanners as a campaign's target: streams, most of them no RESP, cut anywhere.

Whole, in pieces and byte by byte, the decoder reads the same values and stops being RESP at the same byte; both
scanners say so, too; and every frame that they delimit is one that can be parsed.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from kvproof.campaigns.own.part import Part, said
from kvproof.errors import ProtocolError, UsageError
from kvproof.faults.scanner import Scanner
from kvproof.models.resp import Decoder, FrameScanner, Malformed, parse
from kvproof.runner.child import Session

MOST = 4096
"""Bytes in a stream at most."""
LIMIT = 1024
"""Bytes that the decoder is told a reply may have."""
_PIECES = (
    b"\r\n", b"$-1\r\n", b"*-1\r\n", b"_\r\n", b"$0\r\n\r\n", b"*0\r\n", b":1\r\n", b"#t\r\n", b",inf\r\n", b"\r",
    b"\n", b"*2\r\n", b"%1\r\n", b"~1\r\n", b">1\r\n", b"|1\r\n", b"=7\r\ntxt:abc\r\n", b"(-5\r\n", b"-ERR x\r\n",
    b"+OK\r\n", b"!3\r\nERR\r\n", b"$1025\r\n", b"*99999999999\r\n", b"$?\r\n", b";4\r\n", b"$00\r\n\r\n")
_BYTES = b"\r\n$*:+-%~>|_#,(=!?;0123456789tfinfe.ab\x00\xff"


@dataclass(frozen=True, slots=True)
class Case:
    """A stream, and after how many bytes it is cut, in ascending order."""

    stream: bytes
    cuts: tuple[int, ...] = ()

    @property
    def faults(self) -> int:
        """A stream has none."""
        return 0

    @property
    def size(self) -> tuple[int, ...]:
        """See `target.Case`."""
        return (0, len(self.stream), len(self.cuts))

    def document(self) -> dict[str, Any]:
        """See `target.Case`."""
        return {"stream": self.stream.hex(), "cuts": list(self.cuts)}

    def lines(self) -> list[str]:
        """See `target.Case`."""
        cuts = ", ".join(map(str, self.cuts)) or "none of them"
        return [f"{len(self.stream)} bytes, cut after {cuts}: {self.stream[:200]!r}"]


def read(given: Any) -> Case:
    """Read a case; raises UsageError that says what is wrong with it."""
    try:
        stream, cuts = bytes.fromhex(given["stream"]), tuple(given["cuts"])
        if len(stream) <= MOST and all(type(cut) is int and 0 < cut < len(stream) for cut in cuts) and (
                list(cuts) == sorted(set(cuts))):
            return Case(stream, cuts)
    except (TypeError, KeyError, ValueError):
        pass
    raise UsageError(f"a case of the decoder: got {str(given)[:80]}; expected an object of a stream in hexadecimal, of "
                     f"at most {MOST} bytes, and cuts in ascending order inside of it")


def fresh(choose: random.Random) -> Case:
    """Return a stream of frames, some of which are damaged."""
    stream = b"".join(_frame(choose, 3) for _ in range(choose.randint(1, 4)))
    return _cut(_damaged(stream, choose) if choose.random() < 0.7 else stream, choose)


def changed(case: Case, choose: random.Random, other: Case) -> Case:
    """Return a stream with some bytes changed, or a part of another one."""
    stream = case.stream
    for _ in range(choose.choice((1, 1, 2, 3))):
        if choose.random() < 0.3 and other.stream:
            begin, end = sorted(choose.randrange(len(other.stream) + 1) for _ in range(2))
            at = choose.randint(0, len(stream))
            stream = stream[:at] + other.stream[begin:end] + stream[at:]
        else:
            stream = _damaged(stream, choose)
    return _cut(stream, choose)


def simpler(case: Case) -> Iterator[Case]:
    """Return shorter streams, whole frames first, and such with fewer cuts."""
    stream = case.stream
    _, frames = _states(stream)
    for instead in (b"", b"_\r\n"):
        for start, end in frames:
            if end - start > len(instead):
                yield _fitted(stream[:start] + instead + stream[end:], case.cuts)
    part = len(stream) // 2
    while part:
        for at in range(0, len(stream), part):
            yield _fitted(stream[:at] + stream[at + part:], case.cuts)
        part //= 2
    for at in range(len(case.cuts)):
        yield Case(stream, case.cuts[:at] + case.cuts[at + 1:])


def _frame(choose: random.Random, depth: int) -> bytes:
    kinds = "$$+-:_#,(=!" + ("*%~>|" if depth else "")
    kind = choose.choice(kinds)
    if kind in "$=!":
        text = bytes(choose.choice(b"\r\n$*:0ab") for _ in range(choose.choice((0, 1, 2, 3, 9, 64, 65, 512, 513))))
        text = b"txt:" + text if kind == "=" else text
        return b"%c%d\r\n%b\r\n" % (ord(kind), len(text), text)
    if kind in "*%~>|":
        count = choose.choice((0, 0, 1, 1, 2, 3))
        items = b"".join(_frame(choose, depth - 1) for _ in range(count * 2 if kind in "%|" else count))
        after = _frame(choose, depth - 1) if kind == "|" else b""
        return b"%c%d\r\n%b%b" % (ord(kind), count, items, after)
    line = {"+": b"OK", "-": b"ERR no", ":": b"-12", "_": b"", "#": b"t", ",": b"1.5e3", "(": b"12345678901234567890"}
    return kind.encode() + line[kind] + b"\r\n"


def _damaged(stream: bytes, choose: random.Random) -> bytes:
    at = choose.randint(0, len(stream))
    what = choose.random()
    if what < 0.35:
        return stream[:at] + choose.choice(_PIECES) + stream[at:]
    if what < 0.6:
        return stream[:at] + stream[at + choose.choice((1, 1, 2, 5, 20)):]
    if what < 0.9:
        return stream[:at] + bytes([choose.choice(_BYTES)]) + stream[at + 1:]
    return stream[:at]


def _cut(stream: bytes, choose: random.Random) -> Case:
    stream = stream[:MOST]
    places = range(1, len(stream))
    return Case(stream, tuple(sorted(choose.sample(places, min(len(places), choose.choice((0, 1, 2, 3, 8)))))))


def _fitted(stream: bytes, cuts: Sequence[int]) -> Case:
    return Case(stream, tuple(cut for cut in cuts if cut < len(stream)))


# In the runner

def inside(session: Session, document: Any) -> Any:
    """Read a stream in every way, and compare; return what `part.said` does."""
    case = read(document)
    ends = (0, *case.cuts, len(case.stream))
    pieces = [case.stream[begin:end] for begin, end in pairwise(ends)]
    single = [case.stream[at:at + 1] for at in range(len(case.stream))]
    behaviour, frames = _states(case.stream)
    whole = _decoded([case.stream])
    for how, these in (("cut", pieces), ("byte by byte", single)):
        if (found := _decoded(these)) != whole:
            return said(behaviour, f"the decoder reads otherwise when the stream is {how}", (str(whole), str(found)))
    for name, kind in (("the scanner", FrameScanner), ("the proxy's scanner", Scanner)):
        for words in (False, True):
            expected = _scanned(FrameScanner(limit=LIMIT, keep_words=words), [case.stream])
            for how, these in (("whole", [case.stream]), ("cut", pieces), ("byte by byte", single)):
                found = _scanned(kind(limit=LIMIT, keep_words=words), these)
                if found != expected:
                    return said(behaviour, f"{name} says otherwise of the stream {how}", (str(expected), str(found)))
    for start, end in frames:
        try:
            parse(case.stream[start:end])
        except ProtocolError as error:
            return said(behaviour, f"a frame that the scanner delimits cannot be parsed: {type(error).__name__}",
                        (str(error),))
    return said(behaviour)


def _decoded(pieces: Sequence[bytes]) -> tuple[Any, ...]:
    """Return the values of a stream, as text so that NaN is itself, and with what it ends."""
    decoder = Decoder(limit=LIMIT)
    values: list[str] = []
    try:
        for piece in pieces:
            values += map(repr, decoder.feed(piece))
        decoder.feed(b"")
    except ProtocolError as error:
        return (values, str(error))
    return (values, "")


def _scanned(scanner: FrameScanner, pieces: Sequence[bytes]) -> tuple[Any, ...]:
    frames: list[Any] = []
    try:
        for piece in pieces:
            frames += scanner.feed(piece)
    except Malformed as error:
        return (frames + error.frames, error.offset, str(error))
    return (frames, scanner.offset, scanner.inside)


def _states(stream: bytes) -> tuple[set[str], list[tuple[int, int]]]:
    """Return which steps the table made, each with the byte's class as the table sees it, and where frames lie."""
    scanner, seen, frames = FrameScanner(limit=LIMIT), set(), []
    before = scanner.state
    for at in range(len(stream)):
        try:
            frames += [(frame.start, frame.end) for frame in scanner.feed(stream[at:at + 1])]
        except Malformed as error:
            seen.add(f"{before}: {str(error).partition(': ')[2]}")
            break
        seen.add(f"{before}>{scanner.state} at depth {min(scanner.depth, 3)}")
        before = scanner.state
    return seen, frames


PART = Part("same-stream", f"{__name__}:inside", 10.0, fresh, changed, simpler, read)
