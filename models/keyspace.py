"""What a Valkey server answers, by the simplest model there can be: a dictionary of strings."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kvproof.models.resp import ErrorReply, Null, SimpleString, Value

OK = SimpleString("OK")
WRONG_TYPE = ErrorReply("WRONGTYPE Operation against a key holding the wrong kind of value")
SHOWN = 128
"""About how many bytes of its arguments an unknown command is answered with."""

Words = Sequence[bytes]


class Keyspace:
    """One database under the commands that connectors send, answered as RESP2 does.

    SET, GET and EXISTS of one key: every connector. MGET: redis-py. DEL: LMCache's Redis connector, and whoever
    clears up. EXISTS of several keys, MSET, STRLEN, PING: what a connector may use instead. RPUSH is here only
    because it makes a key that is no string. A key holds bytes or a list of bytes.
    """

    def __init__(self) -> None:
        """Start empty."""
        self.values: dict[bytes, bytes | list[bytes]] = {}

    def answer(self, command: Words) -> Value:
        """Return the reply to one command, its name in any case; an error changes nothing."""
        name, words = command[0].upper(), command[1:]
        if name not in COMMANDS:
            return _unknown(command)
        fits, answer = COMMANDS[name]
        if not fits(len(words)):
            return ErrorReply(f"ERR wrong number of arguments for '{name.decode().lower()}' command")
        return answer(self, words)

    def _set(self, words: Words) -> Value:
        if len(words) > 2:
            return ErrorReply("ERR syntax error")
        self.values[words[0]] = words[1]
        return OK

    def _get(self, words: Words) -> Value:
        value = self.values.get(words[0], Null.BULK)
        return WRONG_TYPE if isinstance(value, list) else value

    def _strlen(self, words: Words) -> Value:
        value = self.values.get(words[0], b"")
        return WRONG_TYPE if isinstance(value, list) else len(value)

    def _exists(self, words: Words) -> Value:
        return sum(key in self.values for key in words)

    def _del(self, words: Words) -> Value:
        return sum(self.values.pop(key, None) is not None for key in words)

    def _mget(self, words: Words) -> Value:
        values = (self.values.get(key) for key in words)
        return tuple(value if isinstance(value, bytes) else Null.BULK for value in values)

    def _mset(self, words: Words) -> Value:
        self.values.update(zip(words[0::2], words[1::2], strict=True))
        return OK

    def _rpush(self, words: Words) -> Value:
        value = self.values.setdefault(words[0], [])
        if isinstance(value, bytes):
            return WRONG_TYPE
        value += words[1:]
        return len(value)

    def _ping(self, words: Words) -> Value:
        return words[0] if words else SimpleString("PONG")


COMMANDS: dict[bytes, tuple[Callable[[int], bool], Callable[[Keyspace, Words], Value]]] = {
    b"SET": (lambda count: count >= 2, Keyspace._set),
    b"GET": (lambda count: count == 1, Keyspace._get),
    b"STRLEN": (lambda count: count == 1, Keyspace._strlen),
    b"EXISTS": (lambda count: count >= 1, Keyspace._exists),
    b"DEL": (lambda count: count >= 1, Keyspace._del),
    b"MGET": (lambda count: count >= 1, Keyspace._mget),
    b"MSET": (lambda count: count >= 2 and count % 2 == 0, Keyspace._mset),
    b"RPUSH": (lambda count: count >= 2, Keyspace._rpush),
    b"PING": (lambda count: count <= 1, Keyspace._ping),
}
"""Each command by name: how many arguments it takes, and its answer."""


def _unknown(command: Words) -> ErrorReply:
    """Quote the command as the server does: cut short, line ends as spaces, arguments until enough is shown."""
    shown = b""
    for word in command[1:]:
        if len(shown) >= SHOWN:
            break
        shown += b"'%b' " % word[: SHOWN - len(shown)]
    text = b"ERR unknown command '%b', with args beginning with: %b" % (command[0][:SHOWN], shown)
    return ErrorReply(text.replace(b"\r", b" ").replace(b"\n", b" ").decode(errors="replace"))
