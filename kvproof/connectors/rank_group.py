"""The process group of the sharded reference: an exchange of a few numbers, and broadcasts, each with a deadline."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from kvproof.connectors.adapter import Buffer
from kvproof.connectors.rank_adapter import StepAborted

LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
"""By which gloo and NCCL listen on the loopback interface only."""


class Group:
    """A group of ranks, joined through a file.

    A collective that fails, for whatever reason, ends the group for this rank: it leaves, which ends the waits of the
    others, and nothing can be done with the group any more.
    """

    def __init__(self, rendezvous: str, rank: int, world_size: int, backend: str, device: str, timeout: float) -> None:
        """Join; returns when all ranks have. timeout: seconds for that, and for each collective."""
        import torch
        import torch.distributed

        self._torch: Any = torch
        self._distributed: Any = torch.distributed
        self.rank, self.world_size = rank, world_size
        # gloo moves host memory only.
        self._device = device if backend == "nccl" else "cpu"
        self._timeout = timedelta(seconds=timeout)
        os.environ.update(LOOPBACK)
        self._distributed.init_process_group(
            backend, init_method=f"file://{rendezvous}", rank=rank, world_size=world_size, timeout=self._timeout)
        self._exchanging: Any = None
        """The group of those who exchange; None for all."""
        self.ended = ""

    def exchange(self, numbers: Sequence[int]) -> list[list[int]]:
        """Give numbers of 64 bits to all ranks; return those of each rank, by rank. Raises StepAborted."""
        torch = self._torch
        mine = torch.tensor(list(numbers), dtype=torch.int64, device=self._device)
        everybodys = [torch.empty_like(mine) for _ in range(self._distributed.get_world_size(self._exchanging))]
        with self._leaving():
            self._distributed.all_gather(everybodys, mine, group=self._exchanging)
        return [each.tolist() for each in everybodys]

    def broadcast(self, buffer: Buffer, source: int) -> None:
        """Give the bytes of a buffer of rank `source` to that of every rank. Raises StepAborted."""
        torch = self._torch
        tensor = buffer
        if isinstance(buffer, memoryview):
            tensor = torch.frombuffer(buffer, dtype=torch.uint8)
        moved = tensor.to(self._device)
        with self._leaving():
            self._distributed.broadcast(moved, src=source)
        if moved is not tensor and source != self.rank:
            tensor.copy_(moved)

    def broadcast_object(self, thing: Any, source: int) -> Any:
        """Give a Python object of rank `source` to every rank, and return it. Raises StepAborted."""
        things = [thing if source == self.rank else None]
        with self._leaving():
            self._distributed.broadcast_object_list(things, src=source)
        return things[0]

    @contextmanager
    def _leaving(self) -> Iterator[None]:
        """Leave the group when the collective in here fails; raises StepAborted then, and when it was left before."""
        if self.ended:
            raise StepAborted(f"the group has ended: {self.ended}")
        try:
            yield
            if self._device != "cpu":
                # Until then it has only been put on a stream, and neither failed nor ended.
                self._torch.cuda.synchronize()
        except Exception as error:
            self.leave(f"{type(error).__name__}: {_brief(str(error))}")
            raise StepAborted(self.ended) from error

    def leave(self, why: str) -> None:
        """Leave the group, which ends the waits of others in it; leaving twice is fine."""
        if self.ended:
            return
        self.ended = why
        try:
            self._distributed.destroy_process_group()
        except Exception:
            # It is broken, which is why it is left.
            return


def _brief(text: str) -> str:
    """Return what a backend says, without places in its sources, addresses and advice."""
    first = (text.strip().splitlines() or [""])[0].partition(". This is ")[0]
    return re.sub(r"\[[^\]]*\.(?:cc|cpp|h):\d+\] |\[[\d.:a-f]+\]:\d+:? ?", "", first).strip()
