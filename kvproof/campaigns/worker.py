"""A worker: plays cases of its connectors, many at once, and reports what is new; it is driven by `exchange`.

Every report that must not be lost is waited for: the thread that made it begins no other case before the driver has
said that the report is on disk.
"""

from __future__ import annotations

import json
import random
import sys
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, fields
from typing import Any

from kvproof import check, connectors
from kvproof.campaigns import case as cases
from kvproof.campaigns.case import Case
from kvproof.campaigns.cause import Causes, cause, shape, where
from kvproof.campaigns.generate import SIZES, Generator, spots_of
from kvproof.campaigns.judge import Violation
from kvproof.campaigns.play import Played, Playground, numbers, play
from kvproof.campaigns.shrink import shrink
from kvproof.errors import KvproofError
from kvproof.faults import supervisor
from kvproof.rig import Ground, NotOpened
from kvproof.rules.cell import TIMEOUT
from kvproof.rules.plan import CHUNK_BYTES
from kvproof.runner import Returned
from kvproof.runner.host import ImportCrashed, ImportHung, Turns

AGAIN = 3
"""How often a finding is played again before it is shrunk: its rate where that is not every time."""
_LANES = 4
"""Cases that have begun for each that works: most of one that hangs is waiting."""
_TOGETHER = 4
"""Smaller cases that are played at once when a finding is shrunk."""
_KEPT_SHARE = 0.6
"""Of how many cases, at most, are made from one that was kept."""


@dataclass(frozen=True, slots=True)
class Task:
    """What a worker does, as data: connectors by name, the campaign's seed, and the worker's own number.

    at_once: cases that work at once; more have begun, and wait. guided: whether what a case shows decides what is
    kept and changed. server, device: as for `kvproof check`.
    """

    connectors: tuple[str, ...]
    seed: int
    number: int
    at_once: int = 6
    guided: bool = True
    server: str | None = None
    device: str = "cpu"


@dataclass
class _Target:
    """One connector in a worker: how its cases are made, what was seen, and what was kept."""

    ground: Playground
    generator: Generator
    seen: set[int] = field(default_factory=set)
    kept: list[Case] = field(default_factory=list)
    causes: Causes = field(default_factory=Causes)
    begun: int = 0
    closes: bool = True
    """Whether cases are closed: not any more where that is known to hang, whatever was done before."""


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
        self._targets: dict[str, _Target] = {}
        self._learned: list[Mapping[str, Any]] = []
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
        task = self._task
        try:
            with ExitStack() as stack:
                make = stack.enter_context(check.grounds(task.server, task.device))
                pool = stack.enter_context(ThreadPoolExecutor(_LANES * task.at_once, "case"))
                for name in task.connectors:
                    self._open(name, make, pool)
                for future in [pool.submit(self._work, lane) for lane in range(
                        _LANES * task.at_once if self._targets else 0)]:
                    future.result()
            self._tell("ended")
        except KvproofError as error:
            self._tell("failed", says=str(error))
        except Exception as error:
            self._tell("failed", says=check.said(error))

    def _open(self, name: str, make: Any, pool: ThreadPoolExecutor) -> None:
        if self._stopped.is_set():
            return
        try:
            connector = connectors.find(connectors.for_device(name, self._task.device))
            made = make(connector, self._stopped)
            ground = Playground(**{each.name: getattr(made, each.name) for each in fields(made)}
                                | {"turns": Turns(self._task.at_once)})
            target = _Target(ground, generator(ground, pool))
        except (KvproofError, ImportHung, ImportCrashed) as error:
            self._tell("untried", connector=name, says=str(error))
            return
        self._targets[name] = target
        self._tell("opened", connector=name, version=ground.version, server=ground.server.description)
        for each in self._learned:
            if each.get("connector") == name:
                self._learn(each)

    def _learn(self, kept: Mapping[str, Any]) -> None:
        """Take over what somebody else has kept, or found."""
        target = self._targets.get(str(kept.get("connector")))
        if target is None:
            return
        with self._lock:
            target.seen |= set(kept.get("behaviour", ()))
            for place, felt in kept.get("causes", ()):
                target.causes.add(place, frozenset(felt))
            if "case" in kept:
                target.kept.append(cases.read(kept["case"]))

    def _work(self, lane: int) -> None:
        turn = lane
        names = list(self._targets)
        while not (self._stopped.is_set() or self._closing.is_set()):
            name = names[turn % len(names)]
            turn += 1
            self._one(name, self._targets[name])

    def _one(self, name: str, target: _Target) -> None:
        with self._lock:
            target.begun += 1
            number = target.begun
            kept = list(target.kept)
        choose = random.Random(f"{self._task.seed} {self._task.number} {name} {number}")
        if self._task.guided and kept and choose.random() < _KEPT_SHARE:
            # What was kept last is the furthest from where it began.
            at = max(choose.randrange(len(kept)), choose.randrange(len(kept)))
            case = target.generator.changed(kept[at], choose, choose.choice(kept))
        else:
            case = target.generator.fresh(choose)
        played = self._played(target, case, f"{self._task.number}-{number}")
        with self._lock:
            self._counts["cases"] += 1
            self._counts[f"cases of {name}"] += 1
            self._counts["felt"] += bool(played.felt)
            self._counts["could not tell"] += bool(played.error)
        if played.error or self._stopped.is_set():
            if played.error:
                self._tell("could not tell", connector=name, says=played.error)
            return
        if played.violation is not None and not self._found(
                name, target, case, played, f"{self._task.number}-{number}"):
            return
        shown = numbers(played.behaviour)
        with self._lock:
            new = shown - target.seen
            target.seen |= new
            if new:
                target.kept.append(case)
        if new:
            self._report("kept", connector=name, case=case.document(), behaviour=sorted(new))

    def _played(self, target: _Target, case: Case, name: str) -> Played:
        try:
            return play(target.ground, case, f"fuzz {target.ground.connector.name} {name}", closes=target.closes)
        except (ImportHung, ImportCrashed) as error:
            return Played(error=f"{error}; {error.stacks}")
        except Exception as error:
            return Played(error=check.said(error))

    def _found(self, name: str, target: _Target, case: Case, played: Played, number: str) -> bool:
        """Report a finding: at once as it was seen, then, when its cause is new, how often it comes and how small.

        Return whether it was nothing new, so that what the case showed beside it may be.
        """
        violation = played.violation
        assert violation is not None
        place, felt = where(violation), shape(played.felt)
        with self._lock:
            old = target.causes.explains(place, felt) or not target.causes.take(place)
        if old:
            self._report("seen", connector=name, where=place, shape=sorted(felt))
            return True
        try:
            self._look_into(name, target, case, played, number)
        finally:
            with self._lock:
                target.causes.leave(place)
        return False

    def _look_into(self, name: str, target: _Target, case: Case, played: Played, number: str) -> None:
        violation = played.violation
        assert violation is not None
        self._report("found", **self._finding(name, case, played))
        tries = [self._again(target, case, violation, f"{number}-{again}") for again in range(AGAIN)]
        rate = (1 + sum(each is not None for each in tries)) / (1 + AGAIN)
        chance = not any(each is not None for each in tries)
        # What comes by chance comes whatever is felt, so nothing can be left out, nor do its faults tell anything.
        self._tell_of(name, target, case, played, rate, chance, was=shape(played.felt))
        if chance or self._stopped.is_set():
            return
        with ThreadPoolExecutor(_TOGETHER, "smaller") as pool:
            least, shown = shrink(case, played, lambda candidates: list(pool.map(
                lambda each: self._shows(target, each[1], violation, rate, f"{number}-s{each[0]}"), candidates)))
        if not self._stopped.is_set() and least is not case:
            self._tell_of(name, target, least, shown, rate, chance, was=shape(played.felt))

    def _tell_of(self, name: str, target: _Target, case: Case, played: Played, rate: float, chance: bool,
                 was: frozenset[str]) -> None:
        violation = played.violation
        assert violation is not None
        felt: frozenset[str] = frozenset() if chance else shape(played.felt)
        with self._lock:
            target.causes.add(where(violation), felt)
            hangs = (violation.rule, violation.verdict) == ("close-resolves", "hang")
            if hangs and not (felt or chance or case.steps):
                target.closes = False
        self._report("shrunk", **self._finding(name, case, played), was=sorted(was), rate=round(rate, 3), chance=chance)

    def _shows(self, target: _Target, case: Case, violation: Violation, rate: float, name: str) -> Played | None:
        """Play a case until it breaks the same rule at the same place, more than once where that is not certain."""
        for again in range(1 if rate == 1 else AGAIN):
            played = self._again(target, case, violation, f"{name}-{again}")
            if played is not None or self._stopped.is_set():
                return played
        return None

    def _again(self, target: _Target, case: Case, violation: Violation, name: str) -> Played | None:
        """Play a case again; return what came of it if it broke the same rule at the same place, else None."""
        if self._stopped.is_set():
            return None
        played = self._played(target, case, name)
        with self._lock:
            self._counts["played again"] += 1
        same = played.violation is not None and where(played.violation) == where(violation)
        return played if same else None

    @staticmethod
    def _finding(name: str, case: Case, played: Played) -> dict[str, Any]:
        violation = played.violation
        assert violation is not None
        return {
            "connector": name, "cause": cause(violation, played.felt), "where": where(violation),
            "shape": sorted(shape(played.felt)), "rule": violation.rule, "verdict": violation.verdict,
            "explain": violation.explain, "case": case.document(), "felt": played.felt, "steps": played.steps,
            "evidence": played.evidence}


def generator(ground: Ground, pool: ThreadPoolExecutor) -> Generator:
    """Return what makes cases for a connector; raises NotOpened where it does not work undisturbed."""
    described = ground.described
    recordings = list(check.recorded(ground, pool).values())
    return Generator(
        described.reads, spots_of(recordings, CHUNK_BYTES), _gaps(ground),
        tuple(size for size in SIZES if described.holds(size)), TIMEOUT,
        any(recording.resp3 for recording in recordings), "integrity" in described.capabilities,
        bool(described.masks))


def _gaps(ground: Ground) -> tuple[int, ...]:
    """Return those of the adapter's gaps that are there in this version."""
    with ground.rig(ground.at("gaps")) as rig:
        answer = rig.run("kvproof.replays.lost_completion:inside_gaps")
    if not isinstance(answer, Returned):
        raise NotOpened("asking for its gaps: it did not say")
    return tuple(number for number, gap in enumerate(answer.value) if "gone" not in gap)


def main() -> None:
    """Serve a driver over standard input and output, a line of JSON each way, until it is gone."""
    task = json.loads(sys.stdin.readline())
    worker = Worker(Task(**{**task, "connectors": tuple(task["connectors"])}))
    try:
        for line in sys.stdin:
            asked = json.loads(line)
            print(json.dumps(worker.exchange(**asked)), flush=True)
    finally:
        worker.stop()


if __name__ == "__main__":
    main()
