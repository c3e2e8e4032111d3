"""Requests of a production trace: when each came, how long it was, and the prefix blocks that it has.

A trace is a file of JSON lines as the Mooncake project publishes them: `timestamp` (milliseconds since the first
request), `input_length` and `output_length` (tokens), `hash_ids` (a number for each prefix block, in order; equal
numbers are the same block after the same blocks).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kvproof.errors import UsageError

BLOCK_TOKENS = 512
"""Tokens of a prefix block of Mooncake's traces."""
_FIELDS = ("timestamp", "input_length", "output_length", "hash_ids")


@dataclass(frozen=True, slots=True)
class Request:
    """One request: its arrival in seconds, its lengths in tokens, and its prefix blocks by number, in order."""

    arrival: float
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...]


def parsed(lines: Iterable[bytes], name: object) -> list[Request]:
    """Return the requests of a trace's lines, in the order of their arrival; name: of the trace, for what is said.

    Raises UsageError, in one line, for a line that is no request, and for a trace without any.
    """
    found = [_request(name, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not found:
        raise UsageError(f"{name}: it has no request; expected a JSON object a line with {', '.join(_FIELDS)}")
    return sorted(found, key=lambda request: request.arrival)


def _request(name: object, number: int, line: bytes) -> Request:
    try:
        given: Any = json.loads(line)
    except (ValueError, RecursionError):
        given = None
    if not isinstance(given, dict) or not all(name in given for name in _FIELDS):
        raise UsageError(f"{name}, line {number}: got {line[:60]!r}; expected a JSON object with {', '.join(_FIELDS)}")
    arrival, tokens, output, blocks = (given[name] for name in _FIELDS)
    numbers = all(type(each) is int and 0 <= each < 10**12 for each in (tokens, output))
    if type(arrival) not in (int, float) or not 0 <= arrival < 1e15 or not numbers:
        raise UsageError(f"{name}, line {number}: got timestamp {arrival!r}, input_length {tokens!r}, output_length "
                         f"{output!r}; expected milliseconds and whole numbers of tokens, none below 0")
    if not isinstance(blocks, list) or not all(type(block) is int for block in blocks):
        raise UsageError(f"{name}, line {number}: got hash_ids {str(blocks)[:60]}; expected a list of whole numbers")
    return Request(arrival / 1000, tokens, output, tuple(blocks))


@dataclass(frozen=True, slots=True)
class Summary:
    """What a trace has, by its own figures: seconds from the first request to the last, and mean tokens of input."""

    requests: int
    seconds: float
    mean_input: float
    accesses: int
    distinct_blocks: int


def summary(requests: Sequence[Request]) -> Summary:
    """Return what a trace has."""
    blocks = [block for request in requests for block in request.blocks]
    mean = sum(request.input_tokens for request in requests) / len(requests)
    return Summary(len(requests), requests[-1].arrival - requests[0].arrival, mean, len(blocks), len(set(blocks)))


def prefixes_differ(requests: Sequence[Request]) -> Iterator[str]:
    """Say which block comes after two different ones: then equal numbers are not the same prefix."""
    before: dict[int, int] = {}
    for number, request in enumerate(requests):
        for last, block in zip((-1, *request.blocks), request.blocks, strict=False):
            if before.setdefault(block, last) != last:
                yield f"request {number}: block {block} comes after {last}, and came after {before[block]} before"
