"""The recorder: one line of JSON for each thing that a rank does, in the kernel before the call returns.

A connector that is to be validated makes one `Recorder` a process and calls it where the protocol moves; `kvproof
validate` reads the file. The format is described in docs/validating-a-log.md. Nothing but Python's own library is
needed, so a connector may copy this file.
"""

from __future__ import annotations

import itertools
import json
import os
from json.encoder import encode_basestring_ascii
from pathlib import Path
from types import TracebackType
from typing import Any


class Recorder:
    """Appends events to a log; may be called from any thread, and by several processes on one file.

    Each event is one `write` to a file opened for appending, so that a process that is killed loses none of those it
    has recorded, and no two are mixed.
    """

    def __init__(self, path: str | Path, rank: int = 0) -> None:
        """Append to the file at `path` what `rank` does; the file is made when it is not there. Raises OSError."""
        self.rank = rank
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._next = itertools.count()
        self._shapes: dict[tuple[str, tuple[str, ...]], bytes] = {}

    def __call__(self, event: str, /, step: int = 0, **values: Any) -> None:
        """Record that `event` has happened in this step; values: numbers, truth values, strings, or lists of them.

        What is about to be entered is recorded before, what was left, taken or learnt after. Raises OSError when the
        line could not be written, and TypeError for a value that is no JSON.
        """
        keys = (event, tuple(values))
        shape = self._shapes.get(keys)
        if shape is None:
            shape = self._shapes[keys] = self._shape(event, values)
        written = [str(value).encode() if type(value) is int else _encoded(value) for value in values.values()]
        line = shape % (next(self._next), step, *written)
        if os.write(self._fd, line) != len(line):
            raise OSError(f"the log took only a part of an event ({event})")

    def _shape(self, event: str, values: dict[str, Any]) -> bytes:
        name = json.dumps(event).replace("%", "%%")
        fields = ",".join(f"{json.dumps(key).replace('%', '%%')}:%b" for key in values)
        return f'{{"rank":{self.rank},"seq":%d,"step":%d,"event":{name},"values":{{{fields}}}}}\n'.encode()

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def __enter__(self) -> Recorder:
        """Return the recorder itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Close the file."""
        self.close()


def _encoded(value: Any) -> bytes:
    if type(value) is str:
        return encode_basestring_ascii(value).encode()
    return json.dumps(value, separators=(",", ":")).encode()
