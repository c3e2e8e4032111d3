"""`reference`: the connector that does right what the historic bugs do wrong, as an adapter."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar

from kvproof.connectors.adapter import Adapter, Buffer, Cancelled, Failed, Hit, Miss, Outcome, Place, Read
from kvproof.connectors.reference_client import Client
from kvproof.connectors.staging import Staging, view
from kvproof.faults.gates import Gap, Watch, WatchedNative, substitute
from kvproof.models import client as model
from kvproof.models.chunks import ChunkKey

Chunks = Sequence[tuple[ChunkKey, Buffer]]


class Reference(Adapter):
    """A RESP client: models without I/O under a trio loop in a thread of its own, several connections, no copies.

    Design against each historic bug: a completion is registered before its operation is handed over; a reply is
    parsed byte by byte, so a nil is a nil at every expected size; every read and write takes its key from `stored`;
    a connection that owes a reply to a cancelled read is dropped. In replicated mode only worker 0 stores, and `put`
    on any other worker is a `Miss` (not accepted, by design).
    """

    name = "reference"
    distribution = "kvproof"
    reads = (
        Read("exists", payload=False),
        Read("batched_exists", payload=False, batch=True),
        Read("get"),
        Read("batched_get", batch=True),
        Read("async_get", sync=False),
        Read("batched_async_get", batch=True, sync=False),
    )
    devices = ("cpu", "cuda")
    abandons = "cancel"
    client_class: ClassVar[type[Client]] = Client
    staging_class: ClassVar[type[Staging]] = Staging

    def __init__(self, place: Place) -> None:
        """Connect; raises ConnectionError when the server cannot be reached or refuses the password."""
        super().__init__(place)
        self._staging = self.staging_class() if place.device != "cpu" else None
        self.client = self.client_class(place)

    def stored(self, key: ChunkKey) -> str:
        """Return the key under which the chunk is stored, on whichever worker this is."""
        return key.stored(replicated=self.place.replicated).format()

    def put(self, chunks: Chunks) -> list[Outcome]:
        """Store each chunk."""
        if self.place.replicated and self.place.rank != 0:
            return [Miss() for _ in chunks]
        if self._staging is None:
            return self._put(chunks)
        with self._staging.lend([tensor for _, tensor in chunks]) as hosts:
            for host, (_, tensor) in zip(hosts, chunks, strict=True):
                self._staging.fetch(tensor, host)
            return self._put(_staged(chunks, hosts))

    def read(self, read: Read, chunks: Chunks) -> list[Outcome]:
        """Read each chunk into its buffer; a `Miss` leaves it as it was, and so does a `Failed` on a GPU."""
        method: Callable[[Chunks], list[Outcome]] = getattr(self, f"_{read.name}")
        if self._staging is None or not read.payload:
            return method(chunks)
        with self._staging.lend([tensor for _, tensor in chunks]) as hosts:
            outcomes = method(_staged(chunks, hosts))
            for outcome, host, (_, tensor) in zip(outcomes, hosts, chunks, strict=True):
                if isinstance(outcome, Hit):
                    self._staging.deliver(host, tensor)
            return outcomes

    def cancel_read(self, read: Read, chunks: Chunks, when: Callable[[], None]) -> Cancelled | list[Outcome]:
        """Begin a read, cancel it after `when`, and say how it ended; its buffers are let go of on return."""
        if self._staging is None or not read.payload:
            return self._cancel_read(read, chunks, when)
        with self._staging.lend([tensor for _, tensor in chunks]) as hosts:
            return self._cancel_read(read, _staged(chunks, hosts), when)

    def gaps(self) -> Sequence[Gap]:
        """Return the synchronous calls: each hands its operation over to `client.native` and then waits."""
        reads = {read.name: read for read in self.reads}

        def reading(name: str) -> Callable[[ChunkKey, Buffer], object]:
            return lambda key, buffer: self.read(reads[name], [(key, buffer)])[0]

        calls = {name: reading(name) for name in ("exists", "batched_exists", "get")}
        calls["put"] = lambda key, buffer: self.put([(key, buffer)])[0]
        submits = {"exists": "exists", "batched_exists": "batch_exists", "get": "get", "put": "set"}
        return [
            Gap(name, run, f"native.submit_{submits[name]} in {type(self.client).__name__}",
                type(self.client).waiting(), self._watch)
            for name, run in calls.items()
        ]

    def close(self) -> None:
        """End everything in flight, the connections and the thread."""
        self.client.close()

    @contextmanager
    def _watch(self, hold: float) -> Iterator[Watch]:
        watched = WatchedNative(self.client.native, self.client.registry.registered, hold=hold)
        with substitute(self.client, "native", watched):
            yield watched

    def _put(self, chunks: Chunks) -> list[Outcome]:
        if len(chunks) == 1:
            key, payload = chunks[0]
            return [_outcome(self.client.set(self.stored(key), payload))]
        keys, payloads = self._split(chunks)
        return [_outcome(outcome) for outcome in self.client.batch_set(keys, payloads)]

    def _exists(self, chunks: Chunks) -> list[Outcome]:
        return [_outcome(self.client.exists(self.stored(key))) for key, _ in chunks]

    def _batched_exists(self, chunks: Chunks) -> list[Outcome]:
        keys, _ = self._split(chunks)
        return _prefix(self.client.batch_exists(keys))

    def _get(self, chunks: Chunks) -> list[Outcome]:
        return [_outcome(self.client.get(self.stored(key), buffer)) for key, buffer in chunks]

    def _batched_get(self, chunks: Chunks) -> list[Outcome]:
        keys, buffers = self._split(chunks)
        return [_outcome(outcome) for outcome in self.client.batch_get(keys, buffers)]

    def _async_get(self, chunks: Chunks) -> list[Outcome]:
        begun = [self.client.begin_get(self.stored(key), buffer) for key, buffer in chunks]
        return [_outcome(self.client.wait(operation)[0]) for operation in begun]

    def _batched_async_get(self, chunks: Chunks) -> list[Outcome]:
        keys, buffers = self._split(chunks)
        return [_outcome(outcome) for outcome in self.client.wait(self.client.begin_batch_get(keys, buffers))]

    def _cancel_read(self, read: Read, chunks: Chunks, when: Callable[[], None]) -> Cancelled | list[Outcome]:
        keys, buffers = self._split(chunks)
        client = self.client
        begin = client.begin_batch_exists
        operation = client.begin_batch_get(keys, buffers) if read.payload else begin(keys)
        when()
        ended = [_outcome(outcome) for outcome in client.cancel(operation)]
        reasons = sorted({outcome.reason for outcome in ended if isinstance(outcome, Failed)})
        return Cancelled("; ".join(reasons)) if reasons else ended

    def _split(self, chunks: Chunks) -> tuple[list[str], list[memoryview]]:
        return [self.stored(key) for key, _ in chunks], [buffer for _, buffer in chunks]


def _staged(chunks: Chunks, hosts: Sequence[Buffer]) -> Chunks:
    return [(key, view(host)) for (key, _), host in zip(chunks, hosts, strict=True)]


def _outcome(outcome: model.Outcome) -> Outcome:
    if isinstance(outcome, model.Failed):
        return Failed(outcome.reason)
    return Hit() if isinstance(outcome, model.Found) else Miss()


def _prefix(outcomes: Sequence[model.Outcome]) -> list[Outcome]:
    """Count the leading hits: from the first chunk that is not there on, nothing is a hit."""
    counted: list[Outcome] = []
    for outcome in outcomes:
        if counted and not isinstance(counted[-1], Hit):
            counted.append(Miss())
        else:
            counted.append(_outcome(outcome))
    return counted
