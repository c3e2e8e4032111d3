"""An asyncio event loop in a thread of its own, for connectors that need one running beside their callers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from kvproof.connectors.adapter import Cancelled

Result = TypeVar("Result")

TURNS = 10
"""Turns of the loop in which a command that was sent is known to be sent, whatever wraps the sending."""


class LoopThread:
    """A running event loop; calls from other threads are handed over and waited for."""

    def __init__(self, name: str) -> None:
        """Start the loop in a daemon thread called `name`."""
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, coroutine: Coroutine[Any, Any, Result]) -> Future[Result]:
        """Hand a coroutine to the loop and return its future at once."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def call(self, coroutine: Coroutine[Any, Any, Result], timeout: float | None = None) -> Result:
        """Run a coroutine on the loop and return its result; waits for ever without a `timeout` (seconds)."""
        return self.submit(coroutine).result(timeout)

    def close(self, deadline: float = 1.0) -> None:
        """Stop the loop and wait up to `deadline` seconds for its thread to end."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(deadline)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            self.loop.close()


async def cancelled_by(when: Callable[[], None], read: Coroutine[Any, Any, Result]) -> Cancelled | Result:
    """Run a read as a task, cancel it once `when` has returned, and say how it ended."""
    task = asyncio.ensure_future(read)
    try:
        # In a thread of its own, because `when` blocks and the loop has to go on sending and receiving.
        await asyncio.to_thread(when)
        # What the loop has at hand comes first: asyncio.wait_for before Python 3.12 swallows a cancellation that
        # meets the very end of what it waited for, here of sending the command.
        for _ in range(TURNS):
            await asyncio.sleep(0)
    finally:
        task.cancel()
    try:
        return await task
    except asyncio.CancelledError as error:
        return Cancelled(_words(error))

def _words(error: BaseException) -> str:
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
