"""Replies to a GET, and buffers for them: what the tests of the client's models share."""

from __future__ import annotations

from kvproof.models.client import Failed, Outcome
from kvproof.models.payloads import POISON, encode

SIZE = 37
POISONED = bytes([POISON]) * SIZE


def poisoned(size: int = SIZE) -> bytearray:
    return bytearray([POISON]) * size


def bulk(payload: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(payload), payload)


V = encode("k", 1, SIZE)
"""The value of the key k."""


def is_outcome(outcome: Outcome, expected: type[Outcome] | str) -> bool:
    if isinstance(expected, str):
        return isinstance(outcome, Failed) and expected in outcome.reason
    return isinstance(outcome, expected)
