"""The RESP decoder against independent judges: what a stream was written from, hiredis, and the frame scanner."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from dataclasses import fields, is_dataclass

import hiredis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproof.errors import ProtocolError
from kvproof.models.frames import LIMIT
from kvproof.models.resp import (
    Decoder,
    ErrorReply,
    FrameScanner,
    Malformed,
    Map,
    Null,
    Push,
    Set,
    SimpleString,
    Value,
    Verbatim,
    parse,
)
from tests.resp_streams import BIG_NUMBERS, DEPTH, LINES, Reply, malformed, pieces, replies, streams

WAITING = object()


def as_hiredis(value: Value, *, top: bool = True) -> object:
    """Return what hiredis 3 hands out for a reply that means `value`.

    Simple, bulk and verbatim strings are bytes (a verbatim string's format is lost), every null is None, sets and
    arrays are lists, a map is a dictionary (with keys that can be hashed and differ), an error is an exception that is
    returned. A push is a list too, of a class of its own when it is not inside another reply. Not here: big
    numbers (text), attributes (handed out as replies), bulk errors and plus signs (refused).
    """
    match value:
        case SimpleString(text):
            return text.encode(errors="surrogateescape")
        case ErrorReply(message):
            return hiredis.ReplyError(message)
        case Null():
            return None
        case Verbatim(_, text):
            return text
        case Map(pairs):
            return {as_hiredis(key, top=False): as_hiredis(item, top=False) for key, item in pairs}
        case Push(items) if top:
            return hiredis.PushNotification(as_hiredis(item, top=False) for item in items)
        case Set(items) | Push(items):
            return [as_hiredis(item, top=False) for item in items]
        case tuple():
            return [as_hiredis(item, top=False) for item in value]
        case _:
            return value


def exact(value: object) -> object:
    """Return `value` so that == tells 1, 1.0 and True apart, finds NaN equal to itself, and reads exceptions."""
    if is_dataclass(value):
        return type(value), [exact(getattr(value, field.name)) for field in fields(value)]
    if isinstance(value, dict):
        return dict, [(exact(key), exact(item)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return type(value), [exact(item) for item in value]
    if isinstance(value, float | Exception):
        return type(value), repr(value)
    return type(value), value


def decode(parts: Sequence[bytes], *, limit: int = LIMIT) -> tuple[list[Value], str | None]:
    """Return the values of a stream that comes in `parts`, and the decoder's complaint, if it had one."""
    decoder, values = Decoder(limit=limit), []
    try:
        for part in [*parts, b""]:
            values += decoder.feed(part)
    except ProtocolError as error:
        return values, str(error)
    return values, None


def scan(raw: bytes) -> tuple[int, str | None]:
    """Return how many frames the scanner sees, and its complaint, if it has one."""
    try:
        return len(FrameScanner().feed(raw)), None
    except Malformed as error:
        return len(error.frames), str(error)


def by_hiredis(parts: Sequence[bytes]) -> list[object]:
    reader, values = hiredis.Reader(notEnoughData=WAITING), []
    for part in parts:
        reader.feed(part)
        while (value := reader.gets()) is not WAITING:
            values.append(value)
    return values


def written(stream: Sequence[Reply]) -> bytes:
    return b"".join(reply.raw for reply in stream)


@given(streams(shared=True), st.data())
def test_hiredis_reads_the_same_values_however_either_stream_is_cut(stream: list[Reply], data: st.DataObject) -> None:
    raw = written(stream)
    ours, complaint = decode(data.draw(pieces(raw)))
    theirs = by_hiredis(data.draw(pieces(raw)))
    assert complaint is None
    assert exact([as_hiredis(value) for value in ours]) == exact(theirs), f"{raw!r:.200}: {theirs!r:.200}"


@given(BIG_NUMBERS.filter(lambda reply: not reply.raw.startswith(b"(+")))
def test_a_big_number_is_the_number_whose_text_hiredis_reads(reply: Reply) -> None:
    assert decode([reply.raw]) == ([reply.value], None)
    assert by_hiredis([reply.raw]) == [reply.raw[1:-2]]


@given(streams(), st.data())
def test_what_was_written_is_decoded_however_the_stream_is_cut(stream: list[Reply], data: st.DataObject) -> None:
    parts = data.draw(pieces(written(stream)))
    values, complaint = decode(parts)
    assert complaint is None
    assert exact(values) == exact([reply.value for reply in stream]), f"{parts!r:.300}"


@given(streams(), st.data())
def test_the_scanner_sees_each_reply_end_where_it_was_written_to_end(stream: list[Reply], data: st.DataObject) -> None:
    raw, scanner = written(stream), FrameScanner()
    frames = [frame for part in data.draw(pieces(raw)) for frame in scanner.feed(part)]
    ends = [len(written(stream[: index + 1])) for index in range(len(stream))]
    assert [frame.end for frame in frames] == ends, f"{raw!r:.300}"
    assert [frame.start for frame in frames] == [0, *ends][: len(ends)]
    assert not scanner.inside
    for frame, reply in zip(frames, stream, strict=True):
        assert (frame.kind, frame.head) == (chr(reply.raw[0]), reply.raw[:64])
        assert frame.null == isinstance(reply.value, Null)
        assert exact(parse(memoryview(raw)[frame.start : frame.end])) == exact(reply.value)


@given(malformed(), st.data())
def test_a_malformed_stream_has_the_same_end_however_it_is_cut(raw: bytes, data: st.DataObject) -> None:
    """The decoder has its own error at one place, or decodes, or waits; never another exception."""
    parts = data.draw(pieces(raw))
    values, complaint = decode([raw])
    again, complaint_again = decode(parts)
    assert (exact(again), complaint_again) == (exact(values), complaint), f"{raw!r:.300} in {parts!r:.300}"
    assert scan(raw) == (len(values), complaint), f"{raw!r:.300}"


@given(malformed() | st.binary(max_size=60) | replies().map(lambda reply: reply.raw[:-1]))
def test_bytes_that_are_no_frame_are_a_value_or_a_protocol_error(raw: bytes) -> None:
    try:
        parse(raw)
    except ProtocolError:
        pass


@given(streams(), st.data(), st.integers(0, 60))
def test_a_limit_holds_at_the_same_reply_however_the_stream_is_cut(
    stream: list[Reply], data: st.DataObject, limit: int,
) -> None:
    raw = written(stream)
    values, complaint = decode([raw], limit=limit)
    again, complaint_again = decode(data.draw(pieces(raw)), limit=limit)
    whole = sum(len(reply.raw) <= limit for reply in stream)
    assert exact(again) == exact(values), f"{raw!r:.300}, at most {limit} bytes"
    assert (complaint is None) == (complaint_again is None) == (whole == len(stream))


@given(LINES)
def test_no_byte_of_a_simple_string_is_lost(line: bytes) -> None:
    (value,) = Decoder().feed(b"+%b\r\n" % line)
    assert isinstance(value, SimpleString)
    assert value.text.encode(errors="surrogateescape") == line


HUGE = {
    "lengths that are only announced": b"*536870912\r\n" * DEPTH + b"$536870912\r\nab",
    "maps of maps that are only announced": b"%268435456\r\n" * DEPTH,
    "attributes without end": b"|1000000\r\n" + b"|0\r\n" * 10_000,
    "many null elements": b"*536870912\r\n" + b"_\r\n" * 10_000,
    "many empty strings": b"*536870912\r\n" + b"+\r\n" * 10_000,
    "many empty sets": b"*10000\r\n" + b"~0\r\n" * 10_000,
    "many replies": b"%0\r\n" * 10_000,
    "a line without end": b"+" + b"x" * 60_000,
    "digits without end": b"(" + b"9" * 60_000,
}
FACTOR = 64
"""Bytes of memory that one byte of a stream may cost: the smallest replies take 3 and are an object each."""


@pytest.mark.parametrize("name", HUGE)
def test_memory_is_bounded_by_what_has_come_and_not_by_what_was_announced(name: str) -> None:
    raw = HUGE[name]
    parts = [raw[at : at + 4096] for at in range(0, len(raw), 4096)]
    decode(parts)
    tracemalloc.start()
    try:
        decode(parts)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < FACTOR * len(raw) + 20_000, f"{peak} bytes were held for {len(raw)} that came"
