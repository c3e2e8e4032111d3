"""`sharded-reference`: ranks that store, look up and load only what they own, and agree before they use anything.

It is the system of facts: 1, done right: what can fail in a rank happens before the exchange, and is told in it as the
rank's first failure; after it there are only collectives, which all ranks enter in the same order.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from fractions import Fraction
from hashlib import blake2b
from typing import Any, ClassVar

from kvproof.connectors.adapter import Buffer, Failed, Hit, Miss, Outcome
from kvproof.connectors.rank_adapter import Load, RankAdapter, RankPlace, Seam, StepAborted
from kvproof.connectors.rank_group import Group
from kvproof.connectors.rank_memory import Memory
from kvproof.connectors.reference_client import Client
from kvproof.connectors.staging import view
from kvproof.models import client as model
from kvproof.models.cost import Cost
from kvproof.recorder import Recorder

Chunks = Sequence[tuple[str, Buffer]]
Said = list[list[int]]
"""What each rank has said in the exchange: fingerprint, length, layout, first failure."""
FINGERPRINT, LENGTH, LAYOUT, FAILURE = range(4)


class ShardedReference(RankAdapter):
    """A rank that owns chunks, keeps a slice of them in host memory, and has an instance of its own for all of them.

    Loading: get the own chunks, from memory or the instance, by the instance's deadline; exchange (fingerprint of the
    list, its length, the layout, the first own chunk that could not be got); take the least failure for the agreed
    prefix, or nothing when lists or layouts differ; then the owner of each agreed chunk broadcasts it. With replicated
    KV every rank gets every chunk from worker 0's instance, and only the exchange is left.

    Whoever waits too long in a collective, or finds a peer gone, gives the step up (StepAborted) and leaves the group,
    so that all others do, too; it uses nothing of that step.
    """

    name = "sharded-reference"
    distribution = "kvproof"
    loads = (
        Load("load"), Load("async-load", asynchronous=True),
        Load("replicated-load", replicated=True), Load("replicated-async-load", replicated=True, asynchronous=True),
    )
    devices = ("cpu", "cuda")
    records = True
    memory = True
    preload = ("torch", "torch.distributed")
    group_class: ClassVar[type[Group]] = Group

    def __init__(self, place: RankPlace) -> None:
        """Connect to this rank's instance and join the group; raises ConnectionError or StepAborted."""
        super().__init__(place)
        import torch

        self._torch: Any = torch
        self._rank, self._world_size = place.place.rank, place.place.world_size
        self._replicated = place.place.replicated
        self._size = place.place.chunk_bytes
        self._record = self._recorder(place.log)
        self._step = 0
        self._memory = Memory(place.memory_bytes)
        self._arrived: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._behind = ThreadPoolExecutor(1, "kvproof-prefetch") if place.asynchronous else None
        self.client = Client(place.place)
        self.group = self._join(place.rendezvous)

    def store(self, chunks: Chunks) -> list[Outcome]:
        """Store the own chunks on the instance, and keep them in memory."""
        outcomes: list[Outcome] = [Miss() for _ in chunks]
        mine = [c for c in range(len(chunks)) if self._writes(c)]
        hosts = [self._host(buffer) for _, buffer in (chunks[c] for c in mine)]
        if mine:
            keys = [self._key(chunks[c][0]) for c in mine]
            for c, host, outcome in zip(mine, hosts, self.client.batch_set(keys, list(map(view, hosts))), strict=True):
                outcomes[c] = _stored(outcome)
                if isinstance(outcomes[c], Hit):
                    self._memory.keep(chunks[c][0], host)
        return outcomes

    def lookup(self, chunks: Sequence[str]) -> int:
        """Return the first own chunk that is neither in memory nor on the instance; the length when there is none.

        Asynchronously, chunks count once they have arrived; those that come too late for this lookup are there for
        the next.
        """
        mine = [c for c in range(len(chunks)) if self._reads(c)]
        there = self._prefetched(chunks, mine) if self._behind is not None else self._present(chunks, mine)
        return self._report([c in there for c in mine], mine, len(chunks))

    def scheduler(self, reports: Sequence[int]) -> int:
        """Return the least report, or 0 where recomputing so many tokens takes less time than loading them."""
        found = super().scheduler(reports)
        if not self.place.cost or not found:
            return found
        cost = Cost(*(Fraction(str(each)) for each in self.place.cost))
        return found if cost.loads(Fraction(found * self.place.chunk_tokens)) else 0

    def load(self, chunks: Chunks) -> int:
        """Load the agreed prefix into the buffers, with all ranks; return its length."""
        if self.group.ended:
            raise StepAborted(f"the group has ended: {self.group.ended}")
        names = [chunk for chunk, _ in chunks]
        step, self._step = self._step, self._step + 1
        self._note("begin", step, **self._told(names))
        mine = self._own(names)
        failure = next((c for c in range(len(chunks)) if self._reads(c) and c not in mine), len(chunks))
        return self._together(chunks, mine, step, failure)

    def rebuild(self, rendezvous: str, log: str) -> None:
        """Leave the group, whatever has become of it, and join a new one."""
        self.group.leave("it is rebuilt")
        self._close_log()
        self._record, self._step = self._recorder(log), 0
        self.group = self._join(rendezvous)

    def seams(self) -> Mapping[str, Seam]:
        """Return what gets chunks, and what allocates memory for one."""
        return {"get": (self, "_get"), "allocate": (self, "_allocate")}

    def close(self) -> None:
        """Leave the group, and close the client with everything in flight."""
        self.group.leave("it is closed")
        self.client.close()
        if self._behind is not None:
            self._behind.shutdown()
        self._close_log()

    # What a rank does by itself. Nothing here may raise once a load step has begun.

    def _reads(self, chunk: int) -> bool:
        """Whether this rank gets the chunk itself."""
        return self._replicated or self.place.owner(chunk) == self._rank

    def _writes(self, chunk: int) -> bool:
        return self.place.owner(chunk) == self._rank

    def _key(self, chunk: str) -> str:
        return self.place.place.key(chunk).stored(replicated=self._replicated).format()

    def _report(self, there: Sequence[bool], mine: Sequence[int], length: int) -> int:
        """Say how far the prompt can be promised, as far as this rank's own chunks go."""
        return next((c for c, present in zip(mine, there, strict=True) if not present), length)

    def _present(self, chunks: Sequence[str], mine: Sequence[int]) -> set[int]:
        """Return which own chunks are in memory, or said to be on the instance."""
        found = {c for c in mine if self._memory.has(chunks[c])}
        rest = [c for c in mine if c not in found]
        if rest:
            outcomes = self.client.batch_exists([self._key(chunks[c]) for c in rest])
            found |= {c for c, outcome in zip(rest, outcomes, strict=True) if isinstance(outcome, model.Found)}
        return found

    def _prefetched(self, chunks: Sequence[str], mine: Sequence[int]) -> set[int]:
        """Begin to get the own chunks, wait for them as long as a lookup may, and return which have arrived."""
        assert self._behind is not None
        begun: Future[None] = self._behind.submit(self._prefetch, [chunks[c] for c in mine])
        try:
            begun.result(self.place.lookup_timeout)
        except TimeoutError:
            # What comes later is there for the next lookup.
            pass
        with self._lock:
            return {c for c in mine if chunks[c] in self._arrived}

    def _prefetch(self, names: Sequence[str]) -> None:
        with self._lock:
            wanted = [name for name in names if name not in self._arrived]
        got = self._fetched(wanted)
        with self._lock:
            self._arrived |= got

    def _own(self, names: Sequence[str]) -> dict[int, Any]:
        """Return the own chunks whose bytes this rank has, by number, in host memory. Raises nothing."""
        mine = {c: names[c] for c in range(len(names)) if self._reads(c)}
        if self._behind is not None:
            with self._lock:
                got = {name: self._arrived.pop(name) for name in mine.values() if name in self._arrived}
        else:
            got = self._fetched(list(mine.values()))
        return {c: got[name] for c, name in mine.items() if name in got}

    def _fetched(self, names: Sequence[str]) -> dict[str, Any]:
        """Return those chunks that memory or the instance has, in host memory. Raises nothing."""
        got: dict[str, Any] = {}
        rest: list[tuple[str, Any]] = []
        try:
            for name in names:
                host = self._allocate(self._size)
                if self._memory.take(name, host):
                    got[name] = host
                else:
                    rest.append((name, host))
            if rest:
                for (name, host), outcome in zip(rest, self._get(rest), strict=True):
                    if isinstance(outcome, model.Found):
                        got[name] = host
        except Exception:
            # A chunk that could not be got is a failure of this rank, and no reason to leave its peers waiting.
            return got
        return got

    def _get(self, chunks: Sequence[tuple[str, Any]]) -> Sequence[model.Outcome]:
        """Get chunks from the instance into host memory."""
        return self.client.batch_get([self._key(name) for name, _ in chunks], [view(host) for _, host in chunks])

    def _allocate(self, size: int) -> Any:
        return self._torch.empty(size, dtype=self._torch.uint8, pin_memory=self.place.place.device != "cpu")

    def _host(self, buffer: Buffer) -> Any:
        """Return a buffer's bytes in host memory."""
        if isinstance(buffer, memoryview):
            return self._torch.frombuffer(buffer, dtype=self._torch.uint8)
        host = self._allocate(buffer.numel())
        # Waits for what the current stream has still to write there, and for the copy.
        host.copy_(buffer)
        return host

    def _deliver(self, host: Any, buffer: Buffer) -> None:
        """Copy from host memory into a buffer, before what the current stream does later."""
        if isinstance(buffer, memoryview):
            buffer[:] = view(host)
        else:
            buffer.copy_(host)

    # What all ranks do together. Nothing here is left out, whatever has happened before.

    def _join(self, rendezvous: str) -> Group:
        place = self.place.place
        return self.group_class(
            rendezvous, self._rank, self._world_size, self.place.backend, place.device, self.place.step_timeout)

    def _together(self, chunks: Chunks, mine: Mapping[int, Any], step: int, failure: int) -> int:
        agreed = self._agreed(self._exchange(chunks, step, failure), failure)
        self._note("leave_exchange", step, agreed=agreed)
        for c in range(agreed):
            self._bring(chunks[c][1], c, mine.get(c), step)
        return agreed

    def _exchange(self, chunks: Chunks, step: int, failure: int) -> Said:
        self._note("enter_exchange", step, failure=failure)
        told = [_number("".join(chunk for chunk, _ in chunks)), len(chunks), _number(self.place.layout), failure]
        with self._giving_up(step):
            return self.group.exchange(told)

    def _agreed(self, said: Said, failure: int) -> int:
        """Return the least failure of all ranks, or 0 when they were told different lists or layouts."""
        return min(each[FAILURE] for each in said) if uniform(said) else 0

    def _bring(self, buffer: Buffer, chunk: int, host: Any, step: int) -> None:
        """Bring one agreed chunk into the buffer, from its owner, or what this rank has got of it itself."""
        if host is not None:
            self._deliver(host, buffer)
        if self._replicated:
            return
        self._note("enter_broadcast", step, chunk=chunk)
        with self._giving_up(step):
            self.group.broadcast(buffer, self.place.owner(chunk))
        self._note("leave_broadcast", step, chunk=chunk)

    @contextmanager
    def _giving_up(self, step: int) -> Iterator[None]:
        """Record that this rank gives its step up, when a collective in here fails."""
        try:
            yield
        except StepAborted:
            self._note("expire", step)
            raise

    def _told(self, names: Sequence[str]) -> dict[str, Any]:
        owners = {"owners": list(self.place.owners)} if self.place.owners else {}
        return {"world_size": self._world_size, "length": len(names), **owners, "fingerprint": json.dumps(names),
                "layout": abs(_number(self.place.layout)) % 2**31}

    def _recorder(self, log: str) -> Callable[..., None]:
        return Recorder(log, self._rank) if log else _nothing

    def _close_log(self) -> None:
        if isinstance(self._record, Recorder):
            self._record.close()

    def _note(self, event: str, step: int, **values: Any) -> None:
        self._record(event, step=step, **values)


def uniform(said: Said) -> bool:
    """Whether all ranks were told the same list and layout."""
    return all(each[:FAILURE] == said[0][:FAILURE] for each in said)


def _nothing(event: str, /, step: int = 0, **values: Any) -> None:
    """Record nothing."""


def _number(text: str) -> int:
    """Return a number of 64 bits, with its sign, by which texts that differ are told apart."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)


def _stored(outcome: model.Outcome) -> Outcome:
    return Failed(outcome.reason) if isinstance(outcome, model.Failed) else Hit()
