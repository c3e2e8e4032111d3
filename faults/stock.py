"""Buffers and pipes for bytes that are on their way, to be used again."""

from __future__ import annotations

import fcntl
import os

BUFFER = 1024 * 1024
"""Bytes that are on their way in one direction of one connection at most, beside the kernel's own buffers."""
_PIPE_SIZE = 1031
"""F_SETPIPE_SZ."""


class Pipe:
    """A pipe through which bytes move from socket to socket within the kernel; `inside` of them are on their way."""

    def __init__(self) -> None:
        """Open it, as large as the kernel allows."""
        self.exit, self.entry = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.inside = 0
        try:
            fcntl.fcntl(self.entry, _PIPE_SIZE, BUFFER)
        except PermissionError:
            pass  # The user's share of pipe memory is used up; the pipe works at its smaller size.

    def close(self) -> None:
        """Close it, with whatever is inside."""
        os.close(self.exit)
        os.close(self.entry)


class Stock:
    """Buffers and pipes to be used again; one is taken only while bytes are on their way, so idle flows hold none."""

    def __init__(self) -> None:
        """Begin with none."""
        self._buffers: list[memoryview] = []
        self._pipes: list[Pipe] = []

    def trim(self) -> None:
        """Let go of all that is in stock."""
        self._buffers.clear()
        while self._pipes:
            self._pipes.pop().close()

    def take_buffer(self) -> memoryview:
        """Return a buffer of `BUFFER` bytes."""
        return self._buffers.pop() if self._buffers else memoryview(bytearray(BUFFER))

    def give_buffer(self, buffer: memoryview) -> None:
        """Take a buffer back."""
        self._buffers.append(buffer)

    def take_pipe(self) -> Pipe | None:
        """Return an empty pipe; None when there are no descriptors for one."""
        try:
            return self._pipes.pop() if self._pipes else Pipe()
        except OSError:
            return None

    def give_pipe(self, pipe: Pipe) -> None:
        """Take a pipe back; one that still has something inside is closed."""
        if pipe.inside:
            pipe.close()
        else:
            self._pipes.append(pipe)
