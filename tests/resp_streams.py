"""Hypothesis strategies for RESP: well-formed replies with what they mean, where a stream is cut, malformed streams."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass

from hypothesis import strategies as st

from kvproof.models.resp import (
    Attributed,
    ErrorReply,
    Map,
    Null,
    Push,
    Set,
    SimpleString,
    Value,
    Verbatim,
)

CHUNK = 256 * 48_400
"""Bytes in a chunk of the models that the figures are from; the longest payload here."""
LOOKS_LIKE_RESP = (
    b"$-1\r\n", b"*2\r\n", b"_\r\n", b"+OK\r\n", b"\r\n", b"\r", b"\n", b"*-1\r\n$0\r\n\r\n", b"-ERR\r\n", b"|1\r\n")
DEPTH = 16
"""How deep the decoder lets replies be nested."""


@dataclass(frozen=True)
class Reply:
    """One reply: the bytes in which it was written, and what it was written from."""

    raw: bytes
    value: Value

    def __repr__(self) -> str:
        """Show the bytes, but not megabytes of them."""
        return f"Reply({self.raw[:80]!r}{'...' if len(self.raw) > 80 else ''} of {len(self.raw)} bytes)"


def near_powers(lowest: int, highest: int) -> list[int]:
    """Return 2^k - 1, 2^k and 2^k + 1 for k from `lowest` to `highest`."""
    return sorted({2**k + step for k in range(lowest, highest + 1) for step in (-1, 0, 1)})


SMALL, LARGE = near_powers(0, 12), [*near_powers(13, 23), CHUNK - 1, CHUNK]


def _repeated(pattern: bytes, size: int) -> bytes:
    return (pattern * (size // len(pattern) + 1))[:size]


def payloads(sizes: Iterable[int] = SMALL) -> st.SearchStrategy[bytes]:
    """Any short bytes, bytes that look like RESP, and one of `sizes` of such bytes over and over."""
    patterns = st.sampled_from(LOOKS_LIKE_RESP)
    sized = st.builds(_repeated, patterns | st.binary(min_size=1, max_size=16), st.sampled_from(sorted(sizes)))
    return st.binary(max_size=40) | patterns | sized


LINES = st.binary(max_size=40).map(lambda raw: raw.translate(None, b"\r\n")) | st.sampled_from([b"OK", b"$-1", b"*2"])
INTEGERS = st.integers(-(2**63), 2**63 - 1) | st.sampled_from([0, -1, 2**63 - 1, -(2**63)])


def bulk(payload: bytes) -> Reply:
    """Write a bulk string."""
    return Reply(b"$%d\r\n%b\r\n" % (len(payload), payload), payload)


def _verbatim(payload: bytes) -> Reply:
    return Reply(b"=%d\r\ntxt:%b\r\n" % (len(payload) + 4, payload), Verbatim("txt", payload))


def _bulk_error(payload: bytes) -> Reply:
    return Reply(b"!%d\r\n%b\r\n" % (len(payload), payload), ErrorReply(payload.decode(errors="replace")))


def _signed(kind: bytes, number: int, plus: bool) -> Reply:
    return Reply(b"%b%b%d\r\n" % (kind, b"+" if plus and number >= 0 else b"", number), number)


def _nines(digits: int, negative: bool) -> Reply:
    number = 10**digits - 1
    return Reply(b"(%b%b\r\n" % (b"-" if negative else b"", b"9" * digits), -number if negative else number)


BIG_NUMBERS = st.builds(_signed, st.just(b"("), st.integers(), st.booleans()) | st.builds(
    _nines, st.sampled_from([18, 19, 20, 3999, 4000, 4001, 4300, 4301, 12_000]), st.booleans())
"""Among them some of more digits than Python's own conversion takes."""


_SHARED = st.one_of(
    payloads().map(bulk),
    LINES.map(lambda line: Reply(b"+%b\r\n" % line, SimpleString(line.decode(errors="surrogateescape")))),
    LINES.map(lambda line: Reply(b"-%b\r\n" % line, ErrorReply(line.decode(errors="replace")))),
    INTEGERS.map(lambda number: _signed(b":", number, plus=False)),
    st.sampled_from([Reply(b"$-1\r\n", Null.BULK), Reply(b"*-1\r\n", Null.ARRAY), Reply(b"_\r\n", Null.PLAIN)]),
    st.booleans().map(lambda truth: Reply(b"#t\r\n" if truth else b"#f\r\n", truth)),
    st.floats().map(lambda number: Reply(b",%b\r\n" % repr(number).encode(), number)),
    payloads().map(_verbatim),
)
_DOUBLES = {b"+inf": math.inf, b"+1.e+2": 100.0, b"1E999": math.inf, b"-nan": math.nan, b"007.50": 7.5}
_OTHER = st.one_of(
    payloads().map(_bulk_error),
    INTEGERS.map(lambda number: _signed(b":", number, plus=True)),
    BIG_NUMBERS,
    st.sampled_from([Reply(b",%b\r\n" % text, number) for text, number in _DOUBLES.items()]),
)


@st.composite
def shared_scalars(draw: st.DrawFn) -> Reply:
    """Draw a reply without parts that hiredis reads as RESP means it."""
    return draw(_SHARED)


@st.composite
def scalars(draw: st.DrawFn) -> Reply:
    """Draw any reply without parts: also what the specification allows and hiredis refuses or takes for another."""
    return draw(_SHARED | _OTHER)


@st.composite
def shared_keys(draw: st.DrawFn) -> Reply:
    """Draw a key of a map for hiredis: it can be hashed, and equals none that is written otherwise."""
    return draw(payloads().map(bulk) | INTEGERS.map(lambda number: _signed(b":", number, plus=False)))


def _aggregate(kind: bytes, parts: list[Reply]) -> Reply:
    items = tuple(part.value for part in parts)
    value = {b"*": lambda: items, b"~": lambda: Set(items), b">": lambda: Push(items)}[kind]()
    return Reply(b"%b%d\r\n" % (kind, len(parts)) + b"".join(part.raw for part in parts), value)


def _map(pairs: list[tuple[Reply, Reply]], kind: bytes = b"%") -> Reply:
    raw = b"".join(part.raw for pair in pairs for part in pair)
    return Reply(b"%b%d\r\n" % (kind, len(pairs)) + raw, Map(tuple((key.value, item.value) for key, item in pairs)))


def _attributed(pairs: list[tuple[Reply, Reply]], reply: Reply) -> Reply:
    attributes = _map(pairs, b"|")
    assert isinstance(attributes.value, Map)
    return Reply(attributes.raw + reply.raw, Attributed(attributes.value, reply.value))


def _nested(parts: st.SearchStrategy[Reply], keys: st.SearchStrategy[Reply] | None) -> st.SearchStrategy[Reply]:
    if keys is None:
        pairs = st.lists(st.tuples(parts, parts), max_size=3)
    else:
        # hiredis-py 3.5 loses values of a map that has a key twice.
        pairs = st.lists(st.tuples(keys, parts), max_size=3, unique_by=lambda pair: pair[0].raw)
    nested = st.builds(_aggregate, st.sampled_from([b"*", b"~"]), st.lists(parts, max_size=4)) | pairs.map(_map)
    return nested if keys is not None else nested | st.builds(_attributed, pairs, parts)


def _deep(levels: int, reply: Reply) -> Reply:
    for _ in range(levels):
        reply = _aggregate(b"*", [reply])
    return reply


def replies(*, shared: bool = False) -> st.SearchStrategy[Reply]:
    """Any reply of RESP2 and RESP3; with `shared`, of the kinds that hiredis reads as RESP means them."""
    keys = shared_keys() if shared else None
    leaves = shared_scalars() if shared else scalars()
    values = st.recursive(leaves, lambda parts: _nested(parts, keys), max_leaves=8)
    usual = st.one_of(
        values,
        st.builds(_aggregate, st.just(b">"), st.lists(values, max_size=3)),
        st.builds(_deep, st.integers(1, DEPTH), leaves),
    )
    large = payloads(LARGE).map(bulk)
    return st.integers(0, 39).flatmap(lambda which: large if which == 39 else usual)


def streams(*, shared: bool = False) -> st.SearchStrategy[list[Reply]]:
    """Up to four replies in a row."""
    return st.lists(replies(shared=shared), max_size=4)


@st.composite
def pieces(draw: st.DrawFn, raw: bytes) -> list[bytes]:
    """Cut a stream: nowhere, after every byte (of a short one), or anywhere, line ends and the two ends preferred."""
    if len(raw) <= 2000 and draw(st.booleans()):
        return [raw[at : at + 1] for at in range(len(raw))]
    ends = [at for at, byte in enumerate(raw[:1000] + raw[-100:]) if byte == 10]
    places = st.integers(0, len(raw))
    if ends:
        places |= st.builds(lambda end, by: min(max(end + by, 0), len(raw)), st.sampled_from(ends), st.integers(-2, 2))
    cuts = sorted(draw(st.lists(places, max_size=6)))
    return [raw[start:end] for start, end in itertools.pairwise([0, *cuts, len(raw)])]


TELLING = b"$*+-:_#,(!=%~>|0123456789\r\ntfxe."
"""Bytes that mean something somewhere in RESP."""


@st.composite
def malformed(draw: st.DrawFn) -> bytes:
    """Draw a stream with one byte changed, dropped or inserted, or bytes of no meaning; a few are well-formed still."""
    byte = st.sampled_from(list(TELLING)) | st.integers(0, 255)
    how = draw(st.sampled_from(["changed", "dropped", "inserted", "random"]))
    raw = b"".join(reply.raw for reply in draw(streams()))
    if how == "random" or not raw:
        return bytes(draw(st.lists(byte, max_size=60)))
    at = draw(st.integers(0, min(len(raw) - 1, 200)) | st.integers(0, len(raw) - 1))
    new = b"" if how == "dropped" else bytes([draw(byte)])
    return raw[:at] + new + raw[at + (how != "inserted") :]
