"""The process in which the fault proxies of one kvproof process live; `kvproof.faults.proxy` starts it and talks to it.

It inherits one SOCK_SEQPACKET socket. Each descriptor that arrives there is the control socket of an endpoint, which
lives until the other end of it is closed. Each descriptor that arrives on an endpoint's control socket is a call: a
JSON object up to the end of the stream, answered by another one. A call has a socket to itself, so any number of
threads may call at once, and one that waits is in nobody's way.
"""

from __future__ import annotations

import errno
import gc
import json
import resource
import signal
import socket
import sys
import time
import traceback
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

import trio

from kvproof.errors import DeadlineExceeded, KvproofError, ProxyFailed, UsageError
from kvproof.faults.armed import Armed
from kvproof.faults.conduit import plain
from kvproof.faults.families.refuse import Refuse
from kvproof.faults.fault import Until
from kvproof.faults.pump import Pump
from kvproof.faults.relay import Connect, Relay
from kvproof.faults.schedule import from_json
from kvproof.faults.stock import Stock
from kvproof.faults.wire import WireEvent, WireLog, wanted

_BACKLOG = 1024
_OTHERS, _EACH = 32, 4
"""Descriptors that are kept free for calls, and those that a connection takes at most; one that finds none waits."""
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Endpoint:
    """One listening port with its upstream, its armed schedule and its log."""

    def __init__(self, control: socket.socket, pump: Pump, stock: Stock, room: trio.Semaphore) -> None:
        """Take over a control socket; the endpoint listens once it has been asked to."""
        self._control = control
        self._pump, self._stock, self._room = pump, stock, room
        self._nursery: trio.Nursery | None = None
        self._listener: trio.socket.SocketType | None = None
        self._reopening: dict[str, trio.Event] = {}
        self._log = WireLog(time.monotonic)
        self._armed = Armed(())
        self._calls: dict[str, Callable[[dict[str, Any]], Any]] = {
            "open": self._open, "wait": self._wait, "release": self._release, "log": self._events,
            "marks": self._marks, "ended": self._ended, "tasks": self._tasks,
        }

    async def run(self) -> None:
        """Serve until the control socket is closed at the other end; then close everything, and it last of all."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                async with aclosing(_descriptors(self._control)) as descriptors:
                    async for descriptor in descriptors:
                        nursery.start_soon(self._answer, socket.socket(fileno=descriptor))
                nursery.cancel_scope.cancel()
        except Exception:
            traceback.print_exc()
        finally:
            if self._listener is not None:
                self._listener.close()
            self._stock.trim()
            self._control.close()

    async def _answer(self, call: socket.socket) -> None:
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(call))
        async with stream:
            try:
                message = json.loads(b"".join([part async for part in stream]))
                answer = {"answer": await self._calls[message["call"]](message)}
            except KvproofError as error:
                answer = {"error": type(error).__name__, "message": str(error)}
            except Exception as error:
                traceback.print_exc()
                answer = {"error": ProxyFailed.__name__, "message": f"a mistake in the proxy: {error!r}"}
            try:
                await stream.send_all(json.dumps(answer).encode())
            except trio.BrokenResourceError:
                return

    async def _open(self, message: dict[str, Any]) -> int:
        self._armed = Armed(from_json(message["schedule"]))
        refusals = {fault.match: (index, fault) for index, fault in enumerate(self._armed.schedule)
                    if isinstance(fault, Refuse)}
        try:
            self._listener = _bound(message["host"], message["port"], shared=bool(refusals))
        except OSError as error:
            raise ProxyFailed(f"cannot listen on {message['host']}:{message['port']}: {error.strerror}") from None
        assert self._nursery is not None
        ready = trio.Event()
        self._nursery.start_soon(self._accept, _connector(message["upstream"]), refusals, ready)
        await ready.wait()
        address: tuple[str, int] = self._listener.getsockname()
        return address[1]

    async def _accept(self, connect: Connect, refusals: dict[int, tuple[int, Refuse]], ready: trio.Event) -> None:
        """Let clients in; `ready` is set once that, or refusing them, has begun."""
        ordinal, listening = 1, False
        assert self._nursery is not None
        assert self._listener is not None
        while True:
            if ordinal in refusals:
                await self._refuse(*refusals.pop(ordinal), ready)
                listening = False
            if not listening:
                self._listener.listen(_BACKLOG)
                ready.set()
                listening = True
                for reopened in self._reopening.values():
                    reopened.set()
            try:
                client, _ = await self._listener.accept()
            except OSError as error:
                if error.errno in _NO_ROOM:
                    # Nothing tells when a descriptor is free again, and the listener stays readable meanwhile.
                    await trio.sleep(0.05)
                continue
            bare = plain(socket.socket(fileno=client.detach()))
            await self._room.acquire()
            relay = Relay(ordinal, bare, self._log, self._armed, self._pump, self._stock)
            ordinal += 1
            self._nursery.start_soon(self._relay, relay, connect)

    async def _relay(self, relay: Relay, connect: Connect) -> None:
        try:
            await relay.run(connect)
        finally:
            self._room.release()

    async def _refuse(self, index: int, fault: Refuse, ready: trio.Event) -> None:
        """Keep the port, and let nobody in, until the fault is released."""
        assert self._listener is not None
        silent = _bound(*self._listener.getsockname(), shared=True)
        self._listener.close()
        self._listener = silent
        self._reopening[fault.until] = trio.Event()
        self._armed.strike(index, 0)
        self._log.note(0, "open", did="refused", fault=index)
        ready.set()
        await self._armed.until(Until.parse(fault.until), trio.Event())
        self._log.note(0, "open", did="released", by=fault.until, fault=index)

    async def _wait(self, message: dict[str, Any]) -> dict[str, Any]:
        event, count, deadline = message["event"], message["count"], message["deadline"]
        fits = wanted(event)
        seen = 0
        last: WireEvent | None = None
        enough = trio.Event()

        def look(candidate: WireEvent) -> None:
            nonlocal seen, last
            if seen < count and fits(candidate):
                seen, last = seen + 1, candidate
                if seen == count:
                    enough.set()

        for earlier in self._log.since():
            look(earlier)
        with self._log.watched(look), trio.move_on_after(deadline):
            await enough.wait()
        if seen < count or last is None:
            raise DeadlineExceeded(f"{event!r} was to be seen {count} times within {deadline:g} s and was seen {seen} "
                                   f"times; the proxy saw: {self._log.summary()}")
        return last.to_json()

    async def _release(self, message: dict[str, Any]) -> None:
        self._armed.release(message["name"])
        if message["name"] in self._reopening:
            await self._reopening[message["name"]].wait()

    async def _events(self, message: dict[str, Any]) -> list[dict[str, Any]]:
        return [event.to_json() for event in self._log.since(message["since"])]

    async def _marks(self, message: dict[str, Any]) -> list[dict[str, bool]]:
        return self._armed.marks

    async def _tasks(self, message: dict[str, Any]) -> int:
        return trio.lowlevel.current_statistics().tasks_living

    async def _ended(self, message: dict[str, Any]) -> None:
        self._log.note(0, "call", did=message["how"])
        self._armed.feel(None)


def _bound(host: str, port: int, *, shared: bool) -> trio.socket.SocketType:
    """Return a socket at a port (0: a free one) that does not listen yet, so that connecting to it is refused.

    shared: another such socket of ours may have the port at the same time, so that nobody else gets it in between.
    """
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        bound.bind((host, port))
    except OSError:
        bound.close()
        raise
    return trio.socket.from_stdlib_socket(bound)


def _connector(upstream: str | list[Any]) -> Connect:
    """Return what connects to a unix socket, by its path, or to a host and port."""
    async def connect() -> socket.socket:
        try:
            if isinstance(upstream, str):
                stream = await trio.open_unix_socket(upstream)
            else:
                stream = await trio.open_tcp_stream(*upstream)
        except OSError as error:
            where = upstream if isinstance(upstream, str) else ":".join(map(str, upstream))
            raise OSError(f"no connection to {where}: {error.__cause__ or error}") from error
        return socket.socket(fileno=stream.socket.detach())

    return connect


async def _descriptors(control: socket.socket) -> AsyncGenerator[int, None]:
    """Yield each descriptor that is sent over `control`, until its other end is closed."""
    control.setblocking(False)
    while True:
        await trio.lowlevel.wait_readable(control.fileno())
        try:
            data, descriptors, _, _ = socket.recv_fds(control, 64, 1)
        except BlockingIOError:
            continue
        except ConnectionError:
            return
        if not data:
            return
        for descriptor in descriptors:
            yield descriptor


async def serve(control: socket.socket) -> None:
    """Serve endpoints until the other end of `control` is closed, which it also is when its process dies."""
    pump, stock = Pump(), Stock()
    room = trio.Semaphore(max(1, (resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _OTHERS) // _EACH))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pump.run)
        async with aclosing(_descriptors(control)) as descriptors:
            async for descriptor in descriptors:
                nursery.start_soon(Endpoint(socket.socket(fileno=descriptor), pump, stock, room).run)
        nursery.cancel_scope.cancel()


def main(arguments: list[str]) -> None:
    """Run the process; the one argument is the number of the inherited control socket."""
    if len(arguments) != 1 or not arguments[0].isdigit():
        raise UsageError("kvproof.faults.proxy_server is started by kvproof.faults.proxy, with a descriptor's number")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    # What the log keeps lives long; looking through all of it over and over finds nothing.
    gc.set_threshold(50_000, 20, 100)
    trio.run(serve, socket.socket(fileno=int(arguments[0])))


if __name__ == "__main__":
    main(sys.argv[1:])
