"""A connector with a bug that needs three things in a row, each of which shows a little on the wire."""

from __future__ import annotations

from kvproof.connectors.adapter import Failed, Hit, Miss, Outcome, Read
from kvproof.connectors.reference import Chunks, Reference


class Deep(Reference):
    """The reference, with a way to fall back that nobody has thought through.

    After a store that failed it asks whether the server is there. If then a batch has a miss, it takes itself to be
    behind a cache that is being filled, and asks twice. From then on an asynchronous read says hit before it has read.
    """

    name = "deep"
    _fallen = 0

    def put(self, chunks: Chunks) -> list[Outcome]:
        """Store each chunk."""
        outcomes = super().put(chunks)
        if self._fallen == 0 and any(isinstance(each, Failed) for each in outcomes):
            self._fallen = 1
            self.client.exists("deep: are you there")
        return outcomes

    def read(self, read: Read, chunks: Chunks) -> list[Outcome]:
        """Read each chunk."""
        if self._fallen == 2 and read.name == "async_get":
            return [Hit() for _ in chunks]
        outcomes = super().read(read, chunks)
        if self._fallen == 1 and read.name == "batched_get" and any(isinstance(each, Miss) for each in outcomes):
            self._fallen = 2
            self.client.batch_exists(["deep: are you there", "deep: really"])
        return outcomes
