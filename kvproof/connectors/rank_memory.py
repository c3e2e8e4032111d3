"""A rank's slice of the first tier: chunks in (pinned) host memory, the least recently used of which make room."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any


class Memory:
    """Chunks of one size by name, at most `capacity` bytes of them; may be used from several threads."""

    def __init__(self, capacity: int) -> None:
        """Begin empty; with a capacity of 0 nothing is kept."""
        self._capacity = capacity
        self._held = 0
        self._chunks: OrderedDict[str, Any] = OrderedDict()
        self._lock = threading.Lock()

    def keep(self, chunk: str, host: Any) -> None:
        """Keep a copy of a one-dimensional uint8 host tensor under that name, if it fits."""
        size = host.numel()
        with self._lock:
            self._drop(chunk)
            if size > self._capacity:
                return
            while self._held + size > self._capacity:
                self._drop(next(iter(self._chunks)))
            self._chunks[chunk] = host.clone()
            self._held += size

    def take(self, chunk: str, host: Any) -> bool:
        """Copy a chunk into a host tensor, if it is there and of that size."""
        with self._lock:
            found = self._chunks.get(chunk)
            if found is None or found.numel() != host.numel():
                return False
            self._chunks.move_to_end(chunk)
            host.copy_(found)
            return True

    def has(self, chunk: str) -> bool:
        """Whether a chunk is there."""
        with self._lock:
            return chunk in self._chunks

    def _drop(self, chunk: str) -> None:
        found = self._chunks.pop(chunk, None)
        if found is not None:
            self._held -= found.numel()
