"""LMCache's whole engine as an adapter: bytes start and end in a device buffer and go through its GPU connector.

On "cuda" that is the connector LMCache makes for vLLM, over a paged KV cache of ours; on "cpu", where LMCache has none,
a connector that copies. Chunks are named by their own hashes: LMCache's token database is given, one word for each
token, which chunk the token belongs to.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from kvproof.connectors import lmcache_remote as remote

# LMCache comes after the module that prepares its import.
# isort: split
import torch
from lmcache.utils import EngineType
from lmcache.v1.cache_engine import LMCacheEngine
from lmcache.v1.gpu_connector import CreateGPUConnector
from lmcache.v1.gpu_connector.gpu_connectors import GPUConnectorInterface
from lmcache.v1.token_database import TokenDatabase

from kvproof.connectors.adapter import Buffer, Failed, Hit, Miss, Outcome, PayloadRange, Read
from kvproof.connectors.lmcache_redis import LMCacheRedis
from kvproof.connectors.lmcache_resp import LMCacheResp
from kvproof.connectors.lmcache_valkey import LMCacheValkey
from kvproof.faults.gates import Gap
from kvproof.models.chunks import ChunkKey

LOOKUP = Read("lookup", payload=False, batch=True)
RETRIEVE = Read("retrieve", batch=True)

BLOCK_TOKENS = 16
"""Tokens in a block of the paged KV cache, vLLM's default."""

PAGED_CHUNKS = 64
"""Chunks for which the paged KV cache has room, and so the most in one call."""

LAYOUT: Any = {"kv_layout": "NHD"}
"""The layout hint that goes with `PagedKV`: without it LMCache takes the block's tokens for heads."""


class NamedChunks(TokenDatabase):  # type: ignore[misc]  # LMCache is not typed
    """A token database in which every token of a chunk is the chunk's hash itself."""

    def __init__(self, config: Any, metadata: Any) -> None:
        """Read the number of tokens in a chunk from LMCache's configuration."""
        super().__init__(config, metadata)
        self.metadata, self.chunk_size = metadata, config.chunk_size
        self.save_only_first_rank = False

    def process_tokens(
        self, tokens: Any = None, hashes: Any = None, offsets: Any = None, mask: Any = None,
        make_key: bool = True, request_configs: Any = None,
    ) -> Iterable[tuple[int, int, Any]]:
        """Yield first token, last token plus one and key of each chunk; see LMCache's TokenDatabase."""
        for start in range(0, len(tokens), self.chunk_size):
            name = bytes.fromhex(tokens[start])
            yield start, start + self.chunk_size, self._make_key_by_hash(name, request_configs) if make_key else name


class CopyingConnector(GPUConnectorInterface):  # type: ignore[misc]  # LMCache is not typed
    """What takes the place of LMCache's GPU connector on a CPU: plain copies from and to flat byte tensors."""

    def __init__(self, metadata: Any) -> None:
        """Keep LMCache's description of a chunk."""
        self._metadata = metadata

    def batched_from_gpu(self, memory_objs: Any, starts: list[int], ends: list[int], **kwargs: Any) -> None:
        """Copy each chunk's buffer into its memory object."""
        for memory, start, end in zip(memory_objs, starts, ends, strict=True):
            self.from_gpu(memory, start, end, **kwargs)

    def batched_to_gpu(self, memory_objs: Any = None, starts: Any = None, ends: Any = None, **kwargs: Any) -> None:
        """Copy each memory object into its chunk's buffer."""
        for memory, start, end in zip(memory_objs, starts, ends, strict=True):
            self.to_gpu(memory, start, end, **kwargs)

    def from_gpu(self, memory_obj: Any, start: int, end: int, **kwargs: Any) -> None:
        """Copy the buffer of the chunk that begins at token `start` into a memory object."""
        _flat(memory_obj).copy_(kwargs["buffers"][start // (end - start)])

    def to_gpu(self, memory_obj: Any, start: int, end: int, **kwargs: Any) -> None:
        """Copy a memory object into the buffer of the chunk that begins at token `start`."""
        kwargs["buffers"][start // (end - start)].copy_(_flat(memory_obj))

    def get_shape(self, num_tokens: int) -> torch.Size:
        """Return the shape of that many tokens."""
        shape: torch.Size = self._metadata.get_shapes(num_tokens)[0]
        return shape


class PagedKV:
    """A paged KV cache of one layer on the device, as vLLM lays it out; it lives as long as its connector.

    LMCache keeps the addresses it saw in the first call. The tensor is [planes, blocks, tokens in a block, heads, head
    size], without the first axis when replicated, and chunk c of a call has the blocks from c * blocks-per-chunk on.
    """

    def __init__(self, metadata: Any, device: str, *, replicated: bool) -> None:
        """Make room for PAGED_CHUNKS chunks."""
        _, planes, self._tokens, heads, size = metadata.kv_shape
        block = min(BLOCK_TOKENS, self._tokens)
        self._per_chunk = self._tokens // block
        shape = (planes, PAGED_CHUNKS * self._per_chunk, block, heads, size)
        self._whole = torch.empty(shape, dtype=metadata.kv_dtype, device=device)
        self.layers = [self._whole[0].flatten(-2) if replicated else self._whole]

    def fill(self, buffers: Sequence[torch.Tensor]) -> torch.Tensor:
        """Copy each chunk's bytes to its blocks; return the slots of all their tokens. Raises ValueError."""
        if len(buffers) > PAGED_CHUNKS:
            raise ValueError(f"{len(buffers)} chunks in one call; the paged KV cache has room for {PAGED_CHUNKS}")
        for index, buffer in enumerate(buffers):
            self._chunk(index).copy_(buffer.view(self._whole.dtype).view_as(self._chunk(index)))
        return torch.arange(len(buffers) * self._tokens, device=self._whole.device)

    def deliver(self, buffers: Sequence[torch.Tensor]) -> None:
        """Copy each chunk's blocks to its buffer."""
        for index, buffer in enumerate(buffers):
            buffer.copy_(self._chunk(index).contiguous().view(torch.uint8).flatten())

    def _chunk(self, index: int) -> torch.Tensor:
        return self._whole[:, index * self._per_chunk : (index + 1) * self._per_chunk]


class _Engined(remote.LMCacheRemote):
    """LMCacheEngine over one of LMCache's remote connectors; what `retrieve` misses, the engine would recompute."""

    reads = (LOOKUP, RETRIEVE)
    payload = PayloadRange(smallest=4, step=4)
    devices: ClassVar[tuple[str, ...]] = ("cpu", "cuda")

    def _open(self, config: Any) -> None:
        place = self.place
        # Without this, worker 0 alone loads and broadcasts to the others, which are in other processes here.
        config.extra_config["save_only_first_rank"] = False
        if self._metadata.kv_dtype != remote.torch_dtype(place.dtype):
            raise ValueError(f"{place.chunk_bytes} bytes are not keys and values of {place.dtype}")
        self.engine = LMCacheEngine(
            config, self._metadata, NamedChunks(config, self._metadata), self._gpu_connector(config),
            broadcast_fn=lambda tensor, source: None, broadcast_object_fn=lambda thing, source: thing,
        )
        self.engine.post_init()
        backends = self.engine.storage_manager.storage_backends
        self.backend = backends["RemoteBackend"]
        if self.backend.connection is None:
            where = f"{place.endpoint.host}:{place.endpoint.port}"
            raise ConnectionError(f"LMCache did not connect to {where}{self.hint()}")
        self._poison(backends["LocalCPUBackend"])
        self._stored = threading.Semaphore(0)
        self._submit = self.backend.batched_submit_put_task
        self.backend.batched_submit_put_task = self._submit_noted

    def _gpu_connector(self, config: Any) -> Any:
        if self.place.device != "cuda":
            return CopyingConnector(self._metadata)
        made = CreateGPUConnector(config, self._metadata, EngineType.VLLM, layout_hints=LAYOUT)
        # That has chosen the current device.
        self._paged = PagedKV(self._metadata, self.place.device, replicated=self.place.replicated)
        return made

    def _submit_noted(self, *args: Any, **kwargs: Any) -> Any:
        """Submit a store and count what it finished: the engine itself keeps nothing to wait for."""
        kwargs["on_complete_callback"] = lambda key: self._stored.release()
        return self._submit(*args, **kwargs)

    def put(self, chunks: Sequence[tuple[ChunkKey, Buffer]]) -> list[Outcome]:
        """Store all chunks in one call and wait until the remote backend has finished with each; see `Adapter.put`.

        LMCache logs and forgets an error of a batched store, so that a hit means no more than "finished".
        """
        if self.backend._mla_worker_id_as0_mode:
            return [Miss()] * len(chunks)
        buffers = [self._tensor(buffer) for _, buffer in chunks]
        self._move(self.engine.store, [key for key, _ in chunks], buffers)
        until = time.monotonic() + self.place.timeout
        done = sum(self._stored.acquire(timeout=max(0.0, until - time.monotonic())) for _ in chunks)
        late = Failed(f"the store had not finished after {self.place.timeout:g} s")
        return [Hit()] * len(chunks) if done == len(chunks) else [late] * len(chunks)

    def read(self, read: Read, chunks: Sequence[tuple[ChunkKey, Buffer]]) -> list[Outcome]:
        """Look the chunks up as a prefix, or retrieve them into their buffers; see `Adapter.read`."""
        keys, tokens = [key for key, _ in chunks], int(self._metadata.chunk_size)
        if read.name == LOOKUP.name:
            count = self.engine.lookup(self._tokens(keys))
            return [Hit() if (index + 1) * tokens <= count else Miss() for index in range(len(keys))]
        mask = self._move(self.engine.retrieve, keys, [self._tensor(buffer) for _, buffer in chunks], back=True)
        return [Hit() if bool(mask[index * tokens : (index + 1) * tokens].all()) else Miss()
                for index in range(len(keys))]

    def gaps(self) -> Sequence[Gap]:
        """Return none: the gaps are those of the remote backend, which its own adapter names."""
        return ()

    def close(self) -> None:
        """Close the engine; see `LMCacheRemote.close`."""
        self.engine.close()

    def _tokens(self, keys: Sequence[ChunkKey]) -> list[str]:
        return [key.chunk for key in keys for _ in range(self._metadata.chunk_size)]

    def _tensor(self, buffer: Buffer) -> torch.Tensor:
        return buffer if isinstance(buffer, torch.Tensor) else torch.frombuffer(buffer, dtype=torch.uint8)

    def _move(self, call: Any, keys: list[ChunkKey], buffers: list[torch.Tensor], *, back: bool = False) -> Any:
        if self.place.device != "cuda":
            return call(self._tokens(keys), buffers=buffers)
        slots = self._paged.fill(buffers)
        torch.cuda.current_stream().synchronize()
        result = call(self._tokens(keys), kvcaches=self._paged.layers, slot_mapping=slots)
        if back:
            self._paged.deliver(buffers)
        return result


class LMCacheEngineResp(_Engined, LMCacheResp):
    """The engine over resp://."""

    name = "lmcache-engine-resp"
    preload: ClassVar[tuple[str, ...]] = ("kvproof.connectors.lmcache_engine", *LMCacheResp.preload)


class LMCacheEngineRedis(_Engined, LMCacheRedis):
    """The engine over redis://."""

    name = "lmcache-engine-redis"
    preload: ClassVar[tuple[str, ...]] = ("kvproof.connectors.lmcache_engine", *LMCacheRedis.preload)


class LMCacheEngineValkey(_Engined, LMCacheValkey):
    """The engine over valkey://."""

    name = "lmcache-engine-valkey"
    preload: ClassVar[tuple[str, ...]] = ("kvproof.connectors.lmcache_engine", *LMCacheValkey.preload)


def _flat(memory: Any) -> torch.Tensor:
    return torch.frombuffer(memoryview(memory.byte_array).cast("B"), dtype=torch.uint8)
