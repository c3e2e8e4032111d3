"""The ready queue of a seeded asyncio loop: an order in each lane, and a choice between lanes."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Hashable

from kvproof.faults.seeded_choices import Choices


class Lanes:
    """Handles in lanes, each in the order in which they came."""

    def __init__(self) -> None:
        self._queues: dict[Hashable, deque[asyncio.Handle]] = {}
        self._order: list[Hashable] = []

    def put(self, lane: Hashable, handle: asyncio.Handle) -> None:
        """Add a handle at the end of its lane."""
        if lane not in self._queues:
            self._queues[lane] = deque()
            self._order.append(lane)
        self._queues[lane].append(handle)

    def take(self, choices: Choices) -> tuple[Hashable, asyncio.Handle]:
        """Return the first handle of a lane that is chosen, with the lane."""
        index = choices.take(len(self._order))
        lane = self._order[index]
        queue = self._queues[lane]
        handle = queue.popleft()
        if not queue:
            del self._queues[lane]
            self._order[index] = self._order[-1]
            self._order.pop()
        return lane, handle

    def __len__(self) -> int:
        return len(self._order)

    def clear(self) -> None:
        """Forget everything."""
        self._queues.clear()
        self._order.clear()


class ReadyQueue:
    """A ready queue that keeps the order in each lane, and lets a seed choose the lane.

    It stands where BaseEventLoop has a deque, of which it uses what there is here. running: the lane of what runs now.
    """

    running: Hashable

    def __init__(
        self, choices: Choices, lane: Callable[[asyncio.Handle], Hashable], step: Callable[[], None]
    ) -> None:
        """Choose by `choices`; `lane` says where a handle belongs, None for first of all; `step` counts."""
        self.running = "the beginning"
        self._choices, self._lane, self._step = choices, lane, step
        self._owner = threading.get_ident()
        self._first: deque[asyncio.Handle] = deque()
        self._now = Lanes()
        # With rounds, what becomes ready meanwhile waits for the next one.
        self._next = Lanes() if choices.rounds else self._now
        self._inbox: deque[tuple[Hashable, asyncio.Handle]] = deque()
        self._count = 0

    def append(self, handle: asyncio.Handle) -> None:
        """Queue what has become ready; called from any thread."""
        thread = threading.get_ident()
        if thread != self._owner:
            self._inbox.append((("thread", thread), handle))
        else:
            self._put(self._lane(handle), handle)

    def _put(self, lane: Hashable, handle: asyncio.Handle) -> None:
        self._count += 1
        if lane is None:
            self._first.append(handle)
        else:
            self._next.put(lane, handle)

    def __len__(self) -> int:
        """Return how many there are, with those that other threads have queued by now."""
        while self._inbox:
            self._put(*self._inbox.popleft())
        return self._count

    def popleft(self) -> asyncio.Handle:
        """Return what runs next."""
        self._step()
        self._count -= 1
        if self._first:
            self.running = "the pipe"
            return self._first.popleft()
        if not self._now:
            self._now, self._next = self._next, self._now
        self.running, handle = self._now.take(self._choices)
        return handle

    def clear(self) -> None:
        """Forget everything; the loop is closed."""
        for queues in (self._first, self._now, self._next, self._inbox):
            queues.clear()
        self._count = 0
