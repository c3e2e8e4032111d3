"""asyncio event loops whose order is a seed's: in lanes, as `seeded_loop` says, and here in real time."""

from __future__ import annotations

import asyncio
import selectors
import threading
import weakref
from collections.abc import Callable, Hashable
from typing import Any

from kvproof.faults.seeded_choices import Choices
from kvproof.faults.seeded_ready import ReadyQueue, task_of

__all__ = ["ShuffledLoop", "policy"]


class ShuffledLoop(asyncio.SelectorEventLoop):
    """A loop in real time in which a seed chooses the next lane. It may be made in one thread and run in another."""

    def __init__(self, choices: Choices, selector: selectors.BaseSelector | None = None) -> None:
        """Take the order from `choices`."""
        self._polling = False
        self._origins: dict[int, tuple[weakref.ref[asyncio.Handle], Hashable]] = {}
        super().__init__(selector)
        self._ready = ReadyQueue(choices, self._lane, self._step)

    def run_forever(self) -> None:
        """Run in this thread; see BaseEventLoop."""
        self._ready.owner = threading.get_ident()
        super().run_forever()

    def call_at(  # type: ignore[override]  # the supertype's own type is one of a TypeVarTuple
        self, when: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        """Remember who has asked for it; see BaseEventLoop."""
        timer = super().call_at(when, callback, *args, context=context)
        number = id(timer)
        self._origins[number] = (weakref.ref(timer, lambda _: self._origins.pop(number, None)), self._ready.running)
        return timer

    def _step(self) -> None:
        """Take note that a callback runs."""

    def _process_events(self, events: Any) -> None:
        self._polling = True
        try:
            super()._process_events(events)  # type: ignore[misc]  # typeshed leaves it out
        finally:
            self._polling = False

    def _lane(self, handle: Any) -> Hashable:
        """Return the lane of a handle that has become ready in this thread; None: it goes before all others."""
        task = task_of(handle._callback)
        if task is not None:
            return task
        if self._polling:
            of = getattr(handle._callback, "__self__", None)
            # What is read from the loop's own pipe is no news; whoever wrote it has queued its callback already.
            if getattr(handle._callback, "__name__", "") == "_read_from_self":
                return None
            return ("io", id(handle if of is self or of is None else of))
        kept = self._origins.pop(id(handle), None)
        return kept[1] if kept is not None and kept[0]() is handle else self._ready.running


def policy(seed: int, made: Callable[[], None] = lambda: None) -> asyncio.AbstractEventLoopPolicy:
    """Return a policy whose loops are shuffled, each by a seed of its own; `made` is called for each."""

    class Shuffled(asyncio.DefaultEventLoopPolicy):
        _count = 0

        def new_event_loop(self) -> asyncio.AbstractEventLoop:
            self._count += 1
            made()
            return ShuffledLoop(Choices(seed + self._count - 1))

    return Shuffled()
