"""An asyncio event loop in a thread of its own, for connectors that need one running beside their callers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

Result = TypeVar("Result")


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
