"""Where a RESP command carries its first key, and which commands carry a secret."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

ANSWERED_BY_PUSH = frozenset({
    "PSUBSCRIBE", "PUNSUBSCRIBE", "SSUBSCRIBE", "SUBSCRIBE", "SUNSUBSCRIBE", "UNSUBSCRIBE",
})
"""Commands that get no reply of their own in RESP3, only pushes."""

_WITHOUT_KEY = ANSWERED_BY_PUSH | frozenset({
    "ACL", "ASKING", "AUTH", "BGREWRITEAOF", "BGSAVE", "CLIENT", "CLUSTER", "COMMAND", "CONFIG", "DBSIZE", "DEBUG",
    "DISCARD", "ECHO", "EXEC", "FAILOVER", "FLUSHALL", "FLUSHDB", "FUNCTION", "HELLO", "INFO", "KEYS", "LASTSAVE",
    "LATENCY", "LOLWUT", "MODULE", "MONITOR", "MULTI", "PING", "PSYNC", "PUBLISH", "PUBSUB",
    "QUIT", "RANDOMKEY", "READONLY", "READWRITE", "REPLCONF", "REPLICAOF", "RESET", "ROLE", "SAVE",
    "SCAN", "SCRIPT", "SELECT", "SHUTDOWN", "SLAVEOF", "SLOWLOG", "SWAPDB", "SYNC", "TIME",
    "UNWATCH", "WAIT", "WAITAOF",
})
_SECOND = frozenset({
    "BITOP", "LMPOP", "MEMORY", "OBJECT", "SINTERCARD", "XGROUP", "XINFO", "ZDIFF", "ZINTER", "ZMPOP", "ZUNION",
})
_THIRD = frozenset({
    "BLMPOP", "BZMPOP", "EVAL", "EVALSHA", "EVALSHA_RO", "EVAL_RO", "FCALL", "FCALL_RO", "MIGRATE",
})
_ASKS_WITH_SECRET = frozenset({"ACL", "AUTH", "CONFIG", "HELLO", "MIGRATE", "REPLICAOF", "SENTINEL"})
_ANSWERS_WITH_SECRET = frozenset({"ACL", "CONFIG", "EXEC", "SENTINEL"})
_LONGEST = 32
"""Bytes in the longest name of a command that is kept in mind."""


def text(word: bytes) -> str:
    """Return bytes of the wire as text, without loss."""
    return word.decode("utf-8", "surrogateescape")


def name(words: Sequence[bytes]) -> str:
    """Return the command's name in upper case, empty for an empty request."""
    return text(words[0]).upper() if words else ""


def first_key(words: Sequence[bytes]) -> str:
    """Return the first key, empty for a command that has none."""
    command = name(words)
    position = 2 if command in _SECOND else 3 if command in _THIRD else 1
    return "" if command in _WITHOUT_KEY or len(words) <= position else text(words[position])


def name_and_key(words: Sequence[bytes]) -> tuple[str, str]:
    """Return the command's name and its first key."""
    if not words:
        return "", ""
    command, position = _known(words[0]) if len(words[0]) <= _LONGEST else (name(words), 1)
    return command, text(words[position]) if position and len(words) > position else ""


@lru_cache(maxsize=1024)
def _known(word: bytes) -> tuple[str, int]:
    """Return a command's name, and which word is its first key, 0 for none."""
    command = text(word).upper()
    return command, 0 if command in _WITHOUT_KEY else 2 if command in _SECOND else 3 if command in _THIRD else 1


def has_key(words: Sequence[bytes]) -> bool:
    """Whether the words of a request that is still coming in say already what its first key is, or that it has none."""
    command = name(words)
    position = 2 if command in _SECOND else 3 if command in _THIRD else 1
    return bool(words) and (command in _WITHOUT_KEY or len(words) > position)


def shown(direction: str, command: str, head: bytes) -> bytes:
    """Return the first bytes of a frame as they may be logged: none where a password can stand in them."""
    return b"" if command in (_ASKS_WITH_SECRET if direction == "request" else _ANSWERS_WITH_SECRET) else head
