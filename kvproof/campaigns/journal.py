"""The journal of a campaign: a line of JSON a record, on disk before anything goes on, readable whatever happened.

A line that was cut off by the end of a process is taken away when the journal is opened again; one that is no record
is said and left out, and everything before and after it is kept.
"""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Any

from kvproof.campaigns.records import wrong_record
from kvproof.errors import KvproofError, UsageError

NAME = "journal.jsonl"
SCHEMA = "kvproof.campaign/2"


class JournalFailed(KvproofError):
    """A record could not be written, so that nothing may go on; what was written before is safe."""


class Journal:
    """The open journal of a campaign's directory; one process at a time has it.

    records: those that were there when it was opened. complaints: lines that are no records, in words.
    """

    def __init__(self, directory: Path, *, fresh: bool) -> None:
        """Open it; fresh: there must be none yet, else there must be one.

        Raises UsageError that says what to do.
        """
        self.path = directory / NAME
        try:
            there = self.path.exists()
        except OSError as error:
            raise UsageError(f"--dir {str(directory)[:80]}: {error.strerror}; name another directory") from error
        if fresh and there:
            raise UsageError(f"{directory} already holds a campaign; go on with it by --resume, or name another one")
        if not fresh and not there:
            raise UsageError(f"{directory} holds no campaign ({NAME} is not there); leave --resume out to begin one")
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise UsageError(f"cannot open {self.path}: {error.strerror}; name another directory") from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._fd)
            raise UsageError(f"{directory}: its campaign is running already, in another process") from None
        if fresh:
            # So that the file's name is on disk, too.
            _sync(directory)
        self.records, self.complaints = self._read()

    def append(self, record: dict[str, Any]) -> None:
        """Write a record; it is on disk when this returns. Raises JournalFailed."""
        data = json.dumps(record).encode() + b"\n"
        begin = os.fstat(self._fd).st_size
        try:
            written = os.write(self._fd, data)
            if written < len(data):
                os.ftruncate(self._fd, begin)
                raise OSError(0, f"only {written} of {len(data)} bytes could be written")
            os.fsync(self._fd)
        except OSError as error:
            raise JournalFailed(f"{self.path}: {error.strerror}; what was found before is kept: make room, and go on "
                                "with --resume") from error

    def close(self) -> None:
        """Let go of it."""
        os.close(self._fd)

    def _read(self) -> tuple[list[dict[str, Any]], list[str]]:
        data = self.path.read_bytes()
        if data and not data.endswith(b"\n"):
            whole = data.rfind(b"\n") + 1
            os.ftruncate(self._fd, whole)
            data = data[:whole]
        return parsed(data, self.path)


def parsed(data: bytes, path: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the records of a journal's bytes, and what is said of lines that are none."""
    records, complaints = [], []
    for number, line in enumerate(data.splitlines(), 1):
        try:
            record = json.loads(line)
            why = wrong_record(record)
        except (ValueError, RecursionError):
            why = "it is no JSON"
        if why:
            complaints.append(f"{path}, line {number}: no record of a campaign ({why}: {line[:40]!r}); it is left out, "
                              "and the rest is kept")
        else:
            records.append(record)
    return records, complaints


def _sync(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
