"""The model of a server's answers against real Valkey, and fakeredis against both, on the same random commands."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproof.faults import servers
from kvproof.faults.raw_resp import RawResp, ReplyError
from kvproof.faults.servers import Server
from kvproof.models.keyspace import COMMANDS, Keyspace
from kvproof.models.resp import ErrorReply, SimpleString, Value
from tests.resp_streams import LARGE, SMALL, payloads

PREFIX = b"kvproof-keyspace:"
KEYS = st.sampled_from([b"a", b"b", b"a", b"", b"$-1\r\n", b"\xff\x00", b"a" * 300]).map(lambda name: PREFIX + name)
VALUES = payloads()
PAIRS = st.lists(st.tuples(KEYS, VALUES), min_size=1, max_size=3)

Command = list[bytes]


def command(name: bytes, *words: st.SearchStrategy[bytes]) -> st.SearchStrategy[Command]:
    return st.tuples(*words).map(lambda drawn: [name, *drawn])


def on_keys(name: bytes) -> st.SearchStrategy[Command]:
    return st.lists(KEYS, min_size=1, max_size=5).map(lambda keys: [name, *keys])


RIGHT = st.one_of(
    command(b"SET", KEYS, VALUES),
    command(b"GET", KEYS),
    command(b"STRLEN", KEYS),
    on_keys(b"EXISTS"),
    on_keys(b"MGET"),
    on_keys(b"DEL"),
    PAIRS.map(lambda pairs: [b"MSET", *(word for pair in pairs for word in pair)]),
    command(b"RPUSH", KEYS, VALUES),
    command(b"PING"),
    command(b"PING", VALUES),
)
"""Commands as they should be."""
WRONG = st.builds(
    lambda name, words: [name, *words],
    st.sampled_from([*sorted(COMMANDS), b"NOSUCH", b"no such\r\n", b""]),
    st.lists(KEYS.filter(lambda key: key.isascii()), max_size=4),
)
"""Commands with any number of arguments, right or not, and some that do not exist."""
IN_ANY_CASE = st.builds(
    lambda words, how: [how(words[0]), *words[1:]],
    RIGHT | RIGHT | WRONG,
    st.sampled_from([bytes.upper, bytes.lower, bytes.title]),
)
COMMANDS_IN_A_ROW = st.lists(IN_ANY_CASE, min_size=1, max_size=16)


def plain_text(command: Command, answer: Value) -> Value:
    return answer.text.encode(errors="surrogateescape") if isinstance(answer, SimpleString) else answer


def any_error(command: Command, answer: Value) -> Value:
    return ErrorReply("") if isinstance(answer, ErrorReply) else answer


LENIENT: dict[str, Callable[[Command, Value], Value]] = {
    "a GET or PING of a string without line ends is answered by a simple string": plain_text,
    "errors have words of their own: WRONGTYPE after ERR, an odd MSET, an unknown command's arguments": any_error,
}
"""How fakeredis 2.41's TCP server differs from Valkey, with what makes the two alike."""


def like_fakeredis(command: Command, answer: Value) -> Value:
    for alike in LENIENT.values():
        answer = alike(command, answer)
    return answer


def ask(raw: RawResp, command: Command) -> Value:
    try:
        return raw.command(*command)
    except ReplyError as error:
        return ErrorReply(str(error))


@pytest.fixture(scope="module")
def valkey(server: Server) -> Iterator[RawResp]:
    with server.connect(timeout=30) as raw:
        yield raw
        raw.delete_prefix(PREFIX.decode())


@pytest.fixture(scope="module")
def fakeredis() -> Iterator[RawResp]:
    with servers.fakeredis() as server, server.connect(timeout=30) as raw:
        yield raw


def told(commands: list[Command], number: int) -> str:
    return f"{commands[number]!r:.200} is answered so after {commands[:number]!r:.500}"


def clear(raw: RawResp) -> None:
    raw.delete_prefix(PREFIX.decode())


@given(commands=COMMANDS_IN_A_ROW)
def test_valkey_answers_as_the_model_does(valkey: RawResp, commands: list[Command]) -> None:
    clear(valkey)
    model = Keyspace()
    for number, words in enumerate(commands):
        expected, got = model.answer(words), ask(valkey, words)
        assert (type(got), got) == (type(expected), expected), told(commands, number)
    stored = {key.encode("utf-8", "surrogateescape") for key in valkey.keys(PREFIX.decode())}
    assert stored == set(model.values)


KINDS: dict[str, list[Command]] = {
    "absent": [],
    "empty": [[b"SET", PREFIX + b"a", b""]],
    "a string": [[b"SET", PREFIX + b"a", b"$-1\r\n"]],
    "a list": [[b"RPUSH", PREFIX + b"a", b"1", b"2"]],
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_does_the_same_to_every_kind_of_key(valkey: RawResp, name: bytes, kind: str) -> None:
    for count in range(5):
        clear(valkey)
        model = Keyspace()
        words = [name, *[PREFIX + b"a", PREFIX + b"a", PREFIX + b"b", PREFIX + b"a"][:count]]
        for each in (*KINDS[kind], words, [b"GET", PREFIX + b"a"], [b"EXISTS", PREFIX + b"a", PREFIX + b"b"]):
            expected, got = model.answer(each), ask(valkey, each)
            assert (type(got), got) == (type(expected), expected), f"{each!r} after {words!r}, {kind}"


@pytest.mark.parametrize("size", [0, 1, 123, 124, 125, 126, 127, 128, 129, 300])
def test_an_unknown_command_is_quoted_as_the_server_does(valkey: RawResp, size: int) -> None:
    for words in ([b"x" * size], [b"NOSUCH", b"y" * size], [b"NOSUCH", b"y" * size, b"z\r\n", b"\xff"]):
        assert ask(valkey, words) == Keyspace().answer(words)


@given(commands=COMMANDS_IN_A_ROW)
def test_fakeredis_answers_as_the_model_does_but_for_what_is_listed(
    fakeredis: RawResp, commands: list[Command],
) -> None:
    clear(fakeredis)
    model = Keyspace()
    for number, words in enumerate(commands):
        expected, got = like_fakeredis(words, model.answer(words)), like_fakeredis(words, ask(fakeredis, words))
        assert (type(got), got) == (type(expected), expected), told(commands, number)


DIFFERENT: list[tuple[str, list[Command]]] = [
    ("a GET or PING of a string without line ends is answered by a simple string", [
        [b"SET", PREFIX + b"d", b"value"], [b"GET", PREFIX + b"d"]]),
    ("errors have words of their own: WRONGTYPE after ERR, an odd MSET, an unknown command's arguments", [
        [b"DEL", PREFIX + b"d"], [b"RPUSH", PREFIX + b"d", b"x"], [b"GET", PREFIX + b"d"]]),
]


@pytest.mark.parametrize(("what", "commands"), DIFFERENT)
def test_what_is_listed_of_fakeredis_is_still_so(fakeredis: RawResp, what: str, commands: list[Command]) -> None:
    clear(fakeredis)
    model = Keyspace()
    expected = [model.answer(words) for words in commands]
    got = [ask(fakeredis, words) for words in commands]
    assert got != expected, f"no longer so, so no longer to be forgiven: {what}"
    assert [LENIENT[what](*pair) for pair in zip(commands, got, strict=True)] == [
        LENIENT[what](*pair) for pair in zip(commands, expected, strict=True)]


@pytest.mark.parametrize("size", sorted({*SMALL, *LARGE}))
def test_a_value_of_any_size_comes_back_whole(valkey: RawResp, size: int) -> None:
    key, value, model = PREFIX + b"size", bytes(range(256)) * (size // 256 + 1), Keyspace()
    value = value[:size]
    for words in ([b"SET", key, value], [b"STRLEN", key], [b"GET", key], [b"MGET", key, key], [b"DEL", key]):
        assert ask(valkey, words) == model.answer(words), f"{words[0]!r} of {size} bytes"
