"""A part of kvproof as a campaign's target. Its cases are played in a runner, as third-party code is: it may hang."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import metadata
from queue import Empty, SimpleQueue
from typing import Any

from kvproof import connectors
from kvproof.campaigns.target import Played, Violation
from kvproof.causes import frame_of
from kvproof.errors import UsageError
from kvproof.rig import briefly, innermost
from kvproof.runner import Died, Grew, Hung, Raised, Returned, Runner, verdict_of
from kvproof.runner.forks import Forks


@dataclass(frozen=True, slots=True)
class Part:
    """What such a target is made of.

    rule: what it is checked for, as a rule's id. inside: "module:function" that plays a case's document in a runner; it
    returns `said`. deadline: seconds that it may take. fresh, changed, simpler, read: as of `Target`. lanes: how many
    cases are played at once.
    """

    rule: str
    inside: str
    deadline: float
    fresh: Callable[[random.Random], Any]
    changed: Callable[[Any, random.Random, Any], Any]
    simpler: Callable[[Any], Iterator[Any]]
    read: Callable[[Any], Any]
    lanes: int = 1

    def opened(self, stack: ExitStack, stopped: threading.Event) -> Opened:
        """Return it as a target, whose runners end with `stack`."""
        return Opened(self, stack, stopped)


def said(behaviour: set[str], wrong: str = "", steps: tuple[str, ...] = (), unknown: str = "") -> Mapping[str, Any]:
    """Return what came of a case: what is wrong, "" when nothing is; why it cannot be told, "" when it can."""
    return {"behaviour": sorted(behaviour), "wrong": wrong, "steps": list(steps), "unknown": unknown}


class Opened:
    """A part of kvproof, opened; see `Target`."""

    def __init__(self, part: Part, stack: ExitStack, stopped: threading.Event) -> None:
        """Start no runner yet."""
        self.version, self.server, self.ranks, self.lanes = metadata.version("kvproof"), "", 1, part.lanes
        self.fresh, self.changed, self.simpler, self.read = part.fresh, part.changed, part.simpler, part.read
        self._part, self._stack, self._stopped = part, stack, stopped
        self._forks = stack.enter_context(Forks())
        self._free: SimpleQueue[Runner] = SimpleQueue()

    def play(self, case: Any, name: str) -> Played:
        """See `Target`."""
        begun, played = time.monotonic(), Played()
        try:
            runner = self._free.get_nowait()
        except Empty:
            runner = self._stack.enter_context(self._forks.runner(connectors.find("reference")))
        answer = runner.call(self._part.inside, self._part.deadline, document=case.document())
        if runner.usable:
            self._free.put(runner)
        if isinstance(answer, Returned):
            played.behaviour = set(answer.value["behaviour"])
            played.steps, played.error = answer.value["steps"], answer.value["unknown"]
            if answer.value["wrong"]:
                played.violation = Violation(self._part.rule, "fail", answer.value["wrong"])
        elif isinstance(answer, Raised) and answer.error == UsageError.__name__:
            played.error = answer.text
        elif isinstance(answer, Raised):
            played.violation = Violation(self._part.rule, "fail", briefly(answer))
        else:
            played.violation = self._trouble(answer, played)
        if self._stopped.is_set():
            played.violation, played.error = None, "interrupted"
        played.seconds = round(time.monotonic() - begun, 3)
        return played

    @staticmethod
    def _trouble(answer: Hung | Died | Grew, played: Played) -> Violation:
        stack = innermost(answer.stacks)
        played.evidence["stack"] = stack[:40]
        where = frame_of(stack)
        return Violation("bounded-time", verdict_of(answer), f"{briefly(answer)}{f', in {where}' if where else ''}",
                         where)

    def learn(self, case: Any, violation: Violation, always: bool) -> None:
        """Nothing changes what is played."""
