"""Every mistake that spec.lease names, made in the model of requests that are promised chunks."""

from __future__ import annotations

from typing import Any

from kvproof.models.lease import World


class Unpinned(World):
    def evictable(self, k: int) -> bool:
        return self.chunks[k].present


class StillPresent(World):
    def answer_after_failure(self, k: int) -> bool:
        return self.chunks[k].answer


class NobodyFails(World):
    def moves(self, q: int) -> list[str]:
        return [name for name in World.moves(self, q) if name != "fail"]


MISTAKES: dict[str, Any] = {
    "lease.holds:unpinned": Unpinned,
    "lease.holds:still-present": StillPresent,
    "lease.withdrawn:still-present": StillPresent,
    "lease.no-deadlock:nobody-fails": NobodyFails,
    "lease.progress:still-present": StillPresent,
}
