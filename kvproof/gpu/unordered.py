"""The reference with one mistake of ordering each, by which `device-ordered` is seen to fail where there is a GPU."""

from __future__ import annotations

from typing import Any

from kvproof.connectors.reference import Reference
from kvproof.connectors.staging import Staging

_SIDE = 4096
_KERNELS = 200


class _OwnStream(Staging):
    """Copies on a stream of its own, and waits for that one before it returns."""

    def __init__(self) -> None:
        super().__init__()
        self._own: Any = self._torch.cuda.Stream()

    def fetch(self, device: Any, host: Any) -> None:
        """Copy without waiting for what is still to be written there."""
        with self._torch.cuda.stream(self._own):
            host.copy_(device)


class _Behind(Staging):
    """Delivers on a stream of its own, and makes nobody wait for it."""

    def __init__(self) -> None:
        super().__init__(keep=0)
        self._own: Any = self._torch.cuda.Stream()
        self._one = self._torch.ones(_SIDE, _SIDE, device="cuda")
        self._two = self._torch.mm(self._one, self._one)
        self._torch.cuda.synchronize()

    def deliver(self, host: Any, device: Any) -> None:
        """Return before the copy, which other work of this stream delays."""
        with self._torch.cuda.stream(self._own):
            for _ in range(_KERNELS):
                self._torch.mm(self._one, self._one, out=self._two)
            device.copy_(host, non_blocking=True)


class UnorderedStore(Reference):
    """Store what is in the buffer just then."""

    staging_class = _OwnStream


class UnorderedLoad(Reference):
    """Return from a read before its bytes have come."""

    staging_class = _Behind
