"""The adapter for redis-py's synchronous client, from 4.5.3 on."""

from __future__ import annotations

from typing import Any, ClassVar

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from kvproof.connectors.plain_clients import PooledClient


class RedisPy(PooledClient):
    """redis-py's synchronous client on a blocking pool."""

    name = "redis-py"
    distribution = "redis"
    preload: ClassVar[tuple[str, ...]] = ("kvproof.connectors.redis_py",)
    client_class, pool_class, errors = redis.Redis, redis.BlockingConnectionPool, redis.RedisError

    def no_retry(self) -> Any:
        """See `PooledClient.no_retry`."""
        return Retry(NoBackoff(), 0)
