"""Asyncio programs with a race that asyncio's own order hides, and one without."""

from __future__ import annotations

import asyncio

import pytest


async def check_then_act() -> None:
    """Two tasks look for a connection, and who finds none opens one; the second look comes before the first opening."""
    opened: list[str] = []

    async def user(name: str) -> None:
        if not opened:
            if name == "b":
                await asyncio.sleep(0)      # what b does in between is longer
            opened.append(name)

    await asyncio.gather(user("a"), user("b"))
    assert len(opened) == 1, f"opened twice: {opened}"


async def lost_cancellation() -> None:
    """A wait that takes a cancellation for the end of what it waits for, when that has just ended."""
    done = asyncio.get_running_loop().create_future()

    async def worker() -> None:
        try:
            await done
        except asyncio.CancelledError:
            if done.cancelled():
                raise
        await asyncio.Event().wait()

    async def cancel() -> None:
        working.cancel()

    async def finish() -> None:
        if not done.done():
            done.set_result(None)

    working = asyncio.create_task(worker())
    await asyncio.sleep(0.1)
    await asyncio.gather(cancel(), finish())
    ended, _ = await asyncio.wait([working], timeout=5.0)
    assert len(ended) == 1, "the cancellation was lost"


async def lost_in_wait_for() -> None:
    """The same in asyncio itself: before Python 3.12 wait_for swallows a cancellation that meets the end."""
    done = asyncio.get_running_loop().create_future()

    async def worker() -> None:
        await asyncio.wait_for(done, 1.0)
        await asyncio.Event().wait()

    async def finish() -> None:
        for _ in range(2):
            await asyncio.sleep(0)
        if not done.done():
            done.set_result(None)

    async def cancel() -> None:
        working.cancel()

    working = asyncio.create_task(worker())
    await asyncio.sleep(0.1)
    await asyncio.gather(cancel(), finish())
    ended, _ = await asyncio.wait([working], timeout=5.0)
    assert len(ended) == 1, "the cancellation was lost"


async def closed_while_opening() -> None:
    """A client is closed while a task opens it; the connection is then nobody's."""
    state = {"closed": False, "leaked": False}

    async def opening() -> None:
        if state["closed"]:
            return
        await asyncio.sleep(0)
        if state["closed"]:
            state["leaked"] = True

    async def closing() -> None:
        state["closed"] = True

    await asyncio.gather(closing(), opening())
    assert not state["leaked"], "opened after close"


async def right() -> int:
    """The same with what is missing above: a lock, a condition, a queue, a timeout and a group."""
    lock, opened, queue = asyncio.Lock(), [], asyncio.Queue[int](1)

    async def user(name: str) -> None:
        async with lock:
            if not opened:
                await asyncio.sleep(0.01)
                opened.append(name)

    async def produce() -> None:
        for number in range(5):
            await queue.put(number)

    async def consume() -> int:
        return sum([await queue.get() for _ in range(5)])

    async with asyncio.TaskGroup() as group:
        for name in "abc":
            group.create_task(user(name))
        group.create_task(produce())
        total = group.create_task(consume())
    assert len(opened) == 1
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(5.0):
            await asyncio.wait_for(asyncio.Event().wait(), 7200.0)
    return total.result()


RACES = [check_then_act, lost_cancellation, closed_while_opening]
