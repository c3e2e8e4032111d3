"""The adapter for coredis, an asyncio client that multiplexes: its reads can be cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import coredis
from coredis.exceptions import RedisError
from coredis.retry import NoRetryPolicy

from kvproof.connectors.adapter import Buffer, Cancelled, Failed, Hit, Miss, Outcome, Place, Read
from kvproof.connectors.loop_thread import LoopThread, cancelled_by
from kvproof.connectors.plain_clients import (
    BATCHED_EXISTS,
    EXISTS,
    GET,
    LOOP_READS,
    MGET,
    RedisKeys,
    aligned,
    counted,
    failed,
    filled,
)
from kvproof.models.chunks import ChunkKey

ERRORS = (RedisError, OSError, ValueError)
"""What coredis raises: its own, timeouts, and ValueError for a reply of another type than the command's."""


class Coredis(RedisKeys):
    """coredis's client with a pool of `place.connections` connections, on an event loop in a thread of its own.

    A connection goes back to the pool as soon as a command was handed to it, so that the replies to several callers
    are under way on it at once. By default a failed command is repeated twice; here never. In coredis 6.9.0 a pipeline
    that is cancelled, times out or loses its connection takes its place in the pool away with it: after as many as
    there are connections, every call ends with a timeout until the client is opened anew.
    """

    name = "coredis"
    distribution = "coredis"
    reads = LOOP_READS
    abandons = "cancel"
    preload: ClassVar[tuple[str, ...]] = ("kvproof.connectors.coredis_client",)

    def __init__(self, place: Place) -> None:
        """Connect; raises coredis's own error when the server does not answer a PING."""
        super().__init__(place)
        self.client: Any = coredis.Redis(
            host=place.endpoint.host, port=place.endpoint.port, password=place.endpoint.password,
            stream_timeout=place.timeout, connect_timeout=place.timeout, pool_timeout=place.timeout,
            max_connections=max(1, place.connections), retry_policy=NoRetryPolicy(),
        )
        self._loop = LoopThread("coredis-loop")
        self._loop.call(self._open())

    async def _open(self) -> None:
        self._closing = asyncio.Event()
        opened = asyncio.get_running_loop().create_future()
        self._open_task = asyncio.ensure_future(self._stay_open(opened))
        await opened

    async def _stay_open(self, opened: asyncio.Future[None]) -> None:
        """Hold the client open: the task that entered its context has to leave it."""
        async with self.client:
            try:
                await self.client.ping()
            except Exception as error:
                # Here, because outside the context it would be in a group without its words.
                opened.set_exception(error)
                return
            opened.set_result(None)
            await self._closing.wait()

    def put(self, chunks: Sequence[tuple[ChunkKey, Buffer]]) -> list[Outcome]:
        """Store each chunk with a SET of its own; see `Adapter.put`."""
        return [self._loop.call(self._put(key, buffer)) for key, buffer in chunks]

    async def _put(self, key: ChunkKey, buffer: Buffer) -> Outcome:
        if not self.stores():
            return Miss()
        try:
            stored = await self.client.set(self.wire_keys(key)[0], bytes(buffer))
        except ERRORS as error:
            return failed(error)
        return Hit() if stored else Failed(f"SET answered {stored!r}")

    def read(self, read: Read, chunks: Sequence[tuple[ChunkKey, Buffer]]) -> list[Outcome]:
        """Read with EXISTS, several EXISTS in a pipeline, GET or MGET; see `Adapter.read`."""
        return self._loop.call(self._read(read, chunks))

    async def _read(self, read: Read, chunks: Sequence[tuple[ChunkKey, Buffer]]) -> list[Outcome]:
        names = [self.wire_keys(key)[0] for key, _ in chunks]
        try:
            match read.name:
                case EXISTS.name:
                    return counted([await self.client.exists([names[0]])])
                case BATCHED_EXISTS.name:
                    async with self.client.pipeline(transaction=False, timeout=self.place.timeout) as pipeline:
                        for name in names:
                            pipeline.exists([name])
                    return counted(pipeline.results)
                case GET.name:
                    return [filled(await self.client.get(names[0]), chunks[0][1])]
                case MGET.name:
                    return aligned(await self.client.mget(names), chunks)
        except ERRORS as error:
            return [failed(error) for _ in chunks]
        raise ValueError(f"{self.name} has no read {read.name!r}")

    def cancel_read(
        self, read: Read, chunks: Sequence[tuple[ChunkKey, Buffer]], when: Callable[[], None]
    ) -> Cancelled | list[Outcome]:
        """Begin a read as a task, cancel it once `when` has returned, and say how it ended."""
        return self._loop.call(cancelled_by(when, self._read(read, chunks)))

    def close(self) -> None:
        """Leave the client's context, which closes every connection, and end the loop."""
        self._loop.call(self._close())
        self._loop.close()

    async def _close(self) -> None:
        self._closing.set()
        await self._open_task
