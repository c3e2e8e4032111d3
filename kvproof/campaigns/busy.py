"""Whether this machine was too busy to tell: how late a thread came that had only to look at the clock."""

from __future__ import annotations

import threading
import time
from collections import deque

LATE = 0.4
"""Seconds by which it may be late: a client that waits for a second for its answer has still most of it."""
_EACH = 0.05


class Busy:
    """A watch over the machine, in a thread of its own until it is stopped."""

    def __init__(self, stopped: threading.Event) -> None:
        """Begin."""
        self._stopped = stopped
        self._late: deque[tuple[float, float]] = deque(maxlen=10_000)
        threading.Thread(target=self._watch, daemon=True, name="busy").start()

    def _watch(self) -> None:
        while not self._stopped.is_set():
            begun = time.monotonic()
            self._stopped.wait(_EACH)
            late = time.monotonic() - begun - _EACH
            if late > LATE:
                self._late.append((begun, late))

    def since(self, moment: float) -> float:
        """Return the most seconds by which it was late since then, 0 when never by more than `LATE`."""
        return max((late for begun, late in list(self._late) if begun + late >= moment), default=0.0)
