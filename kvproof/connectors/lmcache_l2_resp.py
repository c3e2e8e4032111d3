"""The adapter for LMCache's L2 adapter of its multi-process mode over the native RESP client: no event loop."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import kvproof.connectors.lmcache_remote  # noqa: F401  # prepares the import of LMCache

# isort: split
from lmcache.v1.distributed.api import ObjectKey
from lmcache.v1.distributed.l2_adapters import create_l2_adapter
from lmcache.v1.distributed.l2_adapters.config import get_l2_adapter_config_class
from lmcache.v1.distributed.l2_adapters.native_connector_l2_adapter import _object_key_to_string
from lmcache.v1.memory_management import BytesBufferMemoryObj
from lmcache.v1.platform import consume_fd

from kvproof.connectors.adapter import Adapter, Buffer, Failed, Hit, Miss, Outcome, PayloadRange, Place, Read
from kvproof.faults.gates import Gap, Line, PlaceGone, Watch, WatchedNative, substitute
from kvproof.models.chunks import ChunkKey

LOOKUP = Read("lookup", payload=False, batch=True)
LOAD = Read("load", batch=True)

WAKE = 0.05
"""Seconds after which a waiting caller looks for its result, should another caller have taken its signal."""

REGISTERS = r"self\._pending_ops\[future_id\] = "
"""The line of a call that notes whose completion is to come, after the operation was submitted."""


class LMCacheL2Resp(Adapter):
    """NativeConnectorL2Adapter over LMCacheRedisClient with `place.connections` native threads.

    Every call submits a task and waits for it, `place.timeout` seconds at most: LMCache's adapter itself knows no
    timeout, its callers have one. What a task that was given up delivers later goes to memory that is nobody's. A
    lookup and a load answer with one bit a chunk, in which LMCache makes an error the same as a miss; and since its
    native client (0.5.6) never connects again, after a lost connection or a reply that it did not expect every later
    lookup and load on that connection is a miss, and every store fails.
    """

    name = "lmcache-l2-resp"
    distribution = "lmcache"
    reads = (LOOKUP, LOAD)
    payload = PayloadRange(smallest=1)
    abandons = "timeout"
    preload: ClassVar[tuple[str, ...]] = (
        "kvproof.connectors.lmcache_l2_resp", "lmcache.v1.distributed.l2_adapters.resp_l2_adapter")

    def __init__(self, place: Place) -> None:
        """Open the adapter; raises what the native client raises when it cannot connect."""
        super().__init__(place)
        endpoint = place.endpoint
        self.adapter: Any = create_l2_adapter(get_l2_adapter_config_class("resp").from_dict({
            "host": endpoint.host, "port": endpoint.port, "num_workers": max(1, place.connections),
            "password": endpoint.password or "",
        }))
        self._stored: dict[int, Any] = {}
        self._given_up: dict[int, list[Any]] = {}

    def object_key(self, key: ChunkKey) -> Any:
        """Return LMCache's key; with a replicated KV its world has one worker, as in its multi-process mode."""
        world, rank = (1, 0) if self.place.replicated else (key.world_size, key.worker)
        chunk = key.chunk if len(key.chunk) % 2 == 0 else "0" + key.chunk
        return ObjectKey(bytes.fromhex(chunk), key.model, ObjectKey.ComputeKVRank(world, rank, world, rank))

    def wire_keys(self, key: ChunkKey) -> tuple[str, ...]:
        """Return the names under which the server holds this chunk."""
        return (_object_key_to_string(self.object_key(key)),)

    def put(self, chunks: Sequence[tuple[ChunkKey, Buffer]]) -> list[Outcome]:
        """Store all chunks as one task; it fails as a whole. When replicated, only worker 0 stores."""
        if self.place.replicated and self.place.rank:
            return [Miss()] * len(chunks)
        memories = [BytesBufferMemoryObj(bytearray(buffer)) for _, buffer in chunks]
        task = self.adapter.submit_store_task([self.object_key(key) for key, _ in chunks], memories)
        result = self._wait(lambda: self._stored_by(task), self.adapter.get_store_event_fd())
        if result is None:
            self._given_up[task] = memories
            return [self._late("store")] * len(chunks)
        outcome = Hit() if result.is_successful() else Failed("the store task failed; LMCache does not say why")
        return [outcome] * len(chunks)

    def _stored_by(self, task: int) -> Any:
        """Return the result of a store task, or None; what others have finished meanwhile is kept for them."""
        self._stored.update(self.adapter.pop_completed_store_tasks())
        for late in self._stored.keys() & self._given_up.keys():
            del self._stored[late], self._given_up[late]
        return self._stored.pop(task, None)

    def read(self, read: Read, chunks: Sequence[tuple[ChunkKey, Buffer]]) -> list[Outcome]:
        """Look all chunks up, or load them into memory of LMCache's kind and from there; see `Adapter.read`."""
        keys = [self.object_key(key) for key, _ in chunks]
        match read.name:
            case LOOKUP.name:
                return self._lookup(keys)
            case LOAD.name:
                return self._load(keys, [buffer for _, buffer in chunks])
        raise ValueError(f"{self.name} has no read {read.name!r}")

    def _lookup(self, keys: list[Any]) -> list[Outcome]:
        task = self.adapter.submit_lookup_and_lock_task(keys, {})
        query = self.adapter.query_lookup_and_lock_result
        found = self._wait(lambda: query(task), self.adapter.get_lookup_and_lock_event_fd())
        if found is None:
            return [self._late("lookup")] * len(keys)
        present = [bool(found.test(index)) for index in range(len(keys))]
        self.adapter.submit_unlock([key for key, there in zip(keys, present, strict=True) if there])
        return [Hit() if there else Miss() for there in present]

    def _load(self, keys: list[Any], buffers: list[Buffer]) -> list[Outcome]:
        for late in [task for task in self._given_up if self.adapter.query_load_result(task) is not None]:
            del self._given_up[late]
        memories = [BytesBufferMemoryObj(bytearray(buffer)) for buffer in buffers]
        task = self.adapter.submit_load_task(keys, memories)
        loaded = self._wait(lambda: self.adapter.query_load_result(task), self.adapter.get_load_event_fd())
        if loaded is None:
            self._given_up[task] = memories
            return [self._late("load")] * len(keys)
        outcomes: list[Outcome] = []
        for index, (memory, buffer) in enumerate(zip(memories, buffers, strict=True)):
            memoryview(buffer).cast("B")[:] = memory.byte_array
            outcomes.append(Hit() if loaded.test(index) else Miss())
        return outcomes

    def _wait(self, query: Callable[[], Any], descriptor: int) -> Any:
        """Return what `query` returns once it is not None, or None after `place.timeout` seconds."""
        poll, until = select.poll(), time.monotonic() + self.place.timeout
        poll.register(descriptor, select.POLLIN)
        while (result := query()) is None:
            left = until - time.monotonic()
            if left <= 0:
                return None
            if poll.poll(min(left, WAKE) * 1000):
                consume_fd(descriptor)
        return result

    def _late(self, what: str) -> Failed:
        return Failed(f"the {what} had not finished after {self.place.timeout:g} s")

    def gaps(self) -> Sequence[Gap]:
        """Return the calls that submit to the native client and then note the task, under a lock."""
        return tuple(
            self._gap(read, method)
            for read, method in ((LOOKUP, "submit_lookup_and_lock_task"), (LOAD, "submit_load_task"))
        )

    def _gap(self, read: Read, method: str) -> Gap:
        function = getattr(type(self.adapter), method, None)
        if function is None or not hasattr(self.adapter, "_client") or not hasattr(self.adapter, "_pending_ops"):
            raise PlaceGone(f"{type(self.adapter).__name__} has no {method}, _client or _pending_ops")
        return Gap(
            call=f"{type(self.adapter).__name__}.{method}",
            run=lambda key, buffer: self.read(read, [(key, buffer)])[0],
            hand_over=f"self._client.submit_batch_* in {function.__qualname__}",
            wait=Line(function, REGISTERS), watch=self._watch,
        )

    @contextmanager
    def _watch(self, hold: float) -> Iterator[Watch]:
        adapter = self.adapter
        watch = WatchedNative(adapter._client, lambda identity: identity in adapter._pending_ops, hold=hold)
        with substitute(adapter, "_client", watch):
            yield watch

    def close(self) -> None:
        """Close LMCache's adapter."""
        self.adapter.close()
