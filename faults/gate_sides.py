"""The two sides of a race that the gate search forces: an entry point on a thread of its own, and a callback."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

from kvproof.errors import UsageError
from kvproof.faults.gate_points import OnStep, Scope, traced
from kvproof.faults.gate_words import waiting_at
from kvproof.faults.gates import substitute


def _itself(subject: Any) -> Any:
    return subject


@dataclass(frozen=True, slots=True)
class Callback:
    """The second entry point where it is a method that a thread of the subject's own calls: a reader, a drain.

    owner, name: the class and its method. instance: finds, in a subject, the object on which it is called. The method
    is wrapped in its class while the search makes its subjects, so it must be looked up after they begin to be made.
    """

    owner: type
    name: str
    instance: Callable[[Any], object] = _itself


class Side(Protocol):
    """One of the two entry points, in one run."""

    value: object
    """What it returned; None for a callback."""
    early: bool
    """Whether it had run to its end before `mark`."""

    @property
    def acted(self) -> bool:
        """Whether it has run to its end: at all, or since `mark` where it runs again and again."""

    @property
    def idle(self) -> bool:
        """Whether it is not inside the code that is searched."""

    def start(self) -> None:
        """Let it begin, if that is ours to say and it has not yet."""

    def mark(self) -> None:
        """Count what it does from now on."""

    def trouble(self, name: str, deadline: float) -> str | None:
        """Say what is wrong about how it ended, or None."""


class Call:
    """An entry point that is called on a thread of its own."""

    def __init__(
        self, run: Callable[[], object], changed: threading.Condition, scope: Scope, step: OnStep | None = None
    ) -> None:
        """Call `run` once started, and tell `changed` when it has ended; `step` sees its points."""
        self._run, self._changed, self._scope, self._step = run, changed, scope, step
        self._thread = threading.Thread(target=self._main, name="kvproof-gate", daemon=True)
        self.value: object = None
        self.error: BaseException | None = None
        self.idle = self.early = False

    def start(self) -> None:
        """See `Side.start`."""
        if self._thread.ident is None:
            self._thread.start()

    @property
    def acted(self) -> bool:
        """See `Side.acted`."""
        return self.idle

    def mark(self) -> None:
        """See `Side.mark`: it runs once."""
        self.early = self.idle

    def trouble(self, name: str, deadline: float) -> str | None:
        """See `Side.trouble`."""
        if not self.idle:
            frame = sys._current_frames().get(self._thread.ident or 0)
            where = waiting_at(self._scope.stack(frame) if frame is not None else ())
            return f"{name} did not return within {deadline:g} s, it waits {where}"
        return f"{name} raised {type(self.error).__name__}: {self.error}"[:300] if self.error is not None else None

    def _main(self) -> None:
        try:
            with traced(self._scope, self._step) if self._step is not None else nullcontext():
                self.value = self._run()
        except BaseException as error:
            self.error = error
        with self._changed:
            self.idle = True
            self._changed.notify_all()


class Called:
    """A callback that a thread of the subject's calls whenever it likes."""

    value: object = None
    early = False

    def __init__(self, changed: threading.Condition, scope: Scope, step: OnStep | None = None) -> None:
        """Tell `changed` whenever it was called; `step` sees its points."""
        self._changed, self._scope, self._step = changed, scope, step
        self._begun = self._left = self._mark = 0
        self._error: BaseException | None = None

    def start(self) -> None:
        """See `Side.start`: the subject calls it."""

    @property
    def acted(self) -> bool:
        """See `Side.acted`."""
        return self._left > self._mark and self.idle

    @property
    def idle(self) -> bool:
        """See `Side.idle`."""
        return self._begun == self._left

    def mark(self) -> None:
        """See `Side.mark`."""
        self._mark = self._left

    def trouble(self, name: str, deadline: float) -> str | None:
        """See `Side.trouble`."""
        if not self.idle:
            return f"{name} did not return within {deadline:g} s"
        error = self._error
        return f"{name} raised {type(error).__name__}: {error}"[:300] if error is not None else None

    def run(self, method: Callable[..., object], *args: object, **kwargs: object) -> object:
        """Make a call in this thread, which is the subject's."""
        with self._changed:
            self._begun += 1
        try:
            with traced(self._scope, self._step) if self._step is not None else nullcontext():
                return method(*args, **kwargs)
        except BaseException as error:
            self._error = error
            raise
        finally:
            with self._changed:
                self._left += 1
                self._changed.notify_all()


@dataclass
class Switchboard:
    """Hands each call of a callback to the run whose subject it is made on."""

    _sides: dict[int, tuple[object, Called]] = field(default_factory=dict)

    def connect(self, instance: object, side: Called) -> None:
        """Let calls on `instance` be `side`'s from now on."""
        self._sides[id(instance)] = (instance, side)

    def disconnect(self, instance: object) -> None:
        """Let calls on `instance` be nobody's."""
        self._sides.pop(id(instance), None)

    @contextmanager
    def wrapped(self, callback: Callback) -> Iterator[None]:
        """Wrap the callback in its class for the length of the context.

        Raises UsageError when the class defines no such method.
        """
        owner = next((each for each in callback.owner.__mro__ if callback.name in vars(each)), None)
        method = vars(owner).get(callback.name) if owner is not None else None
        if not callable(method):
            raise UsageError(f"{callback.owner.__qualname__} has no method {callback.name!r} that could be wrapped")

        def relay(self_: object, *args: object, **kwargs: object) -> object:
            _, side = self._sides.get(id(self_), (None, None))
            if side is None:
                return method(self_, *args, **kwargs)
            return side.run(method, self_, *args, **kwargs)

        with substitute(owner, callback.name, relay):
            yield
