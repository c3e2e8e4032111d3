"""The recorder: one line of JSON for each thing that a rank does, in the kernel before the call returns.

A connector that is to be validated makes one `Recorder` a process and calls it where the protocol moves; `kvproof
validate` reads the file. The format is described in docs/validating-a-log.md. Nothing but Python's own library is
needed, so a connector may copy this file.
"""

from __future__ import annotations

import itertools
import json
import os
import threading
from json.encoder import encode_basestring_ascii
from pathlib import Path
from types import TracebackType
from typing import Any

_MOST = 2**53
"""The largest number of a rank or a step."""
_forks = 0
"""How often this process was forked from another one since this module was imported."""


def _forked() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_forked)


class Recorder:
    """Appends events to a log; may be called from any thread, and by several processes on one file.

    Each event is one `write` to a file opened for appending, so that a process that is killed loses none of those it
    has recorded, and no two are mixed. Events are numbered in the order in which they are written (but for what a
    signal handler records in the middle of a call). A process that is forked makes a recorder of its own, or two would
    write the same numbers.
    """

    def __init__(self, path: str | Path, rank: int = 0, *, first: int = 0) -> None:
        """Append to the file at `path` what `rank` does; the file is made when it is not there.

        first: the number of its first event, where another process has recorded those before, and has ended. Raises
        OSError, and ValueError for a rank or a number that is no natural number.
        """
        self.rank = _natural("rank", rank)
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._shapes: dict[tuple[str, tuple[str, ...]], bytes] = {}
        self._forks = _forks
        # Not a plain lock: a signal handler may record what it does while this very thread is recording.
        self._lock = threading.RLock()
        self._next = itertools.count(_natural("first", first))
        self._rest = b""

    def __call__(self, event: str, /, step: int = 0, **values: Any) -> None:
        """Record that `event` has happened in this step; values: numbers, truth values, strings, or lists of them.

        What is about to be entered is recorded before, what was left, taken or learnt after. Raises TypeError or
        ValueError, and records nothing, for what is no JSON (NaN is none), once the recorder is closed, and in a
        process that was forked from the recorder's (RuntimeError). Raises OSError when the file did not take the line:
        the event keeps its number, so that the log shows that it is missing; do not record it again.
        """
        keys = (event, tuple(values))
        shape = self._shapes.get(keys)
        if shape is None:
            shape = self._shapes[keys] = self._shape(event, values)
        if type(step) is not int or not 0 <= step <= _MOST:
            step = _natural("step", step)
        written = [str(value).encode() if type(value) is int else _encoded(value) for value in values.values()]
        if self._forks != _forks:
            raise RuntimeError("this recorder is of the process that this one was forked from; make a Recorder here")
        with self._lock:
            if self._fd < 0:
                raise ValueError(f"the recorder is closed; {event} was not recorded")
            line = shape % (next(self._next), step, *written)
            if self._rest:
                self._finish()
            count = os.write(self._fd, line)
            if count != len(line):
                self._rest = line[count:]
                self._finish()

    def _finish(self) -> None:
        """Write the rest of a line of which the file took a part, or the next line would be appended to it."""
        while self._rest:
            self._rest = self._rest[os.write(self._fd, self._rest) :]

    def _shape(self, event: str, values: dict[str, Any]) -> bytes:
        if not isinstance(event, str):
            raise ValueError(f"the event is {event!r}; expected its name")
        name = json.dumps(event).replace("%", "%%")
        fields = ",".join(f"{json.dumps(key).replace('%', '%%')}:%b" for key in values)
        return f'{{"rank":{self.rank},"seq":%d,"step":%d,"event":{name},"values":{{{fields}}}}}\n'.encode()

    def close(self) -> None:
        """Close the file; nothing happens when it is closed already."""
        if self._forks != _forks:
            # The lock may be held for ever by a thread that was not forked with this one.
            self._lock = threading.RLock()
        with self._lock:
            descriptor, self._fd = self._fd, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __enter__(self) -> Recorder:
        """Return the recorder itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Close the file."""
        self.close()


def _natural(name: str, value: Any) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__") or not 0 <= value.__index__() <= _MOST:
        raise ValueError(f"{name} is {value!r}; expected a natural number, at most 2**53")
    return int(value)


def _encoded(value: Any) -> bytes:
    if type(value) is str:
        return encode_basestring_ascii(value).encode()
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    if "{" in text:
        json.loads(text, object_pairs_hook=_once)
    return text.encode()


def _once(pairs: list[tuple[str, Any]]) -> None:
    """Raise ValueError for an object with a name twice, as one that has both 1 and "1" is written."""
    if len(dict(pairs)) < len(pairs):
        raise ValueError(f"an object would have a name twice: {', '.join(name for name, _ in pairs)}")
