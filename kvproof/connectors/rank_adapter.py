"""What somebody writes to put the ranks of a connector under test: one class, of which each rank makes one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from kvproof.connectors.adapter import Buffer, Outcome, Place
from kvproof.models.chunks import owner


class StepAborted(Exception):
    """This rank has given a load step up: it uses nothing of it, and the group has to be rebuilt."""


@dataclass(frozen=True, slots=True)
class Load:
    """One of the ways in which ranks load the chunks of a prompt.

    replicated: all ranks have the same KV and worker 0 stores it; else each stores what it owns. asynchronous: chunks
    are got while a lookup waits for them, `RankPlace.lookup_timeout` seconds at most; else when they are loaded.
    parts: a chunk is cut into a part for each rank, as heads are, and each stores and loads its own part of every
    chunk. exchanges: whether the ranks agree by collectives in this way to load, where the adapter's ranks do at all.
    masks: the known bug that the adapter keeps from striking in this way to load, by its replay's id.
    """

    name: str
    replicated: bool = False
    asynchronous: bool = False
    parts: bool = False
    exchanges: bool = True
    masks: str = ""


@dataclass(frozen=True, slots=True)
class RankPlace:
    """Where one rank lives, and what it was told.

    place: as for any connector, with `rank`, `world_size` and `replicated`; its endpoint is this rank's own instance
    (worker 0's, where KV is replicated). rendezvous: a file on which the ranks of one group meet; each group has its
    own. backend: of torch.distributed, "gloo" or "nccl". step_timeout: seconds that a rank waits in a collective.
    lookup_timeout: seconds that a lookup may wait for chunks. owners: the rank that owns chunk c; () is round robin.
    layout: of this rank's KV cache; ranks whose layouts differ have nothing to load from each other. memory_bytes:
    what a rank keeps in host memory in front of its instance, at most. cost: bytes of a token's KV, tokens recomputed
    a second, bytes loaded a second, and seconds that a load takes besides, by which a hit is loaded or recomputed; ()
    loads whatever is there. chunk_tokens: tokens in a chunk. log: the file to which the rank records its steps for
    `kvproof validate`; "" for none. load: the name of the way to load.
    """

    place: Place
    rendezvous: str
    backend: str = "gloo"
    step_timeout: float = 2.0
    lookup_timeout: float = 1.0
    asynchronous: bool = False
    owners: tuple[int, ...] = ()
    layout: str = "paged"
    memory_bytes: int = 0
    cost: tuple[float, ...] = ()
    chunk_tokens: int = 256
    log: str = ""
    load: str = ""

    def owner(self, chunk: int) -> int:
        """Return the rank that stores chunk number `chunk` of a prompt."""
        if self.place.replicated:
            return 0
        return self.owners[chunk] if chunk < len(self.owners) else owner(chunk, self.place.world_size)


Seam = tuple[Any, str]
"""Something and the name of a method that it has."""


class RankAdapter:
    """One rank of a connector under test.

    Subclasses state what they are as data. They are imported and called in the process of their rank only, in lockstep
    with the others: `store` and `load` are called on every rank with the same prompt, from its first chunk on, unless
    a rank was told otherwise. A chunk is named by the hash of the tokens up to and including it, in hexadecimal. Every
    call has a deadline.
    """

    name: ClassVar[str]
    """The connector's name on the command line."""
    distribution: ClassVar[str]
    """The PyPI distribution whose version is reported."""
    loads: ClassVar[tuple[Load, ...]]
    """Every way to load that is to be tested."""
    devices: ClassVar[tuple[str, ...]] = ("cpu",)
    """Where buffers can be: "cpu", "cuda"."""
    exchanges: ClassVar[bool] = True
    """Whether the ranks agree by collectives of torch.distributed; else each rank loads by itself, says how much it
    has, and the engine computes with the least of it."""
    layouts: ClassVar[bool] = True
    """Whether the KV cache of a rank can have another layout than those of its peers, `RankPlace.layout`."""
    rebuilds: ClassVar[bool] = True
    """Whether a rank can join a new group; else all ranks are started anew, each in a fresh process."""
    records: ClassVar[bool] = False
    """Whether a rank writes a log of its load steps, for `kvproof validate`."""
    memory: ClassVar[bool] = False
    """Whether ranks keep chunks in memory in front of their instances, `RankPlace.memory_bytes` at most."""
    preload: ClassVar[tuple[str, ...]] = ()
    """Modules worth importing once, before ranks are forked."""

    def __init__(self, place: RankPlace) -> None:
        """Open the rank and join its group; all ranks do so at once."""
        self.place = place

    def store(self, chunks: Sequence[tuple[str, Buffer]]) -> list[Outcome]:
        """Store this rank's part of a prompt; return one outcome a chunk, `Miss` for what is not this rank's."""
        raise NotImplementedError

    def lookup(self, chunks: Sequence[str]) -> int | None:
        """Say how many leading chunks of the prompt this rank can promise; None where it is not asked."""
        raise NotImplementedError

    def scheduler(self, reports: Sequence[int]) -> int:
        """Return how many leading chunks are promised to the engine, given what the ranks promise."""
        return min(reports)

    def load(self, chunks: Sequence[tuple[str, Buffer]]) -> int:
        """Load a prompt's chunks into the buffers, together with all ranks.

        Returns how many leading chunks this rank is going to compute with; raises StepAborted when it has given the
        step up, and may be called again only after `rebuild`.
        """
        raise NotImplementedError

    def rebuild(self, rendezvous: str, log: str) -> None:
        """Leave the group and join a new one, in which ranks that died have been replaced; all ranks do so at once.

        Not called where a rank cannot (`rebuilds`).

        log: the file to which the steps of the new group are recorded, from step 0 on; "" for none.
        """
        raise NotImplementedError

    def seams(self) -> Mapping[str, Seam]:
        """Return methods of the rank's own work at which it can be disturbed.

        "get" and "allocate" in loading; "lookup", which its lookup server calls for a request, in a thread that serves
        nothing else; "answer", which sends the server's answer.
        """
        return {}

    def close(self) -> None:
        """Close everything; nothing is left waiting."""
        raise NotImplementedError
