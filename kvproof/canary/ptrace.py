"""The few calls of ptrace by which a process tree is followed: who was begun by whom, and how each ended.

Whoever is followed is stopped for a moment when it begins a process, runs a program or ends, and goes on at once. All
of it ends with the process that follows. Everything here is called from one thread.
"""

from __future__ import annotations

import ctypes
import os
import signal
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kvproof.errors import KvproofError

_CONT, _GETEVENTMSG, _SEIZE, _LISTEN, _SYSCALL_INFO = 7, 0x4201, 0x4206, 0x4208, 0x420E
_FORK, _VFORK, _CLONE, _EXEC, _EXIT, _SECCOMP, _STOP = 1, 2, 3, 4, 6, 7, 128
_EXITKILL = 1 << 20
_OPTIONS = sum(1 << each for each in (_FORK, _VFORK, _CLONE, _EXEC, _EXIT, _SECCOMP)) | _EXITKILL
_AT_SECCOMP = 3
_ALL_THREADS = 0x40000000
"""__WALL of waitpid."""
_STOPS = (signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)


class NotFollowed(KvproofError):
    """The system does not let a process follow its own children."""


@dataclass(frozen=True, slots=True)
class Event:
    """What has happened: "begins" (process `other` of `pid`), "runs" another program, "opens" a file, "ends" or "gone".

    status: of "ends" and "gone", as of waitpid. "ends" comes while everything that the process has open still is,
    "opens" before a file is opened for writing, where `opens.stop_at` was asked for. thread: whether what begins is
    another thread of the same process.
    """

    what: str
    pid: int
    other: int = 0
    status: int = 0
    thread: bool = False


_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long


def _ptrace(request: int, pid: int, data: int = 0) -> bool:
    return bool(_libc.ptrace(request, pid, None, data) == 0)


def follow(pid: int) -> None:
    """Follow a child of ours that has stopped itself, and all that it begins; raises NotFollowed."""
    os.waitpid(pid, os.WUNTRACED)
    if not _ptrace(_SEIZE, pid, _OPTIONS):
        error = os.strerror(ctypes.get_errno())
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise NotFollowed(f"this system does not let a process be followed (ptrace: {error}); in a container, allow it "
                          "with --cap-add SYS_PTRACE")
    os.kill(pid, signal.SIGCONT)


def events() -> Iterator[Event]:
    """Return what has happened since this was asked last; whoever was stopped by it goes on."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG | _ALL_THREADS)
        except ChildProcessError:
            return
        if not pid:
            return
        if os.WIFEXITED(status) or os.WIFSIGNALED(status):
            yield Event("gone", pid, status=status)
            continue
        event, number = status >> 16, os.WSTOPSIG(status)
        if event in (_FORK, _VFORK, _CLONE):
            other = _message(pid)
            yield Event("begins", pid, other=other, thread=event == _CLONE and _group(other) != other)
        elif event == _EXEC:
            yield Event("runs", pid)
        elif event == _SECCOMP:
            yield Event("opens", pid)
        elif event == _EXIT:
            yield Event("ends", pid, status=_message(pid))
        elif event == _STOP and number in _STOPS:
            # It was stopped on purpose, and stays so until somebody continues it.
            _ptrace(_LISTEN, pid)
            continue
        _ptrace(_CONT, pid, number if not event else 0)


def _group(pid: int) -> int:
    """Return the process that a thread belongs to; 0 when it has gone."""
    try:
        told = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return int(next(line.split()[1] for line in told.splitlines() if line.startswith("Tgid:")))


def syscall(pid: int) -> tuple[int, tuple[int, ...]] | None:
    """Return the call that a process has stopped at, and its six arguments; None where that cannot be seen."""
    told = ctypes.create_string_buffer(128)
    _libc.ptrace(_SYSCALL_INFO, pid, len(told), ctypes.addressof(told))
    if told[0] != bytes([_AT_SECCOMP]):
        return None
    number, *arguments = struct.unpack_from("7Q", told.raw, 24)
    return number, tuple(arguments)


def left() -> bool:
    """Whether a child of ours is not buried yet."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _message(pid: int) -> int:
    found = ctypes.c_ulong()
    _libc.ptrace(_GETEVENTMSG, pid, None, ctypes.addressof(found))
    return int(found.value)
