"""One watch over the sockets of all connections: what can be read or written is, in the step in which it is seen.

trio wakes a task for each socket that is ready; a small GET needs two such wakes, and they cost more than all the rest.
So one task waits here for the epoll of all sockets and calls what is to be done at once. What has to wait for
something else is left to a task of its own.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable

import trio

LOOK_ON = 0.001
"""Seconds that the watch goes on looking after something came, before other tasks get their turn: the answer to what
was just passed on is mostly there by then."""
TURN = 0.005
"""Seconds after which whoever has been at work gives way to the other tasks."""
_AT_ONCE = 64
"""Sockets that are seen to be ready in one look."""
_IN, _OUT, _HANGUP = select.EPOLLIN, select.EPOLLOUT, select.EPOLLRDHUP
_END = _HANGUP | select.EPOLLHUP | select.EPOLLERR


class Port:
    """One socket under the pump's watch. It is watched for whatever has a callback, and not at all for nothing."""

    __slots__ = ("_mask", "_pump", "awaited", "on_hangup", "on_readable", "on_writable", "socket")

    def __init__(self, pump: Pump, bare: socket.socket) -> None:
        """Take over a non-blocking socket, unwatched."""
        self.socket = bare
        self.on_readable: Callable[[], None] | None = None
        self.on_writable: Callable[[], None] | None = None
        self.on_hangup: Callable[[], None] | None = None
        self._pump = pump
        self._mask = 0
        self.awaited = 1

    def watch_read(self, callback: Callable[[], None] | None) -> None:
        """Call this, again and again, as long as there is something to read, or the other side has closed."""
        self.on_readable = callback
        self._watch()

    def watch_write(self, callback: Callable[[], None] | None) -> None:
        """Call this, again and again, as long as something can be written."""
        self.on_writable = callback
        self._watch()

    def watch_hangup(self, callback: Callable[[], None] | None) -> None:
        """Call this, again and again, once the other side has closed, whatever it has sent before."""
        self.on_hangup = callback
        self._watch()

    def ready(self, mask: int) -> None:
        """Do what is to be done; an error or a hang-up is for whoever looks."""
        if mask & (_IN | _END) and self.on_readable is not None:
            self.on_readable()
        if mask & (_OUT | _END) and self.on_writable is not None:
            self.on_writable()
        if mask & _END and self.on_hangup is not None:
            self.on_hangup()

    def wait_for(self, size: int) -> None:
        """Let the socket be readable from so many bytes on; the pump ends that when they do not come at once."""
        if self.awaited != size:
            self.awaited = size
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)
            if size > 1:
                self._pump.waiting.add(self)

    def close(self) -> None:
        """Close the socket."""
        self._pump.waiting.discard(self)
        self.watch_read(None)
        self.watch_write(None)
        self.watch_hangup(None)
        self.socket.close()

    def _watch(self) -> None:
        mask = ((_IN if self.on_readable is not None else 0) | (_OUT if self.on_writable is not None else 0)
                | (_HANGUP if self.on_hangup is not None else 0))
        if mask != self._mask:
            self._pump.change(self, self._mask, mask)
            self._mask = mask


class Pump:
    """The watch: one for the process."""

    def __init__(self) -> None:
        """Watch nothing yet."""
        self._epoll = select.epoll()
        self._ports: dict[int, Port] = {}
        self._given = False
        self.waiting: set[Port] = set()

    def change(self, port: Port, before: int, after: int) -> None:
        """Watch for something else; an unwatched socket reports nothing, not even an error."""
        number = port.socket.fileno()
        if not before:
            self._ports[number] = port
            self._epoll.register(number, after)
        elif after:
            self._epoll.modify(number, after)
        else:
            self._epoll.unregister(number)
            del self._ports[number]

    def give_way(self) -> None:
        """Let the tasks that were just woken have their turn at once."""
        self._given = True

    async def run(self) -> None:
        """Watch for ever."""
        while True:
            await trio.lowlevel.wait_readable(self._epoll.fileno())
            self._given = False
            until = time.monotonic() + TURN
            while not self._given and time.monotonic() < until:
                ready = self._epoll.poll(LOOK_ON, _AT_ONCE)
                if not ready:
                    break
                for number, mask in ready:
                    port = self._ports.get(number)
                    if port is not None:
                        port.ready(mask)
            while self.waiting:
                # It is not known what they wait for, so they get what there is.
                self.waiting.pop().wait_for(1)
