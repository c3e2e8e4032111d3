"""An asyncio event loop whose order and time are a seed's: races are searched for, and found again by a token.

    failure = explore(main)                      # the first seed at which main fails, with its token
    run(main, token=failure.token)               # the same run once more

What is shuffled. asyncio runs what is ready in the order in which it became ready. Here that order holds within a lane
only, and a seed chooses the next lane. The steps of a task are a lane, with the callbacks that it schedules by
`call_soon` or a timer and those that these schedule; what a socket or a thread brings is one, too. So a callback still
comes before the next step of the task that scheduled it, and two callbacks of one origin come in order. What breaks is
the order between tasks: a new task may start after its maker has gone on, a task that is woken second may run first,
and one task may take several steps while another is ready (`rounds` forbids that: then whatever is ready runs once
before anything runs twice). The callbacks of one future come in the order in which they were added, whatever their
lanes, because asyncio's own code for sockets leans on it; only tasks that wait for the same future, with no callback
added between them, are woken in any order. A program that fails so leans on an order that asyncio keeps and a network
does not; in production it may not have failed yet.

What time it is. `loop.time` begins at 0 and stands still while anything is ready; when nothing is, it jumps to the
next timer. Only while a socket is watched, a call of run_in_executor is not done, or a thread that began during the
run is alive may something come from outside: then the loop waits for it in real time, until the next timer and for
`silence` seconds at most. What it has waited counts on its clock, in steps of 50 ms. After the silence it believes that
nothing comes, and jumps as well. Where there is not even a timer it raises `Stuck`, as it does after `steps` callbacks.

Limits. What arrives by sockets and threads arrives when it does: a token replays such a run only where that changes no
choice, and `NotReplayed` says when it did, or when the run ended otherwise. A thread that began before the run and
calls call_soon_threadsafe is not waited for. time.monotonic and time.sleep are not asyncio's, so they stay real.
Subprocesses are not supported.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import selectors
import threading
import time
import weakref
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from types import CoroutineType
from typing import Any, TypeVar, cast

from kvproof.errors import KvproofError, UsageError
from kvproof.faults.seeded_choices import Choices, NotReplayed, same_choices
from kvproof.faults.seeded_order import ShuffledLoop

__all__ = ["Choices", "Failure", "NotReplayed", "SeededLoop", "Stuck", "explore", "run"]

Result = TypeVar("Result")
SILENCE = 5.0
"""Seconds of real time without anything from sockets or threads after which nothing more is believed to come."""
STEPS = 1_000_000
"""Callbacks after which a run is believed to go on for ever."""
_TICK = 0.05
_POOL = "kvproof-seeded"


class Stuck(KvproofError):
    """Nothing can ever happen any more, or too much has; the message says which tasks wait, and where."""


@dataclass
class Failure:
    """A run that failed. token: replays it. error: what `main` raised, with the token in its notes."""

    seed: int
    token: str
    error: BaseException


def run(
    main: Callable[[], Coroutine[Any, Any, Result]],
    *,
    seed: int | None = None,
    token: str | None = None,
    rounds: bool = False,
    silence: float = SILENCE,
    steps: int = STEPS,
) -> Result:
    """Run `main()` on a loop of its own by a seed (0 unless given), or by a token exactly as it ran before.

    Returns and raises what it does; an error has the token in its notes. Raises Stuck, UsageError for a token that
    cannot be replayed here or for what is no function without arguments that makes a coroutine, and NotReplayed when
    the run made other choices than the token's, or the same and ended without an error, or in one of another class.
    What the error says is not compared. A token without a choice, of a program that fails in every order, fits any
    program that makes none and ends in that class. Give the same `silence` and `steps` as before.
    """
    if token is None:
        choices = Choices(0 if seed is None else seed, rounds=rounds)
    elif seed is None and not rounds:
        choices = Choices.replay(token)
    else:
        raise UsageError("run: give a token, or a seed and an order, not both; a token says what they were")
    result, error, made = _run(main, choices, silence, steps)
    if token is not None and made != token:
        ended = "without an error" if error is None else f"in {error!r}"
        if same_choices(token, made):
            raise NotReplayed(f"the run of {token} made the same choices and ended otherwise, {ended}") from error
        raise NotReplayed(f"the run of {token} went another way, to {made}, and ended {ended}") from error
    if error is not None:
        raise error
    return cast(Result, result)


def explore(
    make_main: Callable[[], Coroutine[Any, Any, object]],
    seeds: Iterable[int] = range(100),
    *,
    rounds: bool = False,
    silence: float = SILENCE,
    steps: int = STEPS,
) -> Failure | None:
    """Run `make_main()` by each seed; return the first failure, or None when there is none.

    Raises UsageError for what is no function without arguments that makes a coroutine.
    """
    for seed in seeds:
        _, error, token = _run(make_main, Choices(seed, rounds=rounds), silence, steps)
        if error is not None:
            return Failure(seed, token, error)
    return None


def _run(
    main: Callable[[], Coroutine[Any, Any, Result]], choices: Choices, silence: float, steps: int
) -> tuple[Result | None, BaseException | None, str]:
    _check_main(main)
    if _running():
        raise UsageError("a seeded loop cannot run inside another event loop; call run or explore from plain code")
    result: Result | None = None
    token = ""
    try:
        with asyncio.Runner(debug=False, loop_factory=partial(SeededLoop, choices, silence, steps)) as runner:
            # The token is taken before the clean-up, which is no part of what is replayed.
            try:
                result = runner.run(_made_by(main))
            except (Exception, asyncio.CancelledError) as error:
                token = choices.token(error)
                raise
            token = choices.token()
    except _NoCoroutine as wrong:
        raise UsageError(str(wrong)) from None
    except (Exception, asyncio.CancelledError) as error:
        error.add_note(f"kvproof: seed {choices.seed}; replay it with token {token}")
        return None, error, token
    return result, None, token


class _NoCoroutine(Exception):
    """What should be run is none."""


def _check_main(main: Any) -> None:
    if not callable(main):
        raise UsageError(f"{main!r} is not a function that makes a coroutine; give the function, without calling it")
    try:
        inspect.signature(main).bind()
    except TypeError as error:
        raise UsageError(f"{main!r} must be called without arguments here: {error}; give them by functools.partial"
                         ) from None
    except ValueError:
        pass    # a function that does not say what it takes


def _made_by(main: Callable[[], Coroutine[Any, Any, Result]]) -> Coroutine[Any, Any, Result]:
    made: Any = main()
    if not asyncio.iscoroutine(made):
        raise _NoCoroutine(f"{main!r} has made no coroutine, but {made!r}; give an `async def` function")
    return cast("Coroutine[Any, Any, Result]", made)


class SeededLoop(ShuffledLoop):
    """The loop; see the module. It is made in the thread that runs it."""

    def __init__(self, choices: Choices, silence: float = SILENCE, steps: int = STEPS) -> None:
        """Take the order from `choices`."""
        self._now = self._waited = 0.0
        self._silence, self._steps, self._steps_left = silence, steps, steps
        self._executing = 0
        self._own_pool = False
        self._threads = set(threading.enumerate())
        self._watching = _Selector(self)
        super().__init__(choices, self._watching)
        self._always_watched = len(self._watching.get_map())
        self.set_task_factory(partial(_task, itertools.count()))

    def time(self) -> float:
        """Return the virtual time in seconds."""
        return self._now

    def run_in_executor(  # type: ignore[override]  # the supertype's own type is one of a TypeVarTuple
        self, executor: Executor | None, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Remember that something may come; see BaseEventLoop."""
        if executor is None and not self._own_pool:
            self._own_pool = True
            self.set_default_executor(ThreadPoolExecutor(thread_name_prefix=_POOL))
        future = super().run_in_executor(executor, func, *args)
        self._executing += 1
        future.add_done_callback(self._executed)
        return future

    def set_default_executor(self, executor: Any) -> None:
        """Take somebody's; see BaseEventLoop."""
        self._own_pool = True
        super().set_default_executor(executor)

    def pending(self, timeout: float | None, poll: Callable[[float | None], Any]) -> Any:
        """Return the events that there are, or that come while time passes; `timeout` as for a selector."""
        # Asked before the sockets are: a thread that calls the loop last of all may be gone right after.
        outside = timeout != 0 and self._may_come()
        events = poll(0)
        if events or timeout == 0:
            return events
        if outside:
            began = time.monotonic()
            events = poll(self._silence if timeout is None else min(timeout, self._silence))
            self._waited += time.monotonic() - began
            if events:
                # Whole steps only, so that an answer from nearby takes no time at all and times stay comparable.
                passed, self._waited = divmod(self._waited, _TICK)
                self._now += passed * _TICK if timeout is None else min(passed * _TICK, timeout)
                return events
            self._waited = 0.0
        if timeout is None:
            silent = f", and nothing has come for {self._silence:g} s" if outside else ""
            raise Stuck(f"nothing can happen any more at {self._now:g} s{silent}: {self._waiting()}")
        self._now += timeout
        return []

    def _executed(self, _: object) -> None:
        self._executing -= 1

    def _step(self) -> None:
        self._steps_left -= 1
        if self._steps_left < 0:
            # As many again, for the clean-up.
            self._steps_left = self._steps
            raise Stuck(f"no end after {self._steps} callbacks, at {self._now:g} s: {self._waiting()}")

    def _may_come(self) -> bool:
        if self._executing or len(self._watching.get_map()) > self._always_watched:
            return True
        begun = set(threading.enumerate()) - self._threads
        return any(not thread.name.startswith(_POOL) for thread in begun)

    def _waiting(self) -> str:
        tasks = sorted(asyncio.all_tasks(self), key=hash)
        return "; ".join(f"{task.get_name()} in {_place(task)}" for task in tasks) or "no task is left"


class _Task(asyncio.Task[Any]):
    """A task whose hash is its number, so that sets of tasks, as in TaskGroup, have the same order in every run."""

    def __init__(self, number: int, coroutine: Any, **more: Any) -> None:
        self._number = number
        super().__init__(coroutine, **more)

    def __hash__(self) -> int:
        return self._number

    def set_name(self, value: object) -> None:
        # Python 3.13.0 calls a task that nobody named by None.
        if value is not None:
            super().set_name(value)


def _task(numbers: Iterator[int], loop: asyncio.AbstractEventLoop, coroutine: Any, **more: Any) -> _Task:
    return _Task(next(numbers), coroutine, loop=loop, **more)


def _place(task: asyncio.Task[Any]) -> str:
    """Return where a task that waits has come to, in the code that is innermost."""
    inner: Any = task.get_coro()
    while isinstance(getattr(inner, "cr_await", None), CoroutineType):
        inner = inner.cr_await
    frame = getattr(inner, "cr_frame", None)
    if frame is None:
        return repr(inner)
    return f"{frame.f_code.co_qualname} ({frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno})"


def _running() -> bool:
    try:
        return asyncio.get_running_loop() is not None
    except RuntimeError:
        return False


class _Selector(selectors.DefaultSelector):
    """Watches sockets, and lets the loop say how long to wait for them."""

    def __init__(self, loop: SeededLoop) -> None:
        super().__init__()
        self._loop = weakref.ref(loop)

    def select(self, timeout: float | None = None) -> Any:
        loop = self._loop()
        assert loop is not None
        # In the order of descriptors, because that of the kernel is nobody's choice.
        return sorted(loop.pending(timeout, super().select), key=lambda event: event[0].fd)
