"""Gates force a schedule in code that is not ours, without editing it.

Three ways to stop inside somebody's function: `pause_before` stops the calling thread on a named line (`sys.settrace`,
in this thread only), `pause_at_call` at a call of a dependency, native or not, and `substitute` puts any object of ours
where the code looks up a dependency. `kvproof.faults.gate_search` finds the place to stop at.
"""

from __future__ import annotations

import builtins
import inspect
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from types import CodeType, FrameType, ModuleType
from typing import Any, Protocol, cast

from kvproof.errors import KvproofError

INSTALLING = threading.Lock()
"""Held while a thread installs or removes its trace function: two at once can end a thread on Python 3.11."""


class PlaceGone(KvproofError):
    """A named place does not exist in the version that is installed; what depends on it is unsupported there."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of Python code, named by the function that holds it and a pattern found in its text."""

    function: Callable[..., object]
    pattern: str

    def locate(self) -> tuple[CodeType, int, str]:
        """Return the function's code, the line's number in its file and its text.

        Raises PlaceGone when the function has no such line.
        """
        function = inspect.unwrap(self.function)
        try:
            lines, first = inspect.getsourcelines(function)
            code: CodeType = function.__code__
        except (OSError, TypeError, AttributeError) as error:
            raise PlaceGone(f"{self.function!r} has no Python source: {error}") from error
        for offset, text in enumerate(lines):
            if re.search(self.pattern, text):
                return code, first + offset, text.strip()
        raise PlaceGone(f"{code.co_qualname} has no line that matches {self.pattern!r}")

    def __str__(self) -> str:
        """Name the place the way a reader would look for it."""
        code, number, text = self.locate()
        return f"{text!r} in {code.co_qualname} ({code.co_filename.rpartition('/')[2]}:{number})"


@dataclass(slots=True)
class Pause:
    """Whether a paused line has been reached."""

    reached: bool = False


@contextmanager
def pause_before(line: Line, wait: Callable[[], object]) -> Iterator[Pause]:
    """Call `wait` when this thread is about to execute `line`, the first time only.

    Only the thread that enters the context is traced, and only frames that begin inside it; a tracer that is already
    installed in this thread goes on seeing every other frame, and is put back at the end.
    """
    code, number, _ = line.locate()
    pause = Pause()
    previous = sys.gettrace()

    def in_function(frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line" and frame.f_lineno == number and not pause.reached:
            pause.reached = True
            wait()
        return in_function

    def on_call(frame: FrameType, event: str, arg: Any) -> Any:
        if frame.f_code is code:
            return in_function
        return previous(frame, cast(Any, event), arg) if previous is not None else None

    with INSTALLING:
        sys.settrace(on_call)
    try:
        yield pause
    finally:
        with INSTALLING:
            sys.settrace(previous)


@contextmanager
def substitute(owner: object, attribute: str, replacement: object) -> Iterator[None]:
    """Let `owner.attribute` be `replacement` for the length of the context, and then exactly what it was.

    What `owner` had only inherited is not its own afterwards. A module may also get a name of its own for a builtin.
    """
    own = getattr(owner, "__dict__", {})
    builtin = isinstance(owner, ModuleType) and not hasattr(owner, attribute) and hasattr(builtins, attribute)
    original = own[attribute] if attribute in own else None if builtin else getattr(owner, attribute)
    inherited = attribute not in own and not hasattr(inspect.getattr_static(owner, attribute, None), "__set__")
    setattr(owner, attribute, replacement)
    try:
        yield
    finally:
        if inherited:
            delattr(owner, attribute)
        else:
            setattr(owner, attribute, original)


class _Wrapped:
    """Answers for an object, except for one of its methods."""

    def __init__(self, under: object, name: str, method: Callable[..., object]) -> None:
        self.__dict__.update({"_under": under, name: method})

    def __getattr__(self, name: str) -> Any:
        return getattr(self._under, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._under, name, value)


@contextmanager
def pause_at_call(
    owner: object,
    attribute: str,
    method: str,
    *,
    before: Callable[[], object] | None = None,
    after: Callable[[], object] | None = None,
) -> Iterator[Pause]:
    """Call `before` when `owner.attribute.method` is about to be called and `after` when it has returned.

    The first call only, in whichever thread it is made. For an object that does not let its methods be replaced, as
    native ones do not: `owner.attribute` is a stand-in for the length of the context, which passes everything on.
    Raises PlaceGone when there is no such method.
    """
    native = getattr(owner, attribute, None)
    called: Callable[..., object] | None = getattr(native, method, None)
    if called is None:
        raise PlaceGone(f"{type(owner).__qualname__} has no {attribute}.{method}")
    pause, lock = Pause(), threading.Lock()

    def paused(*args: object, **kwargs: object) -> object:
        with lock:
            mine, pause.reached = not pause.reached, True
        if mine and before is not None:
            before()
        result = called(*args, **kwargs)
        if mine and after is not None:
            after()
        return result

    with substitute(owner, attribute, _Wrapped(native, method, paused)):
        yield pause


@dataclass(frozen=True, slots=True)
class Arrival:
    """A completion that has been delivered; `dropped`: nobody was there to take it, and it is kept for nobody."""

    words: str
    dropped: bool = False


class Watch(Protocol):
    """Sees an operation being handed over and its completion being delivered."""

    def arrived(self, deadline: float) -> Arrival | None:
        """Wait until an operation was handed over, then for its completion, up to `deadline` seconds for each.

        Returns what was delivered and to whom, or None when nothing arrived.
        """


@dataclass(frozen=True, slots=True)
class Gap:
    """The gap between handing an operation over and beginning to wait for its completion.

    call: the function's name. run: makes the call in this thread, for the key and buffer it is given.
    hand_over: the place in code where the operation is handed over, in words. wait: the line with which the waiting
    (or the registering) begins. watch: a context manager that watches the operation; its argument is how many
    seconds the hand-over itself is to be held until the completion was delivered (0: it is only watched).
    """

    call: str
    run: Callable[[Any, Any], object]
    hand_over: str
    wait: Line
    watch: Callable[[float], AbstractContextManager[Watch]]


@dataclass
class WatchedNative:
    """Stands before a native client that submits operations and hands out their completions later.

    `hold` seconds at most, a submission returns only once another thread has drained its completion. `registered`
    tells whether anybody waits for an id. With `mask`, a drained completion is held until somebody does: the gate
    under which a connector that loses early completions can be judged for everything else.
    """

    native: Any
    registered: Callable[[int], bool]
    submit: str = "submit_"
    drain: str = "drain_completions"
    hold: float = 0.0
    mask: bool = False
    submitted: list[tuple[int, str]] = field(default_factory=list)
    drained: dict[int, bool] = field(default_factory=dict)
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def __getattr__(self, name: str) -> Any:
        """Pass everything on; watch what submits and what drains."""
        method = getattr(self.native, name)
        if name.startswith(self.submit):
            return lambda *args: self._submit(name, method, *args)
        if name == self.drain:
            return lambda *args: self._drain(method, *args)
        return method

    def _submit(self, name: str, method: Callable[..., Any], *args: Any) -> Any:
        identity = int(method(*args))
        with self._changed:
            self.submitted.append((identity, name))
            self._changed.notify_all()
            if self.hold:
                self._changed.wait_for(lambda: identity in self.drained, self.hold)
        return identity

    def _drain(self, method: Callable[..., Any], *args: Any) -> Any:
        items = list(method(*args))
        for item in items:
            identity = int(item[0])
            if self.mask:
                until = time.monotonic() + 1.0
                while not self.registered(identity) and time.monotonic() < until:
                    time.sleep(0)
            with self._changed:
                self.drained[identity] = self.registered(identity)
                self._changed.notify_all()
        return items

    def arrived(self, deadline: float) -> Arrival | None:
        """See `Watch.arrived`."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self.submitted) and self.submitted[-1][0] in self.drained, deadline)
            if not self.submitted:
                return None
            identity, name = self.submitted[-1]
            if identity not in self.drained:
                return None
            kept = self.drained[identity]
            somebody = "its future was registered" if kept else "nobody had registered for it"
            return Arrival(f"completion {identity} of {name} was drained while {somebody}", dropped=not kept)
