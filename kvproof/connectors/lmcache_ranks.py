"""`lmcache-ranks`: LMCache's engines, a process each, as vLLM's integration puts them together.

Each rank has an LMCacheEngine and a lookup server; rank 0 has the lookup client, too, which stands for the scheduler's
and takes the least of what the servers answer. A chunk's tokens are made of its name, so that LMCache's own hashes of
tokens and prefixes name what is stored.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from hashlib import shake_128
from pathlib import Path
from typing import Any, ClassVar

from kvproof.connectors import lmcache_remote as remote
from kvproof.connectors.lmcache_engine import CopyingConnector

# LMCache comes after the module that prepares its import.
# isort: split
import torch
from lmcache.v1.cache_engine import LMCacheEngine
from lmcache.v1.lookup_client import factory, lmcache_async_lookup_client
from lmcache.v1.lookup_client.factory import LookupClientFactory
from lmcache.v1.rpc_utils import get_zmq_rpc_path_lmcache
from lmcache.v1.token_database import ChunkedTokenDatabase

from kvproof.connectors.adapter import Buffer, Failed, Hit, Miss, Outcome
from kvproof.connectors.lmcache_redis import LMCacheRedis
from kvproof.connectors.lmcache_resp import LMCacheResp
from kvproof.connectors.lmcache_valkey import LMCacheValkey
from kvproof.connectors.rank_adapter import Load, RankAdapter, RankPlace, Seam
from kvproof.connectors.rank_group import Group

_CLOSING = 3.0
"""Seconds that one of LMCache's parts is given to close: some never return."""


class _Engine(remote.LMCacheRemote):
    """One rank's engine over one of LMCache's remote connectors, with its lookup server."""

    def __init__(self, place: RankPlace, load: Load, group: Group | None) -> None:
        """Open the engine; raises ConnectionError when LMCache could not connect."""
        self.told, self.load, self.group = place, load, group
        self.backend: Any = None
        super().__init__(place.place)

    def _open(self, config: Any) -> None:
        config.enable_async_loading = self.load.asynchronous
        config.lookup_timeout_ms = round(1000 * self.told.lookup_timeout)
        config.max_local_cpu_size = _pool_bytes(self.told) / 2**30
        if self.load.replicated:
            config.extra_config["save_only_first_rank"] = self.group is not None
            if self.group is None:
                config.lookup_server_worker_ids = list(range(self.place.world_size))
        self.config = config
        self._metadata = replace(self._metadata, engine_id=Path(self.told.rendezvous).name)
        self.tokens = int(self._metadata.chunk_size)
        self.engine = LMCacheEngine(
            config, self._metadata, ChunkedTokenDatabase(config, self._metadata), CopyingConnector(self._metadata),
            broadcast_fn=self._broadcast, broadcast_object_fn=self._broadcast_object)
        self.server = LookupClientFactory.create_lookup_server(self.engine, self._metadata)
        self.engine.post_init(**({"async_lookup_server": self.server} if self.load.asynchronous else {}))
        self._stored = threading.Semaphore(0)
        manager = self.engine.storage_manager
        if manager is None:
            return
        self.backend = manager.storage_backends["RemoteBackend"]
        if self.backend.connection is None:
            raise ConnectionError(
                f"LMCache did not connect to {self.place.endpoint.host}:{self.place.endpoint.port}{self.hint()}")
        self._poison(manager.storage_backends["LocalCPUBackend"])
        self._submit = self.backend.batched_submit_put_task
        self.backend.batched_submit_put_task = self._submit_noted

    def lookup_client(self) -> Any:
        """Return a lookup client for all ranks, as the scheduler has one."""
        return LookupClientFactory.create_lookup_client(self.config, replace(self._metadata, role="scheduler"))

    def store(self, names: Sequence[str], buffers: Sequence[torch.Tensor]) -> list[Outcome]:
        """Store all chunks, and wait until the remote backend has finished with each."""
        self.engine.store(self.prompt(names), buffers=buffers, req_id="store")
        if self.backend is None or self.backend._mla_worker_id_as0_mode:
            return [Miss()] * len(names)
        until = time.monotonic() + 2 * self.place.timeout
        done = sum(self._stored.acquire(timeout=max(0.0, until - time.monotonic())) for _ in names)
        late = Failed(f"the store had not finished after {2 * self.place.timeout:g} s")
        return [Hit()] * len(names) if done == len(names) else [late] * len(names)

    def prompt(self, names: Sequence[str]) -> list[int]:
        """Return the tokens of chunks of these names."""
        return [token for name in names for token in _tokens(name, self.tokens)]

    def _submit_noted(self, *arguments: Any, **named: Any) -> Any:
        named["on_complete_callback"] = lambda key: self._stored.release()
        return self._submit(*arguments, **named)

    def _allocate_poisoned(self, *arguments: Any, **named: Any) -> Any:
        try:
            self.room()
        except MemoryError:
            # What LMCache's allocator says of memory that there is not.
            return None
        return super()._allocate_poisoned(*arguments, **named)

    def room(self) -> None:
        """Do nothing: whoever disturbs it lets there be no memory for a chunk."""

    def _broadcast(self, tensor: torch.Tensor, source: int) -> None:
        assert self.group is not None, "no engine broadcasts where each loads for itself"
        self.group.broadcast(tensor, source)

    def _broadcast_object(self, thing: Any, source: int) -> Any:
        assert self.group is not None, "no engine broadcasts where each loads for itself"
        return self.group.broadcast_object(thing, source)


class _Redis(_Engine, LMCacheRedis):
    """The engine over redis://."""


class _Resp(_Engine, LMCacheResp):
    """The engine over resp://."""


class _Valkey(_Engine, LMCacheValkey):
    """The engine over valkey://."""


_KINDS: Mapping[str, type[_Engine]] = {"redis": _Redis, "resp": _Resp, "valkey": _Valkey}


def _loads(kind: str) -> tuple[Load, ...]:
    masks = LMCacheResp.masks if kind == "resp" else ""
    return (
        Load(f"{kind}-load", parts=True, exchanges=False, masks=masks),
        Load(f"{kind}-async-load", asynchronous=True, parts=True, exchanges=False, masks=masks),
        Load(f"{kind}-mla-load", replicated=True, masks=masks),
        Load(f"{kind}-mla-async-load", replicated=True, asynchronous=True, masks=masks),
        Load(f"{kind}-mla-each-load", replicated=True, exchanges=False, masks=masks),
        Load(f"{kind}-mla-each-async-load", replicated=True, asynchronous=True, exchanges=False, masks=masks),
    )


class LMCacheRanks(RankAdapter):
    """A rank of LMCache on a remote backend.

    `KIND-load`: each worker stores its part of every chunk under its own worker id and loads it by itself.
    `KIND-mla-load`: MLA as LMCache sets it up, where the first rank alone stores and loads, and broadcasts what it has
    to the others, through the functions that vLLM's integration gives it, here on gloo. `KIND-mla-each-load`: MLA with
    `save_only_first_rank` off and a lookup server on every worker, where each loads what the first stored.
    With "async" LMCache loads while the lookup waits.

    Without an exchange each rank tells what it has not got (vLLM's `get_block_ids_with_load_errors`), and the engine
    computes with what all have. A worker that is gone takes its engine down, so that all ranks are started anew.
    With resp:// completions are held until they are registered, since one that is lost hangs any of this by chance.
    """

    name = "lmcache-ranks"
    distribution = "lmcache"
    loads = tuple(load for kind in _KINDS for load in _loads(kind))
    rebuilds = False
    layouts = False
    preload: ClassVar[tuple[str, ...]] = (
        "kvproof.connectors.lmcache_ranks", "torch.distributed",
        *LMCacheRedis.preload, *LMCacheResp.preload, *LMCacheValkey.preload)

    def __init__(self, place: RankPlace) -> None:
        """Open the engine and its servers; raises ConnectionError or StepAborted."""
        super().__init__(place)
        self._load = next(load for load in self.loads if load.name == place.load)
        self._mask = ExitStack()
        self._requests = 0
        # Every socket is a file in the directory in which the ranks meet: a private one, which the world removes.
        paths = partial(get_zmq_rpc_path_lmcache, base_url=str(Path(place.rendezvous).parent))
        for module in (factory, lmcache_async_lookup_client):
            module.get_zmq_rpc_path_lmcache = paths
        inner = place.place
        self.group = Group(place.rendezvous, inner.rank, inner.world_size, place.backend, inner.device,
                           place.step_timeout) if self._load.exchanges else None
        self.engine = _KINDS[place.load.partition("-")[0]](place, self._load, self.group)
        if self._load.masks and self.engine.backend is not None:
            self._mask.enter_context(self.engine.masked())
        self.client: Any = self.engine.lookup_client() if inner.rank == 0 else None

    def store(self, chunks: Sequence[tuple[str, Buffer]]) -> list[Outcome]:
        """Store this worker's part of each chunk, or all of it on the first."""
        return self.engine.store([name for name, _ in chunks], [_tensor(buffer) for _, buffer in chunks])

    def lookup(self, chunks: Sequence[str]) -> int | None:
        """Ask all lookup servers, on rank 0, until the client has an answer or gives up; None on the others."""
        self.engine.engine.lookup_unpin(self._request)
        self._requests += 1
        if self.client is None:
            return None
        found = self.client.lookup_cache(self._request)
        if found == -1:
            found = self.client.lookup(self.engine.prompt(chunks), self._request)
        while found is None:
            found = self.client.lookup_cache(self._request)
        self.client.clear_lookup_status(self._request)
        return int(found) // self.engine.tokens

    def load(self, chunks: Sequence[tuple[str, Buffer]]) -> int:
        """Retrieve the chunks into the buffers; return how many leading ones the engine says it has."""
        if not chunks:
            # vLLM's integration does not call the engine for what it has not to load.
            return 0
        engine = self.engine.engine
        got = engine.retrieve(self.engine.prompt([name for name, _ in chunks]), req_id=self._request,
                              buffers=[_tensor(buffer) for _, buffer in chunks])
        if not self._load.asynchronous:
            engine.lookup_unpin(self._request)
        return int(got.long().cumprod(0).sum()) // self.engine.tokens

    def seams(self) -> Mapping[str, Seam]:
        """Return where this rank loads, and where its lookup server takes a request and answers it."""
        engine, server, later = self.engine.engine, self.engine.server, self._load.asynchronous
        found: dict[str, Seam] = {}
        if self.engine.backend is not None:
            found["get"] = (self.engine.backend, "batched_get_non_blocking" if later else "batched_get_blocking")
            found["allocate"] = (self.engine, "room")
        if server is not None:
            found["lookup"] = (engine, "async_lookup_and_prefetch" if later else "lookup")
            found["answer"] = (server, "send_response_to_scheduler") if later else (server.transport, "send_response")
        return found

    def close(self) -> None:
        """Close the client, the server and the engine, each in a thread that is not waited for when it hangs.

        In LMCache 0.5.6 closing the engine never returns for redis:// and resp://, which wait on the event loop for
        something that the same loop has to do; the loop is stopped then.
        """
        for part in (self.client, self.engine.server, self.engine.engine):
            if part is not None:
                _closed(part.close)
        manager = self.engine.engine.storage_manager
        if manager is not None and manager.loop.is_running():
            manager.loop.call_soon_threadsafe(manager.loop.stop)
            manager.thread.join(_CLOSING)
        if self.group is not None:
            self.group.leave("it is closed")
        self._mask.close()

    @property
    def _request(self) -> str:
        return f"request-{self._requests}"


def _closed(close: Callable[[], object]) -> None:
    thread = threading.Thread(target=close, daemon=True)
    thread.start()
    thread.join(_CLOSING)


def _tokens(name: str, count: int) -> list[int]:
    return list(memoryview(shake_128(name.encode()).digest(2 * count)).cast("H"))


def _pool_bytes(place: RankPlace) -> int:
    """Return how many bytes of host memory an engine gets: for a prompt that is stored, and one that is loaded."""
    return max(remote.SMALLEST_POOL, 2 * (place.place.world_size + 4) * (place.place.chunk_bytes + remote.ALIGNMENT))


def _tensor(buffer: Buffer) -> torch.Tensor:
    return buffer if isinstance(buffer, torch.Tensor) else torch.frombuffer(buffer, dtype=torch.uint8)
