"""RESP: the scanner and the decoder, on every type, cut everywhere, within limits, against hiredis."""

from __future__ import annotations

import math
import tracemalloc
from dataclasses import FrozenInstanceError, fields, replace
from typing import Any

import hiredis
import pytest

from kvproof.errors import ProtocolError
from kvproof.models.frames import RULES, STATES
from kvproof.models.resp import (
    Attributed,
    Decoder,
    ErrorReply,
    FrameScanner,
    Malformed,
    Map,
    Null,
    Push,
    Set,
    SimpleString,
    Verbatim,
    encode_command,
    parse,
    scatter_command,
)

RESP_IN_PAYLOAD = b"*2\r\n$-1\r\n%1\r\n+x\r\n"

SAMPLES: dict[str, tuple[bytes, object]] = {
    "simple string": (b"+OK\r\n", SimpleString("OK")),
    "empty simple string": (b"+\r\n", SimpleString("")),
    "simple error": (b"-ERR no such key\r\n", ErrorReply("ERR no such key")),
    "integer": (b":1000\r\n", 1000),
    "negative integer": (b":-9223372036854775808\r\n", -(2**63)),
    "largest integer": (b":9223372036854775807\r\n", 2**63 - 1),
    "signed integer": (b":+7\r\n", 7),
    "zero": (b":0\r\n", 0),
    "bulk string": (b"$5\r\nhello\r\n", b"hello"),
    "empty bulk string": (b"$0\r\n\r\n", b""),
    "null bulk string": (b"$-1\r\n", Null.BULK),
    "bulk string of 10 bytes": (b"$10\r\n0123456789\r\n", b"0123456789"),
    "bulk string that looks like RESP": (b"$%d\r\n%b\r\n" % (len(RESP_IN_PAYLOAD), RESP_IN_PAYLOAD), RESP_IN_PAYLOAD),
    "bulk string of line ends": (b"$6\r\n\r\n\r\n\r\n\r\n", b"\r\n\r\n\r\n"),
    "array": (b"*3\r\n:1\r\n$-1\r\n*1\r\n+a\r\n", (1, Null.BULK, (SimpleString("a"),))),
    "empty array": (b"*0\r\n", ()),
    "null array": (b"*-1\r\n", Null.ARRAY),
    "array of empty arrays": (b"*2\r\n*0\r\n*0\r\n", ((), ())),
    "null": (b"_\r\n", Null.PLAIN),
    "true": (b"#t\r\n", True),
    "false": (b"#f\r\n", False),
    "double": (b",1.25\r\n", 1.25),
    "double with exponent": (b",-1.5e-3\r\n", -0.0015),
    "whole double": (b",10\r\n", 10.0),
    "infinity": (b",inf\r\n", math.inf),
    "negative infinity": (b",-inf\r\n", -math.inf),
    "big number": (b"(-3492890328409238509324850943850943825024385\r\n", -3492890328409238509324850943850943825024385),
    "bulk error": (b"!9\r\nERR a\r\nb.\r\n", ErrorReply("ERR a\r\nb.")),
    "verbatim string": (b"=9\r\ntxt:a\r\nbc\r\n", Verbatim("txt", b"a\r\nbc")),
    "empty verbatim string": (b"=4\r\ntxt:\r\n", Verbatim("txt", b"")),
    "map": (b"%2\r\n+a\r\n:1\r\n*1\r\n:2\r\n_\r\n", Map(((SimpleString("a"), 1), ((2,), Null.PLAIN)))),
    "empty map": (b"%0\r\n", Map(())),
    "set": (b"~2\r\n:1\r\n:1\r\n", Set((1, 1))),
    "push": (b">2\r\n$7\r\nmessage\r\n$1\r\nx\r\n", Push((b"message", b"x"))),
    "attribute": (b"|1\r\n+ttl\r\n:9\r\n$1\r\nx\r\n", Attributed(Map(((SimpleString("ttl"), 9),)), b"x")),
    "attribute inside an array": (
        b"*2\r\n|1\r\n+ttl\r\n:9\r\n:1\r\n:2\r\n", (Attributed(Map(((SimpleString("ttl"), 9),)), 1), 2)),
}
AFTER = b":42\r\n"

MALFORMED: dict[str, bytes] = {
    "unknown type byte": b"@1\r\n",
    "inline text": b"GET k\r\n",
    "length below -1": b"$-2\r\n",
    "null of a map": b"%-1\r\n",
    "null of a set": b"~-1\r\n",
    "null of a verbatim string": b"=-1\r\n",
    "no length": b"$\r\n",
    "leading zero": b"$01\r\na\r\n",
    "length with a sign": b"$+1\r\na\r\n",
    "streamed string": b"$?\r\n",
    "no line feed": b"$1\rxa\r\n",
    "bulk string longer than announced": b"$1\r\nab\r\n",
    "bulk string without line feed": b"$1\r\na\rb",
    "line feed in a line": b"+a\nb\r\n",
    "carriage return in a line": b"+a\rb\r\n",
    "integer beyond 64 bits": b":9223372036854775808\r\n",
    "integer below 64 bits": b":-9223372036854775809\r\n",
    "integer with letters": b":1a\r\n",
    "empty integer": b":\r\n",
    "boolean": b"#x\r\n",
    "double": b",1.2.3\r\n",
    "double without exponent": b",1e\r\n",
    "null with text": b"_x\r\n",
    "verbatim string too short for a format": b"=3\r\ntxt\r\n",
    "verbatim string without colon": b"=5\r\ntext:\r\n",
    "huge length": b"$4294967295\r\n",
    "huge count": b"*4294967295\r\n",
    "huge map": b"%300000000\r\n",
    "length of many digits": b"$" + b"9" * 5000,
    "too deep": b"*1\r\n" * 17,
    "line without end": b"+" + b"x" * 70_000,
}


@pytest.mark.parametrize("name", SAMPLES)
def test_a_value_is_the_same_however_the_stream_is_cut_and_the_next_frame_is_intact(name: str) -> None:
    raw, value = SAMPLES[name]
    stream = raw + AFTER
    for cut in range(len(stream) + 1):
        decoder = Decoder()
        got = decoder.feed(stream[:cut]) + decoder.feed(stream[cut:])
        assert got == [value, 42], f"{raw!r} cut at {cut}: expected {[value, 42]!r}, got {got!r}"
        assert [type(item) for item in got] == [type(value), int]
    decoder = Decoder()
    got = [item for byte in stream for item in decoder.feed(bytes([byte]))]
    assert got == [value, 42], f"{raw!r} byte by byte: expected {[value, 42]!r}, got {got!r}"


@pytest.mark.parametrize("name", SAMPLES)
def test_the_scanner_delimits_what_the_decoder_decodes(name: str) -> None:
    raw, value = SAMPLES[name]
    stream = raw + AFTER
    for cut in range(len(stream) + 1):
        scanner = FrameScanner()
        frames = scanner.feed(stream[:cut])
        assert scanner.offset == cut
        assert scanner.inside == (cut not in (0, len(raw), len(stream))), f"{raw!r} cut at {cut}"
        frames += scanner.feed(memoryview(stream)[cut:])
        spans = [(frame.start, frame.end) for frame in frames]
        assert spans == [(0, len(raw)), (len(raw), len(stream))], f"{raw!r} cut at {cut}: {spans}"
        first = frames[0]
        assert (first.kind, first.head, first.null) == (chr(raw[0]), raw[:64], isinstance(value, Null))
        assert parse(stream[first.start : first.end]) == value
        assert not scanner.inside


@pytest.mark.parametrize("name", SAMPLES)
def test_a_value_is_the_same_wherever_in_a_reply_it_stands(name: str) -> None:
    raw, value = SAMPLES[name]
    for before in ("", "a", "ab", "abc"):
        got = parse(b"*3\r\n+%b\r\n%b:9\r\n" % (before.encode(), raw))
        assert got == (SimpleString(before), value, 9), f"{raw!r} after {before!r}: {got!r}"


def test_a_big_number_may_have_more_digits_than_int_reads() -> None:
    digits, value = b"1234567" * 1300, 1234567 * (10**9100 - 1) // (10**7 - 1)
    with pytest.raises(ValueError, match="4300"):
        int(digits)
    got = [parse(b"(%b%b\r\n" % (sign, digits)) for sign in (b"", b"+", b"-")]
    assert got == [value, value, -value], "a number of 9100 digits is read wrongly"


def test_null_bulk_and_empty_bulk_are_two_things() -> None:
    null, empty = Decoder().feed(b"$-1\r\n$0\r\n\r\n")
    assert null is Null.BULK
    assert empty == b""
    assert null != empty


def feed_both(scanner: FrameScanner, raw: bytes, cut: int) -> None:
    scanner.feed(raw[:cut])
    scanner.feed(raw[cut:])


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_bytes_raise_at_the_same_byte_however_they_are_cut(name: str) -> None:
    raw = MALFORMED[name]
    places = set()
    for cut in (*range(min(len(raw), 40)), len(raw)):
        scanner = FrameScanner()
        with pytest.raises(Malformed) as caught:
            feed_both(scanner, raw, cut)
        places.add((caught.value.offset, str(caught.value)))
        assert scanner.offset == caught.value.offset
        with pytest.raises(ProtocolError):
            scanner.feed(b"+OK\r\n")
    assert len(places) == 1, f"{name}: {places}"


@pytest.mark.parametrize("name", MALFORMED)
def test_what_came_whole_before_malformed_bytes_is_delivered_once(name: str) -> None:
    decoder = Decoder()
    assert decoder.feed(b"+OK\r\n" + MALFORMED[name]) == [SimpleString("OK")]
    with pytest.raises(ProtocolError):
        decoder.feed(b"+OK\r\n")
    with pytest.raises(Malformed) as caught:
        FrameScanner().feed(b"+OK\r\n" + MALFORMED[name])
    assert [frame.end for frame in caught.value.frames] == [5]


NO_FRAME: dict[str, bytes] = {
    "nothing": b"",
    "no line end": b"+OK",
    "no type byte": b"\r\n",
    "payload cut short": b"$3\r\nab\r\n",
    "terminator that is greater": b"$1\r\na\xff\xff",
    "terminator that is less": b"$1\r\na\x00\x00",
    "aggregate cut short": b"*2\r\n:1\r\n",
    "too deep for Python": b"*1\r\n" * 10_000,
}


@pytest.mark.parametrize("name", NO_FRAME)
def test_what_is_no_whole_frame_is_a_protocol_error_that_shows_its_beginning(name: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        parse(NO_FRAME[name])
    assert str(caught.value) == f"not a whole RESP frame: {NO_FRAME[name][:64]!r}"


def test_every_other_type_byte_is_a_protocol_error() -> None:
    for byte in set(range(256)) - set(b"+-:(,#_$!=*~>%|"):
        with pytest.raises(ProtocolError, match="not a whole RESP frame"):
            parse(bytes([byte]) + b"1\r\n")


def test_bytes_after_a_frame_are_counted_and_its_beginning_is_shown() -> None:
    raw = b"+" + b"0123456789" * 30 + b"\r\n"
    assert parse(raw) == SimpleString("0123456789" * 30)
    with pytest.raises(ProtocolError) as caught:
        parse(raw + b"+OK")
    assert str(caught.value) == f"3 bytes after the end of a RESP frame: {raw[:64]!r}"


def test_replies_are_found_after_others_and_after_a_part_of_one() -> None:
    decoder = Decoder()
    assert decoder.feed(b":1\r\n:2\r\n:30\r\n:45") == [1, 2, 30]
    assert decoder.offset == 16
    assert decoder.feed(b"6\r\n:7\r\n+a longer one\r\n:89\r\n+x") == [456, 7, SimpleString("a longer one"), 89]
    assert decoder.feed(b"y\r\n:10\r\n") == [SimpleString("xy"), 10]
    assert decoder.offset == 53


def test_what_was_decoded_counts_towards_no_limit() -> None:
    raw, decoder = b"".join(b":%d\r\n" % number for number in range(1000)), Decoder(limit=20)
    assert [value for at in range(0, len(raw), 13) for value in decoder.feed(raw[at : at + 13])] == list(range(1000))


def test_a_reply_of_just_the_limit_is_decoded_and_one_byte_more_is_not() -> None:
    assert Decoder(limit=5).feed(b"+OK\r\n+OK\r\n") == [SimpleString("OK")] * 2
    with pytest.raises(ProtocolError, match="a reply of more than 4 bytes"):
        Decoder(limit=4).feed(b"+OK\r\n")
    whole = b"$1048564\r\n%b\r\n" % bytes(1_048_564)
    assert len(whole) == 1024 * 1024
    assert Decoder().feed(whole) == [bytes(1_048_564)]
    with pytest.raises(ProtocolError, match="a reply of more than 1048576 bytes"):
        Decoder().feed(b"$1048565\r\n%b\r\n" % bytes(1_048_565))


def test_a_part_of_a_reply_may_have_just_the_limit() -> None:
    decoder = Decoder(limit=5)
    assert decoder.feed(b"+OK!!") == []
    with pytest.raises(ProtocolError, match="a reply of more than 5 bytes"):
        decoder.feed(b"!")
    with pytest.raises(ProtocolError, match="a reply of more than 5 bytes"):
        decoder.feed(b"\r\n")


@pytest.mark.parametrize("after", [b"+long\r\n", b"+long\r\n+OK\r\n", b"+long\r\n+long\r\n", b"+long!", b"+long\r!"])
def test_what_came_before_a_reply_that_is_too_long_is_delivered_and_nothing_after_it(after: bytes) -> None:
    decoder = Decoder(limit=5)
    assert decoder.feed(b"+OK\r\n" + after) == [SimpleString("OK")]
    for _ in range(2):
        with pytest.raises(ProtocolError, match="a reply of more than 5 bytes"):
            decoder.feed(b"+OK\r\n")


def test_replies_may_be_nested_16_deep() -> None:
    value: object = 1
    for _ in range(16):
        value = (value,)
    assert Decoder().feed(b"*1\r\n" * 16 + b":1\r\n") == [value]
    with pytest.raises(ProtocolError, match="deeper than 16"):
        Decoder().feed(b"*1\r\n" * 17 + b":1\r\n")


VALUES: tuple[Any, ...] = (
    SimpleString("a"), ErrorReply("a"), Verbatim("txt", b"a"), Map(((1, 2),)), Set((1,)), Push((1,)),
    Attributed(Map(()), 1))


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_a_decoded_value_can_be_compared_and_hashed_and_not_changed(value: Any) -> None:
    assert replace(value) == value
    assert hash(replace(value)) == hash(value)
    assert not hasattr(value, "__dict__")
    with pytest.raises(FrozenInstanceError):
        setattr(value, fields(value)[0].name, None)


def test_an_announced_length_allocates_nothing() -> None:
    scanner, decoder = FrameScanner(keep_words=True), Decoder(limit=512 * 1024 * 1024)
    tracemalloc.start()
    try:
        for taker in (scanner, decoder):
            taker.feed(b"*100000000\r\n$536870912\r\nab")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 100_000, f"{peak} bytes were allocated for lengths that were only announced"


def test_limits_are_given_by_name() -> None:
    with pytest.raises(TypeError, match="positional"):
        Decoder(5)  # type: ignore[misc]  # wrong on purpose


def test_limits_are_exact() -> None:
    assert len(FrameScanner(limit=10).feed(b"$10\r\n0123456789\r\n")) == 1
    with pytest.raises(ProtocolError, match="11 is more than 10"):
        FrameScanner(limit=10).feed(b"$11\r\n")
    assert len(FrameScanner(depth=2).feed(b"*1\r\n*1\r\n:1\r\n")) == 1
    with pytest.raises(ProtocolError, match="deeper than 2"):
        FrameScanner(depth=2).feed(b"*1\r\n*1\r\n*1\r\n:1\r\n")
    with pytest.raises(ProtocolError, match="more than 20 bytes"):
        Decoder(limit=20).feed(b"*9\r\n" + b":1\r\n" * 8)


def test_the_scanner_skips_a_large_payload_without_keeping_it() -> None:
    scanner, size = FrameScanner(), 12_390_400
    scanner.feed(b"$%d\r\n" % size)
    assert scanner.payload == size
    piece = bytes(1 << 20)
    tracemalloc.start()
    try:
        while scanner.payload:
            scanner.feed(piece[: scanner.payload])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    frames = scanner.feed(b"\r\n")
    assert [(frame.end, len(frame.head)) for frame in frames] == [(size + len(b"$12390400\r\n") + 2, 64)]
    assert peak < 2 * len(piece), f"{peak} bytes were held while {size} were skipped"


def test_words_of_a_request_are_kept_up_to_their_bounds() -> None:
    request = encode_command("SET", "key", b"v" * 600) + encode_command("GET", "other")
    for cut in range(0, len(request), 7):
        scanner = FrameScanner(keep_words=True)
        frames = scanner.feed(request[:cut]) + scanner.feed(request[cut:])
        assert [frame.words for frame in frames] == [(b"SET", b"key", b"v" * 512), (b"GET", b"other")], f"cut at {cut}"
    many = FrameScanner(keep_words=True).feed(encode_command(*["w"] * 2000))
    assert len(many[0].words) == 1024
    assert FrameScanner().feed(request)[0].words == ()


def test_the_table_is_complete_and_deterministic() -> None:
    assert {rule.to for rule in RULES} <= set(STATES)
    pairs = [(rule.state, byte) for rule in RULES for byte in rule.on]
    assert len(pairs) == len(set(pairs)), "two rules take the same byte in the same state"
    reached = {"value"}
    while more := {rule.to for rule in RULES if rule.state in reached} - reached:
        reached |= more
    assert reached == set(STATES), f"states that nothing leads to: {set(STATES) - reached}"


def test_commands_are_arrays_of_bulk_strings() -> None:
    assert encode_command("SET", b"k", 7, "ü") == b"*4\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\n7\r\n$2\r\n\xc3\xbc\r\n"


@pytest.mark.parametrize("words", [(), ("PING",), ("SET", "k"), ("SETRANGE", "k", 7)], ids=len)
def test_a_scattered_command_counts_its_words_and_its_payload(words: tuple[str | int, ...]) -> None:
    parts = scatter_command(*words, payload=b"payload")
    assert b"".join(parts) == encode_command(*words, b"payload")
    assert b"".join(parts).startswith(b"*%d\r\n" % (len(words) + 1))


@pytest.mark.parametrize("size", [0, 1, 9, 10, 4096])
def test_a_scattered_command_is_the_same_bytes_and_copies_no_payload(size: int) -> None:
    payload = bytearray(range(256)) * 16
    del payload[size:]
    parts = scatter_command("SET", "k", payload=payload)
    assert b"".join(parts) == encode_command("SET", "k", bytes(payload))
    assert len(parts) == 3
    view = parts[1]
    assert isinstance(view, memoryview)
    assert view.obj is payload


def plain(value: object) -> object:
    """Return what hiredis would have made of the same reply."""
    if isinstance(value, SimpleString):
        return value.text.encode()
    if isinstance(value, ErrorReply):
        return hiredis.ReplyError
    if isinstance(value, Null):
        return None
    if isinstance(value, Verbatim):
        return value.text
    if isinstance(value, Map):
        return {plain(key): plain(item) for key, item in value.pairs}
    if isinstance(value, Set | Push):
        return [plain(item) for item in value.items]
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    return value


UNLIKE_HIREDIS = {
    "signed integer": "hiredis refuses the plus sign that the specification allows",
    "attribute": "hiredis hands attributes out as replies",
    "attribute inside an array": "hiredis hands attributes out as replies",
    "map": "hiredis-py needs keys that can be hashed",
    "bulk error": "hiredis does not know bulk errors",
    "big number": "hiredis-py hands big numbers out as text",
}


@pytest.mark.parametrize("name", [name for name in SAMPLES if name not in UNLIKE_HIREDIS])
def test_hiredis_reads_the_same(name: str) -> None:
    raw, value = SAMPLES[name]
    reader = hiredis.Reader()
    reader.feed(raw + AFTER)
    got, after = reader.gets(), reader.gets()
    expected = plain(value)
    if isinstance(value, ErrorReply):
        assert isinstance(got, hiredis.ReplyError)
        assert str(got) == value.message
    elif isinstance(value, Set):
        assert sorted(got) == sorted(expected)
    else:
        assert got == expected, f"{raw!r}: kvproof {expected!r}, hiredis {got!r}"
    assert after == 42
