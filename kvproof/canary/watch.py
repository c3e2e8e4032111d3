"""Running a command and everything that it begins until it serves, ends, or has had its time; then all of it is ended.

Outputs are kept apart although all processes have them from their first one: they are sockets, and the kernel says of
each piece which process has written it.
"""

from __future__ import annotations

import os
import re
import selectors
import shlex
import signal
import socket
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kvproof.canary import opens, ptrace
from kvproof.canary.logs import Logs
from kvproof.canary.tree import Piece, Process, Tree
from kvproof.errors import UsageError
from kvproof.faults.spawner import PR_SET_CHILD_SUBREAPER, prctl
from kvproof.runner.evidence import kernel_view

_LOOK = 0.2
_SETTLES = 0.3
"""Seconds for which a command has to go on after it was seen to serve."""
_TAIL = 8192
"""Bytes of the output within which the text lies by which it is seen to serve."""
_GRACE = 5.0
"""Seconds that processes have to end once they were told to."""
_CREDENTIALS = struct.Struct("3i")
_LOOPBACK = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))


class CannotStart(UsageError):
    """There is no such program, or it is none."""


@dataclass(frozen=True)
class Ready:
    """How it is seen that a command serves: a text in its output, or a port on this machine that takes connections."""

    text: str = ""
    port: int = 0

    @property
    def asked(self) -> bool:
        """Whether it is to serve at all; else it has to end with exit code 0."""
        return bool(self.text or self.port)


def run(command: Sequence[str], *, within: float, ready: Ready = Ready(), logs: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        progress: Callable[[float, int], None] = lambda seconds, processes: None) -> Tree:
    """Run a command until it serves, ends, or `within` seconds have passed; then everything of it is ended.

    logs: globs of files that it may log to, beside those that its processes are seen to have open. Raises UsageError
    (CannotStart) where it cannot be started, NotFollowed where the system does not let it be followed.
    """
    return _Watch(command, within, ready, logs, environment or {}, progress).run()


class _Watch:
    def __init__(self, command: Sequence[str], within: float, ready: Ready, logs: Sequence[str],
                 environment: Mapping[str, str], progress: Callable[[float, int], None]) -> None:
        self._within, self._ready, self._globs, self._progress = within, ready, logs, progress
        self._environment = {**os.environ, "PYTHONFAULTHANDLER": "1", "PYTHONUNBUFFERED": "1", **environment}
        self.tree = Tree(command)
        self._threads: dict[int, int] = {}
        self._tail = b""
        self._said = False
        self._served: float | None = None
        self._probed = -_LOOK
        self._stopping = False
        self._gone: dict[int, int] = {}
        self._streams: dict[socket.socket, str] = {}

    def run(self) -> Tree:
        if self._answers():
            raise UsageError(f"port {self._ready.port} is taken already, so that nothing would be seen; end what has "
                             "it, or name another")
        self._begun = time.monotonic()
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        self._logs = Logs(self._globs)
        woken, wake = socket.socketpair()
        for each in (woken, wake):
            each.setblocking(False)
        before = signal.signal(signal.SIGCHLD, lambda number, frame: None)
        fd = signal.set_wakeup_fd(wake.fileno())
        try:
            with selectors.DefaultSelector() as self._selector:
                self._selector.register(woken, selectors.EVENT_READ)
                self._start()
                try:
                    self._follow(woken)
                finally:
                    self._end()
                    for stream in self._streams:
                        stream.close()
        finally:
            signal.set_wakeup_fd(fd)
            signal.signal(signal.SIGCHLD, before)
            woken.close()
            wake.close()
        self.tree.seconds = round(self._now(), 3)
        self.tree.logs = self._logs.read()
        return self.tree

    def _now(self) -> float:
        return time.monotonic() - self._begun

    def _start(self) -> None:
        pairs = {stream: socket.socketpair() for stream in ("stdout", "stderr")}
        for ours, _ in pairs.values():
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            ours.setblocking(False)
        self._streams = {ours: stream for stream, (ours, _) in pairs.items()}
        told, tells = os.pipe()
        command = list(self.tree.command)
        pid = os.fork()
        if not pid:
            try:
                os.close(told)
                os.setsid()
                null = os.open(os.devnull, os.O_RDONLY)
                os.dup2(null, 0)
                os.dup2(pairs["stdout"][1].fileno(), 1)
                os.dup2(pairs["stderr"][1].fileno(), 2)
                for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
                    signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), signal.SIGSTOP)
                opens.stop_at()
                os.execvpe(command[0], command, self._environment)
            except BaseException as error:
                os.write(tells, str(getattr(error, "strerror", None) or error).encode())
            finally:
                os._exit(127)
        os.close(tells)
        for _, theirs in pairs.values():
            theirs.close()
        try:
            ptrace.follow(pid)
            self.tree.first = pid
            self.tree.processes[pid] = Process(pid, os.getpid(), shlex.join(command), 0.0)
            self._threads[pid] = pid
            self._told = told
        except BaseException:
            os.close(told)
            raise
        for ours in self._streams:
            self._selector.register(ours, selectors.EVENT_READ)

    def _follow(self, woken: socket.socket) -> None:
        looked, failed = 0.0, b""
        os.set_blocking(self._told, False)
        while True:
            for key, _ in self._selector.select(_LOOK):
                if key.fileobj is woken:
                    _drain(woken)
                else:
                    self._read(key.fileobj)  # type: ignore[arg-type]  # what is registered are sockets
            self._happened()
            try:
                failed += os.read(self._told, 1000)
            except BlockingIOError:
                pass
            if failed:
                os.close(self._told)
                raise CannotStart(f"{self.tree.command[0]} cannot be started: {failed.decode()}; expected a program")
            if self._now() - looked > _LOOK:
                looked = self._now()
                self._progress(looked, sum(each.ended is None for each in self.tree.processes.values()))
                for pid in self._alive():
                    self._logs.note(self.tree.processes[pid])
            if self._served is None and self._serves():
                self._served = round(self._now(), 3)
            if all(each.ended is not None for each in self.tree.processes.values()):
                break
            if self._served is not None:
                if self.tree.root.failed or self.tree.root.killed:
                    # It said that it serves, and failed.
                    break
                if self._now() > self._served + _SETTLES:
                    self.tree.how, self.tree.ready = "ready", self._served
                    break
            elif self._now() > self._within:
                self.tree.how = "hang"
                self._stacks()
                break
        os.close(self._told)

    # What happens

    def _happened(self) -> None:
        processes = self.tree.processes
        for event in ptrace.events():
            of = self._threads.get(event.pid, event.pid)
            if event.what == "begins":
                self._threads[event.other] = of if event.thread else event.other
                if not event.thread:
                    one = Process(event.other, of, processes[of].command if of in processes else "", self._now())
                    # The kernel may say that it has ended before it says that it has begun.
                    if event.other in self._gone:
                        one.status, one.ended = self._gone.pop(event.other), round(self._now(), 3)
                    processes[event.other] = one
            elif event.what == "opens":
                opening = opens.opening(event.pid)
                if opening is not None:
                    self._logs.opened(opening)
            elif event.what == "runs" and of in processes:
                processes[of].command = _command(of) or processes[of].command
                processes[of].program = _program(of)
            elif event.what == "ends":
                if of == event.pid and of in processes:
                    # What it has printed is not what it has logged.
                    for stream in self._streams:
                        self._read(stream)
                    self._logs.note(processes[of])
                    processes[of].status, processes[of].left = event.status, self._now()
            elif event.what == "gone" and event.pid in processes:
                one = processes[event.pid]
                one.ended, one.status = round(self._now(), 3), event.status
                one.stopped |= self._stopping
            elif event.what == "gone" and self._threads.get(event.pid, event.pid) == event.pid:
                self._gone[event.pid] = event.status

    def _read(self, stream: socket.socket) -> None:
        while True:
            try:
                data, told, _, _ = stream.recvmsg(65536, socket.CMSG_SPACE(_CREDENTIALS.size))
            except BlockingIOError:
                return
            if not data:
                with suppress(KeyError):
                    self._selector.unregister(stream)
                return
            pid = next((_CREDENTIALS.unpack(value[: _CREDENTIALS.size])[0] for level, kind, value in told
                        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS)), self.tree.first)
            of = self.tree.processes.get(pid, self.tree.root)
            of.take(Piece(round(self._now(), 3), self._streams[stream], data))
            if self._ready.text and not self._said:
                self._tail += data
                self._said = re.search(self._ready.text, self._tail.decode(errors="replace")) is not None
                self._tail = self._tail[-_TAIL:]

    def _serves(self) -> bool:
        if self._said or not self._ready.port or self._now() - self._probed < _LOOK:
            return self._said
        self._probed = self._now()
        return self._answers()

    def _answers(self) -> bool:
        return bool(self._ready.port) and any(
            _takes(family, host, self._ready.port) for family, host in _LOOPBACK)

    # The end

    def _stop(self) -> None:
        if not self._stopping and self._alive():
            self.tree.over = self._now()
        self._stopping = True

    def _alive(self) -> list[int]:
        return [pid for pid, process in self.tree.processes.items() if process.ended is None]

    def _stacks(self) -> None:
        """Let every Python process say where it is, upon which it ends, and take note of what each is doing."""
        self._stop()
        for pid in self._alive():
            self.tree.stacks[pid] = kernel_view(pid)
            _kill(pid, signal.SIGABRT)
        until = time.monotonic() + _GRACE
        while self._alive() and time.monotonic() < until:
            self._turn()

    def _turn(self) -> None:
        for key, _ in self._selector.select(_LOOK / 4):
            if key.fileobj in self._streams:
                self._read(key.fileobj)
            else:
                _drain(key.fileobj)  # type: ignore[arg-type]  # the same
        self._happened()

    def _end(self) -> None:
        """End what still runs, and take in what it says meanwhile."""
        self._stop()
        for number in (signal.SIGTERM, signal.SIGKILL):
            for pid in self._alive():
                self._logs.note(self.tree.processes[pid])
                _kill(pid, number)
            until = time.monotonic() + _GRACE
            while self._alive() and time.monotonic() < until:
                self._turn()
        # What was written before the end may still be on its way; and those whose parent has ended are ours to bury.
        until = time.monotonic() + _GRACE
        self._turn()
        while ptrace.left() and time.monotonic() < until:
            self._turn()


def _takes(family: socket.AddressFamily, host: str, port: int) -> bool:
    """Whether a port takes connections from others: one that asks from this very port may be connected to itself."""
    try:
        with socket.socket(family) as probe:
            probe.settimeout(0.5)
            return probe.connect_ex((host, port)) == 0 and probe.getsockname() != probe.getpeername()
    except OSError:
        # There is no such family here, or it has gone already.
        return False


def _kill(pid: int, number: int) -> None:
    """Send a signal, and let a process go on that was stopped: it would not hear of it."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)
        os.kill(pid, signal.SIGCONT)


def _program(pid: int) -> str:
    """Return the file that a process runs, by the name by which it was found: a venv's Python is a link to another's.

    "" where it cannot be seen.
    """
    try:
        here, runs = os.readlink(f"/proc/{pid}/cwd"), os.readlink(f"/proc/{pid}/exe")
        name = os.fsdecode(Path(f"/proc/{pid}/cmdline").read_bytes().partition(b"\0")[0])
        variables = dict(each.partition(b"=")[::2] for each in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
    except OSError:
        return ""
    places = os.fsdecode(variables.get(b"PATH", b"")).split(":") if "/" not in name else [""]
    for place in places:
        path = os.path.normpath(os.path.join(here, place, name))
        if os.path.realpath(path) == runs:
            return path
    return runs


def _drain(stream: socket.socket) -> None:
    try:
        while stream.recv(4096):
            pass
    except BlockingIOError:
        return


def _command(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1]
    except OSError:
        return ""
    return shlex.join(word.decode(errors="replace") for word in words)
