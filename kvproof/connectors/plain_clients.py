"""What the adapters of plain clients share: keys, outcomes, and the synchronous client of redis-py and its forks."""

from __future__ import annotations

import os
import select
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from kvproof.connectors.adapter import Adapter, Buffer, Failed, Hit, Miss, Outcome, Place, Read
from kvproof.faults.gates import Arrival, Gap, Line, PlaceGone, Watch, substitute
from kvproof.models.chunks import ChunkKey

EXISTS = Read("exists", payload=False)
BATCHED_EXISTS = Read("batched_exists", payload=False, batch=True)
GET = Read("get")
MGET = Read("mget", batch=True)
READS = (EXISTS, BATCHED_EXISTS, GET, MGET)
LOOP_READS = tuple(replace(read, sync=False) for read in READS)
"""The same of a client that runs on an event loop."""

PARSES = r"return (await )?self\.parse_response\(conn, command_name"
"""The line with which a call begins to read its reply, after the command was sent."""


class RedisKeys(Adapter):
    """What the adapters of all plain clients store under which key, and the options that redis-py and its forks take.

    Clients repeat failed commands: redis-py 8.1.0 up to ten times, with waits of up to 1 s between (4.5.3: never). The
    adapters ask for no repetition wherever it can be had, so that each failure is seen. A pool of `place.connections`
    connections makes further callers wait, `place.timeout` seconds at most, which is also the time a reply may take.
    """

    def wire_keys(self, key: ChunkKey) -> tuple[str, ...]:
        """Return the names under which the server holds this chunk."""
        return (key.stored(replicated=self.place.replicated).format(),)

    def stores(self) -> bool:
        """Say whether this worker stores at all: when replicated, only worker 0 does."""
        return not self.place.replicated or self.place.rank == 0

    def pool_options(self) -> dict[str, Any]:
        """Return the options that the blocking pools of redis-py and valkey-py take."""
        place = self.place
        return {
            "max_connections": max(1, place.connections), "timeout": place.timeout,
            "host": place.endpoint.host, "port": place.endpoint.port, "password": place.endpoint.password,
            "socket_timeout": place.timeout, "socket_connect_timeout": place.timeout,
        }


class SyncClient(RedisKeys):
    """A synchronous client whose commands are methods of `client`, as all of them have it."""

    reads = READS
    abandons = "timeout"

    client: Any
    errors: ClassVar[type[Exception]]
    """What every error of its own derives from."""

    def present(self, name: str) -> Any:
        """Return the answer to an EXISTS."""
        raise NotImplementedError

    def all_present(self, names: Sequence[str]) -> Sequence[Any]:
        """Return the answers to several EXISTS that were sent at once."""
        raise NotImplementedError

    def put(self, chunks: Sequence[tuple[ChunkKey, Buffer]]) -> list[Outcome]:
        """Store each chunk with a SET of its own; see `Adapter.put`."""
        return [self._put(key, buffer) for key, buffer in chunks]

    def _put(self, key: ChunkKey, buffer: Buffer) -> Outcome:
        if not self.stores():
            return Miss()
        try:
            stored = self.client.set(self.wire_keys(key)[0], memoryview(buffer))
        except self.errors as error:
            return failed(error)
        # Some give the answer itself, others what they make of it.
        return Hit() if stored is True or stored == "OK" else Failed(f"SET answered {stored!r}")

    def read(self, read: Read, chunks: Sequence[tuple[ChunkKey, Buffer]]) -> list[Outcome]:
        """Read with EXISTS, several EXISTS at once, GET or MGET; see `Adapter.read`."""
        names = [self.wire_keys(key)[0] for key, _ in chunks]
        try:
            match read.name:
                case EXISTS.name:
                    return counted([self.present(names[0])])
                case BATCHED_EXISTS.name:
                    return counted(self.all_present(names))
                case GET.name:
                    return [filled(self.client.get(names[0]), chunks[0][1])]
                case MGET.name:
                    return aligned(self.client.mget(names), chunks)
        except self.errors as error:
            return [failed(error) for _ in chunks]
        raise ValueError(f"{self.name} has no read {read.name!r}")


class PooledClient(SyncClient):
    """The synchronous client of redis-py, or of a fork of it, on a blocking pool."""

    client_class: ClassVar[Any]
    """The client's class, as its distribution calls it."""
    pool_class: ClassVar[Any]
    """Its blocking connection pool."""

    def __init__(self, place: Place) -> None:
        """Connect; raises the client's own error when the server does not answer a PING."""
        super().__init__(place)
        self.pool = self.pool_class(**self.pool_options(), retry=self.no_retry())
        self.client = self.client_class(connection_pool=self.pool)
        self.client.ping()

    def no_retry(self) -> Any:
        """Return the client's own policy of never repeating a command."""
        raise NotImplementedError

    def present(self, name: str) -> Any:
        """Ask with EXISTS."""
        return self.client.exists(name)

    def all_present(self, names: Sequence[str]) -> Sequence[Any]:
        """Ask in a pipeline."""
        with self.client.pipeline(transaction=False) as pipeline:
            for name in names:
                pipeline.exists(name)
            return list(pipeline.execute())

    def gaps(self) -> Sequence[Gap]:
        """Return the calls between whose sending and reading a reply can arrive."""
        wait = Line(find_method(self.client_class, "_send_command_parse_response"), PARSES)
        return tuple(
            Gap(
                call=f"{self.client_class.__name__}.{read.name}", run=partial(self._read_one, read), wait=wait,
                hand_over=f"conn.send_command in {self.client_class.__name__}._send_command_parse_response",
                watch=partial(self._watch, read.name.upper()),
            )
            for read in (EXISTS, GET, MGET)
        )

    def _read_one(self, read: Read, key: ChunkKey, buffer: Buffer) -> Outcome:
        return self.read(read, [(key, buffer)])[0]

    @contextmanager
    def _watch(self, command: str, hold: float) -> Iterator[Watch]:
        watch, connections = ReplyWatch(command), self.pool.connection_class
        original = find_method(connections, "send_command")

        def send_command(connection: Any, *args: Any, **kwargs: Any) -> Any:
            sent = original(connection, *args, **kwargs)
            watch.sent(args, connection._sock, hold)
            return sent

        with substitute(connections, "send_command", send_command):
            yield watch

    def close(self) -> None:
        """Close every connection."""
        self.client.close()
        self.pool.disconnect()


class ReplyWatch:
    """Sees a command being sent, and waits until its reply has reached the client and lies there unread."""

    def __init__(self, command: str) -> None:
        """Watch the command of this name and no other, such as what a client sends when it connects."""
        self._command = command
        self._handed_over = threading.Event()
        self._looking = threading.Lock()
        self._socket: Any = None
        self._buffered: Callable[[], bool] = bool
        self._said: Arrival | None = None

    def sent(self, words: Sequence[object], stream: Any, hold: float, buffered: Callable[[], bool] = bool) -> None:
        """Note a command that was sent on `stream`; wait up to `hold` seconds for the reply.

        `buffered` tells whether the client has already taken bytes off the socket without looking at them.
        """
        if words[0] != self._command:
            return
        # Only one thread looks: once this one goes on, the reply is read and the socket may be closed.
        with self._looking:
            self._socket, self._buffered, self._said = stream, buffered, None
            self._handed_over.set()
            if hold:
                self._look(hold)

    def arrived(self, deadline: float) -> Arrival | None:
        """See `Watch.arrived`."""
        if not self._handed_over.wait(deadline):
            return None
        with self._looking:
            if self._said is None:
                self._look(deadline)
            return self._said

    def _look(self, deadline: float) -> None:
        poll = select.poll()
        poll.register(self._socket.fileno(), select.POLLIN)
        if self._buffered() or (poll.poll(max(0.0, deadline) * 1000) and self._something_came()):
            self._said = Arrival(f"the reply to {self._command} lay at its connection, which keeps it until it is read")

    def _something_came(self) -> bool:
        """Tell bytes from the end of the stream, which makes a socket readable as well."""
        with socket.socket(fileno=os.dup(self._socket.fileno())) as same:
            try:
                return bool(same.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
            except OSError:
                return False


def find_method(owner: type, name: str) -> Callable[..., Any]:
    """Return a method by name; raises PlaceGone when this version of the class has none."""
    found: Callable[..., Any] | None = getattr(owner, name, None)
    if found is None:
        raise PlaceGone(f"{owner.__module__}.{owner.__qualname__} has no {name}")
    return found


def failed(error: BaseException) -> Failed:
    """Return the outcome for an error that a client raised."""
    return Failed(f"{type(error).__name__}: {error}")


def counted(present: Sequence[Any]) -> list[Outcome]:
    """Return a hit for each chunk before the first that is absent, and a miss from there on.

    What is not a number, which is all that EXISTS answers with, is a failure.
    """
    count = next((index for index, one in enumerate(present) if one != 1), len(present))
    return [Hit() if index < count else Miss() if isinstance(one, int)
            else Failed(f"EXISTS answered a {type(one).__name__}, expected a number")
            for index, one in enumerate(present)]


def filled(value: Any, buffer: Buffer) -> Outcome:
    """Copy a GET's value into a buffer of exactly its length."""
    if value is None:
        return Miss()
    if not isinstance(value, bytes):
        return Failed(f"the reply is a {type(value).__name__}, expected bytes")
    target = memoryview(buffer).cast("B")
    if len(value) != len(target):
        return Failed(f"{len(value)} bytes, expected {len(target)}")
    target[:] = value
    return Hit()


def aligned(values: Any, chunks: Sequence[tuple[ChunkKey, Buffer]]) -> list[Outcome]:
    """Copy MGET's values into the buffers, the n-th into the n-th."""
    if not isinstance(values, (list, tuple)) or len(values) != len(chunks):
        what = f"{len(values)} values" if isinstance(values, (list, tuple)) else f"a {type(values).__name__}"
        return [Failed(f"MGET answered {what}, expected {len(chunks)} values")] * len(chunks)
    return [filled(value, buffer) for value, (_, buffer) in zip(values, chunks, strict=True)]
