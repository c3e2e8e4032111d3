"""Buffers that reads fill: poisoned before, examined after, on the host or on a GPU."""

from __future__ import annotations

from collections.abc import Iterable

from kvproof.connectors.adapter import Buffer
from kvproof.models import payloads


def poisoned(size: int, device: str) -> Buffer:
    """Return a buffer of `size` bytes on "cpu" or "cuda" in which every byte is `payloads.POISON`."""
    return filled(bytes([payloads.POISON]) * size, device)


def filled(data: bytes, device: str) -> Buffer:
    """Return a writable buffer that holds `data`."""
    if device == "cpu":
        return memoryview(bytearray(data))
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
