"""The proxy's scanner says of every stream what the model's says, and may skip what is kept nowhere."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproof.faults.scanner import NULL, Scanner
from kvproof.models.resp import FrameScanner, Malformed, encode_command
from tests.resp_streams import malformed, pieces, streams

LIMITS: dict[str, Any] = {"keep_words": True, "limit": 200, "depth": 3}


def said(scanner: FrameScanner, parts: list[bytes]) -> list[object]:
    """Everything that a scanner says of a stream that comes in these parts."""
    told: list[object] = []
    for part in parts:
        try:
            told += scanner.feed(memoryview(part))
        except Malformed as error:
            return [*told, *error.frames, str(error), error.offset, scanner.offset]
        told.append((scanner.offset, scanner.inside, scanner.payload))
    return told


REQUESTS = st.lists(
    st.lists(st.one_of(st.binary(max_size=12), st.sampled_from([b"v" * 70, b"v" * 199, b"v" * 201, b"v" * 600])),
             max_size=6).map(lambda words: encode_command(*words)), max_size=5).map(b"".join)


@given(st.one_of(streams().map(lambda s: b"".join(r.raw for r in s)), malformed(), REQUESTS, st.binary(max_size=60)),
       st.data(), st.booleans())
def test_it_says_what_the_model_says(raw: bytes, data: st.DataObject, bounded: bool) -> None:
    parts = data.draw(pieces(raw))
    limits = LIMITS if bounded else {"keep_words": True}
    assert said(Scanner(**limits), parts) == said(FrameScanner(**limits), parts), f"{parts!r:.300}"


PLAIN = st.one_of(
    st.lists(st.binary(max_size=12), min_size=1, max_size=4).map(lambda words: encode_command(*words)),
    st.binary(max_size=80).map(lambda value: b"$%d\r\n%b\r\n" % (len(value), value)),
    st.sampled_from([b"+OK\r\n", b"-ERR\r\n", b"+\r\n", b"+a\rb\r\n", b"*0\r\n", b"$-1\r\n", b"$\r\n\r\n",
                     b"$+0\r\n\r\n", b"*1\r\n:5\r\n", b"*01\r\n$1\r\na\r\n", b"*-1\r\n", b"*1\r\n$-1\r\n", b":1\r\n"]))


@given(st.one_of(PLAIN, streams().map(lambda s: b"".join(r.raw for r in s)), malformed(), REQUESTS).filter(len),
       st.booleans(), st.booleans())
def test_what_is_taken_in_one_is_what_the_model_takes(raw: bytes, bounded: bool, keep: bool) -> None:
    limits: dict[str, Any] = {**(LIMITS if bounded else {}), "keep_words": keep}
    scanner, model = Scanner(**limits), FrameScanner(**limits)
    words = scanner.whole(raw)
    if words is None:
        assert (scanner.offset, scanner.inside) == (0, False)
    else:
        [frame] = model.feed(raw)
        assert (frame.end, frame.words, frame.head, frame.null) == (len(raw), words, raw[:64], raw == NULL)
        assert (scanner.offset, scanner.inside) == (model.offset, model.inside)


def test_plain_frames_are_taken_in_one() -> None:
    assert Scanner(keep_words=True).whole(encode_command("GET", "k")) is not None
    for raw in (b"$3\r\nabc\r\n", b"$0\r\n\r\n", b"+OK\r\n", b"-ERR no\r\n"):
        assert Scanner().whole(raw) is not None, raw


@given(REQUESTS, st.data())
def test_what_may_be_skipped_need_not_be_fed(raw: bytes, data: st.DataObject) -> None:
    fed, skipped = FrameScanner(keep_words=True), Scanner(keep_words=True)
    frames: list[object] = []
    at = 0
    while at < len(raw):
        size = data.draw(st.integers(1, len(raw) - at))
        if skipped.skippable:
            size = min(size, skipped.skippable)
            skipped.skip(size)
        else:
            frames += skipped.feed(raw[at : at + size])
        at += size
    assert frames == fed.feed(raw)
    assert skipped.offset == len(raw)


def test_more_than_is_to_come_cannot_be_skipped() -> None:
    scanner = Scanner()
    scanner.feed(b"$1000\r\n" + b"v" * 100)
    assert scanner.skippable == 900
    with pytest.raises(ValueError, match="901 bytes cannot be skipped where 900 of a payload are to come"):
        scanner.skip(901)
    assert Scanner().skippable == 0


def test_the_words_of_a_request_are_known_before_it_is_whole() -> None:
    scanner = Scanner(keep_words=True)
    scanner.feed(encode_command("SET", "key", b"v" * 100)[:30])
    assert scanner.words == (b"SET", b"key")
