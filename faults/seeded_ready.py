"""The ready queue of a seeded asyncio loop: an order in each lane and of each future, and a choice between lanes."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

from kvproof.faults.seeded_choices import Choices

_STEP = "TaskStepMethWrapper"
_STEP_NAMES = ("task_wakeup", "__step", "__wakeup")


def task_of(callback: object) -> asyncio.Task[Any] | None:
    """Return the task of which a callback is the next step; None for any other callback."""
    of = getattr(callback, "__self__", None)
    steps = type(callback).__name__ == _STEP or getattr(callback, "__name__", "") in _STEP_NAMES
    return of if steps and isinstance(of, asyncio.Task) else None


class Turns:
    """The callbacks of one future that are ready, whatever their lanes: a turn begins when the one before has run.

    Each has a turn of its own, but tasks that are woken one after the other share one.
    """

    def __init__(self, future: object) -> None:
        """Keep the future, so that no other gets its address meanwhile."""
        self.future = future
        self.current = 0
        self._left: deque[int] = deque()
        self._wakes = False
        self._held: dict[int, list[tuple[Lanes, Hashable]]] = {}

    def join(self, wakes: bool) -> int:
        """Return the turn of one more; wakes: it wakes a task."""
        if not (self._left and self._wakes and wakes):
            self._left.append(0)
        self._wakes = wakes
        self._left[-1] += 1
        return self.current + len(self._left) - 1

    def hold(self, turn: int, lanes: Lanes, lane: Hashable) -> None:
        """Offer the lane again when the turn begins."""
        self._held.setdefault(turn, []).append((lanes, lane))

    def leave(self) -> bool:
        """Take note that one of the current turn runs; return whether it was the last of all."""
        self._left[0] -= 1
        if not self._left[0]:
            self._left.popleft()
            self.current += 1
            for lanes, lane in self._held.pop(self.current, ()):
                lanes.offer(lane)
        return not self._left


class Queued(NamedTuple):
    """A handle, with its turn among the callbacks of a future if it is one."""

    handle: asyncio.Handle
    turns: Turns | None = None
    turn: int = 0


class Lanes:
    """Handles in lanes, each in the order in which they came; a lane whose first has not its turn yet is held."""

    def __init__(self) -> None:
        self._queues: dict[Hashable, deque[Queued]] = {}
        self._open: list[Hashable] = []

    def put(self, lane: Hashable, queued: Queued) -> None:
        """Add a handle at the end of its lane."""
        if lane in self._queues:
            self._queues[lane].append(queued)
        else:
            self._queues[lane] = deque([queued])
            self.offer(lane)

    def offer(self, lane: Hashable) -> None:
        """Let a lane be chosen from now on, or from its first one's turn on."""
        _, turns, turn = self._queues[lane][0]
        if turns is None or turns.current == turn:
            self._open.append(lane)
        else:
            turns.hold(turn, self, lane)

    def take(self, choices: Choices) -> tuple[Hashable, Queued]:
        """Return the first handle of a lane that is chosen, with the lane.

        There is one if there is any: of all handles here, the one that came first waits for nothing.
        """
        index = choices.take(len(self._open))
        lane = self._open[index]
        self._open[index] = self._open[-1]
        self._open.pop()
        queue = self._queues[lane]
        queued = queue.popleft()
        if queue:
            self.offer(lane)
        else:
            del self._queues[lane]
        return lane, queued

    def __len__(self) -> int:
        return len(self._queues)

    def clear(self) -> None:
        """Forget everything."""
        self._queues.clear()
        self._open.clear()


class ReadyQueue:
    """A ready queue that keeps the order in each lane and of each future, and lets a seed choose the lane.

    It stands where BaseEventLoop has a deque, of which it uses what there is here. running: the lane of what runs now.
    owner: the thread that runs the loop; until it runs, the one that has made it.
    """

    running: Hashable
    owner: int

    def __init__(
        self, choices: Choices, lane: Callable[[asyncio.Handle], Hashable], step: Callable[[], None]
    ) -> None:
        """Choose by `choices`; `lane` says where a handle belongs, None for first of all; `step` counts."""
        self.running = "the beginning"
        self._choices, self._lane, self._step = choices, lane, step
        self.owner = threading.get_ident()
        self._first: deque[asyncio.Handle] = deque()
        self._now = Lanes()
        # With rounds, what becomes ready meanwhile waits for the next one.
        self._next = Lanes() if choices.rounds else self._now
        self._turns: dict[int, Turns] = {}
        self._inbox: deque[tuple[Hashable, asyncio.Handle]] = deque()
        self._count = 0

    def append(self, handle: asyncio.Handle) -> None:
        """Queue what has become ready; called from any thread."""
        thread = threading.get_ident()
        if thread != self.owner:
            self._inbox.append((("thread", thread), handle))
            return
        lane = self._lane(handle)
        if lane is None:
            self._count += 1
            self._first.append(handle)
        else:
            self._put(lane, self._in_turn(handle))

    def _in_turn(self, handle: Any) -> Queued:
        """Return it with its turn if it is a callback of a future: asyncio calls those with the future alone."""
        args = handle._args
        if len(args) != 1 or not asyncio.isfuture(args[0]) or not args[0].done():
            return Queued(handle)
        number = id(args[0])
        if number not in self._turns:
            self._turns[number] = Turns(args[0])
        turns = self._turns[number]
        return Queued(handle, turns, turns.join(task_of(handle._callback) is not None))

    def _put(self, lane: Hashable, queued: Queued) -> None:
        self._count += 1
        self._next.put(lane, queued)

    def __len__(self) -> int:
        """Return how many there are, with those that other threads have queued by now."""
        while self._inbox:
            lane, handle = self._inbox.popleft()
            self._put(lane, Queued(handle))
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
        self.running, (handle, turns, _) = self._now.take(self._choices)
        if turns is not None and turns.leave():
            del self._turns[id(turns.future)]
        return handle

    def clear(self) -> None:
        """Forget everything; the loop is closed."""
        for queues in (self._first, self._now, self._next, self._turns, self._inbox):
            queues.clear()
        self._count = 0
