"""The log files of a start: those that its processes have open for writing, or that were named; what is new there."""

from __future__ import annotations

import glob
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from kvproof.canary.tree import KEPT, Process

_WRITES = os.O_WRONLY | os.O_RDWR
_COARSE = 0.1
"""Seconds by which the clock of a file system may be behind."""
_NO_LOGS = ("/dev/", "/proc/", "/sys/")


class Logs:
    """Where each log has to be read from: what was there before is no doing of the command."""

    def __init__(self, globs: Sequence[str]) -> None:
        """Begin with the files that are named by these and are there already; the command is to be started after it."""
        self._globs = globs
        self._started = time.time() - _COARSE
        self._begins = {path: _size(path) for path in self._matching()}
        self._noted: set[tuple[str, int]] = set()

    def note(self, process: Process) -> None:
        """Take note of the files that a process has open for writing."""
        for path in _written(process.pid):
            if (path, process.pid) not in self._noted and os.path.isfile(path):
                self._noted.add((path, process.pid))
                self._begins[path] = min(self._begins.get(path, 1 << 62), self._begin(process, path))

    def read(self) -> dict[str, str]:
        """Return the text that was added to each, by its path; nothing of what is no text."""
        for path in self._matching():
            self._begins.setdefault(path, 0)
        found = {}
        for path, begin in self._begins.items():
            try:
                with open(path, "rb") as file:
                    file.seek(begin)
                    data = file.read(KEPT)
            except OSError:
                continue
            if data and b"\0" not in data[:4096]:
                found[path] = data.decode(errors="replace")
        return found

    def _begin(self, process: Process, path: str) -> int:
        """Return where in a log begins what the command has added.

        A file that was not changed since the start has nothing of it. Of another one all was there before but what
        this process can have written: all that it wrote, less what it printed.
        """
        try:
            if os.stat(path).st_mtime < self._started:
                return _size(path)
            told = Path(f"/proc/{process.pid}/io").read_text()
        except OSError:
            return _size(path)
        wrote = int(next(line.split()[1] for line in told.splitlines() if line.startswith("wchar")))
        return max(0, _size(path) - max(0, wrote - process.size - process.dropped))

    def _matching(self) -> list[str]:
        found = {path for each in self._globs for path in glob.glob(each, recursive=True)}
        return sorted(path for path in found if os.path.isfile(path))


def _written(pid: int) -> Iterator[str]:
    """Return the files that a process has open for writing."""
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
        if flags & _WRITES and path.startswith("/") and not path.startswith(_NO_LOGS):
            yield path


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
