"""Who stores a chunk under which worker's key and on which instance, and which key and instance each read asks for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

REPLICATED = "replicated"
PER_WORKER = "per-worker"
SHARDED = "sharded"
MODES = (REPLICATED, PER_WORKER, SHARDED)
READS = ("get", "batched-get", "asynchronous-get", "exists", "prefetch", "unlock")

Content = tuple[int, int]
"""What is stored of a chunk: the chunk, and whose part of it; -1 where every rank has the same."""


@dataclass(frozen=True, slots=True)
class Placement:
    """One world: replicated, only worker 0 stores; per worker, each its own KV; sharded, each what it owns of the same.

    owners: the rank that stores chunk c where they are sharded. hosts: the instance that ``valkey-{rank}`` stands for,
    for every rank.
    """

    mode: str
    owners: tuple[int, ...]
    hosts: tuple[int, ...]

    @property
    def ranks(self) -> range:
        """The ranks of the world."""
        return range(len(self.hosts))

    def writes(self, w: int, chunk: int) -> bool:
        """Whether rank w stores the chunk."""
        return self.mode == PER_WORKER or w == (0 if self.mode == REPLICATED else self.owners[chunk])

    def content(self, w: int, chunk: int) -> Content:
        """Return what rank w has of a chunk."""
        return (chunk, w if self.mode == PER_WORKER else -1)

    def named(self, w: int) -> int:
        """Return the worker in the keys that rank w writes."""
        return w

    def placed(self, w: int) -> int:
        """Return the instance that rank w writes to."""
        return self.hosts[w]

    def asks(self, read: str, r: int, chunk: int) -> int:
        """Return the worker in the key by which rank r asks for a chunk."""
        return {REPLICATED: 0, SHARDED: self.owners[chunk], PER_WORKER: r}[self.mode]

    def instance(self, read: str, r: int, chunk: int) -> int:
        """Return the instance that rank r asks: {rank} is the worker in the key."""
        return self.hosts[self.asks(read, r, chunk)]

    def stored(self) -> Iterator[tuple[int, int, Content]]:
        """Return everything that is stored: the instance, the worker in the key, and what is stored there."""
        for chunk in range(len(self.owners)):
            for w in self.ranks:
                if self.writes(w, chunk):
                    yield self.placed(w), self.named(w), self.content(w, chunk)


def unserved(world: Placement) -> str:
    """Say which read asks by a key under which nobody stores its chunk, or somebody another's part; "" if none."""
    under: dict[tuple[int, int], set[Content]] = {}
    for _, worker, content in world.stored():
        under.setdefault((worker, content[0]), set()).add(content)
    for read, r, chunk in _reads(world):
        worker = world.asks(read, r, chunk)
        there = under.get((worker, chunk), set())
        if not there:
            return f"{world.mode}: {read} of chunk {chunk} by rank {r} asks for worker {worker}'s, which nobody stores"
        if there != {world.content(r, chunk)}:
            return f"{world.mode}: {read} of chunk {chunk} by rank {r} may get what another rank has of it"
    return ""


def misled(world: Placement) -> str:
    """Say which read asks an instance on which its chunk is not stored under the key it asks for; "" when none does."""
    there = {(instance, worker, content[0]) for instance, worker, content in world.stored()}
    for read, r, chunk in _reads(world):
        instance, worker = world.instance(read, r, chunk), world.asks(read, r, chunk)
        if (instance, worker, chunk) not in there:
            return (f"{world.mode}: {read} of chunk {chunk} by rank {r} asks instance {instance} for worker "
                    f"{worker}'s, which is not there")
    return ""


def _reads(world: Placement) -> Iterator[tuple[str, int, int]]:
    for read in READS:
        for r in world.ranks:
            yield from ((read, r, chunk) for chunk in range(len(world.owners)))
