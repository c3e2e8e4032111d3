"""The adapter for LMCache's redis-py connector (redis://): two keys a chunk, `...kv_bytes` and `...metadata`."""

from __future__ import annotations

from typing import ClassVar
from urllib.parse import quote

from kvproof.connectors.lmcache_remote import LMCacheRemote


class LMCacheRedis(LMCacheRemote):
    """RemoteBackend over RedisConnector: redis-py's asyncio client with its own pool, which LMCache sizes itself."""

    name = "lmcache-redis"
    preload: ClassVar[tuple[str, ...]] = (
        "kvproof.connectors.lmcache_redis", "lmcache.v1.storage_backend.connector.redis_connector")
    suffixes = ("kv_bytes", "metadata")

    def url(self) -> str:
        """See `LMCacheRemote.url`; the password has no other way in, and LMCache logs the URL from level INFO."""
        endpoint = self.place.endpoint
        secret = f":{quote(endpoint.password, safe='')}@" if endpoint.password else ""
        return f"redis://{secret}{endpoint.host}:{endpoint.port}"
