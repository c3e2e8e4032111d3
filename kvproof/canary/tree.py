"""A command and everything that it begins: what each process printed, where it logged, how it ended.

Outputs are kept apart although all processes have them from their first one: they are sockets, and the kernel says of
each piece which process has written it.
"""

from __future__ import annotations

import glob
import math
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
from dataclasses import dataclass, field
from pathlib import Path

from kvproof.canary import ptrace
from kvproof.errors import UsageError
from kvproof.faults.spawner import PR_SET_CHILD_SUBREAPER, prctl
from kvproof.runner.evidence import kernel_view

KEPT = 4 << 20
"""Bytes of each process's output, and of each log, that are kept: the first quarter, and the newest of the rest."""
_LOOK = 0.2
_GRACE = 5.0
"""Seconds that processes have to end once they were told to."""
_CREDENTIALS = struct.Struct("3i")
_WRITES = os.O_WRONLY | os.O_RDWR


@dataclass
class Piece:
    """Some output: when it came (seconds since the start), "stdout" or "stderr", and the bytes."""

    at: float
    stream: str
    data: bytes


@dataclass
class Process:
    """One process of the tree.

    began, ended: seconds since the start; ended is None while it lives. status: as of waitpid. stopped: the canary has
    ended it. logs: files that it had open for writing, and how long each was when the canary saw it first.
    """

    pid: int
    parent: int
    command: str
    began: float
    ended: float | None = None
    status: int | None = None
    stopped: bool = False
    output: list[Piece] = field(default_factory=list)
    size: int = 0
    dropped: int = 0

    def take(self, piece: Piece) -> None:
        """Keep some output; of more than `KEPT` bytes the middle is dropped."""
        self.output.append(piece)
        self.size += len(piece.data)
        while self.size > KEPT and len(self.output) > 8:
            gone = self.output.pop(len(self.output) // 4)
            self.size -= len(gone.data)
            self.dropped += len(gone.data)

    @property
    def how(self) -> str:
        """How it ended, in words."""
        if self.status is None:
            return "still runs" if self.ended is None else "has ended"
        if os.WIFSIGNALED(self.status):
            return f"killed by signal {os.WTERMSIG(self.status)} ({_signal(os.WTERMSIG(self.status))})"
        return f"exit code {os.WEXITSTATUS(self.status)}"

    @property
    def killed(self) -> bool:
        """Whether a signal ended it that the canary did not send."""
        return self.status is not None and os.WIFSIGNALED(self.status) and not self.stopped

    def text(self, until: float = math.inf) -> str:
        """Return what it printed until then, both streams in the order in which it came."""
        return b"".join(piece.data for piece in self.output if piece.at <= until).decode(errors="replace")


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "no name"


@dataclass
class Tree:
    """What became of a command.

    how: "ready" (it serves), "ended", or "hang" (neither, in time). ready: seconds until it served. logs: the text that
    was added to each log file, by path. seconds: until everything had ended. over: when the canary began to end it;
    what is said later says nothing of the start. stacks: of a hang, what each process was doing.
    """

    command: Sequence[str]
    processes: dict[int, Process] = field(default_factory=dict)
    how: str = "ended"
    ready: float | None = None
    seconds: float = 0.0
    over: float = math.inf
    logs: dict[str, str] = field(default_factory=dict)
    stacks: dict[int, list[str]] = field(default_factory=dict)
    first: int = 0

    @property
    def root(self) -> Process:
        """The process of the command itself."""
        return self.processes[self.first]


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
    where it cannot be started, NotFollowed where the system does not let it be followed.
    """
    return _Watch(command, within, ready, logs, environment or {}, progress).run()


class _Watch:
    def __init__(self, command: Sequence[str], within: float, ready: Ready, logs: Sequence[str],
                 environment: Mapping[str, str], progress: Callable[[float, int], None]) -> None:
        self._within, self._ready, self._globs, self._progress = within, ready, logs, progress
        self._environment = {**os.environ, "PYTHONFAULTHANDLER": "1", "PYTHONUNBUFFERED": "1", **environment}
        self.tree = Tree(command)
        self._threads: dict[int, int] = {}
        self._logs: dict[str, int] = {}
        self._noted: set[tuple[str, int]] = set()
        self._tail = b""
        self._stopping = False
        self._gone: dict[int, int] = {}
        self._streams: dict[socket.socket, str] = {}

    def run(self) -> Tree:
        if self._answers():
            raise UsageError(f"port {self._ready.port} is taken already, so that nothing would be seen; end what has "
                             "it, or name another")
        self._begun = time.monotonic()
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        for path in self._matching():
            self._logs[path] = _size(path)
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
        self._read_logs()
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
                raise UsageError(f"{self.tree.command[0]} cannot be started: {failed.decode()}; expected a program")
            if self._now() - looked > _LOOK:
                looked = self._now()
                self._progress(looked, sum(each.ended is None for each in self.tree.processes.values()))
                self._look_for_logs()
            if self._serves():
                self.tree.how, self.tree.ready = "ready", round(self._now(), 3)
                break
            if all(each.ended is not None for each in self.tree.processes.values()):
                break
            if self._now() > self._within:
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
            elif event.what == "runs" and of in processes:
                processes[of].command = _command(of) or processes[of].command
            elif event.what == "ends":
                if of == event.pid and of in processes:
                    # What it has printed is not what it has logged.
                    for stream in self._streams:
                        self._read(stream)
                    self._note_logs(of)
                    processes[of].status = event.status
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
            if self._ready.text:
                self._tail = (self._tail + data)[-65536:]

    def _serves(self) -> bool:
        if self._ready.text and re.search(self._ready.text, self._tail.decode(errors="replace")):
            return True
        return self._answers()

    def _answers(self) -> bool:
        if not self._ready.port:
            return False
        with socket.socket() as probe:
            probe.settimeout(0.5)
            return probe.connect_ex(("127.0.0.1", self._ready.port)) == 0

    # Logs

    def _look_for_logs(self) -> None:
        for pid, process in self.tree.processes.items():
            if process.ended is None:
                self._note_logs(pid)

    def _note_logs(self, pid: int) -> None:
        """Take note of the files that a process has open for writing."""
        try:
            numbers = os.listdir(f"/proc/{pid}/fd")
        except OSError:
            return
        for number in numbers:
            try:
                path = os.readlink(f"/proc/{pid}/fd/{number}")
                told = Path(f"/proc/{pid}/fdinfo/{number}").read_text()
            except OSError:
                continue
            flags = int(next(line.split()[1] for line in told.splitlines() if line.startswith("flags")), 8)
            if flags & _WRITES and path.startswith("/") and not path.startswith(("/dev/", "/proc/", "/sys/")) and (
                    (path, pid) not in self._noted and os.path.isfile(path)):
                self._noted.add((path, pid))
                self._logs[path] = min(self._logs.get(path, 1 << 62), self._begin(pid, path))

    def _begin(self, pid: int, path: str) -> int:
        """Return where in a log begins what this command has added: what was there before is no doing of its.

        A file that is there since before the start had all of its bytes but those that this process can have written.
        """
        try:
            told = Path(f"/proc/{pid}/io").read_text()
        except OSError:
            return _size(path)
        wrote = int(next(line.split()[1] for line in told.splitlines() if line.startswith("wchar")))
        return max(0, _size(path) - max(0, wrote - self.tree.processes[pid].size))

    def _matching(self) -> list[str]:
        found = {path for each in self._globs for path in glob.glob(each, recursive=True)}
        return sorted(path for path in found if os.path.isfile(path))

    def _read_logs(self) -> None:
        for path in self._matching():
            self._logs.setdefault(path, 0)
        for path, begin in self._logs.items():
            try:
                with open(path, "rb") as file:
                    file.seek(begin)
                    data = file.read(KEPT)
            except OSError:
                continue
            if data and b"\0" not in data[:4096]:
                self.tree.logs[path] = data.decode(errors="replace")

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
                self._note_logs(pid)
                _kill(pid, number)
            until = time.monotonic() + _GRACE
            while self._alive() and time.monotonic() < until:
                self._turn()
        # What was written before the end may still be on its way; and those whose parent has ended are ours to bury.
        until = time.monotonic() + _GRACE
        self._turn()
        while ptrace.left() and time.monotonic() < until:
            self._turn()


def _kill(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass  # It has ended meanwhile.


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


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
