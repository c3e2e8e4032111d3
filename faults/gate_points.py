"""Pause points: the places inside the functions a thread runs at which another thread can come in between.

They are taken before every line and after every call within one, which is where CPython lets another thread go on;
a native call is stopped at on both its sides so, without knowing anything about it.
"""

from __future__ import annotations

import dis
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from types import CodeType, FrameType
from typing import Any

from kvproof.faults.gates import INSTALLING

_CALLS = frozenset({"CALL", "CALL_KW", "CALL_FUNCTION_EX"})


@dataclass(frozen=True, slots=True)
class Point:
    """Before `line` of `code`, or, with an offset in `after`, within it: when the call before that has returned."""

    identity: int
    line: int
    after: int | None
    code: CodeType = field(compare=False)


@dataclass(frozen=True, slots=True)
class Step:
    """A point as a run met it; stack: (code, line) of every frame in scope, outermost first, its own one last."""

    point: Point
    stack: tuple[tuple[CodeType, int], ...]


OnStep = Callable[[Point, FrameType], None]


class Scope:
    """Which frames are looked at: those of the packages and modules named, without `without`."""

    def __init__(self, names: Sequence[str], without: Sequence[CodeType] = ()) -> None:
        """Look at these, and never at the search itself nor at a module while it is being imported."""
        self.names = tuple(names)
        self._without = {id(code) for code in without}

    def __contains__(self, frame: FrameType) -> bool:
        """Whether the frame is looked at."""
        code = frame.f_code
        module = frame.f_globals.get("__name__", "")
        if id(code) in self._without or code.co_name == "<module>" or module.startswith("kvproof.faults.gate"):
            return False
        return any(module == name or module.startswith(f"{name}.") for name in self.names)

    def stack(self, frame: FrameType) -> tuple[tuple[CodeType, int], ...]:
        """Return (code, line) of the frames in scope from the outermost to this one."""
        found = []
        step: FrameType | None = frame
        while step is not None:
            if step in self:
                found.append((step.f_code, step.f_lineno))
            step = step.f_back
        return tuple(reversed(found))


@contextmanager
def traced(scope: Scope, step: OnStep) -> Iterator[None]:
    """Call `step` at every point that this thread comes to within the context, in frames that begin inside it."""

    def in_function(frame: FrameType, event: str, arg: Any) -> Any:
        code = frame.f_code
        if event == "line":
            step(Point(id(code), frame.f_lineno, None, code), frame)
        elif event == "opcode" and frame.f_lasti in after_calls(code):
            step(Point(id(code), frame.f_lineno, frame.f_lasti, code), frame)
        return in_function

    def on_call(frame: FrameType, event: str, arg: Any) -> Any:
        if frame not in scope:
            return None
        frame.f_trace_opcodes = True
        return in_function

    previous = sys.gettrace()
    with INSTALLING:
        sys.settrace(on_call)
    try:
        yield
    finally:
        with INSTALLING:
            sys.settrace(previous)


_KNOWN: dict[int, tuple[CodeType, dict[int, int]]] = {}


def after_calls(code: CodeType) -> dict[int, int]:
    """Return the offset of each instruction that follows a call, with the offset of the call."""
    known = _KNOWN.get(id(code))
    if known is None:
        found = list(dis.get_instructions(code))
        after = {then.offset: call.offset for call, then in pairwise(found) if call.opname in _CALLS}
        known = _KNOWN[id(code)] = code, after
    return known[1]


class Recorder:
    """Notes the first visit to each point, in the order of the visits."""

    def __init__(self, scope: Scope) -> None:
        """Note nothing yet."""
        self._scope = scope
        self._steps: dict[Point, Step] = {}

    def __call__(self, point: Point, frame: FrameType) -> None:
        """Note a visit."""
        if point not in self._steps:
            self._steps[point] = Step(point, self._scope.stack(frame))

    @property
    def steps(self) -> list[Step]:
        """The first visits so far."""
        return list(self._steps.values())


class Stop:
    """Stops the thread that first comes to `point` until it is released, or for `limit` seconds."""

    def __init__(self, point: Point, changed: threading.Condition, limit: float, when: Callable[[], None]) -> None:
        """Tell `changed` when the point is reached; `when` is called at that moment, with `changed` held."""
        self._point, self._changed, self._limit, self._when = point, changed, limit, when
        self.reached = self._released = False

    def __call__(self, point: Point, frame: FrameType) -> None:
        """Stop here if this is the point."""
        if point != self._point:
            return
        with self._changed:
            if self.reached or self._released:
                return
            self.reached = True
            self._when()
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._released, self._limit)

    def release(self) -> None:
        """Let the thread go on, and stop none any more."""
        with self._changed:
            self._released = True
            self._changed.notify_all()
