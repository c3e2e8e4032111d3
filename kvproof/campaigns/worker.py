"""A worker: plays cases of its targets, many at once, and reports what is new; it is driven by `exchange`.

Every report that must not be lost is waited for: the thread that made it begins no other case before the driver has
said that the report is on disk.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from kvproof.campaigns.busy import Busy
from kvproof.campaigns.cause import Causes, cause, shape, where
from kvproof.campaigns.shrink import shrink
from kvproof.campaigns.target import Case, Played, Target, Violation, numbers
from kvproof.campaigns.targets import Opener
from kvproof.errors import KvproofError, said
from kvproof.faults import supervisor
from kvproof.runner.forks import ImportCrashed, ImportHung

AGAIN = 3
"""How often a finding is played again before it is shrunk: its rate where that is not every time."""
_TOGETHER = 4
"""Smaller cases that are played at once when a finding is shrunk."""
_KEPT_SHARE = 0.6
"""Of how many cases, at most, are made from one that was kept."""


@dataclass(frozen=True, slots=True)
class Task:
    """What a worker does, as data: targets by name (`targets.Opener`), the campaign's seed, the worker's own number.

    at_once: cases that work at once; more have begun, and wait. guided: whether what a case shows decides what is
    kept and changed. server, device: as for `kvproof check`. ranks: in the worlds of connectors that have ranks.
    """

    targets: tuple[str, ...]
    seed: int
    number: int
    at_once: int = 6
    guided: bool = True
    server: str | None = None
    device: str = "cpu"
    ranks: int = 2


@dataclass
class _Trying:
    """A target in a worker: what was seen of it, and what was kept."""

    name: str
    target: Target
    seen: set[int] = field(default_factory=set)
    kept: list[Any] = field(default_factory=list)
    retry: list[Mapping[str, Any]] = field(default_factory=list)
    causes: Causes = field(default_factory=Causes)
    begun: int = 0


class Worker:
    """Plays cases until it is stopped."""

    def __init__(self, task: Task) -> None:
        """Begin; returns at once."""
        self._task = task
        self._stopped, self._closing = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self._reports: list[dict[str, Any]] = []
        self._acknowledged: dict[int, threading.Event] = {}
        self._counts: Counter[str] = Counter()
        self._number = 0
        self._targets: dict[str, _Trying] = {}
        self._learned: list[Mapping[str, Any]] = []
        self._busy = Busy(self._stopped)
        self._thread = threading.Thread(target=self._run, daemon=True, name="campaign")
        self._thread.start()

    def exchange(
        self, acknowledged: Sequence[int], learned: Sequence[Mapping[str, Any]] = (), closing: bool = False
    ) -> list[dict[str, Any]]:
        """Take note of which reports are on disk and of what others have kept; return what is to be reported.

        closing: begin no more cases, finish what was begun, and report "ended" then.
        """
        if closing:
            self._closing.set()
        with self._lock:
            for number in acknowledged:
                self._acknowledged.pop(number).set()
            self._learned += learned
            reports, self._reports = self._reports, []
            if self._counts:
                reports.append({"report": "played", "counts": dict(self._counts)})
                self._counts.clear()
        for each in learned:
            self._learn(each)
        return reports

    def answer(self, asked: str) -> str:
        """Exchange as JSON, in which a worker speaks to a driver wherever it is."""
        return json.dumps(self.exchange(**json.loads(asked)))

    def stop(self) -> None:
        """End what is in flight, and every process of it."""
        self._stopped.set()
        with self._lock:
            for event in self._acknowledged.values():
                event.set()
        supervisor.shut_down()
        self._thread.join(10)

    # Inside

    def _report(self, report: str, **what: Any) -> None:
        """Report something, and wait until it is on disk."""
        done = threading.Event()
        with self._lock:
            self._number += 1
            self._acknowledged[self._number] = done
            self._reports.append({"report": report, "number": self._number, **what})
        while not done.wait(0.5) and not self._stopped.is_set():
            pass

    def _tell(self, report: str, **what: Any) -> None:
        with self._lock:
            self._reports.append({"report": report, **what})

    def _run(self) -> None:
        try:
            with ExitStack() as stack:
                opener = stack.enter_context(Opener(self._task, self._stopped))
                for name in self._task.targets:
                    self._open(name, opener)
                lanes = [trying for trying in self._targets.values() for _ in range(trying.target.lanes)]
                pool = stack.enter_context(ThreadPoolExecutor(max(1, len(lanes)), "case"))
                for future in [pool.submit(self._work, trying) for trying in lanes]:
                    future.result()
            self._tell("ended")
        except KvproofError as error:
            self._tell("failed", says=str(error))
        except Exception as error:
            self._tell("failed", says=said(error))

    def _open(self, name: str, opener: Opener) -> None:
        if self._stopped.is_set():
            return
        try:
            target = opener(name)
        except (KvproofError, ImportHung, ImportCrashed) as error:
            self._tell("untried", target=name, says=str(error))
            return
        with self._lock:
            self._targets[name] = _Trying(name, target)
            learned = [each for each in self._learned if each.get("target") == name]
        self._tell("opened", target=name, version=target.version, server=target.server, ranks=target.ranks)
        for each in learned:
            self._learn(each)

    def _learn(self, kept: Mapping[str, Any]) -> None:
        """Take over what somebody else has kept, or found."""
        trying = self._targets.get(str(kept.get("target")))
        if trying is None:
            return
        try:
            case = trying.target.read(kept["case"]) if "case" in kept else None
            if "retry" in kept:
                trying.target.read(kept["retry"])
        except KvproofError as error:
            self._tell("could not tell", target=trying.name, says=f"a case from elsewhere: {error}")
            return
        with self._lock:
            trying.seen |= set(kept.get("behaviour", ()))
            for place, felt in kept.get("causes", ()):
                trying.causes.add(place, frozenset(felt))
            for place in kept.get("chances", ()):
                trying.causes.add_chance(place)
            if "retry" in kept:
                trying.retry.append(kept)
            if case is not None:
                trying.kept.append(case)

    def _work(self, trying: _Trying) -> None:
        while not (self._stopped.is_set() or self._closing.is_set()):
            self._one(trying)

    def _one(self, trying: _Trying) -> None:
        with self._lock:
            trying.begun += 1
            number = f"{self._task.number}-{trying.begun}"
            kept = list(trying.kept)
            old = trying.retry.pop(0) if trying.retry else None
        if old is not None:
            self._retry(trying, old, number)
            return
        choose = random.Random(f"{self._task.seed} {trying.name} {number}")
        if self._task.guided and kept and choose.random() < _KEPT_SHARE:
            # What was kept last is the furthest from where it began.
            at = max(choose.randrange(len(kept)), choose.randrange(len(kept)))
            case = trying.target.changed(kept[at], choose, choose.choice(kept))
        else:
            case = trying.target.fresh(choose)
        played = self._played(trying, case, number)
        with self._lock:
            self._counts["cases"] += 1
            self._counts[f"cases of {trying.name}"] += 1
            self._counts["felt"] += bool(played.felt)
            self._counts[f"untold of {trying.name}"] += bool(played.error)
        if played.error or self._stopped.is_set():
            if played.error:
                self._tell("could not tell", target=trying.name, says=played.error)
            return
        if played.violation is not None and not self._found(trying, case, played, played.violation, number):
            return
        shown = numbers(played.behaviour)
        with self._lock:
            new = shown - trying.seen
            trying.seen |= new
            if new:
                trying.kept.append(case)
        if new:
            self._report("kept", target=trying.name, case=case.document(), behaviour=sorted(new))

    def _retry(self, trying: _Trying, old: Mapping[str, Any], number: str) -> None:
        """Play the smallest case of a finding from before; report in how many of some tries it came again."""
        case, came = trying.target.read(old["retry"]), 0
        for again in range(AGAIN):
            played = self._played(trying, case, f"{number}-{again}")
            if played.error or self._stopped.is_set():
                # Nothing can be told of it: it stays what it was.
                return
            came += played.violation is not None and where(played.violation) == old["where"]
        self._report("retried", target=trying.name, where=old["where"], shape=old["shape"], came=came, tries=AGAIN)

    def _played(self, trying: _Trying, case: Case, number: str) -> Played:
        begun = time.monotonic()
        try:
            played = trying.target.play(case, f"fuzz {trying.name} {number}")
        except (ImportHung, ImportCrashed) as error:
            return Played(error=f"{error}; {error.stacks}")
        except Exception as error:
            return Played(error=said(error))
        late = self._busy.since(begun) if played.violation is not None else 0.0
        if late:
            # Whoever was to answer within a second may have been kept from it, by nobody's mistake.
            played.violation, played.error = None, f"the machine was too busy to tell: a thread came {late:.1f} s late"
        return played

    def _found(self, trying: _Trying, case: Case, played: Played, violation: Violation, number: str) -> bool:
        """Report a finding: at once as it was seen, then, when its cause is new, how often it comes and how small.

        Return whether it was nothing new, so that what the case showed beside it may be.
        """
        place, felt = where(violation), shape(played.felt)
        with self._lock:
            old = trying.causes.explains(place, felt) or not trying.causes.take(place)
        if old:
            self._report("seen", target=trying.name, where=place, shape=sorted(felt))
            return True
        try:
            self._look_into(trying, case, played, violation, number)
        finally:
            with self._lock:
                trying.causes.leave(place)
        return False

    def _look_into(self, trying: _Trying, case: Case, played: Played, violation: Violation, number: str) -> None:
        self._report("found", **_finding(trying.name, case, played, violation))
        tries = [self._again(trying, case, violation, f"{number}-{again}") for again in range(AGAIN)]
        rate = (1 + sum(each is not None for each in tries)) / (1 + AGAIN)
        chance = not any(each is not None for each in tries)
        # Of what does not come again nothing can be left out, nor do its faults tell anything.
        self._tell_of(trying, case, played, rate, chance, was=shape(played.felt), done=chance)
        if chance or self._stopped.is_set():
            return
        with ThreadPoolExecutor(_TOGETHER, "smaller") as pool:
            least, shown = shrink(case, played, trying.target.simpler, lambda candidates: list(pool.map(
                lambda each: self._shows(trying, each[1], violation, rate, f"{number}-s{each[0]}"), candidates)))
        if not self._stopped.is_set():
            self._tell_of(trying, least, shown, rate, chance, was=shape(played.felt), done=True)

    def _tell_of(self, trying: _Trying, case: Case, played: Played, rate: float, chance: bool,
                 was: frozenset[str], done: bool) -> None:
        violation = played.violation
        assert violation is not None
        felt = shape(played.felt)
        with self._lock:
            if chance:
                trying.causes.add_chance(where(violation))
            else:
                trying.causes.add(where(violation), felt)
            trying.target.learn(case, violation, always=not (felt or chance))
        self._report("shrunk", **_finding(trying.name, case, played, violation), was=sorted(was), rate=round(rate, 3),
                     chance=chance, done=done)

    def _shows(self, trying: _Trying, case: Case, violation: Violation, rate: float, name: str) -> Played | None:
        """Return what came of a smaller case if it breaks the same rule at the same place.

        Where that came every time it has to come twice, lest one chance in many plays makes a smaller case of what is
        none; where it did not, once in some tries.
        """
        if rate == 1:
            first = self._again(trying, case, violation, f"{name}-0")
            return first and self._again(trying, case, violation, f"{name}-1")
        for again in range(AGAIN):
            played = self._again(trying, case, violation, f"{name}-{again}")
            if played is not None or self._stopped.is_set():
                return played
        return None

    def _again(self, trying: _Trying, case: Case, violation: Violation, name: str) -> Played | None:
        """Play a case again; return what came of it if it broke the same rule at the same place, else None."""
        if self._stopped.is_set():
            return None
        played = self._played(trying, case, name)
        with self._lock:
            self._counts["played again"] += 1
        same = played.violation is not None and where(played.violation) == where(violation)
        return played if same else None


def _finding(name: str, case: Case, played: Played, violation: Violation) -> dict[str, Any]:
    return {
        "target": name, "cause": cause(violation, played.felt), "where": where(violation),
        "shape": sorted(shape(played.felt)), "rule": violation.rule, "verdict": violation.verdict,
        "explain": violation.explain, "case": case.document(), "size": list(case.size), "felt": played.felt,
        "steps": played.steps, "evidence": played.evidence}


def main() -> None:
    """Serve a driver over standard input and output, a line of JSON each way, until it is gone."""
    task = json.loads(sys.stdin.readline())
    worker = Worker(Task(**{**task, "targets": tuple(task["targets"])}))
    try:
        for line in sys.stdin:
            print(worker.answer(line), flush=True)
    finally:
        worker.stop()


if __name__ == "__main__":
    main()
