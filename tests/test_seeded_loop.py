"""A seeded asyncio loop: planted races are found and found again, right programs pass, hours pass at once."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import socket
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pytest
import redis.asyncio

from kvproof.errors import UsageError
from kvproof.faults.seeded_choices import Choices
from kvproof.faults.seeded_loop import NotReplayed, SeededLoop, Stuck, explore, run
from kvproof.faults.seeded_ready import ReadyQueue
from kvproof.faults.servers import Server

PLAIN = """
from tests import test_seeded_loop as t
from kvproof.faults.seeded_loop import run
failures = [t.explore(each) for each in (t.check_then_act, t.lost_cancellation, t.closed_while_opening)]
assert all(failures), failures
print([failure.token for failure in failures])
"""


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


@pytest.mark.parametrize("race", RACES)
def test_a_planted_race_is_found_and_replays_20_of_20(race: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(race())                     # in asyncio's own order it does not show
    failure = explore(race, seeds=range(100))
    assert failure is not None, f"{race.__name__} passed 100 seeds"
    assert isinstance(failure.error, AssertionError), failure
    assert any(failure.token in note for note in failure.error.__notes__)
    for _ in range(20):
        with pytest.raises(AssertionError) as caught:
            run(race, token=failure.token)
        assert str(caught.value) == str(failure.error)
    with pytest.raises(AssertionError):
        run(race, seed=failure.seed)


def test_the_cancellation_that_wait_for_loses_is_found_where_it_is_lost() -> None:
    failure = explore(lost_in_wait_for)
    if sys.version_info >= (3, 12):
        assert failure is None, f"wait_for loses a cancellation in {sys.version}: {failure}"
    else:
        assert failure is not None, "not found in 100 seeds"
        assert "the cancellation was lost" in str(failure.error)
        asyncio.run(lost_in_wait_for())


@pytest.mark.parametrize("rounds", [False, True])
def test_a_right_program_passes_every_seed(rounds: bool) -> None:
    assert explore(right, seeds=range(200), rounds=rounds) is None
    assert run(right, seed=3, rounds=rounds) == 10


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
    loop._may_come = lambda: bool(asked.append("threads"))  # type: ignore[method-assign, func-returns-value]
    loop.pending(1.0, lambda timeout: asked.append("sockets"))  # type: ignore[func-returns-value]
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


def test_redis_py_on_a_real_valkey(server: Server) -> None:
    async def main() -> None:
        async with redis.asyncio.Redis(host=server.host, port=server.port) as client:
            await client.set("seeded", b"1")
            await asyncio.gather(*(client.incr("seeded") for _ in range(10)))
            assert await client.get("seeded") == b"11"

    assert explore(main, seeds=range(5)) is None


def test_what_another_thread_queues_is_a_lane_of_its_own_from_the_next_look_on() -> None:
    queue = ReadyQueue(Choices(0), lane=lambda handle: "mine", step=lambda: None)
    handle: Any = object()
    thread = threading.Thread(target=queue.append, args=(handle,))
    thread.start()
    thread.join()
    assert len(queue) == 1
    assert queue.popleft() is handle
    assert queue.running == ("thread", thread.ident)
    assert len(queue) == 0


def test_other_choices_have_another_token() -> None:
    one, two = Choices(0), Choices(0)
    one.take(2)
    two.take(3)
    assert one.token != two.token
    assert Choices.replay(one.token).seed == 0


def test_a_token_is_short_and_names_its_run_only() -> None:
    failure = explore(check_then_act)
    assert failure is not None
    assert len(failure.token) < 80
    assert failure.token.isprintable()
    with pytest.raises(NotReplayed, match="went another way"):
        run(right, token=failure.token)


def tokens() -> list[tuple[str, str]]:
    choices = Choices(17)
    choices.take(3)
    token = choices.token
    other = token.replace("kvloop1", "kvloop2").rpartition("-")[0]
    python = token.replace(f"-3.{sys.version_info.minor}-", "-3.10-").rpartition("-")[0]
    return [
        ("", "not a whole replay token"),
        ("17", "not a whole replay token"),
        (token[:-1], "not a whole replay token"),
        (token.replace("-17-", "-18-"), "not a whole replay token"),
        (checked(other), "another version of kvproof"),
        (checked(python), "a token of Python 3.10"),
    ]


def checked(body: str) -> str:
    return f"{body}-{zlib.crc32(body.encode()):08x}"


@pytest.mark.parametrize(("token", "said"), tokens())
def test_a_wrong_token_is_one_clear_line(token: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        run(right, token=token)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: run(right, seed=-1), "integer from 0 on"),
        (lambda: run(right, seed=1, token=Choices(1).token), "not both"),
        (lambda: explore(None), "function that makes a coroutine"),  # type: ignore[arg-type]
    ],
)
def test_a_wrong_call_is_refused(wrong: Callable[[], object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        wrong()


def test_a_loop_in_a_loop_is_refused() -> None:
    async def outer() -> None:
        run(right)

    with pytest.raises(UsageError, match="inside another event loop"):
        asyncio.run(outer())


def test_a_run_leaves_no_descriptor_and_no_thread() -> None:
    run(right)
    before = len(os.listdir("/proc/self/fd")), threading.active_count()
    for seed in range(20):
        run(right, seed=seed)
        explore(check_then_act)
    assert (len(os.listdir("/proc/self/fd")), threading.active_count()) == before


def test_the_same_choices_in_another_process() -> None:
    done = [
        subprocess.run([sys.executable, "-c", PLAIN], capture_output=True, text=True, timeout=60, check=False,
                       env={**os.environ, "PYTHONHASHSEED": str(number)})
        for number in (1, 2)
    ]
    assert done[0].returncode == 0, done[0].stderr
    assert done[0].stdout == done[1].stdout
