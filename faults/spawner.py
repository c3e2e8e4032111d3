"""The loop of a process that starts others on request and outlives none of them.

It runs in the supervisor (started as a plain script, so that it imports nothing of ours and starts in milliseconds)
and, as a subclass, in every fork server. Both are subreapers: a process that is orphaned below them becomes their
child, and a child that they did not start is ended at once.

Each request is one datagram, JSON with file descriptors. The first descriptor is the *life* of the new process: its
pid and its end are reported there, and when the other side closes it, the process and all its descendants are ended.
"""

from __future__ import annotations

import ctypes
import json
import os
import selectors
import shutil
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass, field

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
REQUEST_LIMIT = 1 << 17
"""Bytes in one request at most."""
_FDS_LIMIT = 32
_SAFETY_NET = 0.5
_LONGEST = 4000
_CHILDREN_LISTED = os.path.exists(f"/proc/self/task/{os.getpid()}/children")


def prctl(option: int, value: int) -> None:
    """Set an attribute of this process; raises OSError. It is the kernel's prctl."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def children_of(pid: int) -> list[int]:
    """Return the pids of the processes whose parent is `pid`; none when it is gone.

    For the calling process it is exact. A kernel without /proc/PID/task/TID/children (CONFIG_PROC_CHILDREN) is asked
    for the parent of every process there is.
    """
    if not _CHILDREN_LISTED:
        return [child for child, parent in _parents() if parent == pid]
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb", buffering=0) as file:
                found += map(int, file.readall().split())
    except OSError:
        pass  # It ended meanwhile, or one of its threads did.
    return found


def _parents() -> list[tuple[int, int]]:
    """Return every process of this machine with its parent."""
    found: list[tuple[int, int]] = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb", buffering=0) as file:
                    found.append((int(name), int(file.read(512).rpartition(b")")[2].split(None, 2)[1])))
            except (OSError, IndexError):
                continue
    return found


def descendants(pid: int) -> list[int]:
    """Return the pids of all processes below `pid`, parents first."""
    below = children_of(pid)
    for child in below:
        below += children_of(child)
    return below


def command_of(pid: int) -> str:
    """Return the command line of a process in short, for a person; within its exec, when it has none, its name."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read().replace(b"\0", b" ").strip()
        with open(f"/proc/{pid}/comm", "rb") as file:
            name = file.read().strip()
    except OSError:
        return f"process {pid}"
    text = words or name
    return f"process {pid} ({text[:80].decode(errors='replace')})"


def kill(pid: int) -> None:
    """Send SIGKILL; a process that is gone already is no error."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


@dataclass
class Child:
    """A process that this spawner started."""

    pid: int
    life: socket.socket
    remove: list[str] = field(default_factory=list)


class Spawner:
    """Starts processes on request, reports their ends, and ends whatever is left behind."""

    def __init__(self, control: socket.socket, parent: int) -> None:
        """Serve requests from `control` until its other side closes, or `parent` ends.

        Both are watched: a process that `parent` forked may hold the other side open beyond its end.
        """
        self.control = control
        self.parent = parent
        self.parent_fd = -1
        self.children: dict[int, Child] = {}
        self.selector = selectors.DefaultSelector()
        self.wake_read, self.wake_write = socket.socketpair()

    def start(self, request: dict[str, object], fds: list[int]) -> int:
        """Start what is asked for and return its pid; `fds` are the request's descriptors after the life."""
        argv = [str(word) for word in _list(request["argv"])]
        places = [int(str(place)) for place in _list(request["fds"])]
        environment = request.get("environment")

        def execute() -> None:
            arrange(dict(zip(places, fds, strict=True)))
            reset_signals()
            if "directory" in request:
                os.chdir(str(request["directory"]))
            names = environment if isinstance(environment, dict) else dict(os.environ)
            os.execvpe(argv[0], argv, {str(name): str(value) for name, value in names.items()})

        return self.fork(execute, f"cannot start {argv[0]}", 127)

    def fork(self, child: Callable[[], None], failing: str, code: int) -> int:
        """Fork a process that leads a session, ends with this one and does `child`; return its pid.

        When `child` raises or returns, the process says so on its standard error and exits with `code`.
        """
        mine = os.getpid()
        pid = os.fork()
        if pid:
            return pid
        try:
            os.setsid()
            die_with(mine)
            child()
        except BaseException as error:
            os.write(2, f"{failing}: {type(error).__name__}: {error}\n".encode(errors="replace"))
        finally:
            os._exit(code)

    def run(self) -> None:
        """Serve until the control socket closes; then end every child and return."""
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        self.wake_write.setblocking(False)
        self.wake_read.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self.wake_write.fileno(), warn_on_full_buffer=False)
        self.selector.register(self.control, selectors.EVENT_READ)
        self.selector.register(self.wake_read, selectors.EVENT_READ)
        try:
            self.parent_fd = os.pidfd_open(self.parent)
            self.selector.register(self.parent_fd, selectors.EVENT_READ)
            while os.getppid() == self.parent and self._serve():
                pass
        finally:
            for child in list(self.children.values()):
                self._end(child)
            self._end_strangers()

    def _serve(self) -> bool:
        for key, _ in self.selector.select(_SAFETY_NET):
            if key.fileobj == self.parent_fd:
                return False
            if key.fileobj is self.control:
                if not self._accept():
                    return False
            elif key.fileobj is self.wake_read:
                _drain(self.wake_read)
            elif isinstance(key.data, Child) and key.data.pid in self.children and not _open(key.data.life):
                self._end(key.data)
        self._reap()
        return True

    def _accept(self) -> bool:
        data, fds, _, _ = socket.recv_fds(self.control, REQUEST_LIMIT, _FDS_LIMIT)
        if not data:
            return False
        request = json.loads(data)
        life = socket.socket(fileno=fds[0])
        try:
            pid = self.start(request, fds[1:])
        except Exception as error:
            _report(life, {"error": f"{type(error).__name__}: {error}"})
            life.close()
            return True
        finally:
            for fd in fds[1:]:
                os.close(fd)
        child = Child(pid, life, [str(path) for path in _list(request.get("remove", []))])
        self.children[pid] = child
        _report(life, {"pid": pid})
        life.setblocking(False)
        self.selector.register(life, selectors.EVENT_READ, child)
        return True

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                pid, status = 0, 0
                for lost in [pid for pid in self.children if not os.path.exists(f"/proc/{pid}")]:
                    self._ended(self.children[lost], {"exit": None})
            if pid == 0:
                return
            child = self.children.get(pid)
            if child is not None and not os.WIFSTOPPED(status):
                code = os.waitstatus_to_exitcode(status)
                self._ended(child, {"exit": code} if code >= 0 else {"signal": -code})

    def _ended(self, child: Child, end: dict[str, object]) -> None:
        del self.children[child.pid]
        self.selector.unregister(child.life)
        end["orphans"] = self._end_strangers()
        for path in child.remove:
            shutil.rmtree(path, ignore_errors=True)
        _report(child.life, end)
        child.life.close()

    def _end(self, child: Child) -> None:
        for pid in [child.pid, *descendants(child.pid)]:
            kill(pid)
        while child.pid in self.children:
            try:
                _, status = os.waitpid(child.pid, 0)
                if os.WIFSTOPPED(status):
                    # Something traces it; the signal is on its way.
                    continue
                code = os.waitstatus_to_exitcode(status)
            except ChildProcessError:
                code = -signal.SIGKILL
            self._ended(child, {"exit": code} if code >= 0 else {"signal": -code})

    def _end_strangers(self) -> list[str]:
        """End the children that nobody asked for, which are the orphans of dead ones; return what they were."""
        ended: list[str] = []
        while True:
            strangers = [pid for pid in children_of(os.getpid()) if pid not in self.children]
            strangers = [pid for pid in strangers if not self._collect(pid)]
            if not strangers:
                return ended
            for pid in strangers:
                ended.append(command_of(pid))
                for below in [pid, *descendants(pid)]:
                    kill(below)
                try:
                    os.waitpid(pid, 0)
                except ChildProcessError:
                    continue

    @staticmethod
    def _collect(pid: int) -> bool:
        """Reap a stranger that is dead already."""
        try:
            return os.waitpid(pid, os.WNOHANG)[0] == pid
        except ChildProcessError:
            return True


def die_with(parent: int) -> None:
    """Let the kernel end this process when `parent`, which forked it from its main thread, ends (or has ended)."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def arrange(places: dict[int, int]) -> None:
    """Put descriptors where they are wanted and close all others; 0, 1 and 2 are /dev/null unless given."""
    high = 1 + max([2, *places, *places.values()])
    moved = {place: os.dup2(fd, high + index, inheritable=True) for index, (place, fd) in enumerate(places.items())}
    null = os.open(os.devnull, os.O_RDWR)
    for place in (0, 1, 2):
        if place not in moved:
            os.dup2(null, place, inheritable=True)
    for place, fd in moved.items():
        os.dup2(fd, place, inheritable=True)
    kept = sorted({0, 1, 2, *places})
    for low, after in zip(kept, [*kept[1:], 1 << 20], strict=True):
        os.closerange(low + 1, after)


def reset_signals() -> None:
    """Undo what the spawner set, so that a new process begins with the defaults."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def _list(value: object) -> list[object]:
    return list(value) if isinstance(value, (list, tuple)) else []


def _report(life: socket.socket, message: dict[str, object]) -> None:
    cut = {key: _cut(value) for key, value in message.items()}
    try:
        life.send(json.dumps(cut).encode())
    except OSError:
        pass


def _cut(value: object) -> object:
    """Return a value that fits into a datagram."""
    if isinstance(value, str):
        return value[:_LONGEST]
    return [str(part)[:200] for part in value[:20]] if isinstance(value, list) else value


def _open(life: socket.socket) -> bool:
    try:
        return life.recv(64) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


def _drain(wake: socket.socket) -> None:
    try:
        while wake.recv(4096):
            pass
    except BlockingIOError:
        pass


if __name__ == "__main__":
    os.closerange(3, int(sys.argv[1]))
    Spawner(socket.socket(fileno=int(sys.argv[1])), parent=int(sys.argv[2])).run()
