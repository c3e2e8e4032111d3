"""Wrong about keys: whose shard a rank asks for (key-per-rank), and what a key leaves out (keys-separate)."""

from __future__ import annotations

from dataclasses import replace

from kvproof.connectors.adapter import Read
from kvproof.models.chunks import ChunkKey
from tests.zoo.wrong import Wrong

HASH = (1 << 64) - 1


class AsksForItsOwn(Wrong):
    """Knows the key that a rank has when every rank stores."""

    def own_key(self, key: ChunkKey) -> bytes:
        """Return this rank's own key, whoever stores."""
        return replace(key, adapter=self.place.adapter, salt=self.place.salt).format().encode()


class LookupAsksOwn(AsksForItsOwn):
    """D6 (LMCache #1728): the keys of exists and of put differ where one rank stores for all."""

    rule = "key-per-rank"
    breaks = frozenset({"key-per-rank"})

    def asked_key(self, read: Read, key: ChunkKey) -> bytes:
        """Look up the rank's own."""
        return super().asked_key(read, key) if read.payload else self.own_key(key)


class AsyncAsksOwn(AsksForItsOwn):
    """D6 (LMCache #1728): one way to read of several does not ask for the worker that stores."""

    rule = "key-per-rank"
    breaks = frozenset({"key-per-rank"})

    def asked_key(self, read: Read, key: ChunkKey) -> bytes:
        """Read the rank's own."""
        return super().asked_key(read, key) if read.sync else self.own_key(key)


class AllAskZero(Wrong):
    """D6: every rank is sent to the same shard, whoever asks."""

    rule = "key-per-rank"
    breaks = frozenset({"key-per-rank"})

    def wire_key(self, key: ChunkKey) -> bytes:
        """Name worker 0."""
        return super().wire_key(replace(key, worker=0))


class NoAdapterInKey(Wrong):
    """D2: the LoRA adapter is not in the key."""

    rule = "keys-separate"
    breaks = frozenset({"keys-separate"})

    def wire_key(self, key: ChunkKey) -> bytes:
        """Leave it out."""
        return replace(key.stored(replicated=self.place.replicated), salt=self.place.salt).format().encode()


class NoSaltInKey(Wrong):
    """D3: the tenant's salt is lost between two layers."""

    rule = "keys-separate"
    breaks = frozenset({"keys-separate"})

    def wire_key(self, key: ChunkKey) -> bytes:
        """Lose it."""
        return replace(key.stored(replicated=self.place.replicated), adapter=self.place.adapter).format().encode()


class NoDtypeInKey(Wrong):
    """D4: the element type is not in the key."""

    rule = "keys-separate"
    breaks = frozenset({"keys-separate"})

    def wire_key(self, key: ChunkKey) -> bytes:
        """Leave it out."""
        return super().wire_key(replace(key, dtype=""))


class KeyOfThisProcess(Wrong):
    """D1: a part of the key is a hash that differs from process to process."""

    rule = "keys-separate"
    breaks = frozenset({"keys-separate", "key-per-rank"})

    def wire_key(self, key: ChunkKey) -> bytes:
        """Add Python's own hash of the model's name."""
        return super().wire_key(key) + b"@%x" % (hash(key.model) & HASH)


class JoinedBare(Wrong):
    """D3 (LMCache #3042): names run into one another, so that two identities have one key."""

    rule = "keys-separate"
    breaks = frozenset({"keys-separate"})

    def wire_key(self, key: ChunkKey) -> bytes:
        """Join the model with the world size, and the adapter with the salt."""
        stored = key.stored(replicated=self.place.replicated)
        model, option = f"{stored.model}{stored.world_size}", f"{self.place.adapter}{self.place.salt}"
        return f"{model}@{stored.worker}@{stored.chunk}@{stored.dtype}@{option}".encode()
