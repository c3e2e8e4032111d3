"""Findings of the gate search in code terms: between which two places of which function, and a line to stop at."""

from __future__ import annotations

import ast
import builtins
import gc
import linecache
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from types import CodeType, FunctionType
from typing import Any

from kvproof.faults.gate_points import Step, after_calls
from kvproof.faults.gates import Line, PlaceGone


@dataclass(frozen=True, slots=True)
class Finding:
    """A stretch of one thread's code in which the other thread must not run, and does.

    stopped: the entry point whose thread was stopped there: "first", "second", or "either" of two that run the same
    code. between: what had been done last, and
    what would have been done next, both in `function`, which is at `file`, from line to line in `lines`. lost: what
    was lost. points: how many points of the stretch lose it. place: a line in it for `pause_before`, or None when
    there is none (the stretch lies within one line, or within a function that has no source).
    """

    stopped: str
    between: tuple[str, str]
    function: str
    file: str
    lines: tuple[int, int]
    lost: str
    points: int
    place: Line | None = field(compare=False)

    def __str__(self) -> str:
        """Say it the way a reader would look for it."""
        first, last = self.lines
        where = f"{PurePath(self.file).name}:{first}" + (f"-{last}" if last != first else "")
        return f"between {self.between[0]} and {self.between[1]} in {self.function} ({where}): {self.lost}"

    def as_data(self) -> dict[str, Any]:
        """Return it as what JSON can hold; `text` is the sentence."""
        return {
            "stopped": self.stopped,
            "between": list(self.between),
            "function": self.function,
            "file": PurePath(self.file).name,
            "lines": list(self.lines),
            "lost": self.lost,
            "points": self.points,
            "place": None if self.place is None else str(self.place),
            "text": str(self),
        }


@dataclass(frozen=True, slots=True)
class Report:
    """What a search did and found.

    ungated: what was lost without any gate in every run; then nothing else was tried. now_and_then: what was lost in
    some such runs only, which is a race that needs no gate. tried: pause points tried, both sides together; reached:
    those at which a thread was stopped; overlapped: those of them at which the other side ran to its end meanwhile
    (elsewhere it waited for the stopped one, or had nothing to do). lost: points at which something was lost every
    time, twice at least. unconfirmed: points at which it was lost, but not every time; unreached: points that were not
    reached: neither is a pass. judged: whether there was a judge. `findings` is empty where nothing could be tried too,
    as for code that always fails: a test of no loss asks for `clean`.
    """

    ungated: str | None
    now_and_then: str | None
    tried: int
    reached: int
    overlapped: int
    lost: int
    findings: tuple[Finding, ...]
    unconfirmed: tuple[str, ...]
    unreached: tuple[str, ...]
    seconds: float
    judged: bool

    @property
    def clean(self) -> bool:
        """Whether nothing was lost, without gates too, and points were tried, reached, and met by the other side."""
        lost = self.ungated is not None or self.now_and_then is not None or self.findings or self.unconfirmed
        met = 0 < self.tried == self.reached and self.overlapped > 0
        return met and not (lost or self.lost or self.unreached)

    def __str__(self) -> str:
        """Say it in a few lines."""
        if self.ungated is not None:
            return f"it fails without any gate: {self.ungated}"
        counts = (f"{self.tried} pause points tried, {self.reached} reached, the other side ran to its end at "
                  f"{self.overlapped}, something was lost at {self.lost}; {self.seconds:.1f} s")
        lines = [counts, *map(str, self.findings)]
        if self.now_and_then is not None:
            lines.append(f"without any gate, now and then: {self.now_and_then}")
        lines += [f"lost, but not for certain there: {words}" for words in self.unconfirmed]
        lines += [f"not reached: {words}" for words in self.unreached]
        if not self.judged:
            lines.append("no judge: only hangs and exceptions were looked for")
        return "\n".join(lines)

    def as_data(self) -> dict[str, Any]:
        """Return it as what JSON can hold, for a search in another process."""
        return {
            "ungated": self.ungated, "now_and_then": self.now_and_then, "tried": self.tried, "reached": self.reached,
            "overlapped": self.overlapped, "lost": self.lost, "findings": [each.as_data() for each in self.findings],
            "unconfirmed": list(self.unconfirmed), "unreached": list(self.unreached), "seconds": self.seconds,
            "judged": self.judged, "clean": self.clean, "text": str(self),
        }


def finding(stopped: str, steps: Sequence[Step], begin: int, end: int, lost: str) -> Finding:
    """Name the stretch of `steps` from `begin` to `end` inclusive, at all of which `lost` is lost."""
    last = steps[end]
    opening = steps[begin] if begin == 0 or steps[begin].point.after is not None else steps[begin - 1]
    depth = _shared(opening, last)
    holder, opened = opening.stack[depth]
    return Finding(
        stopped=stopped,
        between=(_done(opening, depth) if begin or opening.point.after is not None else "the beginning",
                 _next(steps, end, depth)),
        function=holder.co_qualname,
        file=holder.co_filename,
        lines=(opened, last.stack[depth][1]),
        lost=lost,
        points=end - begin + 1,
        place=_place(steps[begin : end + 1], holder),
    )


def merged(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Say once what is found on both sides."""
    found: list[Finding] = []
    for each in findings:
        same = next((index for index, other in enumerate(found) if replace(other, stopped=each.stopped) == each), None)
        if same is None:
            found.append(each)
        else:
            found[same] = replace(found[same], stopped="either")
    return tuple(found)


def described(step: Step) -> str:
    """Say where a point is."""
    code, line = step.stack[-1]
    call = f"after {_called(code, step.point.after)} in" if step.point.after is not None else "before"
    return f"{call} {_text(code, line)} in {code.co_qualname} ({PurePath(code.co_filename).name}:{line})"


def waiting_at(stack: Sequence[tuple[CodeType, int]]) -> str:
    """Say at which line a thread with this stack is."""
    if not stack:
        return "outside the code that is searched"
    code, line = stack[-1]
    return f"at {_text(code, line)} in {code.co_qualname}"


def _shared(one: Step, other: Step) -> int:
    """Return the depth of the innermost frame that two points have in common."""
    same = 0
    for (mine, _), (theirs, _) in zip(one.stack, other.stack, strict=False):
        if mine is not theirs:
            break
        same += 1
    return max(0, same - 1)


def _done(step: Step, depth: int) -> str:
    """Say what had been done last, in words of the frame at `depth`."""
    if len(step.stack) > depth + 1:
        return step.stack[depth + 1][0].co_name
    code, line = step.stack[depth]
    return _called(code, step.point.after) if step.point.after is not None else _text(code, line)


def _next(steps: Sequence[Step], end: int, depth: int) -> str:
    """Say what would have been done next, in words of the frame at `depth`."""
    last = steps[end]
    if len(last.stack) > depth + 1:
        return last.stack[depth + 1][0].co_name
    code, line = last.stack[depth]
    then = steps[end + 1] if end + 1 < len(steps) else None
    if then is not None and then.stack[: depth + 1] == last.stack[: depth + 1]:
        if len(then.stack) > depth + 1:
            return then.stack[depth + 1][0].co_name
        if then.point.after is not None:
            return _called(code, then.point.after)
    return f"the rest of {_text(code, line)}" if last.point.after is not None else _text(code, line)


def _text(code: CodeType, line: int) -> str:
    text = linecache.getline(code.co_filename, line).strip()
    return f"`{text}`" if text else f"line {line}"


def _called(code: CodeType, after: int | None) -> str:
    """Return the name of what the call before an offset has called, or the line of the call."""
    offset = after_calls(code).get(-1 if after is None else after, 0)
    first, last, begin, end = list(code.co_positions())[offset // 2]
    if first is None or last is None or begin is None or end is None:
        return "a call"
    lines = [linecache.getline(code.co_filename, line).encode() for line in range(first, last + 1)]
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][begin:]
    try:
        tree = ast.parse(f"({b''.join(lines).decode()})", mode="eval").body
    except (SyntaxError, UnicodeDecodeError):
        return _text(code, first)
    if not isinstance(tree, ast.Call):
        # The end of a `with`, or a call that the source does not show.
        return f"leaving {_text(code, first)}"
    return _named(tree.func)


def _named(function: ast.expr) -> str:
    match function:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return f"{name}()" if hasattr(builtins, name) else name
    return f"`{ast.unparse(function)}()`"


def _place(steps: Sequence[Step], holder: CodeType) -> Line | None:
    """Return the first point of a stretch that `pause_before` can find again, in `holder` if there is one."""
    ordered = [step for step in steps if step.stack[-1][0] is holder] + list(steps)
    for step in ordered:
        code, number = step.stack[-1]
        text = linecache.getline(code.co_filename, number).strip()
        function = _function(code)
        if step.point.after is not None or not text or function is None:
            continue
        line = Line(function, rf"^\s*{re.escape(text)}\s*$")
        try:
            if line.locate()[::2] == (code, text) and line.locate()[1] == number:
                return line
        except PlaceGone:
            continue
    return None


def _function(code: CodeType) -> Callable[..., object] | None:
    # In a runner the functions that were imported before the fork are frozen, and not among the referrers.
    gc.unfreeze()
    for found in gc.get_referrers(code):
        if isinstance(found, FunctionType) and found.__code__ is code:
            return found
    return None
