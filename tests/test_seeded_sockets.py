"""Real connections on a seeded loop: asyncio's own code for sockets finds the order that it needs, by every seed."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import Any

import pytest
import redis.asyncio

from kvproof.faults.seeded_loop import run
from kvproof.faults.servers import HOST, Server, free_port

SEEDS = range(60)
both_modes = pytest.mark.parametrize("rounds", [False, True])


@pytest.fixture
def silent() -> Iterator[int]:
    """The port of a listener that accepts nothing and says nothing."""
    with socket.create_server((HOST, 0), backlog=1000) as listener:
        yield listener.getsockname()[1]


def by_every_seed(main: Callable[[], Coroutine[Any, Any, object]], rounds: bool, silence: float) -> list[object]:
    """Return what it returned, once for each seed; nothing may have gone to the handler of exceptions."""
    said: list[object] = []

    async def watched() -> object:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context))
        return await main()

    results = []
    for seed in SEEDS:
        results.append(run(watched, seed=seed, rounds=rounds, silence=silence, steps=20_000))
        assert not said, f"seed {seed}: {said}"
    return results


@both_modes
@pytest.mark.parametrize("host", [HOST, "localhost"])
def test_a_silent_listener_is_a_timeout(silent: int, host: str, rounds: bool) -> None:
    async def main() -> float:
        # By its name it is looked up in a thread, and only IPv4 is listened on.
        reader, writer = await asyncio.open_connection(host, silent, family=socket.AF_INET)
        began = asyncio.get_running_loop().time()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.readline(), 1)
        took = asyncio.get_running_loop().time() - began
        writer.close()
        await writer.wait_closed()
        return took

    began = time.monotonic()
    assert by_every_seed(main, rounds, silence=0.02) == [pytest.approx(1.0)] * len(SEEDS)
    assert time.monotonic() - began < 30.0


@both_modes
def test_nobody_listening_is_refused(rounds: bool) -> None:
    async def main() -> None:
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(HOST, port)

    port = free_port()
    by_every_seed(main, rounds, silence=5.0)


@both_modes
def test_a_server_and_its_clients_in_one_loop(rounds: bool) -> None:
    async def main() -> list[bytes]:
        served = asyncio.Queue[None]()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while line := await reader.readline():
                writer.write(line.upper())
                await writer.drain()
            writer.close()
            served.put_nowait(None)

        async def ask(port: int, word: bytes) -> bytes:
            reader, writer = await asyncio.open_connection(HOST, port)
            answers = b""
            for _ in range(2):
                writer.write(word + b"\n")
                answers += (await asyncio.wait_for(reader.readline(), 3600.0)).strip()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(reader.readline(), 1.0)
            writer.close()
            await writer.wait_closed()
            return answers

        async with await asyncio.start_server(serve, HOST, 0) as server:
            port = server.sockets[0].getsockname()[1]
            answers = await asyncio.gather(*(ask(port, word) for word in (b"a", b"b", b"c")))
            for _ in answers:
                # Else the end of the run cancels who serves, and Python 3.11 prints a traceback then by itself.
                await served.get()
            return answers

    assert by_every_seed(main, rounds, silence=0.05) == [[b"AA", b"BB", b"CC"]] * len(SEEDS)


@both_modes
def test_the_loops_own_socket_calls(rounds: bool) -> None:
    async def main() -> bytes:
        loop = asyncio.get_running_loop()
        with socket.create_server((HOST, 0)) as listener, socket.socket() as near, contextlib.ExitStack() as stack:
            for each in (listener, near):
                each.setblocking(False)
            accepting = asyncio.create_task(loop.sock_accept(listener))
            await loop.sock_connect(near, listener.getsockname())
            far = stack.enter_context((await accepting)[0])
            got = bytearray()
            sending = asyncio.create_task(loop.sock_sendall(far, bytes(1 << 20)))
            while len(got) < 1 << 20:
                got += await loop.sock_recv(near, 1 << 16)
            await sending
            # And as a transport, for which neither descriptor may be watched any more.
            reader, writer = await asyncio.open_connection(sock=near)
            await loop.sock_sendall(far, b"end")
            try:
                return await reader.readexactly(3)
            finally:
                writer.close()
                await writer.wait_closed()

    assert by_every_seed(main, rounds, silence=5.0) == [b"end"] * len(SEEDS)


@both_modes
def test_redis_py_on_a_real_valkey(server: Server, rounds: bool) -> None:
    async def main() -> object:
        async with redis.asyncio.Redis(host=server.host, port=server.port) as client:
            await client.set("seeded", b"1")
            await asyncio.gather(*(client.incr("seeded") for _ in range(10)))
            return await client.get("seeded")

    assert by_every_seed(main, rounds, silence=5.0) == [b"11"] * len(SEEDS)


@both_modes
def test_redis_py_gives_up_on_a_silent_listener(silent: int, rounds: bool) -> None:
    async def main() -> float:
        client = redis.asyncio.Redis(host=HOST, port=silent, socket_timeout=3.0, retry=None)
        async with client:
            began = asyncio.get_running_loop().time()
            with pytest.raises(redis.exceptions.TimeoutError):
                await client.get("k")
            return asyncio.get_running_loop().time() - began

    times = by_every_seed(main, rounds, silence=0.02)
    assert times == [pytest.approx(times[0])] * len(SEEDS)


@both_modes
def test_callbacks_of_one_future_come_in_order_and_tasks_between_them_in_any(rounds: bool) -> None:
    async def main() -> str:
        future, seen = asyncio.get_running_loop().create_future(), []

        async def task(name: str) -> None:
            await future
            seen.append(name)

        future.add_done_callback(lambda _: seen.append("1"))
        tasks = [asyncio.create_task(task(name)) for name in "ab"]
        await asyncio.sleep(1.0)                # until both wait
        future.add_done_callback(lambda _: seen.append("2"))
        asyncio.get_running_loop().call_soon(future.set_result, None)
        await asyncio.wait(tasks)
        await asyncio.sleep(1.0)
        return "".join(seen)

    assert {run(main, seed=seed, rounds=rounds) for seed in SEEDS} == {"1ab2", "1ba2"}


def test_lanes_that_wait_for_each_other_all_get_their_turn() -> None:
    async def main() -> list[str]:
        loop = asyncio.get_running_loop()
        futures, seen = [loop.create_future() for _ in range(3)], list[str]()

        async def wait(number: int) -> None:
            await futures[number]
            seen.append(f"woken {number}")
            if number < 2:
                futures[number + 1].add_done_callback(lambda _: seen.append(f"plain {number + 1}"))

        for number, future in enumerate(futures):
            future.add_done_callback(partial(lambda number, _: seen.append(f"first {number}"), number))
        tasks = [asyncio.create_task(wait(number)) for number in range(3)]
        await asyncio.sleep(1.0)
        for future in futures:
            future.set_result(None)
        await asyncio.gather(*tasks)
        await asyncio.sleep(1.0)
        return seen

    for rounds in (False, True):
        for seed in SEEDS:
            seen = run(main, seed=seed, rounds=rounds)
            assert sorted(seen) == sorted(
                [f"{kind} {number}" for kind in ("first", "woken") for number in range(3)] + ["plain 1", "plain 2"])
            for number in range(3):
                assert seen.index(f"first {number}") < seen.index(f"woken {number}"), (seed, seen)


def test_a_future_with_many_callbacks_and_many_tasks_costs_no_more_for_each() -> None:
    async def main() -> float:
        future = asyncio.get_running_loop().create_future()

        async def wait() -> None:
            await future

        tasks = [asyncio.create_task(wait()) for _ in range(10_000)]
        for _ in range(10_000):
            future.add_done_callback(lambda _: None)
        await asyncio.sleep(1.0)
        future.set_result(None)
        await asyncio.wait(tasks)
        return time.monotonic()

    began = time.monotonic()
    # A second or less; if each looked at all others, a minute.
    assert run(main) - began < 15.0
