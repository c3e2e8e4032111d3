"""Pinned host memory between a GPU and a socket: payloads are copied through it, as connectors on a GPU do.

torch is imported only when a `Staging` is made.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any


class Staging:
    """A store of pinned host tensors (plain ones where there is no GPU), lent out by size and used again."""

    def __init__(self, keep: int = 8) -> None:
        """Keep at most `keep` tensors of each size for the next loan."""
        import torch

        self._torch: Any = torch
        self._pin = bool(torch.cuda.is_available())
        self._keep = keep
        self._free: dict[int, list[Any]] = {}
        self._lock = threading.Lock()

    @contextmanager
    def lend(self, tensors: Sequence[Any]) -> Iterator[list[Any]]:
        """Lend a host tensor for each of the one-dimensional uint8 `tensors`."""
        lent = [self._take(tensor.numel()) for tensor in tensors]
        try:
            yield lent
        finally:
            for host in lent:
                self._give(host)

    def fetch(self, device: Any, host: Any) -> None:
        """Copy from the device; returns once the bytes are in host memory, after the current stream's earlier work."""
        host.copy_(device)

    def deliver(self, host: Any, device: Any) -> None:
        """Copy to the device, before the current stream's later work; the host memory can be used again on return."""
        device.copy_(host)

    def _take(self, size: int) -> Any:
        with self._lock:
            free = self._free.get(size)
            if free:
                return free.pop()
        return self._torch.empty(size, dtype=self._torch.uint8, pin_memory=self._pin)

    def _give(self, host: Any) -> None:
        with self._lock:
            free = self._free.setdefault(host.numel(), [])
            if len(free) < self._keep:
                free.append(host)


def view(host: Any) -> memoryview:
    """Return a host tensor's memory as a writable memoryview of format "B"."""
    return memoryview(host.numpy())
