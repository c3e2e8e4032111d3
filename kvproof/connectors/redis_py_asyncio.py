"""The adapter for redis-py's asyncio client, from 4.5.3 on: its reads can be cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar

import redis
import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from kvproof.connectors.adapter import Buffer, Cancelled, Failed, Hit, Miss, Outcome, Place, Read
from kvproof.connectors.loop_thread import LoopThread, cancelled_by
from kvproof.connectors.plain_clients import (
    BATCHED_EXISTS,
    EXISTS,
    GET,
    LOOP_READS,
    MGET,
    PARSES,
    RedisKeys,
    ReplyWatch,
    aligned,
    counted,
    failed,
    filled,
    find_method,
)
from kvproof.faults.gates import Gap, Line, Watch, substitute
from kvproof.models.chunks import ChunkKey


class RedisPyAsyncio(RedisKeys):
    """redis-py's asyncio client on a blocking pool, on an event loop in a thread of its own."""

    name = "redis-py-asyncio"
    distribution = "redis"
    reads = LOOP_READS
    abandons = "cancel"
    preload: ClassVar[tuple[str, ...]] = ("kvproof.connectors.redis_py_asyncio",)

    def __init__(self, place: Place) -> None:
        """Connect; raises redis-py's own error when the server does not answer a PING."""
        super().__init__(place)
        self._loop = LoopThread("redis-py-loop")
        self.client: Any = self._loop.call(self._open())

    async def _open(self) -> Any:
        client = self._client()
        await client.ping()
        return client

    def _client(self) -> Any:
        pool = redis.asyncio.BlockingConnectionPool(**self.pool_options(), retry=Retry(NoBackoff(), 0))
        return redis.asyncio.Redis(connection_pool=pool)

    def put(self, chunks: Sequence[tuple[ChunkKey, Buffer]]) -> list[Outcome]:
        """Store each chunk with a SET of its own; see `Adapter.put`."""
        return [self._loop.call(self._put(key, buffer)) for key, buffer in chunks]

    async def _put(self, key: ChunkKey, buffer: Buffer) -> Outcome:
        if not self.stores():
            return Miss()
        try:
            stored = await self.client.set(self.wire_keys(key)[0], memoryview(buffer))
        except (redis.RedisError, OSError) as error:
            return failed(error)
        return Hit() if stored else Failed(f"SET answered {stored!r}")

    def read(self, read: Read, chunks: Sequence[tuple[ChunkKey, Buffer]]) -> list[Outcome]:
        """Read with EXISTS, several EXISTS in a pipeline, GET or MGET; see `Adapter.read`."""
        return self._loop.call(self._read(self.client, read, chunks))

    async def _read(self, client: Any, read: Read, chunks: Sequence[tuple[ChunkKey, Buffer]]) -> list[Outcome]:
        names = [self.wire_keys(key)[0] for key, _ in chunks]
        try:
            match read.name:
                case EXISTS.name:
                    return counted([await client.exists(names[0])])
                case BATCHED_EXISTS.name:
                    async with client.pipeline(transaction=False) as pipeline:
                        for name in names:
                            pipeline.exists(name)
                        return counted(await pipeline.execute())
                case GET.name:
                    return [filled(await client.get(names[0]), chunks[0][1])]
                case MGET.name:
                    return aligned(await client.mget(names), chunks)
        except (redis.RedisError, OSError) as error:
            return [failed(error) for _ in chunks]
        raise ValueError(f"{self.name} has no read {read.name!r}")

    def cancel_read(
        self, read: Read, chunks: Sequence[tuple[ChunkKey, Buffer]], when: Callable[[], None]
    ) -> Cancelled | list[Outcome]:
        """Begin a read as a task, cancel it once `when` has returned, and say how it ended."""
        return self._loop.call(cancelled_by(when, self._read(self.client, read, chunks)))

    def gaps(self) -> Sequence[Gap]:
        """Return the calls between whose sending and reading a reply can arrive.

        Each runs on an event loop and a client of its own in the calling thread, because a pause stops that thread.
        """
        wait = Line(find_method(redis.asyncio.Redis, "_send_command_parse_response"), PARSES)
        return tuple(
            Gap(
                call=f"redis.asyncio.Redis.{read.name}", run=partial(self._read_one, read), wait=wait,
                hand_over="conn.send_command in redis.asyncio.Redis._send_command_parse_response",
                watch=partial(_watch, read.name.upper()),
            )
            for read in (EXISTS, GET, MGET)
        )

    def _read_one(self, read: Read, key: ChunkKey, buffer: Buffer) -> Outcome:
        return asyncio.run(self._read_alone(read, key, buffer))

    async def _read_alone(self, read: Read, key: ChunkKey, buffer: Buffer) -> Outcome:
        client = self._client()
        try:
            return (await self._read(client, read, [(key, buffer)]))[0]
        finally:
            await _close(client)

    def close(self) -> None:
        """Close every connection and end the loop."""
        self._loop.call(_close(self.client))
        self._loop.close()


@contextmanager
def _watch(command: str, hold: float) -> Iterator[Watch]:
    watch, connections = ReplyWatch(command), redis.asyncio.Connection
    original = find_method(connections, "send_command")

    async def send_command(connection: Any, *args: Any, **kwargs: Any) -> Any:
        sent = await original(connection, *args, **kwargs)
        # A stream takes bytes off the socket whenever its loop turns.
        watch.sent(args, connection._writer.get_extra_info("socket"), hold, lambda: bool(connection._reader._buffer))
        return sent

    with substitute(connections, "send_command", send_command):
        yield watch


async def _close(client: Any) -> None:
    await getattr(client, "aclose", client.close)()
    await client.connection_pool.disconnect()
