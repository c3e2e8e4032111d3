"""LMCache's RemoteBackend as an adapter: what its resp, redis, valkey and fs connectors have in common.

Importing this module imports LMCache. LMCache needs `transformers` for two names only (AutoConfig, AutoTokenizer),
neither of which a remote backend uses; where it is not installed an empty stand-in takes its place.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import math
import os
import pkgutil
import sys
import time
import types
from collections.abc import Sequence
from concurrent import futures
from contextlib import AbstractContextManager, suppress
from typing import Any, ClassVar

from kvproof.connectors.adapter import Adapter, Buffer, Failed, Hit, Miss, Outcome, PayloadRange, Place, Read
from kvproof.connectors.future_watch import FutureWatch, Overlay, watched
from kvproof.connectors.loop_thread import LoopThread
from kvproof.faults.gates import Gap, Line, PlaceGone, Watch
from kvproof.models.chunks import ChunkKey
from kvproof.models.payloads import POISON

ENVIRONMENT = {"LMCACHE_TRACK_USAGE": "false", "LMCACHE_LOG_LEVEL": "ERROR"}
for _name, _value in ENVIRONMENT.items():
    os.environ.setdefault(_name, _value)
if sys.modules.get("transformers") is None and importlib.util.find_spec("transformers") is None:
    _stand_in = types.ModuleType("transformers", "Stands in for transformers, which LMCache imports and does not need.")
    _stand_in.AutoConfig = _stand_in.AutoTokenizer = type("Absent", (), {})  # type: ignore[attr-defined]  # a module
    sys.modules["transformers"] = _stand_in

import torch  # noqa: E402  # after the environment above, which is read at import
from lmcache.utils import STR_DTYPE_TO_TORCH_DTYPE, CacheEngineKey  # noqa: E402  # likewise
from lmcache.v1.config import LMCacheEngineConfig  # noqa: E402  # likewise
from lmcache.v1.memory_management import MemoryFormat  # noqa: E402  # likewise
from lmcache.v1.metadata import LMCacheMetadata  # noqa: E402  # likewise
from lmcache.v1.storage_backend import connector as connectors  # noqa: E402  # likewise
from lmcache.v1.storage_backend import remote_backend  # noqa: E402  # likewise
from lmcache.v1.storage_backend.local_cpu_backend import LocalCPUBackend  # noqa: E402  # likewise
from lmcache.v1.storage_backend.remote_backend import RemoteBackend  # noqa: E402  # likewise

# LMCache imports all of these when it opens a connector, whichever it is; here it happens once, in the fork server.
for _module in pkgutil.iter_modules(connectors.__path__, f"{connectors.__name__}."):
    if _module.name.endswith("_adapter"):
        with suppress(Exception):
            importlib.import_module(_module.name)

CHUNK_TOKENS = 256
"""LMCache's default number of tokens in a chunk; a chunk too small for it has fewer."""

SMALLEST_POOL = 4 * 2**20
"""Bytes of host memory reserved however small the chunks are."""

ALIGNMENT = 4096
"""Bytes to which LMCache aligns each memory object."""

CONTAINS = Read("contains", payload=False)
BATCHED_CONTAINS = Read("batched_contains", payload=False, batch=True)
BATCHED_ASYNC_CONTAINS = Read("batched_async_contains", payload=False, batch=True, sync=False)
GET_BLOCKING = Read("get_blocking")
BATCHED_GET_BLOCKING = Read("batched_get_blocking", batch=True)
BATCHED_GET_NON_BLOCKING = Read("batched_get_non_blocking", batch=True, sync=False)


def torch_dtype(name: str) -> torch.dtype:
    """Return the element type for LMCache's or torch's name of it, such as "bfloat16" or "fp8_e4m3fn".

    Eight-bit floats are bytes, since that is what vLLM, which gives LMCache its element type, keeps them as.
    """
    found = STR_DTYPE_TO_TORCH_DTYPE.get(name) or getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"LMCache knows no element type {name!r}; it knows {', '.join(STR_DTYPE_TO_TORCH_DTYPE)}")
    return torch.uint8 if found.is_floating_point and found.itemsize == 1 else found


def metadata(place: Place) -> LMCacheMetadata:
    """Return LMCache's description of a worker whose full chunk is exactly `place.chunk_bytes` bytes.

    The chunk has one layer, keys and values (only one of them when replicated, as MLA has), and as many of 256 tokens
    as divide it. Elements are bytes where the place's element type does not divide the size. Raises ValueError for
    a size that cannot be cut into keys and values: an odd number of bytes when not replicated, or none at all.
    """
    dtype, planes = torch_dtype(place.dtype), 1 if place.replicated else 2
    if place.chunk_bytes % (planes * dtype.itemsize):
        dtype = torch.uint8
    elements, rest = divmod(place.chunk_bytes, planes * dtype.itemsize)
    if rest or not elements:
        raise ValueError(f"LMCache cannot hold a chunk of {place.chunk_bytes} bytes as {planes} equal planes")
    tokens = math.gcd(elements, CHUNK_TOKENS)
    return LMCacheMetadata(
        model_name=place.model, world_size=place.world_size, local_world_size=place.world_size,
        worker_id=place.rank, local_worker_id=_device_of(place), kv_dtype=dtype,
        kv_shape=(1, planes, tokens, 1, elements // tokens), use_mla=place.replicated, chunk_size=tokens,
    )


def _device_of(place: Place) -> int:
    """Return the number of a rank's device, which LMCache calls its local worker; ranks share what GPUs there are."""
    return place.rank % torch.cuda.device_count() if place.device == "cuda" else place.rank


def cache_key(key: ChunkKey) -> CacheEngineKey:
    """Return LMCache's key; its hash is the chunk's bytes, so that it is written with all its digits."""
    chunk = bytes.fromhex(key.chunk) if len(key.chunk) % 2 == 0 else int(key.chunk, 16)
    return CacheEngineKey(key.model, key.world_size, key.worker, chunk, torch_dtype(key.dtype))


class LMCacheRemote(Adapter):
    """An LMCache RemoteBackend with its host memory and its event loop; subclasses name the connector under it.

    What a read returned is copied from LMCache's memory object, which was filled with poison when LMCache allocated
    it. None, False, or the missing end of a list is a miss: that is what LMCache makes of its own errors and timeouts
    (`blocking_timeout_secs` is the place's timeout), and what its callers see.
    """

    distribution = "lmcache"
    reads: ClassVar[tuple[Read, ...]] = (
        CONTAINS, BATCHED_CONTAINS, BATCHED_ASYNC_CONTAINS,
        GET_BLOCKING, BATCHED_GET_BLOCKING, BATCHED_GET_NON_BLOCKING)
    payload = PayloadRange(smallest=2, step=2)
    abandons = "timeout"

    suffixes: ClassVar[tuple[str, ...]] = ("",)
    """What follows a chunk's key in each of the names under which the connector stores it."""

    def __init__(self, place: Place) -> None:
        """Open the backend; raises ConnectionError when LMCache could not connect."""
        super().__init__(place)
        self._metadata = metadata(place)
        self._format = MemoryFormat.KV_MLA_FMT if place.replicated else MemoryFormat.KV_2LTD
        self._open(self._configured())

    def _configured(self) -> LMCacheEngineConfig:
        place = self.place
        config = LMCacheEngineConfig.from_defaults(
            chunk_size=self._metadata.chunk_size, local_cpu=False, max_local_cpu_size=pool_bytes(place) / 2**30,
            remote_url=self.url(), remote_serde="naive", extra_config={"save_chunk_meta": False, **self.extra_config()},
        )
        # The constructor cuts seconds to a whole number, which would make half a second none at all.
        config.blocking_timeout_secs = place.timeout
        return config

    def _open(self, config: LMCacheEngineConfig) -> None:
        place = self.place
        self._loop = LoopThread("lmcache-loop")
        self._memory = LocalCPUBackend(config, self._metadata, dst_device="cpu")
        self._poison(self._memory)
        self.backend = RemoteBackend(config, self._metadata, self._loop.loop, self._memory, dst_device="cpu")
        if self.backend.connection is None:
            where = f"{place.endpoint.host}:{place.endpoint.port}"
            raise ConnectionError(f"LMCache did not connect to {where}{self.hint()}")

    def url(self) -> str:
        """Return LMCache's remote_url for the place."""
        raise NotImplementedError

    def extra_config(self) -> dict[str, Any]:
        """Return what the connector reads from LMCache's extra_config."""
        return {}

    def hint(self) -> str:
        """Return a likely reason why LMCache did not connect, to be appended to the error."""
        return ""

    @property
    def connector(self) -> Any:
        """LMCache's connector itself, without the wrapper that counts calls."""
        return self.backend.connection.getWrappedConnector()

    def wire_keys(self, key: ChunkKey) -> tuple[str, ...]:
        """Return the names under which the server holds this chunk, as this worker would store it itself."""
        text = str(cache_key(key).to_string())
        return tuple(text + suffix for suffix in self.suffixes)

    def put(self, chunks: Sequence[tuple[ChunkKey, Buffer]]) -> list[Outcome]:
        """Store each chunk with submit_put_task and wait until all are done, `place.timeout` seconds at most.

        A worker that leaves storing to worker 0 gives `Miss`; everything else that was not stored is `Failed`.
        """
        until = time.monotonic() + self.place.timeout
        tasks = [self._submit_put(key, buffer) for key, buffer in chunks]
        return [task if isinstance(task, (Hit, Miss, Failed)) else _stored(task, until, self.place.timeout)
                for task in tasks]

    def _submit_put(self, key: ChunkKey, buffer: Buffer) -> Outcome | futures.Future[Any]:
        source, name = memoryview(buffer).cast("B"), cache_key(key)
        if len(source) != self.place.chunk_bytes:
            return Failed(f"{len(source)} bytes, but only full chunks of {self.place.chunk_bytes} bytes are stored")
        # Each of these makes submit_put_task return a finished future, which would look like success.
        if self.backend.connection is None:
            return Failed("LMCache has no connection")
        if self.backend._mla_worker_id_as0_mode:
            return Miss()
        if self.backend.exists_in_put_tasks(name):
            return Failed("an earlier put of this key has not finished")
        memory = self._allocate(self._metadata.get_shapes(), self._metadata.get_dtypes(), self._format)
        _bytes(memory)[:] = source
        future: futures.Future[Any] = self.backend.submit_put_task(name, memory)
        memory.ref_count_down()
        return future

    def read(self, read: Read, chunks: Sequence[tuple[ChunkKey, Buffer]]) -> list[Outcome]:
        """Read through the RemoteBackend method of the same name; see `Adapter.read`."""
        keys = [cache_key(key) for key, _ in chunks]
        match read.name:
            case CONTAINS.name:
                return _prefix(int(self.backend.contains(keys[0])), 1)
            case BATCHED_CONTAINS.name:
                return _prefix(self.backend.batched_contains(keys), len(keys))
            case BATCHED_ASYNC_CONTAINS.name:
                return _prefix(self._loop.call(self.backend.batched_async_contains("kvproof", keys)), len(keys))
            case GET_BLOCKING.name:
                return _copied([self.backend.get_blocking(keys[0])], chunks)
            case BATCHED_GET_BLOCKING.name:
                return _copied(self.backend.batched_get_blocking(keys), chunks)
            case BATCHED_GET_NON_BLOCKING.name:
                return _copied(self._loop.call(self.backend.batched_get_non_blocking("kvproof", keys)), chunks)
        raise ValueError(f"{self.name} has no read {read.name!r}")

    def gaps(self) -> Sequence[Gap]:
        """Return the calls that hand a coroutine to the event loop and then wait for its future."""
        return tuple(self._loop_gap(read) for read in (CONTAINS, GET_BLOCKING))

    def _loop_gap(self, read: Read) -> Gap:
        function = getattr(RemoteBackend, read.name, None)
        if function is None:
            raise PlaceGone(f"RemoteBackend has no {read.name}")
        return Gap(
            call=f"RemoteBackend.{read.name}",
            run=lambda key, buffer: self.read(read, [(key, buffer)])[0],
            hand_over=f"asyncio.run_coroutine_threadsafe in RemoteBackend.{read.name} (remote_backend.py)",
            wait=Line(function, r"future\.result\("),
            watch=self._watch_loop,
        )

    def _watch_loop(self, hold: float) -> AbstractContextManager[Watch]:
        watch = FutureWatch("the loop's future", hold)
        hand_over = watch.wrap(asyncio.run_coroutine_threadsafe)
        return watched(watch, remote_backend, "asyncio", Overlay(asyncio, run_coroutine_threadsafe=hand_over))

    def close(self) -> None:
        """Close RemoteBackend, then what it stood on.

        In LMCache 0.5.6 the first never returns for RESPConnector and RedisConnector, which wait on the event loop for
        something that the same loop has to do. ValkeyConnector returns unless reads have timed out: each such read
        ends one of the four tasks that serve any of the three connectors, and after the last nothing is served again.
        """
        self.backend.close()
        self._loop.close()
        with suppress(AttributeError):
            self._memory.close()

    def lent(self) -> int:
        """Return how many of LMCache's memory objects have a reference that nobody gave back."""
        return sum(memory.get_ref_count() > 0 for memory in self._allocated)

    def _poison(self, memory: Any) -> None:
        self._allocated: list[Any] = []
        self._allocate = memory.allocate
        memory.allocate = self._allocate_poisoned

    def _allocate_poisoned(self, *args: Any, **kwargs: Any) -> Any:
        memory = self._allocate(*args, **kwargs)
        if memory is not None:
            torch.frombuffer(_bytes(memory), dtype=torch.uint8).fill_(POISON)
            self._allocated = [each for each in self._allocated if each.get_ref_count() > 0] + [memory]
        return memory


def pool_bytes(place: Place) -> int:
    """Return how many bytes of host memory to reserve; LMCache writes to all of them when it opens.

    When it runs out LMCache waits for ever (LMCache issue 2942).
    """
    chunk = place.chunk_bytes + ALIGNMENT
    return max(SMALLEST_POOL, min(place.chunks * chunk, 2**30), 4 * chunk)


def _bytes(memory: Any) -> memoryview:
    return memoryview(memory.byte_array).cast("B")


def _stored(task: futures.Future[Any], until: float, timeout: float) -> Outcome:
    try:
        task.result(max(0.0, until - time.monotonic()))
    except futures.TimeoutError:
        return Failed(f"the store had not finished after {timeout:g} s")
    except Exception as error:
        return Failed(f"{type(error).__name__}: {error}")
    return Hit()


def _prefix(count: int, total: int) -> list[Outcome]:
    return [Hit() if index < count else Miss() for index in range(total)]


def _copied(memories: Sequence[Any], chunks: Sequence[tuple[ChunkKey, Buffer]]) -> list[Outcome]:
    """Copy the n-th memory object to the n-th buffer, as LMCache's callers pair them; what is missing is a miss."""
    outcomes: list[Outcome] = []
    for index, (_, buffer) in enumerate(chunks):
        memory = memories[index] if index < len(memories) else None
        if memory is None:
            outcomes.append(Miss())
            continue
        source, target = _bytes(memory), memoryview(buffer).cast("B")
        if len(source) == len(target):
            target[:] = source
            outcomes.append(Hit())
        else:
            outcomes.append(Failed(f"{len(source)} bytes, expected {len(target)}"))
        memory.ref_count_down()
    return outcomes
