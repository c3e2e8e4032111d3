"""The log files of a start, and what is new in them: those with names as logs have, and those that are left open."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from kvproof.canary.opens import Opening
from kvproof.canary.tree import KEPT, Process

_WRITES = os.O_WRONLY | os.O_RDWR
_NO_LOGS = ("/dev/", "/proc/", "/sys/")
_NAMED = re.compile(r"log|\.(?:out|err|txt|stdout|stderr)$", re.IGNORECASE)
"""What is in the name of a log's file, or of its directory: what else is written and closed again are mostly data."""


class Logs:
    """Which files are logs, and where each has to be read from: what was there before is no doing of the command."""

    def __init__(self, globs: Sequence[str]) -> None:
        """Begin with the files that are named by these and are there already; the command is to be started after it."""
        self._globs = globs
        self._begins = {path: _size(path) for path in self._matching()}
        self._sizes: dict[str, int] = {}

    def opened(self, opening: Opening) -> None:
        """Take note of a file that is about to be opened for writing."""
        path = opening.path
        if opening.empties:
            self._sizes[path] = 0
        self._sizes.setdefault(path, _size(path))
        folder, name = os.path.split(path)
        if path in self._begins or (
                not path.startswith(_NO_LOGS) and (_NAMED.search(name) or _NAMED.search(os.path.basename(folder)))):
            self._begins[path] = self._sizes[path]

    def note(self, process: Process) -> None:
        """Take note of the files that a process has open for writing."""
        for path in _written(process.pid):
            if os.path.isfile(path):
                # Whoever opened it, and was not seen to, has written nothing yet as far as is known.
                self._begins.setdefault(path, self._sizes.get(path, _size(path)))

    def read(self) -> dict[str, str]:
        """Return the text that was added to each, by its path; nothing of what is no text."""
        for path in self._matching():
            self._begins.setdefault(path, 0)
        found = {}
        for path, begin in self._begins.items():
            if not os.path.isfile(path):
                continue
            try:
                with open(path, "rb") as file:
                    size = os.fstat(file.fileno()).st_size
                    # One that is shorter than it was is another one by now, or was emptied.
                    file.seek(begin if begin <= size else 0)
                    data = file.read(KEPT // 4)
                    if size - file.tell() > KEPT - KEPT // 4:
                        file.seek(size - (KEPT - KEPT // 4))
                        data += b"\n[...]\n"
                    data += file.read(KEPT - KEPT // 4)
            except OSError:
                continue
            if data and b"\0" not in data[:4096]:
                found[path] = data.decode(errors="replace")
        return found

    def _matching(self) -> list[str]:
        found = {os.path.realpath(path) for each in self._globs for path in glob.glob(each, recursive=True)}
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
