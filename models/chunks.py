"""Chunks and their keys: which rank stores a chunk, and under which name."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class ChunkKey:
    """The identity of one stored chunk.

    The fields are those of the field's own caches: the model's name, the world size, the worker (rank) that stores
    the chunk, the hash of the tokens up to and including the chunk (hexadecimal) and the element type.
    """

    model: str
    world_size: int
    worker: int
    chunk: str
    dtype: str

    def format(self) -> str:
        """Return the key as text; every field is kept apart by ``@``, which no field may contain."""
        fields = (self.model, str(self.world_size), str(self.worker), self.chunk, self.dtype)
        for field in fields:
            if "@" in field:
                raise ValueError(f"a key field must not contain '@', got {field!r}")
        return "@".join(fields)

    def stored(self, *, replicated: bool) -> ChunkKey:
        """Return the key under which this chunk is really stored.

        With a replicated latent KV (MLA) only worker 0 stores (facts: 1), so every worker must ask for worker 0's
        key; otherwise a worker asks for its own.
        """
        return replace(self, worker=0) if replicated else self
