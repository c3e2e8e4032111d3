"""A watch for code that hands work to a pool or a loop and then waits for its future."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from typing import Any

from kvproof.faults.gates import Arrival, Watch, substitute


class FutureWatch:
    """Sees a future being made by whoever hands work over, and waits until it is done."""

    def __init__(self, what: str, hold: float) -> None:
        """Watch futures called `what`; `hold` seconds at most, the hand-over returns only once the work is done."""
        self._what, self._hold = what, hold
        self._last: futures.Future[Any] | None = None
        self._handed_over = threading.Event()

    def wrap(self, hand_over: Callable[..., futures.Future[Any]]) -> Callable[..., futures.Future[Any]]:
        """Return `hand_over` with its future noted and, if asked, held back until it is done."""
        def noted(*args: Any, **kwargs: Any) -> futures.Future[Any]:
            future = self._last = hand_over(*args, **kwargs)
            self._handed_over.set()
            if self._hold:
                futures.wait([future], self._hold)
            return future
        return noted

    def arrived(self, deadline: float) -> Arrival | None:
        """See `Watch.arrived`."""
        if not self._handed_over.wait(deadline) or self._last is None:
            return None
        if not futures.wait([self._last], deadline).done:
            return None
        return Arrival(f"{self._what} was done, and keeps its result for a caller who comes later")


class Overlay:
    """A namespace that answers for another one, except for the names it was given."""

    def __init__(self, under: Any, **names: Any) -> None:
        """Answer for `under`, with `names` before its own."""
        self._under = under
        self.__dict__.update(names)

    def __getattr__(self, name: str) -> Any:
        """Return what `under` has by that name."""
        return getattr(self._under, name)


@contextmanager
def watched(watch: Watch, owner: object, attribute: str, replacement: object) -> Iterator[Watch]:
    """Let `owner.attribute` be `replacement`, which reports to `watch`, for the length of the context."""
    with substitute(owner, attribute, replacement):
        yield watch
