"""The adapter for valkey-py's synchronous client, a fork of redis-py."""

from __future__ import annotations

from typing import Any, ClassVar

import valkey
from valkey.backoff import NoBackoff
from valkey.retry import Retry

from kvproof.connectors.plain_clients import PooledClient


class ValkeyPy(PooledClient):
    """valkey-py's synchronous client on a blocking pool."""

    name = "valkey-py"
    distribution = "valkey"
    preload: ClassVar[tuple[str, ...]] = ("kvproof.connectors.valkey_py",)
    client_class, pool_class, errors = valkey.Valkey, valkey.BlockingConnectionPool, valkey.ValkeyError

    def no_retry(self) -> Any:
        """See `PooledClient.no_retry`."""
        return Retry(NoBackoff(), 0)
