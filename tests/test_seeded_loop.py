"""A seeded asyncio loop: what it shuffles and what not, how its time passes, what it waits for."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import socket
import threading
import time
from functools import partial

import pytest

from kvproof.faults.seeded_choices import Choices
from kvproof.faults.seeded_loop import SeededLoop, Stuck, explore, run
from tests.races import check_then_act, right


def test_hours_pass_in_milliseconds() -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 3600.0)
        await asyncio.sleep(100 * 3600.0)
        return loop.time()

    began = time.monotonic()
    assert run(main) == pytest.approx(101 * 3600.0)
    assert time.monotonic() - began < 1.0


def test_timers_go_off_in_their_order_and_at_their_time() -> None:
    async def main() -> list[tuple[float, float]]:
        loop, seen = asyncio.get_running_loop(), []

        async def sleep(delay: float) -> None:
            await asyncio.sleep(delay)
            seen.append((delay, loop.time()))

        await asyncio.gather(*(sleep(delay) for delay in (3.0, 0.1, 2.0, 0.3)))
        return seen

    for seed in range(30):
        assert run(main, seed=seed) == [(delay, pytest.approx(delay)) for delay in (0.1, 0.3, 2.0, 3.0)]


def test_the_order_within_one_origin_holds_and_between_tasks_every_order_is_met() -> None:
    async def main() -> str:
        loop, seen = asyncio.get_running_loop(), []

        async def task(name: str) -> None:
            for number in range(2):
                loop.call_soon(seen.append, f"{name}{number}x")
                loop.call_soon(lambda: loop.call_soon(seen.append, f"{name}z"))
                loop.call_soon(seen.append, f"{name}{number}y")
                await asyncio.sleep(0)
                seen.append(f"{name}{number}")

        await asyncio.gather(task("a"), task("b"))
        for name in "ab":
            mine = [each for each in seen if each[0] == name and each[1] != "z"]
            assert mine == [f"{name}{number}{kind}" for number in range(2) for kind in ("x", "y", "")], seen
        return seen[0][0]

    for rounds in (False, True):
        assert {run(main, seed=seed, rounds=rounds) for seed in range(20)} == {"a", "b"}


@pytest.mark.parametrize(("rounds", "longest"), [(True, 2), (False, 3)])
def test_in_rounds_nothing_runs_twice_before_everything_has_run_once(rounds: bool, longest: int) -> None:
    async def main() -> int:
        seen = ""

        async def task(name: str) -> None:
            nonlocal seen
            for _ in range(10):
                seen += name
                await asyncio.sleep(0)

        await asyncio.gather(task("a"), task("b"))
        return max(len(run) for run in seen.replace("ab", "a b").replace("ba", "b a").split())

    runs = {run(main, seed=seed, rounds=rounds) for seed in range(30)}
    assert max(runs) <= longest if rounds else max(runs) >= longest


def test_context_variables_belong_to_their_tasks() -> None:
    variable = contextvars.ContextVar("variable", default="nobody")

    async def main() -> None:
        seen: list[str] = []

        async def task(name: str) -> None:
            variable.set(name)
            for _ in range(3):
                await asyncio.sleep(0)
                asyncio.get_running_loop().call_soon(lambda: seen.append(variable.get() + name))
                assert variable.get() == name
            await asyncio.sleep(1)

        await asyncio.gather(*(task(name) for name in "abc"))
        assert variable.get() == "nobody"
        assert sorted(seen) == [name * 2 for name in "aaabbbccc"]
        assert not asyncio.get_running_loop().get_debug()

    assert explore(main, seeds=range(20)) is None


def test_groups_of_tasks_are_cancelled_in_the_same_order_each_time() -> None:
    async def main() -> tuple[str, ...]:
        seen: list[str] = []

        async def task(name: str) -> None:
            try:
                await asyncio.sleep(10)
            finally:
                seen.append(name)

        async def fail() -> None:
            await asyncio.sleep(1)
            raise ValueError

        ballast.append(object())            # so that addresses differ from run to run
        with contextlib.suppress(ExceptionGroup):
            async with asyncio.TaskGroup() as group:
                for name in "abcdefgh":
                    ballast.append([group.create_task(task(name))])
                group.create_task(fail())
        return tuple(seen)

    ballast: list[object] = []
    assert len({run(main, seed=5) for _ in range(20)}) == 1
    assert len({run(main, seed=seed) for seed in range(20)}) > 10


def test_what_waits_for_nothing_is_stuck_at_once_and_says_where() -> None:
    async def waits_for_ever() -> None:
        await asyncio.Event().wait()

    began = time.monotonic()
    with pytest.raises(Stuck, match=r"nothing can happen any more at 0 s: Task-\d+ in Event.wait \(locks.py:\d+\)"):
        run(waits_for_ever)
    assert time.monotonic() - began < 1.0


def test_what_never_ends_is_stuck_after_its_steps() -> None:
    async def spins() -> None:
        while True:
            await asyncio.sleep(1)

    with pytest.raises(Stuck, match=r"no end after 1000 callbacks, at \d+ s"):
        run(spins, steps=1000)


def test_a_thread_that_calls_the_loop_is_waited_for() -> None:
    async def main() -> str:
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        called = threading.Event()

        def thread() -> None:
            called.wait(5.0)
            loop.call_soon_threadsafe(future.set_result, "called")

        threading.Thread(target=thread).start()
        loop.call_soon(called.set)
        return await asyncio.wait_for(future, 30.0)

    assert {run(main, seed=seed) for seed in range(10)} == {"called"}


def test_threads_are_looked_at_before_sockets_because_one_may_end_right_after_its_call() -> None:
    asked: list[str] = []
    loop = SeededLoop(Choices(0))
    loop._may_come = lambda: bool(asked.append("threads"))  # type: ignore[method-assign, func-returns-value]  # append gives None
    loop.pending(1.0, lambda timeout: asked.append("sockets"))  # type: ignore[func-returns-value]  # append gives None
    loop.close()
    assert asked == ["threads", "sockets"]


def test_an_executor_is_waited_for_and_then_time_jumps_again() -> None:
    async def main() -> float:
        assert await asyncio.wait_for(asyncio.to_thread(partial(sum, [1, 2])), 3600.0) == 3
        await asyncio.sleep(3600.0)
        return asyncio.get_running_loop().time()

    began = time.monotonic()
    assert run(main) >= 3600.0
    assert time.monotonic() - began < 4.0


def test_sockets_work_and_time_passes_only_when_they_are_silent() -> None:
    async def main(ends: tuple[socket.socket, socket.socket]) -> list[object]:
        reader, writer = await asyncio.open_connection(sock=ends[0])
        far_reader, far_writer = await asyncio.open_connection(sock=ends[1])
        writer.write(b"question")
        question = await asyncio.wait_for(far_reader.readexactly(8), 3600.0)
        far_writer.write(b"answer")
        answer = await asyncio.wait_for(reader.readexactly(6), 3600.0)
        early = asyncio.get_running_loop().time()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(1), 3600.0)
        late = asyncio.get_running_loop().time()
        for each in (writer, far_writer):
            each.close()
            await each.wait_closed()
        return [question, answer, early < 1.0, 3600.0 <= late < 3601.0]

    for seed in range(5):
        assert run(partial(main, socket.socketpair()), seed=seed, silence=0.1) == [b"question", b"answer", True, True]


def test_an_answer_from_outside_takes_the_time_that_it_takes() -> None:
    here, there = socket.socketpair()

    def answer() -> None:
        there.recv(8)
        time.sleep(0.25)
        there.sendall(b"answer")

    async def main() -> float:
        reader, writer = await asyncio.open_connection(sock=here)
        writer.write(b"question")
        assert await asyncio.wait_for(reader.readexactly(6), 3600.0) == b"answer"
        writer.close()
        return asyncio.get_running_loop().time()

    # It began before the run, so that the socket alone says that something may come.
    far = threading.Thread(target=answer)
    far.start()
    took = run(main)
    far.join()
    there.close()
    assert 0.15 < took < 60.0
    assert took == pytest.approx(round(took / 0.05) * 0.05), "the clock goes in steps of 50 ms"


def test_a_run_leaves_no_descriptor_and_no_thread() -> None:
    run(right)
    before = len(os.listdir("/proc/self/fd")), threading.active_count()
    for seed in range(20):
        run(right, seed=seed)
        explore(check_then_act)
    assert (len(os.listdir("/proc/self/fd")), threading.active_count()) == before
