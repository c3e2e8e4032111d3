"""Payloads that say whose they are: every 16 bytes name the key, the version and the position.

A wrong byte in a buffer then tells where it came from, instead of only that it is wrong.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b

CELL = 16
"""Bytes in one cell: eight for (key, version), eight for the cell's index."""

POISON = 0xEE
"""What buffers are filled with before a read; a byte that is still poison was never written."""


def tag(key: str, version: int) -> int:
    """Return the 64-bit mark that the cells of this key and version carry."""
    return int.from_bytes(blake2b(f"{key}\0{version}".encode(), digest_size=8).digest(), "little")


@lru_cache(maxsize=8)
def encode(key: str, version: int, size: int, begins: bytes = b"") -> bytes:
    """Return the payload of `size` bytes for this key and version; its first bytes are `begins` instead."""
    cells = -(-size // CELL)
    words = array("Q", bytes(cells * CELL))
    words[0::2] = array("Q", [tag(key, version)]) * cells
    words[1::2] = array("Q", range(cells))
    if sys.byteorder == "big":
        words.byteswap()
    return (begins + words.tobytes()[len(begins):])[:size]


@dataclass(frozen=True, slots=True)
class Content:
    """What a buffer holds: `whose` names it, `exact` says that every byte is as it was encoded."""

    whose: str
    exact: bool
    first_wrong: int | None = None


def identify(
    data: bytes | bytearray | memoryview, known: Iterable[tuple[str, int]], begins: bytes = b""
) -> Content:
    """Say what `data` holds, given the keys and versions that exist, and what their payloads begin with.

    Returns ``Content("poison", True)`` for an untouched buffer, ``Content("KEY version V", True)`` for exactly that
    payload, and otherwise the owner of the first byte that differs, with its offset in bytes.
    """
    view = memoryview(data).cast("B")
    size = len(view)
    poison = bytes([POISON]) * size
    if view == poison:
        return Content("poison", exact=True)
    candidates = list(known)
    for key, version in candidates:
        if view == encode(key, version, size, begins):
            return Content(f"{key} version {version}", exact=True)
    first = _first_difference(view, [encode(key, version, size, begins) for key, version in candidates], poison)
    return Content(_owner(view, first, candidates), exact=False, first_wrong=first)


def _first_difference(view: memoryview, candidates: list[bytes], poison: bytes) -> int:
    """Return the offset up to which `view` follows the candidate that it follows longest."""
    return max(_common_prefix(view, memoryview(other)) for other in (*candidates, poison))


def _common_prefix(left: memoryview, right: memoryview) -> int:
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[:middle] == right[:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _owner(view: memoryview, offset: int, candidates: list[tuple[str, int]]) -> str:
    cell = offset - offset % CELL
    mark = int.from_bytes(view[cell : cell + 8], "little")
    for key, version in candidates:
        if tag(key, version) == mark:
            return f"{key} version {version}, out of place"
    if bytes(view[offset : offset + CELL]).strip(bytes([POISON])) == b"":
        return "poison from there on"
    if not any(view[offset : offset + CELL]):
        return "zeros from there on"
    return f"unknown bytes {bytes(view[offset : offset + 8]).hex()}"
