"""The adapter for GLIDE's synchronous client: Python around a native core that connects, repeats and times out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from glide_shared.config import (
    AdvancedGlideClientConfiguration,
    GlideClientConfiguration,
    NodeAddress,
    ServerCredentials,
)
from glide_shared.exceptions import GlideError
from glide_sync import Batch, GlideClient

from kvproof.connectors.adapter import Buffer, Failed, Hit, Miss, Outcome, Place, Read
from kvproof.connectors.plain_clients import (
    BATCHED_EXISTS,
    EXISTS,
    GET,
    MGET,
    READS,
    RedisKeys,
    aligned,
    counted,
    failed,
    filled,
)
from kvproof.models.chunks import ChunkKey


class ValkeyGlideSync(RedisKeys):
    """GLIDE's synchronous client: one multiplexed connection, whatever `place.connections` says.

    `place.timeout` is its request timeout, which covers reconnecting and repeating; how often it repeats a request
    within that time cannot be said. After a lost connection it tries again without end.
    """

    name = "valkey-glide-sync"
    distribution = "valkey-glide-sync"
    reads = READS
    abandons = "timeout"
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

    def put(self, chunks: Sequence[tuple[ChunkKey, Buffer]]) -> list[Outcome]:
        """Store each chunk with a SET of its own; see `Adapter.put`."""
        return [self._put(key, buffer) for key, buffer in chunks]

    def _put(self, key: ChunkKey, buffer: Buffer) -> Outcome:
        if not self.stores():
            return Miss()
        try:
            stored = self.client.set(self.wire_keys(key)[0], memoryview(buffer))
        except GlideError as error:
            return failed(error)
        return Hit() if stored == "OK" else Failed(f"SET answered {stored!r}")

    def read(self, read: Read, chunks: Sequence[tuple[ChunkKey, Buffer]]) -> list[Outcome]:
        """Read with EXISTS, several EXISTS in a batch, GET or MGET; see `Adapter.read`."""
        names = [self.wire_keys(key)[0] for key, _ in chunks]
        try:
            match read.name:
                case EXISTS.name:
                    return counted([self.client.exists([names[0]])])
                case BATCHED_EXISTS.name:
                    batch = Batch(is_atomic=False)
                    for name in names:
                        batch.exists([name])
                    return counted(self.client.exec(batch, raise_on_error=True) or [])
                case GET.name:
                    return [filled(self.client.get(names[0]), chunks[0][1])]
                case MGET.name:
                    return aligned(self.client.mget(list(names)), chunks)
        except GlideError as error:
            return [failed(error) for _ in chunks]
        raise ValueError(f"{self.name} has no read {read.name!r}")

    def close(self) -> None:
        """Close the client."""
        self.client.close()
