"""The adapter for LMCache's GLIDE connector (valkey://): worker threads, each with a synchronous client."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar

from kvproof.connectors.future_watch import FutureWatch, watched
from kvproof.connectors.lmcache_remote import BATCHED_CONTAINS, LMCacheRemote
from kvproof.faults.gates import Gap, Line, PlaceGone, Watch


class LMCacheValkey(LMCacheRemote):
    """RemoteBackend over ValkeyConnector with `place.connections` worker threads."""

    name = "lmcache-valkey"
    preload: ClassVar[tuple[str, ...]] = (
        "kvproof.connectors.lmcache_valkey", "lmcache.v1.storage_backend.connector.valkey_connector", "glide_sync")

    def url(self) -> str:
        """See `LMCacheRemote.url`."""
        return f"valkey://{self.place.endpoint.host}:{self.place.endpoint.port}"

    def extra_config(self) -> dict[str, Any]:
        """See `LMCacheRemote.extra_config`."""
        password = self.place.endpoint.password
        options = {"valkey_num_workers": self.place.connections, "connection_timeout": max(2.0, self.place.timeout)}
        return options | ({"valkey_password": password} if password else {})

    def hint(self) -> str:
        """See `LMCacheRemote.hint`."""
        if not self.place.endpoint.password:
            return ""
        return " (with a password: LMCache 0.5.6 gives GLIDE user name and password in each other's place)"

    def gaps(self) -> Sequence[Gap]:
        """Return the call that submits to the worker threads and waits, and RemoteBackend's waits for its loop."""
        function = getattr(type(self.connector), "_count_consecutive_exists", None)
        if function is None or not hasattr(getattr(self.connector, "_pool", None), "submit_exists"):
            raise PlaceGone("ValkeyConnector has no _count_consecutive_exists over a pool's submit_exists")
        workers = Gap(
            call="RemoteBackend.batched_contains",
            run=lambda key, buffer: self.read(BATCHED_CONTAINS, [(key, buffer)])[0],
            hand_over=f"self._pool.submit_exists in {function.__qualname__}",
            wait=Line(function, r"fut\.result\("),
            watch=self._watch_pool,
        )
        return (workers, *super().gaps())

    def _watch_pool(self, hold: float) -> AbstractContextManager[Watch]:
        pool = self.connector._pool
        watch = FutureWatch("the worker's future", hold)
        return watched(watch, pool, "submit_exists", watch.wrap(pool.submit_exists))
