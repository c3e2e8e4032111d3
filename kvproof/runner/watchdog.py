"""Stacks of a call that exceeds its deadline, written from inside of the process that it was made in."""

from __future__ import annotations

import faulthandler
from _thread import allocate_lock, start_new_thread
from types import TracebackType

NATIVE = 0.5
"""Seconds after the deadline at which stacks are written without Python's lock, which native code then holds."""


class Watchdog:
    """Writes the stacks of all threads to a descriptor when what it is around takes more than `deadline` seconds.

    A thread that holds Python's lock writes them, so that no frame changes under its eyes: faulthandler's own watchdog
    takes no lock, and gets wrong stacks, or ends the process, where Python code is busy. It is the second to try, for
    whoever keeps the lock waits in native code.

    The thread is not one of `threading`: nobody who counts threads or replaces their functions meets it.
    """

    def __init__(self, deadline: float, file: int) -> None:
        """Begin nothing yet."""
        self.deadline, self.file = deadline, file
        self._running, self._ended = allocate_lock(), allocate_lock()
        self._writing = allocate_lock()
        self._over = False

    def __enter__(self) -> None:
        """Begin to watch."""
        self._running.acquire()
        self._ended.acquire()
        faulthandler.dump_traceback_later(self.deadline + NATIVE, file=self.file)
        start_new_thread(self._watch, ())

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """End the watch; nothing is written any more."""
        with self._writing:
            self._over = True
        faulthandler.cancel_dump_traceback_later()
        self._running.release()
        self._ended.acquire()

    def _watch(self) -> None:
        if not self._running.acquire(timeout=self.deadline):
            with self._writing:
                if not self._over:
                    faulthandler.dump_traceback(self.file)
                    faulthandler.cancel_dump_traceback_later()
        self._ended.release()
