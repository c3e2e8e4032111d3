"""Replays on connectors: all cases of all bugs on all connectors at once, one row of results for each pair."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass

from kvproof.connectors import Connector
from kvproof.errors import KvproofError, NotInstalled
from kvproof.faults import supervisor
from kvproof.faults.servers import Server, open_server
from kvproof.replays import REPLAYS
from kvproof.replays.stage import Case, Replay, Unsupported, stage_for
from kvproof.results import ReplayRow, Where
from kvproof.runner.forks import Forks
from kvproof.runner.host import ImportCrashed, ImportHung

AT_ONCE = 10
"""Cases at once: most of a hanging case is waiting, so this may exceed the number of cores."""

Progress = Callable[[ReplayRow], None]


def run(
    connectors: Sequence[Connector],
    bugs: Sequence[str] = tuple(REPLAYS),
    *,
    server: str | None = None,
    device: str = "cpu",
    progress: Progress = lambda row: None,
    stopped: threading.Event | None = None,
) -> Iterator[ReplayRow]:
    """Replay every bug on every connector; yield the rows in that order once all have ended.

    progress is called with each row as soon as it is there, from the calling thread. When `stopped` is set (or the
    caller is interrupted) what has not ended becomes an error that says so.
    """
    stop = stopped or threading.Event()
    pairs = [(connector, REPLAYS[bug]) for connector in connectors for bug in bugs]
    with ExitStack() as stack:
        opened = stack.enter_context(_cleaned(open_server(server)))
        forks = stack.enter_context(Forks())
        cases = stack.enter_context(ThreadPoolExecutor(AT_ONCE, "case"))
        plans = stack.enter_context(ThreadPoolExecutor(max(1, len(pairs)), "replay"))
        work = _Work(opened, device, forks, cases, stop)
        rows = [plans.submit(work.row, connector, replay) for connector, replay in pairs]
        try:
            _report(rows, progress)
        except KeyboardInterrupt:
            # The cases in flight end at once when their processes do.
            stop.set()
            supervisor.shut_down()
        yield from [row.result() for row in rows]


def _report(rows: Sequence[Future[ReplayRow]], progress: Progress) -> None:
    waiting = set(rows)
    while waiting:
        ended, waiting = wait(waiting, return_when=FIRST_COMPLETED)
        for row in ended:
            progress(row.result())


@contextmanager
def _cleaned(opened: AbstractContextManager[Server]) -> Iterator[Server]:
    """Open the server; where it is the user's own, delete our keys at the end."""
    with opened as server:
        try:
            yield server
        finally:
            if server.prefix:
                with server.connect() as raw:
                    raw.delete_prefix(server.prefix)


@dataclass
class _Work:
    """What all replays of a run share."""

    server: Server
    device: str
    forks: Forks
    cases: ThreadPoolExecutor
    stop: threading.Event

    def row(self, connector: Connector, replay: Replay) -> ReplayRow:
        """Replay one bug on one connector; every way in which that can go wrong is a verdict."""
        begun = time.monotonic()
        cases: list[Case] = []
        masked = ""
        try:
            opening = self.cases.submit(
                stage_for, replay, connector, self.server, self.forks, self.device, self.stop
            )
            stage = opening.result()
            masked = stage.described.masks if replay.masked else ""
            planned = self.cases.submit(replay.plan, stage).result()
            cases = [case.result() for case in [self.cases.submit(self._case, case) for case in planned]]
            verdict, explain = summary(cases)
        except Unsupported as error:
            verdict, explain = "unsupported", str(error)
        except (ImportHung, ImportCrashed) as error:
            verdict, explain = "error", f"{error}; {error.stacks}"
        except KvproofError as error:
            verdict, explain = "error", str(error)
        if self.stop.is_set() and verdict == "error":
            explain = "interrupted before it ended"
        if verdict == "unsupported":
            explain = f"{connector.distribution} {connector.version}: {explain}"
        if connector.bug is not None:
            verdict, explain = self_test(connector.bug, replay.bug, verdict, explain)
        return ReplayRow(
            replay.bug,
            connector.name,
            connector.version,
            Where(1, self.device, self.server.description),
            verdict,
            round(time.monotonic() - begun, 3),
            explain,
            masked=masked,
            evidence=[asdict(case) for case in cases],
        )

    @staticmethod
    def _case(case: Callable[[], Case]) -> Case:
        try:
            return case()
        except Unsupported as error:
            return Case("", "unsupported", str(error))
        except KvproofError as error:
            return Case("", "error", str(error))


def summary(cases: Sequence[Case]) -> tuple[str, str]:
    """Return the verdict that follows from those of the cases, and the sentence for all of them.

    One reproduced case is enough; absent needs that no case was inconclusive.
    """
    if not cases:
        return "unsupported", "there was no case to run"
    for verdict in ("reproduced", "error", "not-felt", "absent", "unsupported"):
        those = [case for case in cases if case.verdict == verdict]
        if those:
            counts = Counter(case.verdict for case in cases)
            share = f"{counts[verdict]} of {len(cases)} cases"
            return verdict, f"{those[0].explain} [{share}]"
    raise AssertionError(f"unknown verdict among {[case.verdict for case in cases]}")


def self_test(switched_on: str, replayed: str, verdict: str, explain: str) -> tuple[str, str]:
    """Return the verdict of a replay on a connector with a bug switched on: a test of the replay itself.

    Its own replay must catch the bug, or the replay is toothless; every other must find nothing, or it is wrong.
    """
    if replayed == switched_on:
        return ("pass", f"caught: {explain}") if verdict == "reproduced" else ("toothless", f"not caught: {explain}")
    if verdict == "reproduced":
        return "error", f"{replayed} was seen where only {switched_on} is switched on: {explain}"
    return ("pass", f"rightly not seen: {explain}") if verdict == "absent" else (verdict, explain)


def installed(names: Sequence[str], find: Callable[[str], Connector]) -> tuple[list[Connector], list[str]]:
    """Return those of `names` that are installed, and why the others are not."""
    found: list[Connector] = []
    missing: list[str] = []
    for name in names:
        try:
            found.append(find(name))
        except NotInstalled as error:
            missing.append(str(error))
    return found, missing
