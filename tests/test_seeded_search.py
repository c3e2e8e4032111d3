"""Races are found by seeds and found again by tokens; right programs pass; a wrong token is one clear line."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from kvproof.errors import UsageError
from kvproof.faults.seeded_choices import Choices
from kvproof.faults.seeded_loop import NotReplayed, explore, run
from kvproof.faults.seeded_ready import ReadyQueue
from tests.races import RACES, check_then_act, lost_in_wait_for, right

PLAIN = """
from kvproof.faults.seeded_loop import explore
from tests import races
failures = [explore(each) for each in races.RACES]
assert all(failures), failures
print([failure.token for failure in failures])
"""


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
    assert one.token() != two.token()
    assert Choices.replay(one.token()).seed == 0


def test_a_token_is_short_and_names_its_run_only() -> None:
    failure = explore(check_then_act)
    assert failure is not None
    assert len(failure.token) < 80
    assert failure.token.isprintable()
    with pytest.raises(NotReplayed, match=r"went another way, to kvloop.* and ended without an error"):
        run(right, token=failure.token)


@pytest.mark.parametrize("rounds", [False, True])
@pytest.mark.parametrize("yields", [0, 3])
def test_a_replay_that_ends_otherwise_is_none(yields: int, rounds: bool) -> None:
    def program(error: Exception | None) -> Callable[[], Coroutine[Any, Any, None]]:
        async def step() -> None:
            await asyncio.sleep(0)

        async def main() -> None:
            await asyncio.gather(*(step() for _ in range(yields)))
            if error is not None:
                raise error

        return main

    failure = explore(program(ValueError("one")), rounds=rounds)
    assert failure is not None
    assert (f"-0-{0:08x}-" in failure.token) == (yields == 0), "a choice was made where there is none, or the reverse"
    for error, ended in [
        (None, "without an error"),
        (KeyError("two"), r"in KeyError\('two'\)"),
        (ExceptionGroup("", [ValueError("one")]), "in ExceptionGroup"),
        (UnicodeError("a kind of ValueError"), "in UnicodeError"),
    ]:
        with pytest.raises(NotReplayed, match=f"made the same choices and ended otherwise, {ended}") as caught:
            run(program(error), token=failure.token)
        assert caught.value.__cause__ is error
    with pytest.raises(ValueError, match="what it says is not compared"):
        run(program(ValueError("what it says is not compared")), token=failure.token)


def test_groups_of_errors_are_told_apart_by_what_is_in_them() -> None:
    one, two = (Choices(0).token(ExceptionGroup("", [each])) for each in (ValueError(), KeyError()))
    assert one != two
    assert one == Choices(0).token(ExceptionGroup("other", [ValueError("other")]))


def tokens() -> list[tuple[str, str]]:
    choices = Choices(17)
    choices.take(3)
    token = choices.token()
    other = token.replace("kvloop2", "kvloop3").rpartition("-")[0]
    older = token.replace("kvloop2", "kvloop1").rsplit("-", 2)[0]
    python = token.replace(f"-3.{sys.version_info.minor}-", "-3.10-").rpartition("-")[0]
    return [
        ("", "not a whole replay token"),
        ("17", "not a whole replay token"),
        (token[:-1], "not a whole replay token"),
        (token.replace("-17-", "-18-"), "not a whole replay token"),
        (checked(other), "another version of kvproof"),
        (checked(older), "another version of kvproof"),
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
        (lambda: run(right, seed=1, token=Choices(1).token()), "not both"),
        (lambda: explore(None), "function that makes a coroutine"),  # type: ignore[arg-type]  # wrong on purpose
        (lambda: explore(asyncio.sleep), "without arguments here: missing a required argument: 'delay'"),
        (lambda: run(asyncio.sleep), "functools.partial"),
        (lambda: explore(lambda: 17), "has made no coroutine, but 17"),  # type: ignore[arg-type, return-value]  # wrong on purpose
        (lambda: run(dict), "has made no coroutine, but {}"),  # type: ignore[arg-type]  # wrong on purpose
    ],
)
def test_a_wrong_call_is_refused(wrong: Callable[[], object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        wrong()


def test_what_goes_wrong_in_making_the_coroutine_is_a_failure_of_the_program() -> None:
    def make() -> Coroutine[Any, Any, None]:
        raise TypeError("of the program's own")

    failure = explore(make)
    assert failure is not None
    assert str(failure.error) == "of the program's own"
    with pytest.raises(UsageError, match="the program's"):
        run(lambda: raises(UsageError("the program's")))
    failure = explore(lambda: raises(UsageError("the program's")))
    assert failure is not None


async def raises(error: Exception) -> None:
    raise error


def test_a_loop_in_a_loop_is_refused() -> None:
    async def outer() -> None:
        run(right)

    with pytest.raises(UsageError, match="inside another event loop"):
        asyncio.run(outer())


def test_the_same_choices_in_another_process() -> None:
    done = [
        subprocess.run([sys.executable, "-c", PLAIN], capture_output=True, text=True, timeout=60, check=False,
                       env={**os.environ, "PYTHONHASHSEED": str(number)})
        for number in (1, 2)
    ]
    assert done[0].returncode == 0, done[0].stderr
    assert done[0].stdout == done[1].stdout
