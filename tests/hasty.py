"""A connector with a bug that no other test knows: what it has stored once it takes to be there for ever."""

from __future__ import annotations

from kvproof.connectors.adapter import Hit, Outcome, Place, Read
from kvproof.connectors.reference import Chunks, Reference


class Hasty(Reference):
    """The reference, which remembers what it has stored, and answers `exists` from that."""

    name = "hasty"

    def __init__(self, place: Place) -> None:
        """Connect, and remember nothing."""
        super().__init__(place)
        self._remembered: set[str] = set()

    def put(self, chunks: Chunks) -> list[Outcome]:
        """Store each chunk, and remember it."""
        outcomes = super().put(chunks)
        self._remembered |= {key.chunk for (key, _), outcome in zip(chunks, outcomes, strict=True)
                             if isinstance(outcome, Hit)}
        return outcomes

    def read(self, read: Read, chunks: Chunks) -> list[Outcome]:
        """Read each chunk; whether one exists that is remembered is not asked."""
        if read.name == "exists" and all(key.chunk in self._remembered for key, _ in chunks):
            return [Hit() for _ in chunks]
        return super().read(read, chunks)
