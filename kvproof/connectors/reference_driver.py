"""The reference connector's driver: a trio loop in a thread of its own moves bytes for the client models.

Every decision is taken in `models.pool` and `models.client`; this file opens, sends, receives and keeps time. It
offers the interface of a native client: `submit_*` hands an operation over and returns its id, `drain_completions`
hands out what has ended.

One lock makes every decision and its sends and receives one step. So a request is sent by the thread that submits
it, without waking the loop first, and nothing can come between asking where to receive and receiving there. Nobody
waits in the kernel under the lock.
"""

from __future__ import annotations

import math
import socket
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial

import trio

from kvproof.models.client import SCRATCH, Chunk, Done, Failed, Outcome, Request, exists, get, put
from kvproof.models.pool import Action, Connect, Drop, Pool, Send
from kvproof.models.registry import Completion, completion

LOW_WATER = 1024 * 1024
"""While more than this is to come of a payload, the kernel wakes the loop for no less (bytes)."""
TURN = 16 * 1024 * 1024
"""After this many bytes without a pause a connection lets the others have their turn."""
CLOSED = "the client was closed"

Opener = Callable[[str, int], Awaitable[socket.socket]]
"""Connects to a host and port and returns a socket that does not block; raises OSError."""


async def open_tcp(host: str, port: int) -> socket.socket:
    """Connect through TCP; the socket is a plain one.

    trio's own passes through its scheduler for every read; the plain one only when it has to wait.
    """
    stream = await trio.open_tcp_stream(host, port)
    sock = socket.socket(fileno=stream.socket.detach())
    sock.setblocking(False)
    return sock


@dataclass(slots=True)
class _Group:
    """An operation on one or more keys, which ends when its last key has."""

    outcomes: list[Outcome | None]
    left: int


@dataclass(slots=True, eq=False)
class _Link:
    """What the loop holds for one connection."""

    scope: trio.CancelScope
    sock: socket.socket | None = None
    outbox: deque[memoryview] = field(default_factory=deque)
    writable: trio.Event = field(default_factory=trio.Event)
    low: int = 1


class Driver:
    """A native-style client of one server. Any thread may call its public methods; none of them blocks but `close`.

    `ready` is called in the loop's thread whenever completions can be drained. Every submitted id is handed out by
    `drain_completions` exactly once: at its reply, at its deadline (`timeout` seconds after its submission), when it
    is cancelled, when its connection is lost, or at `close`. Once it is, its buffers are not touched any more.
    """

    def __init__(
        self,
        address: tuple[str, int],
        pool: Pool,
        *,
        timeout: float,
        ready: Callable[[], None],
        opener: Opener = open_tcp,
        clock: trio.abc.Clock | None = None,
    ) -> None:
        """Connect; raises ConnectionError when that fails, or takes longer than `timeout` seconds.

        opener, clock: the network and the time, where they are not the real ones.
        """
        self._address, self._pool, self._timeout, self._ready = address, pool, timeout, ready
        self._opener, self._clock = opener, clock
        self._now = time.monotonic if clock is None else clock.current_time
        self._lock = threading.RLock()
        self._completions: deque[Completion] = deque()
        self._groups: dict[int, _Group] = {}
        self._links: dict[int, _Link] = {}
        self._token: trio.lowlevel.TrioToken | None = None
        self._closed = False
        self._alarm_at = math.inf
        self._opened = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kvproof-reference", daemon=True)
        self._thread.start()
        self._opened.wait(timeout)
        if not pool.ready:
            self.close()
            why = pool.refusal or f"no answer within {timeout} s"
            raise ConnectionError(f"cannot open {address[0]}:{address[1]}: {why}")

    def submit_get(self, identity: int, key: str, buffer: memoryview) -> int:
        """Read `key` into the whole of `buffer`."""
        return self.submit_batch_get(identity, [key], [buffer])

    def submit_set(self, identity: int, key: str, payload: memoryview) -> int:
        """Store `payload` under `key`."""
        return self.submit_batch_set(identity, [key], [payload])

    def submit_exists(self, identity: int, key: str) -> int:
        """Ask for `key`."""
        return self.submit_batch_exists(identity, [key])

    def submit_batch_get(self, identity: int, keys: Sequence[str], buffers: Sequence[memoryview]) -> int:
        """Read each key into its buffer."""
        pairs = enumerate(zip(keys, buffers, strict=True))
        return self._submit(identity, [get((identity, index), key, buffer) for index, (key, buffer) in pairs])

    def submit_batch_set(self, identity: int, keys: Sequence[str], payloads: Sequence[memoryview]) -> int:
        """Store each payload under its key."""
        pairs = enumerate(zip(keys, payloads, strict=True))
        return self._submit(identity, [put((identity, index), key, payload) for index, (key, payload) in pairs])

    def submit_batch_exists(self, identity: int, keys: Sequence[str]) -> int:
        """Ask for each key."""
        return self._submit(identity, [exists((identity, index), key) for index, key in enumerate(keys)])

    def cancel(self, identity: int) -> None:
        """Give up an operation: it is handed out as failed unless it has ended already."""
        self._step(lambda: self._cancel(identity))

    def drain_completions(self) -> list[Completion]:
        """Return what has ended since the last call."""
        drained: list[Completion] = []
        while self._completions:
            drained.append(self._completions.popleft())
        return drained

    def close(self, deadline: float = 5.0) -> None:
        """End everything in flight and the thread; raises TimeoutError when the loop is stuck for `deadline` s."""
        with self._lock:
            self._closed = True
            if self._token is not None:
                self._in_loop(self._ended.set)
        if threading.current_thread() is not self._thread:
            self._thread.join(deadline)
            if self._thread.is_alive():
                raise TimeoutError(f"the reference connector's loop did not end within {deadline} s")

    def _submit(self, identity: int, requests: list[Request]) -> int:
        deadline = self._now() + self._timeout

        def begin() -> list[Action]:
            self._groups[identity] = _Group([None] * len(requests), len(requests))
            if not requests:
                self._finish(identity)
            return [action for request in requests for action in self._pool.submit(request, deadline)]

        self._step(begin)
        return identity

    def _cancel(self, identity: int) -> list[Action]:
        group = self._groups.get(identity)
        keys = range(len(group.outcomes)) if group is not None else ()
        # The last key first: those that wait go before those whose end makes room on a connection.
        return [action for index in reversed(keys) for action in self._pool.cancel((identity, index))]

    def _step(self, work: Callable[[], list[Action]]) -> None:
        """Take one decision and carry it out, in any thread."""
        with self._lock:
            self._act(work())
        if self._completions:
            self._in_loop(self._announce)

    def _announce(self) -> None:
        if self._completions:
            self._ready()

    def _in_loop(self, work: Callable[[], object]) -> None:
        """Do what only the loop's thread may do: at once if this is that thread, soon otherwise."""
        if threading.current_thread() is self._thread or self._token is None:
            work()
            return
        try:
            self._token.run_sync_soon(work)
        except trio.RunFinishedError:
            # Everything is closed; only completions are still to be announced, and any thread may do that.
            work()

    def _run(self) -> None:
        reason = CLOSED
        try:
            trio.run(self._main, clock=self._clock)
        except BaseException as error:
            reason = f"the reference connector's loop failed: {error!r}"
            raise
        finally:
            self._step(lambda: self._pool.close(reason))
            self._opened.set()

    async def _main(self) -> None:
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self._ended = trio.Event()
            self._alarm = trio.CancelScope()
            with self._lock:
                self._token = trio.lowlevel.current_trio_token()
                if self._closed:
                    return
            nursery.start_soon(self._keep_time)
            self._step(self._pool.start)
            await self._ended.wait()
            self._step(lambda: self._pool.close(CLOSED))
            nursery.cancel_scope.cancel()

    async def _keep_time(self) -> None:
        while True:
            with self._lock:
                deadline = self._pool.next_deadline()
                self._alarm_at = math.inf if deadline is None else deadline
                self._alarm = trio.CancelScope(deadline=trio.current_time() + self._alarm_at - self._now())
            with self._alarm:
                await trio.sleep(math.inf)
            self._step(self._expire)

    def _expire(self) -> list[Action]:
        return self._pool.expire(self._now(), f"deadline exceeded: no answer within {self._timeout} s")

    def _hurry(self) -> None:
        """See that the alarm goes off in time; one that goes off early does no harm, so it is never put back."""
        deadline = self._pool.next_deadline()
        if deadline is not None and deadline < self._alarm_at:
            self._alarm_at = deadline
            self._in_loop(self._set_alarm)

    def _set_alarm(self) -> None:
        with self._lock:
            self._alarm.deadline = trio.current_time() + self._alarm_at - self._now()

    def _act(self, actions: list[Action]) -> None:
        """Carry out what the pool decided."""
        for action in actions:
            if isinstance(action, Send):
                self._send(action.link, action.chunks)
            elif isinstance(action, Done):
                self._note(action.identity, action.outcome)
            elif isinstance(action, Connect):
                link = _Link(trio.CancelScope())
                self._links[action.link] = link
                self._in_loop(partial(self._nursery.start_soon, self._serve, action.link, link))
            elif action.link in self._links:
                self._drop(action)
        self._hurry()
        if self._pool.settled:
            self._opened.set()

    def _drop(self, action: Drop) -> None:
        link = self._links.pop(action.link)
        link.outbox.clear()
        self._in_loop(link.scope.cancel)

    def _note(self, identity: Hashable, outcome: Outcome) -> None:
        assert isinstance(identity, tuple)
        number, index = identity
        group = self._groups[number]
        group.outcomes[index] = outcome
        group.left -= 1
        if not group.left:
            self._finish(number)

    def _finish(self, identity: int) -> None:
        group = self._groups.pop(identity)
        result = tuple(outcome or Failed("never resolved") for outcome in group.outcomes)
        self._completions.append(completion(identity, result))

    async def _serve(self, number: int, link: _Link) -> None:
        """Open a connection, then receive on it until it is dropped."""
        with link.scope:
            try:
                with trio.fail_after(self._timeout):
                    sock = link.sock = await self._opener(*self._address)
            except (OSError, trio.TooSlowError) as error:
                reason = str(error) or "no answer to the connection attempt"
                self._step(lambda: self._refused(number, reason))
                return
            try:
                self._step(lambda: self._pool.connected(number, self._now() + self._timeout))
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._flush, link, sock)
                    await self._receive(number, link, sock)
                    nursery.cancel_scope.cancel()
            finally:
                trio.lowlevel.notify_closing(sock.fileno())
                sock.close()

    def _refused(self, number: int, reason: str) -> list[Action]:
        self._links.pop(number, None)
        return self._pool.refused(number, reason)

    async def _receive(self, number: int, link: _Link, sock: socket.socket) -> None:
        turn = 0
        while (count := self._receive_once(number, link, sock)) is not None:
            turn += count
            if not count:
                turn = 0
                await trio.lowlevel.wait_readable(sock.fileno())
            elif turn >= TURN:
                turn = 0
                await trio.lowlevel.checkpoint()

    def _receive_once(self, number: int, link: _Link, sock: socket.socket) -> int | None:
        """Receive what is there; return its bytes, 0 when nothing was, None when the connection is of no more use."""
        with self._lock:
            view = self._pool.receive_into(number)
            if view is None:
                return None
            try:
                count = _receive_all(sock, view)
            except BlockingIOError:
                self._set_low_water(link, sock, len(view))
                return 0
            except OSError as error:
                count = 0
                self._act(self._pool.lost(number, f"the connection was lost: {error.strerror}"))
            else:
                self._act(self._pool.received(number, count))
        self._announce()
        return max(count, 1)

    def _set_low_water(self, link: _Link, sock: socket.socket, coming: int) -> None:
        low = LOW_WATER if coming > LOW_WATER else 1
        if low != link.low:
            link.low = low
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, low)

    def _send(self, number: int, chunks: list[Chunk]) -> None:
        link = self._links[number]
        link.outbox.extend(memoryview(chunk) for chunk in chunks if len(chunk))
        assert link.sock is not None
        self._push(link, link.sock)
        if link.outbox:
            self._in_loop(lambda: link.writable.set())

    def _push(self, link: _Link, sock: socket.socket) -> None:
        """Send what the kernel takes at once."""
        while link.outbox:
            try:
                count = sock.sendmsg(list(link.outbox)[:64])
            except BlockingIOError:
                return
            except OSError:
                # The reader meets the same failure, after whatever the peer has said before it closed.
                link.outbox.clear()
                return
            while link.outbox and count >= len(link.outbox[0]):
                count -= len(link.outbox.popleft())
            if count:
                link.outbox[0] = link.outbox[0][count:]

    async def _flush(self, link: _Link, sock: socket.socket) -> None:
        while True:
            await link.writable.wait()
            link.writable = trio.Event()
            while link.outbox:
                await trio.lowlevel.wait_writable(sock.fileno())
                with self._lock:
                    self._push(link, sock)


def _receive_all(sock: socket.socket, view: memoryview) -> int:
    """Receive until `view` is full or nothing more is there; return the bytes received, 0 at the end of the stream.

    Raises BlockingIOError when nothing was there. A tight loop, because the peer goes on sending while we copy, and
    asking the models after every piece would let the kernel's buffer fill up.
    """
    filled = 0
    while filled < len(view):
        try:
            count = sock.recv_into(view[filled:])
        except OSError:
            # An error after some bytes shows itself again at the next call.
            if not filled:
                raise
            break
        filled += count
        if not count or len(view) <= SCRATCH:
            break
    return filled
