"""The gate search: two entry points, two threads, every pause point of the one while the other runs.

At each point before a line and after a call the thread of one entry point is stopped, the other runs to its end (or
until it waits for the first), and the first goes on. What is lost so is lost on a schedule that the operating system
could have chosen, and is confirmed on a second subject. Not found: what needs more than one switch in the stopped
thread's code, a later visit to a line, or a switch inside an operation that CPython does not interrupt.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from types import CodeType
from typing import Any, Generic, TypeVar

from kvproof.errors import UsageError
from kvproof.faults import gate_given
from kvproof.faults.gate_points import OnStep, Recorder, Scope, Step, Stop
from kvproof.faults.gate_sides import Call, Callback, Called, Side, Switchboard
from kvproof.faults.gate_words import Finding, Report, described, finding, merged

__all__ = ["Callback", "Finding", "Report", "search"]

Subject = TypeVar("Subject")
SIDES = ("first", "second")
_TRIES = 3
"""Runs without a gate that must all lose something before the search is given up."""
_MORE = 2
"""Further runs that confirm a loss where a race strikes by itself."""
_PATIENCE = 1.5
"""How many times the deadline a loss is given when it is confirmed."""


@dataclass(frozen=True, slots=True)
class _Ran:
    """How one run went."""

    reached: bool
    overlapped: bool
    lost: str | None


def search(
    make: Callable[[], Subject],
    first: Callable[[Subject], object],
    second: Callable[[Subject], object] | Callback,
    *,
    judge: Callable[[Subject, Any, Any], str | None] | None = None,
    close: Callable[[Subject], object] | None = None,
    within: Sequence[str] = (),
    deadline: float = 1.0,
    settle: float = 0.3,
    at_once: int = 8,
) -> Report:
    """Try every pause point of each entry point while the other runs; return what was lost where.

    make: a fresh subject; one a run, made one at a time. first, second: the entry points, each called with the subject
    on a thread of its own; second may be a `Callback`. judge: given the subject and what both returned (None for a
    callback), what was lost in words, or None; an AssertionError in it says the same. An entry point that raises or
    does not return has lost something without it. close: ends a subject. within: names of the packages or modules
    whose code is stopped in; by default the top-level packages of the subject's class and of the entry points.
    deadline: seconds after a stopped thread went on within which both must have ended. settle: seconds that the other
    side is given to run while one is stopped; no timeout of the subject's own may be as short. at_once: runs at the
    same time, which mostly wait.

    Everything ends in time, but a thread that has lost something may wait for ever: code that is not ours belongs
    into a process that can be ended, such as a runner. Raises UsageError for what cannot be called with these
    arguments, for a judge that returns anything else, for a callback that its class does not have, and when no
    function in `within` was run at all.
    """
    gate_given.check(make, first, second, judge, close, within)
    plan = _Search(make, first, second, judge, close, tuple(within), deadline, settle, at_once)
    with plan.board.wrapped(second) if isinstance(second, Callback) else nullcontext():
        return plan.report()


@dataclass
class _Search(Generic[Subject]):
    """One search; the fields are `search`'s arguments."""

    make: Callable[[], Subject]
    first: Callable[[Subject], object]
    second: Callable[[Subject], object] | Callback
    judge: Callable[[Subject, Any, Any], str | None] | None
    close: Callable[[Subject], object] | None
    within: tuple[str, ...]
    deadline: float
    settle: float
    at_once: int
    names: list[str] = field(default_factory=lambda: list(SIDES))
    board: Switchboard = field(default_factory=Switchboard)
    _making: threading.Lock = field(default_factory=threading.Lock)
    _scope: Scope = field(default_factory=lambda: Scope(()))

    def report(self) -> Report:
        begun = time.monotonic()
        orders = (0,) if isinstance(self.second, Callback) else (0, 1)
        # The first run of all imports and fills caches, on paths that no later run takes.
        self._run(0, (None, None), None, self.deadline)
        steps = self._record(orders)
        for side in (0, 1):
            if steps[side]:
                self.names[side] = steps[side][0].stack[0][0].co_name
        ungated = [[ran.lost for ran in self._all([(order, None)] * _TRIES, self.deadline)] for order in orders]
        sometimes = next((words for lost in ungated for words in lost if words is not None), None)
        if any(None not in lost for lost in ungated):
            return Report(sometimes, None, 0, 0, 0, 0, (), (), (), time.monotonic() - begun,
                          self.judge is not None)
        if not steps[0] and not steps[1]:
            raise UsageError(f"no function of {', '.join(self.within)} was run; name its package in `within`")
        points: list[tuple[int, Step]] = [(side, step) for side in (0, 1) for step in steps[side]]
        ran = self._all(points, self.deadline)
        lost = {index: each.lost for index, each in enumerate(ran) if each.lost is not None}
        confirmed = self._confirmed(points, lost, sometimes is not None)
        return Report(
            None, sometimes, len(points), sum(each.reached for each in ran), sum(each.overlapped for each in ran),
            len(confirmed), self._findings(steps, confirmed),
            tuple(f"{described(points[index][1])}: {words}" for index, words in lost.items() if index not in confirmed),
            tuple(described(step) for (_, step), each in zip(points, ran, strict=True) if not each.reached),
            time.monotonic() - begun, self.judge is not None,
        )

    def _confirmed(self, points: list[tuple[int, Step]], lost: dict[int, str], by_itself: bool) -> dict[int, str]:
        """Return what is lost again at the same point.

        A race that strikes by itself would now and then do so twice where it has nothing to do with the point, so
        where that was seen each point is tried some times more.
        """
        left = dict(lost)
        for _ in range(1 + _MORE):
            again = self._all([points[index] for index in left], _PATIENCE * self.deadline)
            held = {index: left[index] for index, ran in zip(left, again, strict=True) if ran.lost and ran.reached}
            by_itself = by_itself or len(held) < len(left)
            left = held
            if not by_itself:
                break
        return left

    def _record(self, orders: tuple[int, ...]) -> list[list[Step]]:
        """Return the points that each side comes to; of several runs, because tracing alone may lose something."""
        found: list[list[Step]] = [[], []]
        for order in orders:
            for _ in range(_TRIES):
                recorders = Recorder(self._scope), Recorder(self._scope)
                lost = self._run(order, recorders, None, self.deadline).lost
                for side in (0, 1) if len(orders) == 1 else (order,):
                    found[side] = max(found[side], recorders[side].steps, key=len)
                if lost is None:
                    break
        return found

    def _all(self, points: Sequence[tuple[int, Step | None]], deadline: float) -> list[_Ran]:
        with ThreadPoolExecutor(self.at_once) as pool:
            return list(pool.map(lambda each: self._run(each[0], (None, None), each[1], deadline), points))

    def _run(self, here: int, recorders: tuple[OnStep | None, OnStep | None], at: Step | None, deadline: float) -> _Ran:
        """Stop side `here` at a point, or (None) nowhere, and run the other meanwhile; then let both end."""
        with self._making:
            subject = self.make()
            self._scope = self._scoped(subject)
        changed = threading.Condition()
        seen: list[OnStep | None] = list(recorders)
        sides: list[Side] = []
        limit = 2 * self.settle + deadline
        stop = Stop(at.point, changed, limit, lambda: sides[1 - here].mark()) if at is not None else None
        if stop is not None:
            seen[here] = stop
        sides += self._sides(subject, changed, seen)

        def wait(until: Callable[[], bool], seconds: float) -> bool:
            with changed:
                return changed.wait_for(until, seconds)

        def reached() -> bool:
            return stop is not None and stop.reached

        provoked = isinstance(sides[here], Called)
        if provoked:
            sides[1 - here].start()
        sides[here].start()
        wait(lambda: reached() or sides[here].acted, deadline if provoked else self.settle)
        sides[1 - here].start()
        overlapped = False
        if stop is not None:
            # Whoever waits for the other side comes to the point only now.
            wait(lambda: reached() or all(side.acted for side in sides), self.settle)
            overlapped = stop.reached and wait(lambda: sides[1 - here].acted, self.settle) and not sides[1 - here].early
            stop.release()
        wait(lambda: sides[0].idle and sides[1].idle, deadline)
        try:
            lost = self._lost(subject, sides, deadline)
        finally:
            self._end(subject, deadline)
        return _Ran(reached(), overlapped, lost)

    def _sides(self, subject: Subject, changed: threading.Condition, seen: Sequence[OnStep | None]) -> list[Side]:
        call = Call(lambda: self.first(subject), changed, self._scope, seen[0])
        second = self.second
        if isinstance(second, Callback):
            called = Called(changed, self._scope, seen[1])
            self.board.connect(second.instance(subject), called)
            return [call, called]
        return [call, Call(lambda: second(subject), changed, self._scope, seen[1])]

    def _lost(self, subject: Subject, sides: Sequence[Side], deadline: float) -> str | None:
        for name, side in zip(self.names, sides, strict=True):
            if (words := side.trouble(name, self.deadline)) is not None:
                return words
        return gate_given.lost(self.judge, subject, sides[0].value, sides[1].value)

    def _end(self, subject: Subject, deadline: float) -> None:
        """Close a subject, on a thread of its own because what has lost something may not close."""
        if self.close is not None:
            changed, close = threading.Condition(), self.close
            ending = Call(lambda: close(subject), changed, self._scope)
            ending.start()
            with changed:
                changed.wait_for(lambda: ending.idle, deadline)
        if isinstance(self.second, Callback):
            self.board.disconnect(self.second.instance(subject))

    def _scoped(self, subject: Subject) -> Scope:
        entries: list[CodeType] = []
        modules = [kind.__module__ for kind in type(subject).__mro__]
        if isinstance(self.second, Callback):
            modules += [kind.__module__ for kind in self.second.owner.__mro__]
        for entry in (self.first, self.second):
            code = getattr(entry, "__code__", None)
            if code is not None and code.co_name == "<lambda>":
                entries.append(code)
            elif not isinstance(entry, Callback):
                modules.append(getattr(entry, "__module__", "") or "")
        tops = dict.fromkeys(module.partition(".")[0] for module in modules)
        names = [top for top in tops if top and top not in sys.stdlib_module_names]
        self.within = self.within or tuple(names)
        return Scope(self.within, entries)

    def _findings(self, steps: list[list[Step]], lost: dict[int, str]) -> tuple[Finding, ...]:
        """Group points that follow one another and lose the same."""
        found: list[Finding] = []
        begin = 0
        for side in (0, 1):
            index = 0
            while index < len(steps[side]):
                words, end = lost.get(begin + index), index
                while words is not None and end + 1 < len(steps[side]) and lost.get(begin + end + 1) == words:
                    end += 1
                if words is not None:
                    found.append(finding(SIDES[side], steps[side], index, end, words))
                index = end + 1
            begin += len(steps[side])
        return merged(found)
