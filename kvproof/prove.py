"""Proving obligations in worker processes, and what becomes of them as data."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from kvproof.errors import UsageError
from kvproof.faults.spawner import die_with
from kvproof.results import INTERRUPTED, ObligationRow, versions, write_text

if TYPE_CHECKING:
    from kvproof.models.trace import Trace
    from kvproof.spec.obligation import Obligation, Query
    from kvproof.spec.prover import Result
    from kvproof.spec.second_opinion import Opinion

WORKERS = 2
Progress = Callable[[ObligationRow], None]


@dataclass(frozen=True)
class Asked:
    """What is to be proved, and how hard: ids, globs and files; seed; milliseconds a query; a second solver or not.

    traces: the folder that every witness, counterexample and mutant's trace is written to, if there is one.
    """

    patterns: tuple[str, ...] = ()
    seed: int = 0
    timeout: int | None = None
    second: bool = False
    traces: Path | None = None


def run(
    asked: Asked,
    progress: Progress = lambda row: None,
    *,
    workers: int = WORKERS,
    stopped: threading.Event | None = None,
) -> list[ObligationRow]:
    """Prove everything that is asked for; return one row an obligation, in the order in which they are declared.

    The obligations about one theory are proved in one fresh process, in order: so they share what is common to them,
    and what the solver shows does not depend on what was proved before. Raises UsageError for a pattern that names
    nothing, for a file that is no protocol, and for a folder of traces that cannot be written to.
    """
    from kvproof.spec import library

    groups: dict[str, list[tuple[str, Obligation]]] = {}
    placed = library.placed(asked.patterns)
    for place, each in placed:
        groups.setdefault(f"{each.theory.__module__}.{each.theory.__qualname__}", []).append((place, each))
    work = _Work(asked, progress, stopped or threading.Event())
    # The largest first, so that the last to end is a small one.
    ordered = sorted(groups.values(), key=len, reverse=True)
    with ThreadPoolExecutor(workers, "prover") as pool:
        try:
            for group in [pool.submit(work.prove, obligations) for obligations in ordered]:
                group.result()
        except KeyboardInterrupt:
            work.stop()
    return [work.rows.get(each.id) or _not_proved(each, "not-run", INTERRUPTED) for _, each in placed]


@dataclass
class _Work:
    """What the threads that wait for provers share."""

    asked: Asked
    progress: Progress
    stopped: threading.Event
    rows: dict[str, ObligationRow] = field(default_factory=dict)
    processes: list[Any] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def prove(self, obligations: list[tuple[str, Obligation]]) -> None:
        """Prove some obligations in a process of their own, which is forked with them and ends with this thread."""
        context = multiprocessing.get_context("fork")
        mine, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_prove_all, args=(self.asked, obligations, theirs, os.getpid()))
        with self.lock:
            if self.stopped.is_set():
                return
            process.start()
            self.processes.append(process)
        theirs.close()
        left = list(obligations)
        try:
            while left:
                row, traces = mine.recv()
                for path, text in traces.items():
                    write_text(Path(path), text)
                self.told(row)
                left.pop(0)
        except EOFError:
            process.join()
            for _, each in left if not self.stopped.is_set() else []:
                self.told(_not_proved(each, "error", f"the process that was to prove it ended with {process.exitcode}"))
        finally:
            process.kill()
            process.join()
            mine.close()

    def told(self, row: ObligationRow) -> None:
        """Take in a row."""
        with self.lock:
            self.rows[row.id] = row
            self.progress(row)

    def stop(self) -> None:
        """End every prover, and start no more."""
        with self.lock:
            self.stopped.set()
            for process in self.processes:
                process.kill()


def _prove_all(asked: Asked, obligations: list[tuple[str, Obligation]], rows: Connection, parent: int) -> None:
    from kvproof.spec.prover import hurry

    die_with(parent)
    hurry()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    for place, obligation in obligations:
        rows.send(_prove(asked, place, obligation))


def _not_proved(obligation: Obligation, verdict: str, explain: str) -> ObligationRow:
    from kvproof.spec.prover import Result

    return _row(Result(obligation, verdict, 0.0, explain), [])


def selected(patterns: Sequence[str]) -> list[Obligation]:
    """Return the obligations that the patterns name; see `spec.library.select`."""
    from kvproof.spec import library

    return library.select(patterns)


def _prove(asked: Asked, place: str, obligation: Obligation) -> tuple[ObligationRow, dict[str, str]]:
    """Prove one obligation, in a worker; of what is found only text travels back: a row, and its traces by path."""
    from kvproof.spec.prover import Effort, prove

    effort = Effort(seed=asked.seed) if asked.timeout is None else Effort(seed=asked.seed, net=asked.timeout)
    result = prove(obligation, effort)
    opinions: list[Opinion] = []
    if asked.second:
        opinions = [_opinion(obligation, query) for query, _, _ in result.queries]
    row, written = _row(result, opinions), {}
    if asked.traces is not None:
        for name, trace in _traces(result, place, asked.seed).items():
            path = str(asked.traces / f"{quote(f'{obligation.id}.{name}', safe='')}.itf.json")
            written[path] = trace.to_itf()
            if trace.role == "mutant":
                next(each for each in row.mutants if each["id"] == trace.mutant)["trace_path"] = path
            else:
                setattr(row, "witness_path" if trace.role == "witness" else "trace_path", path)
    return row, written


def _traces(result: Result, place: str, seed: int) -> dict[str, Trace]:
    """Return the traces of a result by the names of their files; a mutant called as a role is gets a longer one."""
    from kvproof.models.trace import ROLES
    from kvproof.spec.recorded import record

    tools = {name: version for name, version in versions(("kvproof", "z3-solver")).items() if name != "system"}
    found = [("witness", result.witness), ("counterexample", result.trace)]
    named = {role: record(each, place, result.obligation, role, seed=seed, versions=tools)
             for role, each in found if each is not None}
    for mutant in result.mutants:
        if mutant.trace is not None:
            name = f"mutant.{mutant.id}" if mutant.id in ROLES else mutant.id
            named[name] = record(mutant.trace, place, result.obligation, "mutant", mutant.id, seed=seed, versions=tools)
    return named


def _opinion(obligation: Obligation, query: Query) -> Opinion:
    """Ask the second solver; what is shared by all claims about a system is asked once a process."""
    from kvproof.spec import second_opinion

    if not query.shared:
        return second_opinion.ask(query.name, query.formulas)
    key = (obligation.theory, query.name)
    if key not in _opinions:
        _opinions[key] = second_opinion.ask(query.name, query.formulas)
    return _opinions[key]


_opinions: dict[tuple[Any, str], Opinion] = {}


def _row(result: Result, opinions: Sequence[Opinion]) -> ObligationRow:
    from kvproof.spec import second_opinion
    from kvproof.spec.diagram import diagram

    obligation = result.obligation
    contradicted = [opinion.query for opinion in opinions if opinion.verdict == "contradicted"]
    verdict, explain = result.verdict, result.explain
    if contradicted and verdict == "proved":
        verdict, explain = "error", f"the second solver found a model of: {', '.join(contradicted)}"
    second = {
        "name": "cvc5",
        "version": second_opinion.available(),
        "verdict": _sum([opinion.verdict for opinion in opinions]),
        "seconds": round(sum(opinion.seconds for opinion in opinions), 3),
        "queries": len(opinions),
        "unknown": [f"{o.query}{': ' if o.why else ''}{o.why}" for o in opinions if o.verdict == "unknown"],
    }
    return ObligationRow(
        id=obligation.id,
        claim=obligation.claim,
        scope=obligation.scope,
        fragment=obligation.fragment,
        verdict=verdict,
        limit=obligation.limit,
        seconds=round(result.seconds, 3),
        explain=explain,
        assumes=list(obligation.assumes),
        queries=len(result.queries),
        slowest=round(max((seconds for _, _, seconds in result.queries), default=0.0), 3),
        witness=diagram(result.witness) if result.witness is not None else [],
        trace=diagram(result.trace) if result.trace is not None else [],
        mutants=[
            {
                "id": mutant.id,
                "verdict": mutant.verdict,
                "says": mutant.says,
                "consequence": mutant.explain,
                "redefines": mutant.redefines,
                "trace": diagram(mutant.trace) if mutant.trace is not None else [],
            }
            for mutant in result.mutants
        ],
        second_solver=second if opinions else None,
    )


def _sum(verdicts: Sequence[str]) -> str:
    for verdict in ("contradicted", "unknown"):
        if verdict in verdicts:
            return verdict
    return "not-contradicted"


def write_smt2(patterns: Sequence[str], directory: Path) -> int:
    """Write every query of the obligations as SMT-LIB with a file SHA256SUMS beside; return how many there are."""
    from kvproof.spec import second_opinion

    sums: list[str] = []
    try:
        for obligation in selected(patterns):
            for number, query in enumerate(obligation.queries(obligation.theory()), 1):
                limit = "a limit, so one of its queries is sat"
                expected = limit if obligation.limit else "unsat is what is expected"
                heading = f"; {obligation.id}: {query.name}; {expected}"
                text = f"{heading}\n{second_opinion.smt2(query.formulas)}"
                name = f"{obligation.id}-{number:03}.smt2"
                directory.mkdir(parents=True, exist_ok=True)
                (directory / name).write_text(text)
                sums.append(f"{hashlib.sha256(text.encode()).hexdigest()}  {name}")
        (directory / "SHA256SUMS").write_text("\n".join(sums) + "\n")
    except OSError as error:
        raise UsageError(f"cannot write to {directory}: {error.strerror}; name another directory") from error
    return len(sums)
