"""The adapter for GLIDE's synchronous client: Python around a native core that connects, repeats and times out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from glide_shared.config import (
    AdvancedGlideClientConfiguration,
    GlideClientConfiguration,
    NodeAddress,
    ServerCredentials,
)
from glide_shared.exceptions import GlideError
from glide_sync import Batch, GlideClient

from kvproof.connectors.adapter import Place
from kvproof.connectors.plain_clients import SyncClient


class ValkeyGlideSync(SyncClient):
    """GLIDE's synchronous client: one multiplexed connection, whatever `place.connections` says.

    `place.timeout` is its request timeout, which covers reconnecting and repeating; how often it repeats a request
    within that time cannot be said. After a lost connection it tries again without end.
    """

    name = "valkey-glide-sync"
    distribution = "valkey-glide-sync"
    errors = GlideError
    # It connects again by itself, after waits that grow and have a random part.
    recovery = 5.0
    preload: ClassVar[tuple[str, ...]] = ("kvproof.connectors.valkey_glide_sync",)

    def __init__(self, place: Place) -> None:
        """Connect; raises GLIDE's own error when the server does not answer."""
        super().__init__(place)
        milliseconds = max(1, round(place.timeout * 1000))
        password = place.endpoint.password
        self.client = GlideClient.create(GlideClientConfiguration(
            [NodeAddress(place.endpoint.host, place.endpoint.port)],
            credentials=ServerCredentials(password) if password else None,
            request_timeout=milliseconds,
            advanced_config=AdvancedGlideClientConfiguration(connection_timeout=milliseconds),
        ))

    def present(self, name: str) -> Any:
        """Ask with EXISTS."""
        return self.client.exists([name])

    def all_present(self, names: Sequence[str]) -> Sequence[Any]:
        """Ask in a batch that is no transaction."""
        batch = Batch(is_atomic=False)
        for name in names:
            batch.exists([name])
        return self.client.exec(batch, raise_on_error=True) or []

    def close(self) -> None:
        """Close the client."""
        self.client.close()
