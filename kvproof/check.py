"""The contract on connectors: every rule, read and disturbance, many cells at once, one row of results for each."""

from __future__ import annotations

import fnmatch
import glob
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from tempfile import TemporaryDirectory
from typing import Any

from kvproof import connectors
from kvproof.connectors import Connector
from kvproof.connectors.adapter import Read
from kvproof.errors import KvproofError, UsageError, said
from kvproof.faults import supervisor
from kvproof.faults.schedule import to_json
from kvproof.faults.servers import Server, open_server
from kvproof.known.cells import KnownCell, require_cells
from kvproof.results import INCONCLUSIVE, INTERRUPTED, CellRow, Where, is_finding
from kvproof.rig import Ground, NotOpened, Unsupported, described
from kvproof.rules import RULES
from kvproof.rules.cell import TIMEOUT, Cell
from kvproof.rules.plan import VICTIMS, Plan, Recording, Shape, asked_for
from kvproof.rules.rule import PUT, Broken, Case, NotFelt, Rule
from kvproof.runner.forks import Forks, ImportCrashed, ImportHung
from kvproof.runner.host import Turns

AT_ONCE = 12
"""Cells that work at once."""
BEGUN = 40
"""Cells that have begun: those that only wait are more than those that work."""

Progress = Callable[[CellRow], None]


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be tried: globs over the ids of rules, faults and reads; nothing means all.

    limit: seconds that a declared deadline may have. again: how often a finding that nobody expected is tried again.
    """

    rules: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    limit: float = 5.0
    again: int = 2

    def takes(self, rule: str, case: Case) -> bool:
        """Whether this cell is asked for."""
        fault = case.fault
        return _among(rule, self.rules) and self.reading(case.read.name) and (
            _among(fault, self.faults) or _among(fault.partition("@")[0], self.faults)
            or _among(fault.partition(":")[0], self.faults))

    def reading(self, read: str) -> bool:
        """Whether any cell of this read is asked for."""
        return _among(read, self.reads)


def _among(name: str, patterns: tuple[str, ...]) -> bool:
    return not patterns or any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


@dataclass(frozen=True, slots=True)
class Planned:
    """One cell that is to be tried."""

    rule: Rule
    case: Case

    @property
    def id(self) -> str:
        """Its name, such as "no-stale-hit[truncate@GET-get]"."""
        return f"{self.rule.id}[{self.case.fault}-{self.case.read.name}]"


@contextmanager
def grounds(server: str | None, device: str) -> Iterator[Callable[[Connector, threading.Event], Ground]]:
    """Open the server and the fork servers of a run; yield what makes a connector's ground on them."""
    with ExitStack() as stack:
        opened = stack.enter_context(open_server(server))
        stack.callback(_forget, opened)
        forks = stack.enter_context(Forks(device))

        turns = Turns(AT_ONCE)

        def ground(connector: Connector, stopped: threading.Event) -> Ground:
            return Ground(connector, described(connector, forks, device), opened, forks, device, stopped, turns)

        yield ground


def _forget(server: Server) -> None:
    """Delete the run's keys from a server that is the user's own."""
    if server.prefix:
        with server.connect() as raw:
            raw.delete_prefix(server.prefix)


def plan(
    ground: Ground, pool: ThreadPoolExecutor, asked: Asked, known: Sequence[KnownCell] = ()
) -> list[Planned]:
    """Make each read without a disturbance, and return the cells that are to be tried.

    Raises NotOpened where a read does not work without any disturbance, and UsageError for a known entry that speaks
    of a fault or a read that there is not.
    """
    made = Plan(ground.described, TIMEOUT, recorded(ground, pool), ground.server.kind)
    cells = [Planned(rule, case) for rule in RULES.values() for case in rule.cases(made)]
    if ground.server.kind == "valkey":
        # On other servers there are fewer faults.
        require_cells(known, ground.connector.name, ground.version,
                      [(cell.rule.id, cell.case.fault, cell.case.read.name) for cell in cells])
    return [cell for cell in cells if asked.takes(cell.rule.id, cell.case)]


def recorded(ground: Ground, pool: ThreadPoolExecutor) -> dict[tuple[str, Shape], Recording]:
    """Make each read, and a store, without a disturbance, and return what passed; nothing for one without a server.

    Raises NotOpened where that does not work.
    """
    shapes: list[tuple[Read, Shape]] = [(read, shape) for read in ground.described.reads
                                        for shape in ("present", "absent")]
    shapes += [(PUT, "put"), (PUT, "overwrite")]
    if ground.described.truth != "resp":
        return {}
    begun = {(read.name, shape): pool.submit(_record, ground, read, shape) for read, shape in shapes}
    return {name: future.result() for name, future in begun.items()}


def _record(ground: Ground, read: Read, shape: Shape) -> Recording:
    with ExitStack() as stack:
        if ground.turns is not None:
            stack.enter_context(ground.turns)
        cell = _cell(ground, "plan", Case(f"none:{shape}", read, given={"shape": shape}), stack)
        rig = cell.prepare()
        if shape == "overwrite":
            cell.put(rig, (VICTIMS[0], 1))
        begin = len(rig.proxy.log())
        if read == PUT:
            cell.put(rig, (VICTIMS[0], 2))
        else:
            _asked_once(cell, rig, asked_for(read))
        return Recording(tuple(rig.proxy.log()), begin)


def _asked_once(cell: Cell, rig: Any, chunks: Sequence[str]) -> None:
    try:
        cell.ask(rig, chunks)
    except Broken as error:
        # It is a finding, of the cell that has no disturbance either; here only what passed is of interest.
        cell.steps.append(error.explain)


def _cell(ground: Ground, rule: str, case: Case, stack: ExitStack, limit: float = 5.0) -> Cell:
    if ground.described.truth == "directory":
        directory = stack.enter_context(TemporaryDirectory(prefix="kvproof-"))
        case = replace(case, place={**case.place, "directory": directory})
    return Cell(ground, rule, case, stack, limit)


@dataclass
class _Tried:
    """How one try of a cell ended."""

    verdict: str
    explain: str
    seconds: float
    evidence: dict[str, Any] = field(default_factory=dict)


def attempt(
    ground: Ground, planned: Planned, asked: Asked = Asked(), known: Sequence[KnownCell] = ()
) -> CellRow:
    """Try a cell, again where it fails and nobody expects it to, and return its row.

    A finding that was seen once is one, with its rate where it did not come again. What could not tell, and then
    could, is what it was when it could.
    """
    first = _once(ground, planned, asked)
    tries, row = [first], _row(ground, planned, first)
    if first.verdict in INCONCLUSIVE or (
            is_finding(first.verdict) and not any(entry.covers(row) for entry in known)):
        tries += [_once(ground, planned, asked) for _ in range(asked.again) if not ground.stopped.is_set()]
    told = next((one for one in tries if is_finding(one.verdict)), None)
    told = told or next((one for one in tries if one.verdict not in INCONCLUSIVE), first)
    row = _row(ground, planned, told)
    row.seconds = round(sum(one.seconds for one in tries), 3)
    sure = [one for one in tries if one.verdict not in INCONCLUSIVE]
    if len({one.verdict for one in sure}) > 1:
        row.rate = round(sum(is_finding(one.verdict) for one in sure) / len(sure), 3)
    return row


def _row(ground: Ground, planned: Planned, told: _Tried) -> CellRow:
    return CellRow(
        ground.connector.name, ground.version, Where(1, ground.device, ground.server.description), planned.rule.id,
        planned.case.fault, planned.case.read.name, told.verdict, round(told.seconds, 3), told.explain,
        masked=ground.masked, evidence=told.evidence)


def _once(ground: Ground, planned: Planned, asked: Asked) -> _Tried:
    begun = time.monotonic()
    if ground.stopped.is_set():
        return _Tried("error", INTERRUPTED, 0.0)
    verdict, explain = "pass", ""
    with ExitStack() as stack:
        if ground.turns is not None:
            stack.enter_context(ground.turns)
        cell = _cell(ground, planned.rule.id, planned.case, stack, asked.limit)
        try:
            if "untried" in planned.case.given:
                raise Unsupported(str(planned.case.given["untried"]))
            planned.rule.check(cell)
        except Broken as error:
            verdict, explain = error.verdict, error.explain
        except NotFelt as error:
            verdict, explain = "not-felt", str(error)
        except Unsupported as error:
            verdict, explain = "unsupported", str(error)
        except NotOpened as error:
            verdict, explain = "error", str(error)
        except (ImportHung, ImportCrashed) as error:
            verdict, explain = "error", f"{error}; {error.stacks}"
        except Exception as error:
            verdict, explain = "error", said(error)
        evidence = _evidence(cell) if verdict != "pass" else {}
    if ground.stopped.is_set() and verdict != "pass":
        verdict, explain = "error", INTERRUPTED
    return _Tried(verdict, explain, time.monotonic() - begun, evidence)


def _evidence(cell: Cell) -> dict[str, Any]:
    """Return what was done, what passed on the wire, where it was stuck, and the schedule."""
    wire: list[str] = []
    output = ""
    for rig in cell.rigs:
        try:
            wire += [str(event) for event in rig.proxy.log()[-60:]]
        except KvproofError as error:
            wire.append(str(error))
        output += rig.runner.output.text[-1000:]
    return {"schedule": to_json(cell.case.schedule), "steps": cell.steps, "wire": wire, **cell.trouble,
            **({"output": output} if output else {})}


def run(
    chosen: Sequence[Connector],
    asked: Asked = Asked(),
    *,
    server: str | None = None,
    device: str = "cpu",
    progress: Progress = lambda row: None,
    planned: Callable[[int], None] = lambda count: None,
    stopped: threading.Event | None = None,
    known: Sequence[KnownCell] = (),
) -> list[CellRow]:
    """Try every cell that is asked for on every connector; return the rows in the order of the plan.

    known: what is known to fail, and is not tried again when it does. progress is called with each row as soon as it
    is there, from the calling thread, and planned with the number of cells of each connector once there is a plan.
    Raises UsageError when the adapter itself is wrong, when nothing was asked for that there is, and when what is
    known speaks of cells that there are not.
    """
    stop = stopped or threading.Event()
    rows: list[CellRow] = []
    with grounds(server, device) as make, ThreadPoolExecutor(BEGUN, "cell") as pool:
        try:
            for connector in chosen:
                if not stop.is_set():
                    rows += _connector(make, connector, asked, pool, stop, progress, planned, known)
        except KeyboardInterrupt:
            stop.set()
            supervisor.shut_down()
    if not rows and not stop.is_set():
        raise UsageError("nothing is selected: no cell has such a rule, fault and read; --list shows those there are")
    return rows


def _connector(
    make: Callable[[Connector, threading.Event], Ground], connector: Connector, asked: Asked, pool: ThreadPoolExecutor,
    stop: threading.Event, progress: Progress, planned: Callable[[int], None],
    known: Sequence[KnownCell],
) -> list[CellRow]:
    where = Where(1, "cpu", "")
    try:
        ground = make(connector, stop)
        cells = plan(ground, pool, asked, known)
    except (NotOpened, Unsupported, ImportHung, ImportCrashed) as error:
        verdict = "unsupported" if isinstance(error, Unsupported) else "error"
        return [CellRow(connector.name, connector.version, where, "*", "*", "*", verdict, 0.0, str(error))]
    planned(len(cells))
    futures = [pool.submit(attempt, ground, cell, asked, known) for cell in cells]
    waiting: set[Future[CellRow]] = set(futures)
    try:
        while waiting:
            ended, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for future in ended:
                progress(future.result())
    except KeyboardInterrupt:
        # The cells in flight end at once when their processes do, and what comes now does not begin.
        stop.set()
        supervisor.shut_down()
    return [future.result() for future in futures]


def one(
    connector: str, rule: str, fault: str, read: str, *, server: str | None = None, device: str = "cpu",
    ranks: int | None = None,
) -> CellRow:
    """Try one cell of one connector, named as in `kvproof check -c`; raises UsageError when there is no such cell.

    ranks: how many there are, for a connector of ranks.
    """
    from kvproof.ranks import check as worlds

    asked = Asked((glob.escape(rule),), (glob.escape(fault),), (glob.escape(read),))
    found = connectors.find(connectors.for_device(connector, device))
    tried = worlds.run([found], ranks, asked, device=device) if ranks else run(
        [found], asked, server=server, device=device)
    rows = [row for row in tried if row.fault in (fault, "*")]
    if not rows:
        raise UsageError(f"{connector} has no cell {rule}[{fault}-{read}]; `kvproof check -c {connector} --list` "
                         "shows those it has")
    return rows[0]


def listed(
    chosen: Sequence[Connector], asked: Asked, *, server: str | None = None, device: str = "cpu"
) -> Iterator[tuple[str, Planned]]:
    """Return every cell that is asked for, with its connector's name, in the order of the plan."""
    with grounds(server, device) as make, ThreadPoolExecutor(BEGUN, "cell") as pool:
        for connector in chosen:
            for cell in plan(make(connector, threading.Event()), pool, asked):
                yield connector.name, cell


def unknown(patterns: Iterable[str]) -> list[str]:
    """Return those patterns that fit no rule."""
    return [pattern for pattern in patterns if not fnmatch.filter(RULES, pattern)]


