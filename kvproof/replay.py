"""Replays on connectors: all cases of all bugs on all connectors at once, one row of results for each pair."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass

from kvproof import connectors
from kvproof.connectors import Connector
from kvproof.errors import NotInstalled, UsageError, said
from kvproof.faults import supervisor
from kvproof.faults.raw_resp import ReplyError
from kvproof.faults.servers import Server, open_server
from kvproof.replays import REPLAYS
from kvproof.replays.stage import Case, Replay, stage_for
from kvproof.results import INCONCLUSIVE, INTERRUPTED, ReplayRow, Where
from kvproof.rig import NotOpened, Unsupported
from kvproof.runner.forks import Forks, ImportCrashed, ImportHung

AT_ONCE = 10
"""Cases at once: most of a hanging case is waiting, so this may exceed the number of cores."""

Progress = Callable[[ReplayRow], None]


def run(
    chosen: Sequence[Connector],
    bugs: Sequence[str] = tuple(REPLAYS),
    *,
    server: str | None = None,
    device: str = "cpu",
    progress: Progress = lambda row: None,
    stopped: threading.Event | None = None,
    expected: Callable[[str, str], bool] = lambda connector, bug: False,
) -> Iterator[ReplayRow]:
    """Replay every bug on every connector; yield the rows in that order once all have ended.

    progress is called with each row as soon as it is there, from the calling thread. When `stopped` is set (or the
    caller is interrupted) what has not ended becomes an error that says so. expected tells whether a connector is
    known to have a bug; one that nobody expected has to be seen twice before it is believed.
    """
    stop = stopped or threading.Event()
    pairs = [(connector, REPLAYS[bug]) for connector in chosen for bug in bugs]
    with ExitStack() as stack:
        opened = stack.enter_context(_cleaned(open_server(server)))
        forks = stack.enter_context(Forks(device))
        cases = stack.enter_context(ThreadPoolExecutor(AT_ONCE, "case"))
        plans = stack.enter_context(ThreadPoolExecutor(max(1, len(pairs)), "replay"))
        work = _Work(opened, device, forks, cases, stop, expected)
        rows: list[Future[ReplayRow]] = []
        try:
            for pair in pairs:
                rows.append(plans.submit(work.row, *pair))
            _report(rows, progress)
        except KeyboardInterrupt:
            # The cases in flight end at once when their processes do, and what comes now does not begin.
            stop.set()
            supervisor.shut_down()
            rows += [plans.submit(work.row, *pair) for pair in pairs[len(rows) :]]
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
                try:
                    with server.connect() as raw:
                        raw.delete_prefix(server.prefix)
                except (OSError, EOFError, ReplyError) as error:
                    print(f"kvproof: keys that begin with {server.prefix} may be left: {error}", file=sys.stderr)


@dataclass
class _Work:
    """What all replays of a run share."""

    server: Server
    device: str
    forks: Forks
    cases: ThreadPoolExecutor
    stop: threading.Event
    expected: Callable[[str, str], bool]

    def row(self, connector: Connector, replay: Replay) -> ReplayRow:
        """Replay one bug on one connector; every way in which that can go wrong is a verdict.

        Raises UsageError when the adapter itself is wrong.
        """
        begun = time.monotonic()
        cases: list[Case] = []
        masked, version = "", connector.version
        try:
            if self.stop.is_set():
                raise NotOpened(INTERRUPTED)
            opening = self.cases.submit(stage_for, replay, connector, self.server, self.forks, self.device, self.stop)
            stage = opening.result()
            masked, version = stage.masked, stage.version
            planned = self.cases.submit(replay.plan, stage).result()
            doubt = connector.bug is None and not self.expected(connector.name, replay.bug)
            cases = [case.result() for case in [self.cases.submit(self._case, case, doubt) for case in planned]]
            verdict, explain = summary(cases)
        except UsageError:
            if not self.stop.is_set():
                raise
            verdict, explain = "error", INTERRUPTED
        except Unsupported as error:
            verdict, explain = "unsupported", str(error)
        except (ImportHung, ImportCrashed) as error:
            verdict, explain = "error", f"{error}; {error.stacks}"
        except Exception as error:
            verdict, explain = "error", said(error)
        if self.stop.is_set() and (not cases or any(case.explain == INTERRUPTED for case in cases)):
            verdict, explain = "error", INTERRUPTED
        elif connector.bug is not None:
            verdict, explain = self_test(connector.bug, replay.bug, verdict, explain)
        if verdict == "unsupported":
            explain = f"{connector.distribution} {version}: {explain}"
        return ReplayRow(
            replay.bug,
            connector.name,
            version,
            Where(1, self.device, self.server.description),
            verdict,
            round(time.monotonic() - begun, 3),
            explain,
            masked=masked,
            inconclusive=sum(case.verdict in INCONCLUSIVE for case in cases),
            evidence=[asdict(case) for case in cases],
        )

    def _case(self, case: Callable[[], Case], doubt: bool) -> Case:
        """Run a case; in doubt, a bug is believed when it is seen on a second fresh connector as well."""
        try:
            done = case()
            if doubt and done.verdict == "reproduced" and not self.stop.is_set():
                again = case()
                if again.verdict != "reproduced":
                    done = Case(done.name, "error", f"seen once and not again: {done.explain}", done.evidence)
        except Unsupported as error:
            done = Case("", "unsupported", str(error))
        except Exception as error:
            done = Case("", "error", said(error))
        # What ended after the processes were ended says nothing about the connector.
        return Case(done.name, "error", INTERRUPTED) if self.stop.is_set() else done


def summary(cases: Sequence[Case]) -> tuple[str, str]:
    """Return the verdict that follows from those of the cases, and the sentence for all of them.

    One reproduced case is enough; absent needs that every case was run and found nothing.
    """
    if not cases:
        return "unsupported", "there was no case to run"
    for verdict in ("reproduced", "error", "not-felt", "unsupported", "absent"):
        those = [case for case in cases if case.verdict == verdict]
        if those:
            counts = Counter(case.verdict for case in cases)
            others = ", ".join(f"{number} {other}" for other, number in sorted(counts.items()) if other != verdict)
            share = f"{counts[verdict]} of {len(cases)} cases{'; ' if others else ''}{others}"
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


def installed(names: Sequence[str]) -> tuple[list[Connector], dict[str, str]]:
    """Return those of `names` that are installed, and for the others the line that says how to install them."""
    found: list[Connector] = []
    missing: dict[str, str] = {}
    for name in names:
        try:
            found.append(connectors.find(name))
        except NotInstalled as error:
            missing[name] = str(error)
    return found, missing


def not_run(missing: Mapping[str, str], bugs: Sequence[str], device: str) -> list[ReplayRow]:
    """Return the rows of what could not be run, so that no view of the results hides it."""
    where = Where(1, device, "")
    pairs = [(name, why, bug) for name, why in missing.items() for bug in bugs]
    return [ReplayRow(bug, name, "not installed", where, "not-run", 0.0, why) for name, why, bug in pairs]
