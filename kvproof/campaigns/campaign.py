"""A campaign: workers play cases until the time is over; what they report is on disk before they go on."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvproof import connectors
from kvproof.campaigns import records, targets
from kvproof.campaigns.corpus import Corpus, CorpusFailed
from kvproof.campaigns.findings import Finding, Findings, gathered
from kvproof.campaigns.hosts import Gone, Host
from kvproof.campaigns.journal import NAME, SCHEMA, Journal, parsed
from kvproof.campaigns.worker import Task
from kvproof.causes import alike
from kvproof.errors import KvproofError, UsageError
from kvproof.results import versions

_LOST = 5
"""Workers in a row that may be lost without having played anything, until a campaign gives up."""
_SAID = 50
_COUNTED = 30.0
"""Seconds between two records of what was counted."""
_POLL = 0.1
_CLOSING = 30.0
"""Seconds that workers have, once the time is over, to finish what they have begun."""
_SHARE = 5.0
"""Seconds after which the corpus is looked at again."""
_JOURNALLED = frozenset({"found", "shrunk", "seen", "kept", "retried"})
"""The reports that are waited for."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a campaign is: targets, a seed, seconds, and workers; see `Task` for the rest."""

    targets: tuple[str, ...]
    seconds: float
    seed: int = 0
    workers: int = 1
    at_once: int = 12
    on: str | None = None
    guided: bool = True
    server: str | None = None
    device: str = "cpu"
    ranks: int = 2


@dataclass(frozen=True, slots=True)
class Tried:
    """What a target turned out to be once it was open: its version, on which server, and how many ranks it has."""

    version: str
    server: str
    ranks: int


@dataclass
class State:
    """What a campaign has done so far, for those who watch it.

    counts: "cases" in all, and "cases of NAME", "untold of NAME" (of which nothing could be told), "felt", "played
    again". behaviours: how many kinds of behaviour were seen. newest: when the last new one was, in seconds since this
    run began. says: what went wrong, a line each. opened: the targets that are tried. before: seconds of the runs
    before this one.
    """

    asked: Asked
    findings: Findings
    counts: Counter[str] = field(default_factory=Counter)
    behaviours: set[int] = field(default_factory=set)
    newest: float = 0.0
    begun: float = field(default_factory=time.monotonic)
    says: list[str] = field(default_factory=list)
    opened: dict[str, Tried] = field(default_factory=dict)
    before: float = 0.0

    @property
    def seconds(self) -> float:
        """Seconds since this run of it began."""
        return time.monotonic() - self.begun

    def take(self, record: Mapping[str, Any]) -> None:
        """Take in what a record of the journal says beside findings."""
        what = record["record"]
        if what == "opened":
            self.opened[record["target"]] = Tried(record["version"], record["server"], record["ranks"])
        elif what == "kept":
            if set(record["behaviour"]) - self.behaviours:
                self.newest = self.seconds
            self.behaviours |= set(record["behaviour"])
        elif what == "counted":
            self.before += record["seconds"]
            self.counts.update(record["counts"])

    def say(self, line: str) -> None:
        """Take note of what went wrong, once, whatever numbers are in it."""
        if len(self.says) < _SAID and alike(line) not in map(alike, self.says):
            self.says.append(line)


def settings(records: Iterable[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the record in which a campaign says what it is."""
    return next((record for record in records if record["record"] == "campaign"), None)


def looked_at(directory: Path) -> State:
    """Return what a campaign's journal says, whether it is running or not; raises UsageError where there is none."""
    path = directory / NAME
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; expected the journal of a campaign") from error
    records, complaints = parsed(data[: data.rfind(b"\n") + 1], path)
    begun = settings(records)
    if begun is None:
        raise UsageError(f"{path}: it does not say what campaign it is of")
    if begun.get("schema") != SCHEMA:
        raise UsageError(f"{path}: it is of another kvproof ({begun.get('schema')}; this one reads {SCHEMA})")
    state = State(Asked(tuple(begun["targets"]), 0.0, begun["seed"], ranks=begun["ranks"]), gathered(records))
    for record in records:
        state.take(record)
    for complaint in complaints:
        state.say(complaint)
    return state


class Campaign:
    """A campaign in a directory."""

    def __init__(self, asked: Asked, journal: Journal, corpus: Corpus | None = None) -> None:
        """Take up what the journal has."""
        self._asked, self._journal, self._corpus = asked, journal, corpus
        self.state = State(asked, gathered(journal.records))
        for complaint in journal.complaints:
            self.state.say(complaint)
        self._kept: list[dict[str, Any]] = []
        self._number = self._given = 0
        self._opened = False
        self._told: dict[str, Mapping[str, Any]] = {}
        self._retry = [_again(each) for each in self.state.findings.certain() if not each.chance]
        self._shared: set[str] = set()
        for record in journal.records:
            self._remember(record)
            self.state.take(record)
            if record["record"] == "worker":
                self._number = max(self._number, record["number"])
        self._counted, self._counted_until = Counter(self.state.counts), self.state.seconds
        if settings(journal.records) is None:
            journal.append({"record": "campaign", "schema": SCHEMA, "targets": list(asked.targets),
                            "ranks": asked.ranks,
                            "seed": asked.seed, "versions": dict(versions()), "guided": asked.guided})

    def run(
        self, make: Callable[[Task], Host], watch: Callable[[State], None], stopped: threading.Event
    ) -> State:
        """Play until the time is over or it is stopped, on workers that `make` starts; raises JournalFailed.

        The time begins when the first target is open.
        """
        running: list[_Running] = []
        lost = played = 0
        shared = 0.0
        try:
            running = [self._start(make) for _ in range(self._asked.workers)]
            while (self.state.seconds < self._asked.seconds or not self._opened) and not stopped.is_set() and running:
                if self._corpus is not None and time.monotonic() - shared > _SHARE:
                    shared = time.monotonic()
                    self._exchange_cases(running)
                gone = self._exchange(running)
                lost = 0 if self.state.counts["cases"] > played else lost + len(gone)
                played = self.state.counts["cases"]
                for why in gone:
                    self.state.say(f"{why}; another one goes on" if lost <= _LOST else str(why))
                running += [self._start(make) for _ in gone if lost <= _LOST]
                if self.state.seconds - self._counted_until > _COUNTED:
                    self._count()
                watch(self.state)
                stopped.wait(_POLL)
            until = time.monotonic() + _CLOSING
            while running and time.monotonic() < until and not stopped.is_set():
                self._exchange(running, closing=True)
                watch(self.state)
                stopped.wait(_POLL)
        finally:
            for each in running:
                each.host.stop()
            self._count()
        if self._corpus is not None:
            self._exchange_cases([])
        return self.state

    def _count(self) -> None:
        """Journal what was counted since this was done last."""
        now, seconds = Counter(self.state.counts), self.state.seconds
        self._journal.append({"record": "counted", "seconds": round(seconds - self._counted_until, 1),
                              "counts": {name: count - self._counted[name] for name, count in now.items()}})
        self._counted, self._counted_until = now, seconds

    def _start(self, make: Callable[[Task], Host]) -> _Running:
        self._number += 1
        asked = self._asked
        task = Task(asked.targets, asked.seed, self._number, max(1, asked.at_once // asked.workers), asked.guided,
                    asked.server, asked.device, asked.ranks)
        self._journal.append({"record": "worker", "number": self._number})
        retry, self._retry = self._retry, []
        return _Running(make(task), learned=[*self._kept, *retry])

    def _exchange(self, running: list[_Running], *, closing: bool = False) -> list[Gone]:
        """Exchange with each worker, and take those away that have ended; return why, where that was not its will."""
        gone = []
        for each in list(running):
            try:
                goes_on = self._turn(each, running, closing)
            except Gone as error:
                gone.append(error)
                goes_on = False
            if not goes_on:
                running.remove(each)
                each.host.stop()
        return gone

    def _turn(self, each: _Running, running: list[_Running], closing: bool) -> bool:
        """Exchange with one worker; return whether it goes on."""
        acknowledged, each.acknowledged = each.acknowledged, []
        learned, each.learned = each.learned, []
        goes_on = True
        for report in each.host.exchange(acknowledged, learned, closing):
            what = report.pop("report")
            if what == "played":
                self.state.counts.update(report["counts"])
            elif what == "opened":
                record = {"record": what, **report}
                self._journal.append(record)
                if not self._opened:
                    self._opened, self._counted_until, self.state.begun = True, 0.0, time.monotonic()
                self.state.take(record)
            elif what in ("untried", "could not tell"):
                self.state.say(f"{report['target']}: {report['says']}")
            elif what in ("failed", "ended"):
                if "says" in report:
                    self.state.say(report["says"])
                goes_on = False
            elif what in _JOURNALLED:
                number = report.pop("number")
                record = {"record": what, "worker": each.host.task.number, **report}
                self._journal.append(record)
                each.acknowledged.append(number)
                self.state.findings.take(record)
                self.state.take(record)
                told = self._remember(record)
                for other in running if told else ():
                    if other is not each:
                        other.learned.append(told)
        return goes_on

    def _remember(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """Keep what other workers, and later ones, have to know of a record; return it, or nothing."""
        told: dict[str, Any] = {}
        if record["record"] == "kept":
            told = {"target": record["target"], "case": record["case"], "behaviour": record["behaviour"]}
        elif record["record"] == "shrunk":
            told = {"target": record["target"], **(
                {"chances": [record["where"]]} if record["chance"] else
                {"causes": [[record["where"], record["shape"]]]})}
        if told:
            self._kept.append(told)
        return told

    def _exchange_cases(self, running: list[_Running]) -> None:
        """Give the corpus what is new here, and take from it what is new there."""
        assert self._corpus is not None
        try:
            for told in self._kept[self._given:]:
                self._given += 1
                if "case" in told:
                    self._shared.add(self._corpus.put(told))
            for finding in self.state.findings.certain():
                if finding.least is not None and finding.least is not self._told.get(finding.id):
                    self._told[finding.id] = finding.least
                    self._shared.add(self._corpus.put(finding.document()))
            for name in sorted(self._corpus.names() - self._shared):
                self._shared.add(name)
                entry = self._corpus.get(name)
                if entry is not None and entry.get("target") in self._asked.targets:
                    self._take_over(entry, running)
        except CorpusFailed as error:
            self.state.say(f"the corpus: {error}; the campaign goes on without it")

    def _take_over(self, entry: Mapping[str, Any], running: list[_Running]) -> None:
        """Take over an entry of the corpus: a case is tried and changed here, too; a finding is one here."""
        found = "least" in entry
        why = records.wrong(entry, records.FINDING if found else records.KEPT) or (
            records.wrong(entry["least"], records.LEAST) if found else "")
        case = {} if why else (entry["least"] if found else entry)["case"]
        if not why and case.get("ranks", self._asked.ranks) != self._asked.ranks:
            # It is of another world.
            return
        try:
            if why:
                raise UsageError(why)
            targets.read(entry["target"], case)
            if entry["target"] not in targets.OWN and connectors.find(entry["target"]).ranks != ("ranks" in case):
                raise UsageError(f"the case is none of {entry['target']}'s")
            if not found:
                told = {name: entry[name] for name in ("target", "case", "behaviour")}
            else:
                least = dict(entry["least"])
                known = {(each.target, each.where, each.shape) for each in self.state.findings.found}
                if (least["target"], least["where"], frozenset(entry["shape"])) in known:
                    return
                record = {**least, "record": "shrunk", "worker": 0, "was": entry["shape"]}
                self._journal.append(record)
                finding = self.state.findings.taken(record)
                self._told[finding.id] = least
                told = self._remember(record)
                if running and not finding.chance:
                    # What was found elsewhere, or long ago, is looked at here.
                    running[0].learned.append(_again(finding))
        except KvproofError as error:
            self.state.say(f"the corpus has an entry that is none, which is left out: {error}")
            return
        for each in running:
            each.learned.append(told)


def _again(finding: Finding) -> dict[str, Any]:
    """Return what a worker is told so that it tries a finding again."""
    return {"target": finding.target, "where": finding.where, "shape": sorted(finding.shape),
            "retry": finding.shown["case"]}


@dataclass
class _Running:
    """A worker that runs, and what it is still to be told."""

    host: Host
    acknowledged: list[int] = field(default_factory=list)
    learned: list[dict[str, Any]] = field(default_factory=list)
