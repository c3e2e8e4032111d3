"""Files that followed processes open for writing: seen before they are open, so that what was in them before is known.

A filter of seccomp stops a process at these calls alone; all others cost nothing. Those it begins have it, too.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from dataclasses import dataclass
from pathlib import Path

from kvproof.canary.ptrace import syscall

_ARCHES = {"x86_64": (0xC000003E, 257, 2, 85), "aarch64": (0xC00000B7, 56, -1, -1)}
"""Of a machine: its number in seccomp, and the calls openat, open and creat."""
_OPENAT2 = 437
_LOAD, _EQUAL, _ANY_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06
_TRACE, _ALLOW = 0x7FF00000, 0x7FFF0000
_NO_NEW_PRIVS, _SECCOMP, _FILTER = 38, 22, 2
_WRITES = os.O_WRONLY | os.O_RDWR
_HERE = -100
"""AT_FDCWD."""


@dataclass(frozen=True, slots=True)
class Opening:
    """A file that is about to be opened for writing, and whether it is emptied by that."""

    path: str
    empties: bool


def _filter() -> bytes:
    """Return a program for the kernel that stops at calls which open a file for writing."""
    arch, openat, open_, creat = _ARCHES[platform.machine()]
    # Jumps are relative; what is not asked for ends at `allow`, the last but one.
    program = [
        (_LOAD, 0, 0, 4), (_EQUAL, 0, 10, arch), (_LOAD, 0, 0, 0),
        (_EQUAL, 4, 0, openat), (_EQUAL, 5, 0, open_ & 0xFFFFFFFF), (_EQUAL, 7, 0, creat & 0xFFFFFFFF),
        (_EQUAL, 6, 0, _OPENAT2), (_RETURN, 0, 0, _ALLOW),
        (_LOAD, 0, 0, 16 + 8 * 2), (_ANY_BIT, 3, 2, _WRITES),
        (_LOAD, 0, 0, 16 + 8 * 1), (_ANY_BIT, 1, 0, _WRITES),
        (_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _TRACE),
    ]
    return b"".join(struct.pack("HBBI", *each) for each in program)


def stop_at() -> bool:
    """Let this process, and all that it begins, stop at opening a file for writing; it has to be followed already.

    Return False, and change nothing of that, where the system has no such filters. No program that it begins gets
    more rights than it has (no_new_privs).
    """
    if platform.machine() not in _ARCHES:
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    program = _filter()
    code = ctypes.create_string_buffer(program, len(program))
    told = struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(code))
    held = ctypes.create_string_buffer(told, len(told))
    return bool(libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                and libc.prctl(_SECCOMP, _FILTER, ctypes.c_void_p(ctypes.addressof(held)), 0, 0) == 0)


def opening(pid: int) -> Opening | None:
    """Return what a process that has stopped there is about to open; None where that cannot be seen."""
    asked = syscall(pid)
    if asked is None or platform.machine() not in _ARCHES:
        return None
    number, arguments = asked
    _, openat, _, creat = _ARCHES[platform.machine()]
    at = number in (openat, _OPENAT2)
    folder, where, flags = arguments[:3] if at else (_HERE, *arguments[:2])
    try:
        path = _text(pid, where)
        if number == _OPENAT2:
            flags = int.from_bytes(_read(pid, flags, 8), "little")
        if not path.startswith("/"):
            begin = ctypes.c_int(folder & 0xFFFFFFFF).value
            path = os.path.join(os.readlink(f"/proc/{pid}/{'cwd' if begin == _HERE else f'fd/{begin}'}"), path)
    except (OSError, OverflowError):
        return None
    return Opening(os.path.realpath(path), number == creat or bool(flags & os.O_TRUNC))


def _text(pid: int, where: int) -> str:
    """Return the text that ends with a zero byte there; a page is read at a time, since the next may not be there."""
    found = b""
    while b"\0" not in found and len(found) < 8192:
        found += _read(pid, where + len(found), 4096 - (where + len(found)) % 4096)
    return os.fsdecode(found.partition(b"\0")[0])


def _read(pid: int, where: int, size: int) -> bytes:
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        memory.seek(where)
        return memory.read(size)
