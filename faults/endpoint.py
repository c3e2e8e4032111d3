"""The RESP fault proxy, from a test's side: open an endpoint, wait for what happens there, read what passed.

All endpoints of a process live in one other process, started at the first use. It ends when this one does, however it
ends. Any number of threads may use any number of endpoints; after a fork the child has a proxy process of its own, and
the endpoints that it inherited are closed to it.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import IO, Any

from kvproof import errors
from kvproof.errors import DeadlineExceeded, KvproofError, ProxyFailed, UsageError
from kvproof.faults.fault import Fault
from kvproof.faults.schedule import Schedule, check, to_json
from kvproof.faults.supervisor import Process, supervisor
from kvproof.faults.wire import WireEvent

HOST = "127.0.0.1"
_HOST = re.compile(r"[A-Za-z0-9.:_-]+|\[[0-9A-Fa-f:]+\]")
_DEADLINE = 10.0
_GRACE = 5.0


@dataclass
class _Process:
    """The proxy process of this process."""

    control: socket.socket
    process: Process
    log: IO[bytes]

    @classmethod
    def start(cls) -> _Process:
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        mine.settimeout(_DEADLINE)
        log = os.fdopen(os.memfd_create("kvproof-proxy"), "w+b")
        with theirs:
            places = {2: log.fileno(), 3: theirs.fileno()}
            return cls(mine, supervisor().spawn_module("kvproof.faults.proxy_server", "3", fds=places), log)

    @property
    def alive(self) -> bool:
        return self.process.alive

    def close(self) -> None:
        self.control.close()
        self.process.close()
        self.log.close()

    def said(self) -> str:
        """Return the end of what it wrote, for an error message."""
        self.log.seek(0)
        return " ".join(self.log.read().decode(errors="replace").split())[-600:] or "it said nothing"


@dataclass(frozen=True, slots=True)
class Mark:
    """What has become of one entry of a schedule.

    struck: the proxy did it. felt: after that the client sent something on that connection, or closed it, or its call
    was told to have ended.
    """

    struck: bool = False
    felt: bool = False

    def __str__(self) -> str:
        """Say it in one word."""
        return "felt" if self.felt else "struck, not felt" if self.struck else "not struck"


class Proxy:
    """An open endpoint: a client that connects to `host` and `port` reaches the upstream through the proxy.

    All methods may be called from any thread. They raise ProxyFailed once the endpoint is closed or its process died.
    """

    host: str
    port: int

    def __init__(self, process: _Process, upstream: Upstream, schedule: Schedule, listen: tuple[str, int],
                 deadline: float) -> None:
        """Open the endpoint; `proxy` is the way to get one."""
        self._process = process
        self.host, port = listen
        self.schedule = schedule
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.settimeout(_DEADLINE)
        _controls.add(self._control)
        try:
            with theirs:
                self._hand_over(process.control, theirs)
            message = {"call": "open", "upstream": upstream, "schedule": to_json(schedule), "host": self.host,
                       "port": port}
            self.port = self._call(message, deadline)
        except BaseException:
            self._forget()
            raise

    @property
    def pid(self) -> int:
        """The process in which the endpoint lives, with the other endpoints of this process."""
        return self._process.process.pid

    def wait(self, event: str, count: int = 1, deadline: float = 5.0) -> WireEvent:
        """Wait until the log holds `count` such events since the endpoint opened; return the last of them.

        event: "open", "held", "released", "struck" (any fault), "raw", "close", "request:COMMAND KEY-GLOB" or
        "reply:COMMAND KEY-GLOB" (a reply that has been delivered). deadline: seconds. Raises DeadlineExceeded that
        says what was seen instead, and UsageError for another event.
        """
        if not (isinstance(count, int) and count >= 1 and 0 <= deadline < 1e6):
            raise UsageError(f"wait(event, count={count!r}, deadline={deadline!r}): expected a count from 1 on, and a "
                             "deadline in seconds")
        message = {"call": "wait", "event": event, "count": count, "deadline": deadline}
        return WireEvent.from_json(self._call(message, deadline + _GRACE))

    def release(self, name: str) -> None:
        """End every hold that waits for `name`; one that has not begun yet will end as soon as it does.

        A refusal that waits for it has ended when this returns: the port is open. Raises UsageError when nothing in
        the schedule has that name.
        """
        self._call({"call": "release", "name": name})

    def log(self, since: int = 0) -> list[WireEvent]:
        """Return what passed, in order, from the event number `since` on.

        What a client has received is in the log by then, with the request before it; what it has only sent, or that
        it closed, may still be on its way: `wait` for that. The newest 32768 events are kept; the `sequence` of the
        first is the number of those dropped.
        """
        return [WireEvent.from_json(entry) for entry in self._call({"call": "log", "since": since})]

    def marks(self) -> tuple[Mark, ...]:
        """Return for each entry of the schedule whether it has struck, and whether that was felt."""
        return tuple(Mark(**mark) for mark in self._call({"call": "marks"}))

    def struck(self) -> tuple[bool, ...]:
        """Return for each entry of the schedule whether it was done."""
        return tuple(mark.struck for mark in self.marks())

    def felt(self) -> tuple[bool, ...]:
        """Return for each entry of the schedule whether it was felt."""
        return tuple(mark.felt for mark in self.marks())

    def ended(self, how: str) -> None:
        """Tell that the call that was disturbed has ended, and how: "returned" or "raised".

        The proxy sees what a client sends and that it closes, but not that one of its calls returns.
        """
        self._call({"call": "ended", "how": how})

    def tasks(self) -> int:
        """Return how many tasks live in the process of this endpoint: what is left behind there shows in it."""
        return int(self._call({"call": "tasks"}))

    @contextmanager
    def call(self) -> Iterator[None]:
        """Tell, at the end of the block, that the call in it has returned, or raised."""
        try:
            yield
        except BaseException:
            self.ended("raised")
            raise
        self.ended("returned")

    def close(self) -> None:
        """Close the port and every connection; returns when they are closed."""
        try:
            self._control.shutdown(socket.SHUT_WR)
            self._control.recv(1)
        except TimeoutError:
            raise DeadlineExceeded(f"the proxy did not close port {self.port} within {_DEADLINE:g} s") from None
        except OSError:
            return
        finally:
            self._forget()

    def __enter__(self) -> Proxy:
        """Return the endpoint itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Close the endpoint."""
        self.close()

    def _forget(self) -> None:
        _controls.discard(self._control)
        self._control.close()

    def _call(self, message: dict[str, Any], deadline: float = _DEADLINE) -> Any:
        mine, theirs = socket.socketpair()
        with mine:
            with theirs:
                self._hand_over(self._control, theirs)
            try:
                mine.settimeout(deadline)
                mine.sendall(json.dumps(message).encode())
                mine.shutdown(socket.SHUT_WR)
                data = _read_all(mine, time.monotonic() + deadline)
            except TimeoutError:
                raise DeadlineExceeded(f"the proxy did not answer {message['call']!r} within {deadline:g} s") from None
            except OSError as error:
                raise self._gone(error) from error
        if not data:
            raise self._gone()
        answer = json.loads(data)
        if "error" in answer:
            kind = getattr(errors, answer["error"], ProxyFailed)
            raise kind(answer["message"])
        return answer["answer"]

    def _hand_over(self, control: socket.socket, descriptor: socket.socket) -> None:
        try:
            socket.send_fds(control, [b"."], [descriptor.fileno()])
        except OSError as error:
            raise self._gone(error) from error

    def _gone(self, error: OSError | None = None) -> KvproofError:
        if self._control.fileno() == -1:
            return ProxyFailed("the endpoint is closed")
        if isinstance(error, TimeoutError):
            return DeadlineExceeded(f"the proxy process took no call within {_DEADLINE:g} s")
        end = self._process.process.wait(_GRACE)
        if end is None:
            return ProxyFailed(f"the endpoint has ended, the proxy process has not ({error or 'no answer'})")
        return ProxyFailed(f"the proxy process {end}: {self._process.said()}")


def _read_all(source: socket.socket, until: float) -> bytes:
    parts: list[bytes] = []
    while True:
        source.settimeout(max(0.001, until - time.monotonic()))
        part = source.recv(1 << 20)
        if not part:
            return b"".join(parts)
        parts.append(part)


def proxy(upstream: tuple[str, int] | str, schedule: Sequence[Fault] = (), *, listen: tuple[str, int] = (HOST, 0),
          deadline: float = _DEADLINE) -> Proxy:
    """Open an endpoint, with the schedule armed before anybody is let in; use it as a context manager.

    upstream: host and port, or "HOST:PORT", or "unix:PATH"; it is connected to once for each client, so it may be
    started later. listen: a loopback address and a port, 0 for a free one. deadline: seconds to be open within. Raises
    ProxyFailed, DeadlineExceeded, and UsageError for what is no upstream, no loopback address or no schedule.
    """
    if isinstance(schedule, Fault):
        raise UsageError(f"a schedule is a sequence of faults, such as (Nil(...),); got {schedule!r:.200} by itself")
    check(schedule)
    if not _is_address(listen):
        raise UsageError(f"listen on {listen!r}: expected a host and a port, such as ({HOST!r}, 0)")
    if not listen[0].startswith("127."):
        raise UsageError(f"listen on {listen[0]}: expected a loopback address, such as {HOST}")
    return Proxy(_running(), read_upstream(upstream), tuple(schedule), listen, deadline)


Upstream = str | tuple[str, int]
"""The path of a unix socket, or a host and port."""


def read_upstream(upstream: tuple[str, int] | str) -> Upstream:
    """Return where the server is; raises UsageError for what is no address of one."""
    if not isinstance(upstream, str):
        if not _is_address(upstream):
            raise UsageError(f"upstream {upstream!r}: expected a host and a port, \"HOST:PORT\" or \"unix:PATH\"")
        return upstream
    if upstream.startswith("unix:") and upstream != "unix:":
        return upstream.removeprefix("unix:")
    return read_address(upstream, "upstream")


def read_address(text: str, what: str) -> tuple[str, int]:
    """Return the host and port in "HOST:PORT"; raises UsageError, which begins with `what`."""
    host, _, port = text.rpartition(":")
    if not _HOST.fullmatch(host) or not port.isascii() or not port.isdigit() or len(port) > 5 or int(port) > 65535:
        raise UsageError(f"{what} {text[:80]!r}: expected HOST:PORT, such as {HOST}:6379"
                         + (", or unix:PATH" if what == "upstream" else ""))
    return host, int(port)


def _is_address(value: object) -> bool:
    return (isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str)
            and isinstance(value[1], int) and 0 <= value[1] <= 65535)


_lock = threading.Lock()
_current: _Process | None = None
_controls: set[socket.socket] = set()


def _running() -> _Process:
    global _current
    with _lock:
        if _current is None or not _current.alive:
            _current = _Process.start()
        return _current


def _stop() -> None:
    global _current
    with _lock:
        if _current is not None:
            _current.close()
        _current = None


def _after_fork() -> None:
    """Let go of what belongs to the parent, so that its proxies do not live on in a child."""
    global _current, _lock
    _lock = threading.Lock()
    if _current is not None:
        _current.control.close()
    for control in _controls:
        control.close()
    _controls.clear()
    _current = None


atexit.register(_stop)
os.register_at_fork(after_in_child=_after_fork)
