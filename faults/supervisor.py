"""Processes that we start, and that end with us however we end.

One supervisor process a kvproof process starts everything else (servers, proxies, fork servers). It is their
subreaper, and when this process ends, even by SIGKILL, it ends them all, with whatever they left behind.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from kvproof import errors
from kvproof.errors import DeadlineExceeded, RunnerFailed
from kvproof.faults import spawner

SECRET = "KVPROOF_SERVER"
"""The environment variable that may hold a server's password; it is passed on to nobody."""
_HOME = str(Path(errors.__file__).parents[1])
_START_DEADLINE = 10.0
_END_DEADLINE = 5.0


class SpawnerGone(RunnerFailed):
    """The process that was to start another one is dead."""


class SpawnerStuck(RunnerFailed):
    """The process that was to start another one does not answer."""


@dataclass(frozen=True, slots=True)
class End:
    """How a process ended: its exit code or its signal, and the orphans that were ended with it."""

    exit: int | None = None
    signal: int | None = None
    orphans: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Say it in words."""
        if self.signal is not None:
            return f"killed by signal {self.signal}"
        return f"exited with {self.exit}" if self.exit is not None else "ended, nobody knows how"


class Process:
    """A process under the supervisor. It lives at most as long as this object: closing it ends the whole tree."""

    def __init__(self, life: socket.socket, deadline: float = _START_DEADLINE) -> None:
        """Take over the life of a process that was just asked for; raises RunnerFailed if it was not started."""
        self._life = life
        self._lock = threading.Lock()
        self._end: End | None = None
        message = self._receive(deadline)
        if message is None or "pid" not in message:
            life.close()
            if message is not None and "error" in message:
                raise RunnerFailed(f"a process could not be started: {message['error']}")
            if message is None:
                raise SpawnerStuck(f"the process that starts others did not answer within {deadline:g} s")
            raise SpawnerGone("the process that starts others is gone")
        self.pid = int(str(message["pid"]))

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when the process ends."""
        return self._life.fileno()

    def wait(self, timeout: float) -> End | None:
        """Wait up to `timeout` seconds for the end; None when the process still runs."""
        with self._lock:
            if self._end is None:
                message = self._receive(timeout)
                if message is not None:
                    self._end = _end(message)
            return self._end

    @property
    def alive(self) -> bool:
        """Whether the process has not been seen to end."""
        return self.wait(0) is None

    def send_signal(self, number: int) -> None:
        """Send a signal; nothing happens when the process has ended."""
        if self.alive:
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                return

    def close(self) -> End:
        """End the process and all its descendants; return how it ended."""
        with self._lock:
            if self._end is None:
                try:
                    self._life.shutdown(socket.SHUT_WR)
                    message = self._receive(_END_DEADLINE)
                except OSError:
                    message = None
                if message is None:
                    raise DeadlineExceeded(f"process {self.pid} did not end within {_END_DEADLINE} s")
                self._end = _end(message)
            self._life.close()
            return self._end

    def __enter__(self) -> Process:
        """Return the process itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """End the process."""
        self.close()

    def _receive(self, timeout: float) -> dict[str, object] | None:
        until = time.monotonic() + timeout
        poller = select.poll()
        poller.register(self._life, select.POLLIN)
        if not poller.poll(max(0.0, until - time.monotonic()) * 1000):
            return None
        data = self._life.recv(spawner.REQUEST_LIMIT)
        if not data:
            return {"signal": None, "exit": None}
        message = json.loads(data)
        return message if isinstance(message, dict) else None


def inherited() -> dict[str, str]:
    """Return our environment without what no process of ours, and nothing third-party in it, needs to know."""
    return {name: value for name, value in os.environ.items() if name != SECRET}


def _current_directory() -> str:
    try:
        return os.getcwd()
    except OSError:
        # It was deleted, and nothing can be imported from there.
        return ""


def _end(message: Mapping[str, object]) -> End:
    code, number, orphans = message.get("exit"), message.get("signal"), message.get("orphans")
    return End(
        exit=code if isinstance(code, int) else None,
        signal=number if isinstance(number, int) else None,
        orphans=tuple(str(orphan) for orphan in orphans) if isinstance(orphans, list) else (),
    )


def request(
    control: socket.socket, message: Mapping[str, object], fds: Sequence[int], deadline: float = _START_DEADLINE
) -> Process:
    """Ask the spawner behind `control` for a process; `fds` are handed over with the request.

    Raises SpawnerGone or SpawnerStuck when there is no answer, and RunnerFailed when the process could not be started.
    """
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        try:
            socket.send_fds(control, [json.dumps(message).encode()], [theirs.fileno(), *fds])
        except OSError as error:
            mine.close()
            raise SpawnerGone(f"the process that starts others is gone ({error.strerror})") from error
    return Process(mine, deadline)


@dataclass
class Supervisor:
    """The supervisor process of this process."""

    control: socket.socket
    process: subprocess.Popen[bytes]
    owner: int = field(default_factory=os.getpid)

    @classmethod
    def start(cls) -> Supervisor:
        """Start a supervisor in a session of its own, so that Ctrl-C does not reach it before us."""
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", spawner.__file__, str(theirs.fileno()), str(os.getpid())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=inherited(),
                start_new_session=True,
            )
        return cls(mine, process)

    def spawn(
        self,
        argv: Sequence[str],
        *,
        fds: Mapping[int, int] | None = None,
        environment: Mapping[str, str] | None = None,
        directory: str | None = None,
        remove: Sequence[str] = (),
    ) -> Process:
        """Start `argv` and return its process.

        fds: descriptors of ours by the number that they get there; 0 to 2 are /dev/null unless given. environment:
        all of it, or None for a copy of ours. remove: directories to delete when the process has ended.
        """
        places = dict(fds or {})
        message: dict[str, object] = {
            "argv": list(argv),
            "fds": list(places),
            "environment": dict(environment if environment is not None else inherited()),
            "remove": list(remove),
        }
        if directory is not None:
            message["directory"] = directory
        return request(self.control, message, list(places.values()))

    def spawn_module(
        self, module: str, *arguments: str, fds: Mapping[int, int] | None = None, first: Sequence[str] = ()
    ) -> Process:
        """Start ``python -m module`` with this process's own path, after the directories in `first`."""
        # Where kvproof itself lies comes last: a directory of that name further up must not hide it.
        paths = [*first, *(os.path.abspath(path) for path in sys.path if path), _current_directory(), _HOME]
        environment = {**inherited(), "PYTHONPATH": os.pathsep.join(dict.fromkeys(filter(None, paths)))}
        return self.spawn([sys.executable, "-m", module, *arguments], fds=fds, environment=environment)

    def close(self) -> None:
        """End the supervisor and everything below it."""
        self.control.close()
        if self.owner == os.getpid():
            try:
                self.process.wait(_END_DEADLINE)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(_END_DEADLINE)


_current: Supervisor | None = None
_starting = threading.Lock()


def supervisor() -> Supervisor:
    """Return this process's supervisor; it is started at the first call, also after a fork."""
    global _current
    with _starting:
        if _current is None or _current.owner != os.getpid():
            _current = Supervisor.start()
        return _current


def shut_down() -> None:
    """End this process's supervisor with everything below it; the next call of `supervisor` starts a new one."""
    global _current
    with _starting:
        if _current is not None and _current.owner == os.getpid():
            _current.close()
        _current = None


atexit.register(shut_down)
