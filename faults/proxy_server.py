"""The process in which the fault proxies of one kvproof process live; `kvproof.faults.proxy` starts it and talks to it.

It inherits one SOCK_SEQPACKET socket. Each descriptor that arrives there is the control socket of an endpoint, which
lives until the other end of it is closed. Each descriptor that arrives on an endpoint's control socket is a call: a
JSON object up to the end of the stream, answered by another one. A call has a socket to itself, so any number of
threads may call at once, and one that waits is in nobody's way.
"""

from __future__ import annotations

import errno
import json
import resource
import signal
import socket
import sys
import traceback
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

import trio

from kvproof.errors import DeadlineExceeded, KvproofError, ProxyFailed, UsageError
from kvproof.faults.armed import Armed
from kvproof.faults.relay import Buffers, Relay, plain
from kvproof.faults.schedule import from_json
from kvproof.faults.wire import WireEvent, WireLog, wanted

HOST = "127.0.0.1"
_BACKLOG = 1024
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Endpoint:
    """One listening port with its upstream, its armed schedule and its log."""

    def __init__(self, control: socket.socket, buffers: Buffers) -> None:
        """Take over a control socket; the endpoint listens once it has been asked to."""
        self._control = control
        self._buffers = buffers
        self._nursery: trio.Nursery | None = None
        self._listener: trio.SocketListener | None = None
        self._log = WireLog(trio.current_time)
        self._armed = Armed(())
        self._calls: dict[str, Callable[[dict[str, Any]], Any]] = {
            "open": self._open, "wait": self._wait, "release": self._release, "log": self._events,
            "struck": self._struck,
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
                self._listener.socket.close()
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
        host, port = message["upstream"]
        self._armed = Armed(from_json(message["schedule"]))
        [self._listener] = await trio.open_tcp_listeners(0, host=HOST, backlog=_BACKLOG)
        assert self._nursery is not None
        self._nursery.start_soon(self._accept, self._listener, (host, port))
        address: tuple[str, int] = self._listener.socket.getsockname()
        return address[1]

    async def _accept(self, listener: trio.SocketListener, upstream: tuple[str, int]) -> None:
        ordinal = 0
        assert self._nursery is not None
        while True:
            try:
                client, _ = await listener.socket.accept()
            except OSError as error:
                if error.errno in _NO_ROOM:
                    # Nothing tells when a descriptor is free again, and the listener stays readable meanwhile.
                    await trio.sleep(0.05)
                continue
            ordinal += 1
            relay = Relay(ordinal, plain(client), self._log, self._armed, self._buffers)
            self._nursery.start_soon(relay.run, upstream)

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

        for earlier in self._log.events:
            look(earlier)
        with self._log.watched(look), trio.move_on_after(deadline):
            await enough.wait()
        if seen < count or last is None:
            raise DeadlineExceeded(f"{event!r} was to be seen {count} times within {deadline:g} s and was seen {seen} "
                                   f"times; the proxy saw: {self._log.summary()}")
        return last.to_json()

    async def _release(self, message: dict[str, Any]) -> None:
        self._armed.release(message["name"])

    async def _events(self, message: dict[str, Any]) -> list[dict[str, Any]]:
        return [event.to_json() for event in self._log.events if event.sequence >= message["since"]]

    async def _struck(self, message: dict[str, Any]) -> list[bool]:
        return self._armed.struck


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
    buffers = Buffers()
    async with trio.open_nursery() as nursery:
        async with aclosing(_descriptors(control)) as descriptors:
            async for descriptor in descriptors:
                nursery.start_soon(Endpoint(socket.socket(fileno=descriptor), buffers).run)
        nursery.cancel_scope.cancel()


def main(arguments: list[str]) -> None:
    """Run the process; the one argument is the number of the inherited control socket."""
    if len(arguments) != 1 or not arguments[0].isdigit():
        raise UsageError("kvproof.faults.proxy_server is started by kvproof.faults.proxy, with a descriptor's number")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    trio.run(serve, socket.socket(fileno=int(arguments[0])))


if __name__ == "__main__":
    main(sys.argv[1:])
