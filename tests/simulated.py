"""A network in memory for the reference client: a scripted server, and a clock that jumps to what happens next.

The client's own driver runs, on real sockets whose other end is held here. Callers, server and driver are tasks of
its one loop; while all of them wait, the clock jumps. So a script has one course, however busy the machine is.
"""

from __future__ import annotations

import math
import socket
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import trio
import trio.testing
from trio._core import _run as scheduler

from kvproof.connectors.adapter import Endpoint, Place
from kvproof.connectors.reference_client import Client, Operation
from kvproof.models.client import Outcome
from kvproof.models.frames import FrameScanner
from kvproof.models.payloads import POISON, encode
from kvproof.models.registry import Completion, Outcomes

TIMEOUT = 3.0
"""What the client is told that an operation may take, in seconds of the simulated clock."""
# trio runs its tasks in an order of its own choice; with this, in one that follows from the seed that `perform` sets.
scheduler._ALLOW_DETERMINISTIC_SCHEDULING = True

PATIENCE = 100.0
"""Simulated seconds after which an operation counts as never ending."""


@dataclass(frozen=True)
class Answer:
    """What the server does with one request.

    status: what it says of the key. size: bytes of the value. pieces: (seconds, bytes): after so long so much of the
    reply is sent. end: after the pieces the rest of the reply is sent, or nothing ever, or the connection is closed.
    """

    status: Literal["found", "absent", "error"] = "found"
    size: int = 16
    pieces: tuple[tuple[float, int], ...] = ()
    end: Literal["rest", "silence", "close"] = "rest"


@dataclass(frozen=True)
class Step:
    """One operation: when it begins, after how long it is cancelled (seconds), and the answer for each of its keys."""

    kind: Literal["get", "exists", "set"]
    answers: tuple[Answer, ...] = (Answer(),)
    at: float = 0.0
    cancel: float | None = None


@dataclass(frozen=True)
class Script:
    """Everything that happens.

    opens: for each connection attempt but the first ones, the seconds until it succeeds, None to refuse it. close:
    when the client is closed; without, one operation more is done on a network without faults. order: seeds the order
    in which tasks run that could run at once.
    """

    steps: tuple[Step, ...]
    connections: int = 1
    opens: tuple[float | None, ...] = ()
    close: float | None = None
    order: int = 0


@dataclass
class Call:
    """One operation as its caller saw it: `content` is what its buffers held when it ended, `later` at the very end."""

    step: Step
    keys: list[str]
    buffers: list[bytearray]
    begun: float
    identity: int = 0
    ended: float = math.inf
    outcomes: tuple[Outcome, ...] = ()
    content: list[bytes] = field(default_factory=list)
    later: list[bytes] = field(default_factory=list)


@dataclass
class Course:
    """What happened: the calls, the one after all faults, which reply was whole when, what else is wrong.

    left: how many connections the client holds open at the end.
    """

    calls: list[Call] = field(default_factory=list)
    last: Call | None = None
    answered: dict[str, float] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    drained: list[int] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    left: int = 0


def reply(kind: str, key: str, answer: Answer) -> bytes:
    """Return the reply to a request."""
    if answer.status == "error" or (kind == "set" and answer.status == "absent"):
        return b"-ERR scripted\r\n"
    found = answer.status == "found"
    if kind == "get":
        return b"$%d\r\n%b\r\n" % (answer.size, encode(key, 1, answer.size)) if found else b"$-1\r\n"
    return b"+OK\r\n" if kind == "set" else b":%d\r\n" % found


class Simulation:
    """The network, the server and the callers of one script."""

    def __init__(self, script: Script) -> None:
        self.script, self.course = script, Course()
        self.clock = trio.testing.MockClock(autojump_threshold=0)
        self.token: trio.lowlevel.TrioToken | None = None
        self._arrive, self._arrived = trio.open_memory_channel[socket.socket](math.inf)
        self._sockets: list[socket.socket] = []
        self._opens = iter(script.opens)
        self._first = script.connections
        self._expected: dict[str, tuple[str, Answer]] = {}
        self._calm = False

    async def open(self, host: str, port: int) -> socket.socket:
        """Connect as the script says: the first connections at once, or the clock would run before the script does."""
        self.token = trio.lowlevel.current_trio_token()
        self._first -= 1
        if self._first < 0 and not self._calm:
            delay = next(self._opens, 0.0)
            if delay is None:
                raise ConnectionRefusedError("refused by the script")
            await trio.sleep(delay)
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self._sockets.append(ours)
        self._arrive.send_nowait(theirs)
        return ours

    async def perform(self, client: Client) -> None:
        """Do all steps; then, on a network that works again, one more."""
        await trio.testing.wait_all_tasks_blocked()
        scheduler._r.seed(self.script.order)
        async with trio.open_nursery() as server:
            server.start_soon(self._accept, server)
            if self.script.close is not None:
                server.start_soon(self._close, client, self.script.close)
            async with trio.open_nursery() as callers:
                for number, step in enumerate(self.script.steps):
                    callers.start_soon(self._call, client, step, f"key{number}")
            # The moment of closing may be still to come; connection attempts under way come to their end.
            await trio.sleep(TIMEOUT + 1 if self.script.close is None else math.inf)
            self._calm = True
            self.course.last = await self._call(client, Step("get"), "last")
            self.count()
            server.cancel_scope.cancel()

    def count(self) -> None:
        """Note how many connections the client has not closed."""
        self.course.left = sum(sock.fileno() >= 0 for sock in self._sockets)

    async def _close(self, client: Client, at: float) -> None:
        await trio.sleep(at)
        client.native.close()

    async def _call(self, client: Client, step: Step, name: str) -> Call:
        await trio.sleep(step.at)
        keys = [f"{name}.{index}" for index in range(len(step.answers))]
        for key, answer in zip(keys, step.answers, strict=True):
            self._expected[key] = (step.kind, answer)
        if step.kind == "set":
            buffers = [bytearray(encode(key, 1, answer.size)) for key, answer in zip(keys, step.answers, strict=True)]
        else:
            buffers = [bytearray([POISON]) * answer.size for answer in step.answers]
        call = Call(step, keys, buffers, self.clock.current_time())
        self.course.calls.append(call)
        operation = begin(client, call)
        done = trio.Event()

        def ended(future: Future[Outcomes]) -> None:
            call.ended, call.outcomes = self.clock.current_time(), future.result()
            call.content = [bytes(buffer) for buffer in buffers]
            done.set()

        operation.slot.add_done_callback(ended)
        if step.cancel is not None:
            with trio.move_on_after(step.cancel):
                await done.wait()
            client.native.cancel(operation.identity)
        with trio.move_on_after(PATIENCE):
            await done.wait()
        return call

    async def _accept(self, nursery: trio.Nursery) -> None:
        async for peer in self._arrived:
            nursery.start_soon(self._serve, trio.SocketStream(trio.socket.from_stdlib_socket(peer)))

    async def _serve(self, stream: trio.SocketStream) -> None:
        scanner = FrameScanner(keep_words=True)
        async with stream:
            with suppress(trio.BrokenResourceError):  # The client has gone.
                while data := await stream.receive_some(1 << 16):
                    for frame in scanner.feed(data):
                        if not await self._answer(stream, frame.words):
                            return

    async def _answer(self, stream: trio.SocketStream, words: Sequence[bytes]) -> bool:
        """Answer one request; return whether the connection goes on."""
        key = words[1].decode()
        self.course.asked.append(key)
        kind, answer = self._expected[key]
        if kind == "set" and words[2] != encode(key, 1, answer.size)[: len(words[2])]:
            self.course.wrong.append(f"SET {key} sent {words[2][:40]!r}")
        raw = memoryview(reply(kind, key, answer))
        for seconds, count in answer.pieces:
            if not len(raw):
                break
            await trio.sleep(seconds) if seconds else await trio.testing.wait_all_tasks_blocked()
            await self._send(stream, key, raw[:count], whole=count >= len(raw))
            raw = raw[count:]
        if answer.end == "silence" and len(raw):
            while await stream.receive_some(1 << 16):
                pass
            return False
        if answer.end == "rest" and len(raw):
            await self._send(stream, key, raw, whole=True)
        return answer.end != "close"

    async def _send(self, stream: trio.SocketStream, key: str, raw: memoryview, *, whole: bool) -> None:
        await stream.send_all(raw)
        if whole:
            self.course.answered[key] = self.clock.current_time()


def begin(client: Client, call: Call) -> Operation:
    """Begin the operation of a call as a caller in the driver's own thread."""
    native = client.native
    views = [memoryview(buffer) for buffer in call.buffers]

    def hand_over(identity: int) -> None:
        call.identity = identity
        if call.step.kind == "exists":
            native.submit_batch_exists(identity, call.keys)
        elif call.step.kind == "get":
            native.submit_batch_get(identity, call.keys, views)
        else:
            native.submit_batch_set(identity, call.keys, views)

    return client.registry.submit(hand_over, len(call.keys))


def play(script: Script, kind: type[Client] = Client) -> Course:
    """Play a script on a fresh client and return what happened."""
    simulation = Simulation(script)
    course = simulation.course
    driver = partial(kind.driver, opener=simulation.open, clock=simulation.clock)
    place = Place(Endpoint("simulated", 1), 16, connections=script.connections, timeout=TIMEOUT)
    client = type(f"Simulated{kind.__name__}", (kind,), {"driver": driver})(place)
    drain = client.registry.drain

    def noted(completions: list[Completion]) -> int:
        course.drained += [item[0] for item in completions]
        return drain(completions)

    client.registry.drain = noted
    try:
        trio.from_thread.run(simulation.perform, client, trio_token=simulation.token)
    except* trio.Cancelled:
        # When the client is closed its loop ends, and whatever of the script is left with it.
        assert script.close is not None, "the loop has ended, and nobody closed the client"
    finally:
        client.close()
    if script.close is not None:
        simulation.count()
        course.last = Call(Step("get"), ["last.0"], [bytearray(16)], simulation.clock.current_time())
        course.last.outcomes = begin(client, course.last).slot.result(0)
    for call in course.calls:
        call.later = [bytes(buffer) for buffer in call.buffers]
    return course
