"""The proxy's scanner says of every stream what the model's says, and may skip what is kept nowhere."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproof.faults.scanner import Scanner
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
