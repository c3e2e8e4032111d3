"""The gate search: what it is given is checked, what a judge says is heard, and only a real pass is clean."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any

import pytest

from kvproof.errors import UsageError
from kvproof.faults.gate_search import Callback, Report, search

QUICK: dict[str, Any] = {"deadline": 0.6}


class Pool:
    """Two who take at the same time get the same one."""

    def __init__(self) -> None:
        self.free = ["a", "b"]
        self.lock = threading.Lock()

    def take(self) -> str:
        found = self.free[-1]
        self.free = self.free[:-1]
        return found

    async def take_later(self) -> str:
        return self.take()


class LockedPool(Pool):
    """Never the same one."""

    def take(self) -> str:
        with self.lock:
            return super().take()


class BrokenPool(Pool):
    """Nothing for anybody."""

    def take(self) -> str:
        raise KeyError("free")


def apart(_: Pool, one: str, other: str) -> str | None:
    return f"both took {one}" if one == other else None


def taken(make: Any, **options: Any) -> Report:
    return search(make, lambda pool: pool.take(), lambda pool: pool.take(), **{**QUICK, **options})


@pytest.fixture(scope="module")
def clean() -> Report:
    return taken(LockedPool, judge=apart)


def test_a_search_that_met_and_lost_nothing_is_clean(clean: Report) -> None:
    assert clean.clean, clean
    assert clean.judged
    assert "no judge" not in str(clean)
    data = clean.as_data()
    assert (data["clean"], data["judged"]) == (True, True)


def test_a_search_that_lost_something_is_not_clean() -> None:
    report = taken(Pool, judge=apart)
    assert [found.lost for found in report.findings] == ["both took b"], report
    assert not report.clean
    assert report.as_data()["clean"] is False


def test_what_is_broken_altogether_has_no_findings_and_is_not_clean() -> None:
    report = taken(BrokenPool)
    assert report.findings == (), report
    assert not report.clean, report


@pytest.mark.parametrize("change", [
    {"ungated": "all"}, {"now_and_then": "some"}, {"tried": 0, "reached": 0}, {"reached": 0}, {"overlapped": 0},
    {"lost": 1}, {"unconfirmed": ("once",)}, {"unreached": ("gone",)},
], ids=lambda change: ",".join(change))
def test_nothing_found_is_not_clean_when(clean: Report, change: dict[str, Any]) -> None:
    assert not replace(clean, **change).clean


def test_a_report_without_a_judge_says_that_nothing_judged_the_outcome() -> None:
    report = taken(Pool)
    assert report.findings == (), "a double take neither hangs nor raises"
    assert "no judge: only hangs and exceptions were looked for" in str(report).splitlines()
    assert not report.judged


def test_an_assertion_of_a_judge_is_a_loss_with_its_text() -> None:
    def judge(_: Pool, one: str, other: str) -> None:
        if one == other:
            raise AssertionError(f"both took\n{one}")

    report = taken(Pool, judge=judge)
    assert [found.lost for found in report.findings] == ["both took b"], report
    assert report.findings[0].place is not None, report


def test_an_assertion_without_a_text_is_shown_by_its_line() -> None:
    def judge(*_: object) -> None:
        if _:
            raise AssertionError

    assert taken(LockedPool, judge=judge).ungated == "`raise AssertionError` in the judge"


def test_an_assertion_that_pytest_explains_groups_as_one_finding() -> None:
    def judge(pool: Pool, one: str, other: str) -> None:
        assert one != other, pool

    report = taken(Pool, judge=judge)
    assert len(report.findings) == 1, f"the address of each subject makes a loss of its own:\n{report}"
    assert "Pool object>" in report.findings[0].lost, report


@pytest.mark.parametrize("said", [False, True, 1, "", ["both"]], ids=repr)
def test_a_judge_that_says_neither_a_text_nor_none_is_an_error_of_use(said: Any) -> None:
    closed: list[Pool] = []
    with pytest.raises(UsageError) as error:
        taken(LockedPool, judge=lambda *_: said, close=closed.append)
    assert str(error.value) == f"the judge returned {said!r}, expected a text that says what was lost, or None"
    assert closed, "the subject was left open"


def test_any_other_exception_of_a_judge_ends_the_search() -> None:
    def judge(*_: object) -> None:
        raise KeyError("typo")

    with pytest.raises(KeyError, match="typo"):
        taken(LockedPool, judge=judge)


THE_JUDGE = "expected a function of (subject, what first returned, what second returned)"
THE_MAKER = "expected a function without arguments that makes a fresh subject, such as its class"
AN_ENTRY = "expected a function of the subject, such as a method of its class"


class Needy(Pool):
    """Cannot be made without help."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def __repr__(self) -> str:
        return "<needy>"


@pytest.mark.parametrize(("wrong", "words"), [
    ({"make": Needy(1)}, f"make is <needy>, {THE_MAKER}"),
    ({"make": Needy}, f"Needy'>, which cannot be called so (missing a required argument: 'size'), {THE_MAKER}"),
    ({"first": "take"}, f"first is 'take', {AN_ENTRY}"),
    ({"second": "take"}, f"second is 'take', {AN_ENTRY}, or a Callback"),
    ({"first": Callback(Pool, "take")}, "first is Callback(owner="),
    ({"first": Needy(1).take}, "too many positional arguments"),
    ({"second": lambda pool, more: None}, "missing a required argument: 'more'"),
    ({"second": Pool.take_later}, "is a coroutine function, expected a function that returns when it has ended"),
    ({"judge": "apart"}, f"judge is 'apart', {THE_JUDGE}"),
    ({"judge": lambda one, other: None}, f"which cannot be called so (too many positional arguments), {THE_JUDGE}"),
    ({"close": "close"}, "close is 'close', expected a function of the subject"),
    ({"within": "tests"}, "within is 'tests', expected a sequence of names, such as ('tests',)"),
    ({"second": Callback("Pool", "take")}, "owner is 'Pool', expected the class that has the method"),  # type: ignore[arg-type]  # on purpose
], ids=lambda value: next(iter(value)) if isinstance(value, dict) else "")
def test_what_cannot_be_called_is_an_error_of_use(wrong: dict[str, Any], words: str) -> None:
    given: dict[str, Any] = {"make": LockedPool, "first": Pool.take, "second": Pool.take, **QUICK, **wrong}
    with pytest.raises(UsageError) as error:
        search(given.pop("make"), given.pop("first"), given.pop("second"), **given)
    assert words in str(error.value)


def test_what_a_decorator_fills_in_is_not_asked_for() -> None:
    def greeting(entry: Callable[[Pool, str], str]) -> Callable[[Pool], str]:
        @wraps(entry)
        def entered(pool: Pool) -> str:
            return entry(pool, "hello")

        return entered

    @greeting
    def take(pool: Pool, words: str) -> str:
        return words + pool.take()

    assert search(LockedPool, take, take, judge=apart, **QUICK).clean
