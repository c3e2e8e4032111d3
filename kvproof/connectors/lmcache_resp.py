"""The adapter for LMCache's native RESP client (resp://), and the gaps in its synchronous calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

from kvproof.connectors.adapter import Buffer, Hit, Miss, Outcome
from kvproof.connectors.lmcache_remote import BATCHED_CONTAINS, LMCacheRemote, cache_key
from kvproof.faults.gates import Gap, Line, PlaceGone, Watch, WatchedNative, substitute
from kvproof.models.chunks import ChunkKey

REGISTERS = r"_register_future_sync\("
"""The line of a synchronous call that registers its future, after the operation was submitted."""


class LMCacheResp(LMCacheRemote):
    """RemoteBackend over RESPConnector: asyncio around a native client with `place.connections` threads."""

    name = "lmcache-resp"
    preload: ClassVar[tuple[str, ...]] = (
        "kvproof.connectors.lmcache_resp", "lmcache.v1.storage_backend.connector.redis_connector")
    masks = "lost-completion"

    def url(self) -> str:
        """See `LMCacheRemote.url`."""
        return f"resp://{self.place.endpoint.host}:{self.place.endpoint.port}"

    def extra_config(self) -> dict[str, Any]:
        """See `LMCacheRemote.extra_config`."""
        password = self.place.endpoint.password
        return {"resp_num_threads": self.place.connections} | ({"password": password} if password else {})

    @property
    def client(self) -> Any:
        """LMCache's RESPClient, which submits to the native client and keeps the futures."""
        try:
            return self.connector.client
        except AttributeError as error:
            raise PlaceGone(f"RESPConnector has no client: {error}") from error

    def gaps(self) -> Sequence[Gap]:
        """Return RESPClient's synchronous calls, what stands on them, and RemoteBackend's waits for its loop."""
        client = self.client

        def native(call: str, holder: str, run: Callable[[str, Buffer], Outcome]) -> Gap:
            function = getattr(type(client), holder, None)
            if function is None or not hasattr(client, call):
                raise PlaceGone(f"RESPClient has no {call} or no {holder}")
            return self._native_gap(f"RESPClient.{call}", holder, function,
                                    lambda key, buffer: run(str(cache_key(key).to_string()), buffer))

        def exists(name: str, buffer: Buffer) -> Outcome:
            return Hit() if client.exists_sync(name) else Miss()

        def batch_exists(name: str, buffer: Buffer) -> Outcome:
            return Hit() if client.batch_exists_sync([name]) == [True] else Miss()

        def get(name: str, buffer: Buffer) -> Outcome:
            client.get_sync(name, buffer)
            return Hit()

        def put(name: str, buffer: Buffer) -> Outcome:
            client.set_sync(name, buffer)
            return Hit()

        holder = "batch_exists_sync"
        return (
            native("exists_sync", holder, exists),
            native(holder, holder, batch_exists),
            native("get_sync", "batch_get_sync", get),
            native("set_sync", "batch_set_sync", put),
            self._native_gap("RemoteBackend.batched_contains", holder, getattr(type(client), holder), self._contained),
            *super().gaps(),
        )

    def _contained(self, key: ChunkKey, buffer: Buffer) -> Outcome:
        return self.read(BATCHED_CONTAINS, [(key, buffer)])[0]

    def _native_gap(self, call: str, holder: str, function: Callable[..., object], run: Callable[..., object]) -> Gap:
        return Gap(
            call=call, run=run, hand_over=f"self._client.submit_* in {function.__qualname__}",
            wait=Line(function, REGISTERS), watch=self._watch_native,
        )

    @contextmanager
    def _watch_native(self, hold: float) -> Iterator[Watch]:
        watch = self._watched(hold=hold)
        with substitute(self.client, "_client", watch):
            yield watch

    @contextmanager
    def masked(self) -> Iterator[object]:
        """Hold every completion until its future is registered, so that none is lost; see `Adapter.masked`."""
        with substitute(self.client, "_client", mask := self._watched(mask=True)):
            yield mask

    def _watched(self, *, hold: float = 0.0, mask: bool = False) -> WatchedNative:
        client = self.client
        if not hasattr(client, "_client") or not hasattr(client, "_pending"):
            raise PlaceGone("RESPClient keeps no _client and _pending to watch")
        return WatchedNative(client._client, lambda identity: identity in client._pending, hold=hold, mask=mask)
