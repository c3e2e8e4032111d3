"""The i-th allocation of a buffer fails, inside the code that asks for it, for each i."""

from __future__ import annotations

import builtins
import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Generic, Literal, TypeVar

from kvproof.errors import UsageError
from kvproof.faults.gates import substitute

Result = TypeVar("Result")
How = Literal["raise", "none"]


@dataclass
class Allocations:
    """Calls of an allocator since it was watched. struck: one of them has failed, as it was to."""

    calls: int = 0
    struck: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def take(self, nth: int) -> bool:
        """Count one call; return whether it is the nth."""
        with self._lock:
            self.calls += 1
            self.struck |= self.calls == nth
            return self.calls == nth


@contextmanager
def failing(owner: object, attribute: str, nth: int, how: How = "raise") -> Iterator[Allocations]:
    """Let the nth call of the allocator `owner.attribute` fail, 1 for the first in the context, in whatever thread.

    0: none fails, they are counted. how: "raise" a MemoryError, or return "none", as allocators of a fixed pool do.
    owner: a module, class or object in which the code under test looks the allocator up at each call; a builtin such
    as ``bytearray`` is replaced by a function in one module only, where isinstance must not need it.
    """
    if nth < 0 or how not in ("raise", "none"):
        raise UsageError(f"failing: got nth={nth}, how={how!r}; allowed: nth from 0 on, how 'raise' or 'none'")
    found = inspect.getattr_static(owner, attribute, None) if isinstance(owner, type) else None
    bound = found if isinstance(found, (staticmethod, classmethod)) else None
    original: Callable[..., Any] = bound.__func__ if bound is not None else _allocator(owner, attribute)
    seen = Allocations()

    @functools.wraps(original)
    def allocate(*args: Any, **kwargs: Any) -> Any:
        if not seen.take(nth):
            return original(*args, **kwargs)
        if how == "none":
            return None
        raise MemoryError(f"kvproof: allocation {nth} of {attribute} fails")

    with substitute(owner, attribute, allocate if bound is None else type(bound)(allocate)):
        yield seen


@dataclass(frozen=True)
class Run(Generic[Result]):
    """One run, in which allocation `nth` failed, if it came to that: `struck`; with what it returned or raised."""

    nth: int
    struck: bool
    calls: int
    result: Result | None = None
    error: Exception | None = None


def each_allocation(
    owner: object, attribute: str, run: Callable[[], Result], how: How = "raise"
) -> Iterator[Run[Result]]:
    """Count the allocations that `run` makes, then yield for each a run in which that one fails.

    The first run, in which none fails, has to succeed; what it raises is raised. Its count is the number of runs, so
    where `run` does not allocate the same each time, a run may not come to its failure, and says so. Raises
    UsageError when there is no allocation at all.
    """
    with failing(owner, attribute, 0) as counted:
        run()
    if not counted.calls:
        raise UsageError(f"each_allocation: the call made no allocation through {attribute}; name another allocator")
    for nth in range(1, counted.calls + 1):
        result: Result | None = None
        error: Exception | None = None
        with failing(owner, attribute, nth, how) as seen:
            try:
                result = run()
            except Exception as raised:
                error = raised
        yield Run(nth, seen.struck, seen.calls, result, error)


def _allocator(owner: object, attribute: str) -> Callable[..., Any]:
    found: Callable[..., Any] | None = getattr(owner, attribute, None)
    if found is None and isinstance(owner, ModuleType):
        found = getattr(builtins, attribute, None)
    if not callable(found):
        raise UsageError(f"failing: {owner!r} has no allocator {attribute!r}; name the one that the code looks up")
    return found
