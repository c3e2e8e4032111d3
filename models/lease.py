"""A positive answer to a lookup, a lease: the chunk stays until it has been loaded or the answer is withdrawn.

Requests ask for a chunk each. One that is told "present" loads it; a load of damaged bytes fails, and takes back every
positive answer for the chunk. Chunks may be evicted, damaged and stored at any time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

ASKING, PROMISED, COMPUTING, USED = "asking", "promised", "computing", "used"
"""Where a request is: promised is with a positive answer, computing is without the chunk, used is with it."""


class Event(NamedTuple):
    """One thing that happens to a request or to a chunk, by its number."""

    name: str
    which: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """One chunk.

    present: the cache has it. intact: its bytes are good, which nobody knows before they are loaded; those of an absent
    chunk are the ones that it had. answer: what lookups say. failed: a load has failed since it was last stored.
    """

    present: bool
    intact: bool
    answer: bool
    failed: bool = False


@dataclass(frozen=True, slots=True)
class World:
    """All requests and chunks: a value; `after` gives the next one.

    wants: the chunk of each request. phases: where each request is. storing: chunks may be stored meanwhile.
    """

    wants: tuple[int, ...]
    chunks: tuple[Chunk, ...]
    phases: tuple[str, ...]
    storing: bool = True

    @classmethod
    def begin(cls, wants: tuple[int, ...], present: tuple[bool, ...], intact: tuple[bool, ...], *,
              storing: bool = True) -> World:
        """Return the world before anybody has asked; lookups know which chunks are present."""
        chunks = tuple(Chunk(there, good, there) for there, good in zip(present, intact, strict=True))
        return cls(wants, chunks, (ASKING,) * len(wants), storing)

    def events(self) -> Iterator[Event]:
        """Return everything that can happen now."""
        for q in range(len(self.wants)):
            yield from (Event(name, q) for name in self.moves(q))
        for k, chunk in enumerate(self.chunks):
            if self.evictable(k):
                yield Event("evict", k)
            if chunk.intact:
                yield Event("spoil", k)
            if self.storing and not chunk.present:
                yield Event("store", k)

    def moves(self, q: int) -> list[str]:
        """Return what request q can do."""
        chunk = self.chunks[self.wants[q]]
        match self.phases[q]:
            case "asking":
                return ["ask"]
            case "promised":
                return ["load"] if chunk.present and chunk.intact else ["fail"]
        return []

    def promised(self, k: int) -> list[int]:
        """Return the requests that have a positive answer for chunk k."""
        return [q for q, phase in enumerate(self.phases) if phase == PROMISED and self.wants[q] == k]

    def evictable(self, k: int) -> bool:
        """Whether chunk k may be evicted: it is present, and promised to nobody."""
        return self.chunks[k].present and not self.promised(k)

    def after(self, event: Event) -> World:
        """Return what the event makes of this world; it must be one of `events`."""
        match event.name:
            case "ask":
                answer = self.chunks[self.wants[event.which]].answer
                return self.go(event.which, PROMISED if answer else COMPUTING)
            case "load":
                return self.go(event.which, USED)
            case "fail":
                return self.fail(self.wants[event.which])
            case "evict":
                return self.but(event.which, present=False, answer=False)
            case "spoil":
                return self.but(event.which, intact=False)
            case "store":
                return self.but(event.which, present=True, intact=True, answer=True, failed=False)
            case name:
                raise ValueError(f"a lease has no event {name!r}")

    def fail(self, k: int) -> World:
        """Return the world in which a load of chunk k has failed: it is gone, and who was promised it asks again."""
        world = self.but(k, present=False, failed=True, answer=self.answer_after_failure(k))
        for q in self.promised(k):
            world = world.go(q, ASKING)
        return world

    def answer_after_failure(self, k: int) -> bool:
        """Return what lookups say of chunk k once a load of it has failed."""
        return False

    def go(self, q: int, phase: str) -> World:
        """Return the world in which request q is there."""
        return replace(self, phases=(*self.phases[:q], phase, *self.phases[q + 1 :]))

    def but(self, k: int, **changes: bool) -> World:
        """Return the world in which this is different with chunk k."""
        return replace(self, chunks=(*self.chunks[:k], replace(self.chunks[k], **changes), *self.chunks[k + 1 :]))


def lost(world: World) -> str:
    """Say which promised chunk is not in the cache; "" when none."""
    return next((f"request {q} was promised chunk {k}, which is not there" for k, chunk in enumerate(world.chunks)
                 for q in world.promised(k) if not chunk.present), "")


def not_withdrawn(world: World) -> str:
    """Say which chunk has, or gets, a positive answer although it has failed to load; "" when none."""
    for k, chunk in enumerate(world.chunks):
        if chunk.failed and chunk.answer:
            return f"chunk {k} has failed to load, and lookups say that it is present"
        if chunk.failed and world.promised(k):
            return f"chunk {k} has failed to load, and requests {world.promised(k)} are promised it"
    return ""


def stuck(world: World) -> str:
    """Say which request is neither served nor computing, and can do nothing; "" when none."""
    return next((f"request {q} is {phase}, and can do nothing" for q, phase in enumerate(world.phases)
                 if phase not in (USED, COMPUTING) and not world.moves(q)), "")
