"""What the gate search is given: whether it can be called the way it will be, and what a judge says."""

from __future__ import annotations

import inspect
import linecache
import re
import traceback
from collections.abc import Callable
from typing import Any

from kvproof.errors import UsageError
from kvproof.faults.gate_sides import Callback

Judge = Callable[[Any, Any, Any], str | None]

_MAKER = "a function without arguments that makes a fresh subject, such as its class"
_ENTRY = "a function of the subject, such as a method of its class"
_JUDGE = "a function of (subject, what first returned, what second returned)"
_LONGEST = 300


def check(make: object, first: object, second: object, judge: object, close: object, within: object) -> None:
    """Raise UsageError, with what was given and what is expected, for what cannot be called or looked for."""
    _callable("make", make, 0, _MAKER)
    _entry("first", first, _ENTRY)
    if isinstance(second, Callback):
        if not isinstance(second.owner, type):
            raise UsageError(f"the Callback's owner is {second.owner!r}, expected the class that has the method")
    else:
        _entry("second", second, f"{_ENTRY}, or a Callback")
    if judge is not None:
        _callable("judge", judge, 3, _JUDGE)
    if close is not None:
        _callable("close", close, 1, _ENTRY)
    if isinstance(within, str):
        raise UsageError(f"within is {within!r}, expected a sequence of names, such as ({within!r},)")


def lost(judge: Judge | None, subject: object, first: object, second: object) -> str | None:
    """Return what a judge says was lost, or None; an AssertionError of the judge says it too.

    Raises UsageError for a judge that says neither a text nor None.
    """
    if judge is None:
        return None
    try:
        said: object = judge(subject, first, second)
    except AssertionError as error:
        return _asserted(error)
    if said is None or (isinstance(said, str) and said):
        return said
    raise UsageError(f"the judge returned {said!r}, expected a text that says what was lost, or None")


def _asserted(error: AssertionError) -> str:
    """Return an assertion's text in one line, without the addresses that make each subject's another one."""
    words = " ".join(re.sub(r" at 0x[0-9a-fA-F]+", "", str(error)).split())
    if words:
        return words[:_LONGEST]
    at = traceback.extract_tb(error.__traceback__)[-1]
    line = linecache.getline(at.filename, at.lineno or 0).strip() or f"line {at.lineno}"
    return f"`{line}` in the judge"[:_LONGEST]


def _entry(name: str, given: object, expected: str) -> None:
    _callable(name, given, 1, expected)
    if inspect.iscoroutinefunction(given):
        raise UsageError(f"{name} is {given!r}, which is a coroutine function, expected a function that returns when "
                         "it has ended")


def _callable(name: str, given: object, arguments: int, expected: str) -> None:
    if not callable(given):
        raise UsageError(f"{name} is {given!r}, expected {expected}")
    try:
        # Not what a decorator has wrapped: the decorator may fill arguments in.
        signature = inspect.signature(given, follow_wrapped=False)
    except (TypeError, ValueError):
        return  # It does not say how it is called, as some native functions do not.
    try:
        signature.bind(*[None] * arguments)
    except TypeError as error:
        raise UsageError(f"{name} is {given!r}, which cannot be called so ({error}), expected {expected}") from None
