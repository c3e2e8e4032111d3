"""The contract as pytest items: one a cell, for `pytest --pyargs kvproof.rules --kvproof-connector NAME`.

Imported only when a connector is named. pytest runs items one after the other; the cells behind them run many at once,
and an item waits for its own.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from kvproof import check, connectors, contract, known, rules
from kvproof.check import Asked, Planned
from kvproof.connectors import Connector
from kvproof.errors import KvproofError
from kvproof.known import cells
from kvproof.results import CellRow, Where
from kvproof.rig import Ground, NotOpened, Unsupported
from kvproof.runner.forks import ImportCrashed, ImportHung

PACKAGE = "kvproof.rules"
"""What node ids begin with, wherever kvproof is installed."""
RULES = Path(rules.__file__).parent
_LAST_EVENTS = 40


@dataclass
class Contract:
    """The planned cells of one connector, and what came of those that were begun.

    untried: the row that stands for all of them when the connector cannot be planned at all.
    """

    connector: Connector
    asked: Asked
    known: Sequence[cells.KnownCell]
    pool: ThreadPoolExecutor
    ground: Ground | None = None
    planned: list[Planned] = field(default_factory=list)
    untried: CellRow | None = None
    _begun: dict[str, Future[CellRow]] = field(default_factory=dict)

    def plan(self, make: Callable[[Connector, threading.Event], Ground], stopped: threading.Event) -> None:
        """Find out which cells there are; the same ones in the same order each time."""
        try:
            self.ground = make(self.connector, stopped)
            self.planned = check.plan(self.ground, self.pool, self.asked, self.known)
        except (NotOpened, Unsupported, ImportHung, ImportCrashed) as error:
            verdict = "unsupported" if isinstance(error, Unsupported) else "error"
            name, version = self.connector.name, self.connector.version
            self.untried = CellRow(name, version, Where(1, "cpu", ""), "*", "*", "*", verdict, 0.0, str(error))

    def listed(self, planned: Planned) -> cells.KnownCell | None:
        """Return the known file's entry that speaks of a cell."""
        assert self.ground is not None
        case = planned.case
        this = (self.connector.name, self.ground.version, planned.rule.id, case.fault, case.read.name)
        return next((entry for entry in self.known if entry.lists(*this)), None)

    def begun(self, cell: Planned) -> bool:
        """Whether a cell was begun."""
        return cell.id in self._begun

    def begin(self, cells: Iterable[Planned]) -> None:
        """Begin those that are not begun yet. What is known to fail is not tried again when it does."""
        assert self.ground is not None
        for cell in cells:
            if not self.begun(cell):
                asked = replace(self.asked, again=0) if self.listed(cell) else self.asked
                self._begun[cell.id] = self.pool.submit(check.attempt, self.ground, cell, asked)

    def row(self, cell: Planned) -> CellRow:
        """Return what came of a cell, once it has ended."""
        self.begin([cell])
        return self._begun[cell.id].result()

    def __str__(self) -> str:
        """Return what is checked, where, and how many cells that is."""
        if self.ground is None or self.untried is not None:
            return f"{self.connector.name} {self.connector.version}: cannot be checked"
        place = self.ground.server.description
        return f"{self.connector.name} {self.ground.version} on {place}: {len(self.planned)} cells"


class Gate:
    """The plugin that pytest has while a connector is checked.

    together: all selected cells of a connector are begun with its first; an xdist worker does not know which it will
    be given, so it begins its next one with each.
    """

    def __init__(self, config: pytest.Config) -> None:
        """Find the connectors and read the known files; raises pytest.UsageError with what is wrong there."""
        option = config.option
        self.server: str | None = option.kvproof_server
        self.device: str = option.kvproof_device
        self.together = not hasattr(config, "workerinput")
        self.stopped = threading.Event()
        self.stack = ExitStack()
        self.pool = ThreadPoolExecutor(check.BEGUN, "cell")
        self.planned = False
        asked = Asked(tuple(option.kvproof_rule), tuple(option.kvproof_fault), tuple(option.kvproof_read),
                      option.kvproof_deadline)
        for pattern in check.unknown(asked.rules):
            known_rules = ", ".join(rules.RULES)
            raise pytest.UsageError(f"--kvproof-rule {pattern}: no rule is called so; there are {known_rules}")
        try:
            entries = cells.load(Path(option.kvproof_known or known.SHIPPED), contract.claims())
            names = [connectors.for_device(name, self.device) for name in dict.fromkeys(option.kvproof_connector)]
            self.contracts = [Contract(connectors.find(name), asked, entries, self.pool) for name in names]
        except KvproofError as error:
            raise pytest.UsageError(str(error)) from error

    def plan(self) -> list[Contract]:
        """Open the server, and plan every connector's cells on it."""
        if not self.planned:
            make = self.stack.enter_context(check.grounds(self.server, self.device))
            for contract in self.contracts:
                contract.plan(make, self.stopped)
            self.planned = True
        return self.contracts

    def pytest_collect_directory(self, path: Path, parent: pytest.Collector) -> pytest.Collector | None:
        """Collect cells in the place of the package of the rules."""
        return Rules.of(parent, path, self) if path == RULES else None

    def pytest_report_collectionfinish(self) -> list[str]:
        """Say what is checked."""
        return [f"kvproof: {contract}" for contract in self.contracts] if self.planned else []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> None:
        """Begin a cell, and with it whatever else is sure to be asked for."""
        if not isinstance(item, CellItem):
            return
        if self.together and item.contract.begun(item.cell):
            return
        others = item.session.items if self.together else [nextitem]
        same = [each.cell for each in others if isinstance(each, CellItem) and each.contract is item.contract]
        item.contract.begin([item.cell, *same])

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Give a cell's report the cell's own time, not that for which pytest waited, and its rule's place."""
        report = yield
        if isinstance(item, CellItem) and item.row is not None:
            if report.when == "call":
                report.duration = item.row.seconds
            elif report.when == "setup":
                report.duration = 0.0
            if report.skipped and isinstance(report.longrepr, tuple):
                path, line, _ = item.reportinfo()
                report.longrepr = (str(path), (line or 0) + 1, report.longrepr[2])
        return report

    def pytest_sessionfinish(self) -> None:
        """End what still runs, then what it ran on."""
        self.stopped.set()
        self.pool.shutdown(cancel_futures=True)
        self.stack.close()


class Rules(pytest.Directory):
    """The directory of the rules while a connector is checked: what it holds are the cells of the plan."""

    gate: Gate

    @classmethod
    def of(cls, parent: pytest.Collector, path: Path, gate: Gate) -> Rules:
        """Return the directory with the gate's cells in it."""
        made: Rules = cls.from_parent(parent, path=path, nodeid=PACKAGE)
        made.gate = gate
        return made

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        """Return the cells; with several connectors, a level of their names above them."""
        try:
            contracts = self.gate.plan()
        except KvproofError as error:
            raise self.CollectError(str(error)) from error
        if len(contracts) == 1:
            return items(self, contracts[0])
        return [OneConnector.of(self, contract) for contract in contracts]


class OneConnector(pytest.Collector):
    """The cells of one connector among several."""

    contract: Contract

    @classmethod
    def of(cls, parent: pytest.Collector, contract: Contract) -> OneConnector:
        """Return the collector of these cells."""
        made: OneConnector = cls.from_parent(parent, name=contract.connector.name)
        made.contract = contract
        return made

    def collect(self) -> Iterable[pytest.Item]:
        """Return the cells."""
        return items(self, self.contract)


def items(parent: pytest.Collector, contract: Contract) -> list[pytest.Item]:
    """Return an item for each planned cell, or a single one that says why there is no plan."""
    if contract.untried is not None:
        return [NoPlan.of(parent, contract.untried)]
    return [CellItem.of(parent, contract, cell) for cell in contract.planned]


class RowItem(pytest.Item):
    """An item whose outcome is a row of results."""

    row: CellRow | None = None

    def obtain(self) -> CellRow:
        """Return the row, waiting for it."""
        raise NotImplementedError

    def setup(self) -> None:
        """Wait for the row; what says nothing about the connector ends here, as an error or skipped."""
        self.row = row = self.obtain()
        self.user_properties += [
            (name, value if (value := getattr(row, name)) is not None else "")
            for name in ("connector", "version", "rule", "fault", "read", "verdict", "masked", "rate")]
        if row.verdict == "unsupported":
            pytest.skip(row.explain)
        if row.verdict in ("error", "not-felt"):
            pytest.fail(words(row), pytrace=False)

    def runtest(self) -> None:
        """Pass, or fail in the row's words."""
        assert self.row is not None
        if self.row.verdict != "pass":
            pytest.fail(words(self.row), pytrace=False)


class NoPlan(RowItem):
    """Stands for all cells of a connector that cannot be checked."""

    @classmethod
    def of(cls, parent: pytest.Collector, row: CellRow) -> NoPlan:
        """Return the item that says so."""
        made: NoPlan = cls.from_parent(parent, name="plan")
        made.untried = row
        return made

    untried: CellRow

    def obtain(self) -> CellRow:
        """Return the row that says why."""
        return self.untried

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Return the directory of the rules."""
        return RULES / "__init__.py", 0, self.name


class CellItem(RowItem):
    """One cell of the contract."""

    contract: Contract
    cell: Planned

    @classmethod
    def of(cls, parent: pytest.Collector, contract: Contract, cell: Planned) -> CellItem:
        """Return the item of a cell."""
        made: CellItem = cls.from_parent(parent, name=cell.id)
        made.contract, made.cell = contract, cell
        return made

    def obtain(self) -> CellRow:
        """Wait for the cell."""
        return self.contract.row(self.cell)

    def runtest(self) -> None:
        """Fail where it is not as the known file says, and expect the failure where it says so."""
        assert self.row is not None
        entry = self.contract.listed(self.cell)
        if entry is None:
            return super().runtest()
        if entry.expiry is not None and date.today() > entry.expiry:
            pytest.fail(f"the known file's [[cell]] entry expired on {entry.expiry}: {entry.reason}", pytrace=False)
        if self.row.verdict != "pass":
            pytest.xfail(f"{entry.reason} ({entry.issue})")
        if entry.intermittent is None:
            pytest.fail(f"stale: it passes now; remove the [[cell]] entry of the known file that says: {entry.reason}",
                        pytrace=False)
        return None

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Return where the rule is written."""
        function = self.cell.rule.check
        return Path(inspect.getfile(function)), inspect.unwrap(function).__code__.co_firstlineno - 1, self.name


def words(row: CellRow) -> str:
    """Return everything that a person needs in order to understand a row: what happened, and the evidence."""
    rule = rules.RULES.get(row.rule)
    lines = [f"{row.verdict}: {row.explain}"]
    if row.rate is not None:
        lines.append(f"{row.rate:.0%} of the tries ended so")
    if rule is not None:
        lines += ["", f"the rule: {rule.claim}"]
    evidence = dict(row.evidence)
    schedule = evidence.pop("schedule", None)
    for title in ("steps", "wire"):
        lines += _section(title, evidence.pop(title, None))
    for title, value in evidence.items():
        lines += _section(title, value)
    if schedule != "[]":
        lines += _section("schedule", schedule)
    if rule is not None:
        selected = f"--kvproof-rule {row.rule} --kvproof-fault '{row.fault}' --kvproof-read {row.read}"
        lines += _section("alone", f"pytest --pyargs {PACKAGE} --kvproof-connector '{row.connector}' {selected}")
    return "\n".join(lines)


def _section(title: str, value: Any) -> list[str]:
    if not value:
        return []
    told = value if isinstance(value, list) else str(value).splitlines()
    kept = told[-_LAST_EVENTS:] if title == "wire" else told
    return ["", f"{title}:", *(f"  {each}" for each in kept)]
