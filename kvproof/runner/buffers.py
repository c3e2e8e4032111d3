"""Buffers that reads fill: poisoned before, examined after, on the host or on a GPU."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from kvproof.connectors.adapter import Buffer
from kvproof.models import payloads


class Watched:
    """Buffers that were handed to a connector, and whether it has let go of them."""

    def __init__(self) -> None:
        """Begin with none."""
        self._memory: list[bytearray] = []
        self._tensors: list[weakref.ref[Any]] = []

    def add(self, buffer: Buffer) -> None:
        """Watch another one."""
        if isinstance(buffer, memoryview):
            assert isinstance(buffer.obj, bytearray), "as `filled` makes them"
            self._memory.append(buffer.obj)
        else:
            self._tensors.append(weakref.ref(buffer))

    def held(self) -> int:
        """Return how many of them somebody still has, once those who handed them over have let go of them.

        Of host memory that is any view, since what has a view cannot be cut; of a GPU's, the tensor itself.
        """
        self._memory = [memory for memory in self._memory if memory and not _cut(memory)]
        self._tensors = [tensor for tensor in self._tensors if tensor() is not None]
        return len(self._memory) + len(self._tensors)


def _cut(memory: bytearray) -> bool:
    try:
        memory.clear()
    except BufferError:
        return False
    return True


_watching: list[Watched] = []


@contextmanager
def watched(by: Watched) -> Iterator[None]:
    """Watch every buffer that is made meanwhile."""
    _watching.append(by)
    try:
        yield
    finally:
        _watching.remove(by)


def poisoned(size: int, device: str) -> Buffer:
    """Return a buffer of `size` bytes on "cpu" or "cuda" in which every byte is `payloads.POISON`."""
    return filled(bytes([payloads.POISON]) * size, device)


def filled(data: bytes, device: str) -> Buffer:
    """Return a writable buffer that holds `data`."""
    buffer = memoryview(bytearray(data)) if device == "cpu" else _on_device(data, device)
    for each in _watching:
        each.add(buffer)
    return buffer


def _on_device(data: bytes, device: str) -> Buffer:
    import torch

    if not data:
        return torch.empty(0, dtype=torch.uint8, device=device)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).to(device)


def content(buffer: Buffer, known: Iterable[tuple[str, int]], begins: bytes = b"") -> payloads.Content:
    """Say what `buffer` holds, given the (chunk, version) pairs that exist, and what their payloads begin with."""
    if isinstance(buffer, memoryview):
        return payloads.identify(buffer, known, begins)
    return payloads.identify(memoryview(buffer.cpu().numpy()), known, begins)


def cuda() -> str:
    """Return "yes" when PyTorch can use a CUDA device here, else why not."""
    try:
        import torch
    except ImportError as error:
        return str(error)
    return "yes" if torch.cuda.is_available() else "torch.cuda.is_available() is false"
