"""Waiting in tests: for a condition, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

Found = TypeVar("Found")


def until(condition: Callable[[], Found], what: str, seconds: float = 10.0) -> Found:
    """Return the first true value of `condition`; fail, saying `what` was waited for, after `seconds`."""
    end = time.monotonic() + seconds
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < end, f"waited {seconds:g} s for {what}; the last answer was {found!r}"
        time.sleep(0.01)


def alive(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def all_gone(pids: Sequence[int], seconds: float = 5.0) -> None:
    """Fail unless all these processes end within `seconds`."""
    until(lambda: not [pid for pid in pids if alive(pid)], f"the end of {[pid for pid in pids if alive(pid)]}", seconds)


def running(command: str) -> list[int]:
    """Return the pids of processes whose command line contains `command`."""
    found = []
    for directory in Path("/proc").iterdir():
        if directory.name.isdigit():
            try:
                words = (directory / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if command in words and alive(int(directory.name)):
                found.append(int(directory.name))
    return found
