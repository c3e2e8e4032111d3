"""The contract over worlds of ranks: every disturbance of every way to load, judged by each rule, a row for each."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from kvproof.check import Asked, Progress
from kvproof.connectors import Connector
from kvproof.connectors.adapter import Read
from kvproof.errors import UsageError, said
from kvproof.faults import supervisor
from kvproof.faults.schedule import to_json
from kvproof.faults.servers import valkey
from kvproof.known.cells import KnownCell, require_cells
from kvproof.ranks import scenario
from kvproof.ranks.evidence import Evidence
from kvproof.ranks.rules import RULES, WorldRule
from kvproof.ranks.scenario import Planned, Scenario
from kvproof.ranks.world import Ground, described_ranks
from kvproof.results import INCONCLUSIVE, INTERRUPTED, CellRow, Where, is_finding
from kvproof.rig import NotOpened, Unsupported
from kvproof.rules.rule import Broken, Case, NotFelt
from kvproof.runner.forks import Forks, ImportCrashed, ImportHung

MOST = 64
"""Ranks that a world may have."""
_AT_ONCE = 8
"""Ranks that may be at work at once, of however many worlds."""
ALL = Asked()
"""Everything is asked for."""


@dataclass
class _Verdict:
    """What one rule made of one play of a scenario."""

    verdict: str
    explain: str
    seconds: float
    evidence: dict[str, Any] = field(default_factory=dict)


@contextmanager
def grounds(
    world_size: int, device: str, backend: str = "gloo"
) -> Iterator[Callable[[Connector, threading.Event], Ground]]:
    """Open an instance a rank and the fork servers of a run; yield what makes a connector's ground on them."""
    with ExitStack() as stack:
        servers = [stack.enter_context(valkey()) for _ in range(world_size)]
        forks = stack.enter_context(Forks(device))

        def ground(connector: Connector, stopped: threading.Event) -> Ground:
            described = described_ranks(connector, forks)
            if device not in described.devices:
                raise UsageError(f"{connector.name} only knows buffers on {', '.join(described.devices)}")
            return Ground(connector, described, servers, forks, device, stopped, backend)

        yield ground


def plans(ground: Ground, asked: Asked, known: Sequence[KnownCell] = ()) -> list[Planned]:
    """Return what is to be played for each way to load that is asked for.

    Raises UsageError for known cells that there are not, in those ways to load.
    """
    loads = [load for load in ground.described.loads if asked.reading(load.name)]
    left = {load.name for load in ground.described.loads} - {load.name for load in loads}
    found = [scenario.plan(ground, load) for load in loads]
    told = [entry for entry in known if found and not left & set(entry.read)]
    require_cells(told, ground.connector.name, ground.connector.version, [
        (rule.id, name, each.load.name) for planned in found for each in planned.scenarios
        for rule in rules(ground, each) for name in (each.id, each.id.replace("@first", "@last"))])
    for planned in found:
        planned.scenarios = [each for each in planned.scenarios if any(
            takes(asked, rule, each) for rule in rules(ground, each))]
    return found


def rules(ground: Ground, each: Scenario) -> list[WorldRule]:
    """Return the rules that say something about a scenario."""
    return [rule for rule in RULES.values()
            if rule.applies(each.disturbance, ground.described.exchanges and each.load.exchanges,
                            each.load.replicated)]


def takes(asked: Asked, rule: WorldRule, each: Scenario) -> bool:
    """Whether a cell is asked for."""
    return asked.takes(rule.id, Case(each.id, Read(each.load.name)))


def attempt(ground: Ground, each: Scenario, asked: Asked, known: Sequence[KnownCell]) -> list[CellRow]:
    """Play a scenario, again where a rule is broken and nobody expects it, and return a row for each rule."""
    chosen = [rule for rule in rules(ground, each) if takes(asked, rule, each)]
    tries = [_once(ground, each, chosen, 0)]

    def again() -> bool:
        for rule in chosen:
            first = tries[0][rule.id]
            if first.verdict in INCONCLUSIVE:
                return True
            row = _row(ground, each, rule, first)
            if is_finding(first.verdict) and not any(entry.covers(row) for entry in known):
                return True
        return False

    if again():
        tries += [_once(ground, each, chosen, number) for number in range(1, asked.again + 1)
                  if not ground.stopped.is_set()]
    rows = []
    for rule in chosen:
        those = [one[rule.id] for one in tries]
        sure = [one for one in those if one.verdict not in INCONCLUSIVE]
        told = next((one for one in those if is_finding(one.verdict)), (sure or those)[0])
        row = _row(ground, each, rule, told)
        if len({one.verdict for one in sure}) > 1:
            row.rate = round(sum(is_finding(one.verdict) for one in sure) / len(sure), 3)
        rows.append(row)
    return rows


def _row(ground: Ground, each: Scenario, rule: WorldRule, told: _Verdict) -> CellRow:
    server = ground.servers[0].description
    return CellRow(
        ground.connector.name, ground.connector.version, Where(ground.world_size, ground.device, server), rule.id,
        each.id, each.load.name, told.verdict, round(told.seconds, 3), told.explain, masked=each.load.masks,
        evidence=told.evidence, world=True)


def _once(ground: Ground, each: Scenario, chosen: Sequence[WorldRule], number: int) -> dict[str, _Verdict]:
    begun = time.monotonic()
    verdict, explain = "error", INTERRUPTED
    if not ground.stopped.is_set():
        try:
            evidence, steps = scenario.play(ground, each, number)
        except NotFelt as error:
            verdict, explain = "not-felt", str(error)
        except (ImportHung, ImportCrashed) as error:
            explain = f"{error}; {error.stacks}"
        except Exception as error:
            explain = said(error)
        else:
            seconds = (time.monotonic() - begun) / max(1, len(chosen))
            return {rule.id: _judged(rule, each, evidence, steps, seconds) for rule in chosen}
        if ground.stopped.is_set():
            verdict, explain = "error", INTERRUPTED
    seconds = (time.monotonic() - begun) / max(1, len(chosen))
    return {rule.id: _Verdict(verdict, explain, seconds) for rule in chosen}


def _judged(rule: WorldRule, each: Scenario, evidence: Evidence, steps: list[str], seconds: float) -> _Verdict:
    try:
        rule.check(evidence)
    except Broken as error:
        schedule = to_json((each.fault,)) if each.fault is not None else "[]"
        return _Verdict(error.verdict, error.explain, seconds, {
            "schedule": schedule, "disturbance": f"rank {each.victim}: {each.disturbance.says}", "steps": steps,
            **evidence.trouble})
    except Unsupported as error:
        return _Verdict("unsupported", str(error), seconds)
    return _Verdict("pass", "", seconds)


def run(
    chosen: Sequence[Connector],
    world_size: int,
    asked: Asked = ALL,
    *,
    device: str = "cpu",
    progress: Progress = lambda row: None,
    planned: Callable[[int], None] = lambda count: None,
    stopped: threading.Event | None = None,
    known: Sequence[KnownCell] = (),
    backend: str = "gloo",
) -> list[CellRow]:
    """Try every cell that is asked for on worlds of `world_size` ranks; return the rows in the order of the plan.

    backend: by which the ranks talk to each other. Raises UsageError as `kvproof.check.run` does, and for a connector
    that has no ranks.
    """
    stop = stopped or threading.Event()
    rows: list[CellRow] = []
    at_once = max(2, _AT_ONCE // world_size)
    with grounds(world_size, device, backend) as make, ThreadPoolExecutor(at_once, "world") as pool:
        try:
            for connector in chosen:
                if not stop.is_set():
                    rows += _connector(make, connector, asked, pool, stop, progress, planned, known, world_size)
        except KeyboardInterrupt:
            stop.set()
            supervisor.shut_down()
    if not rows and not stop.is_set():
        raise UsageError("nothing is selected: no cell has such a rule, fault and read; --list shows those there are")
    return rows


def _connector(
    make: Callable[[Connector, threading.Event], Ground], connector: Connector, asked: Asked, pool: ThreadPoolExecutor,
    stop: threading.Event, progress: Progress, planned: Callable[[int], None], known: Sequence[KnownCell],
    world_size: int,
) -> list[CellRow]:
    try:
        ground = make(connector, stop)
        scenarios = [each for plan in plans(ground, asked, known) for each in plan.scenarios]
    except (NotOpened, ImportHung, ImportCrashed) as error:
        return [CellRow(connector.name, connector.version, Where(world_size, "cpu", ""), "*", "*", "*", "error", 0.0,
                        str(error), world=True)]
    planned(sum(takes(asked, rule, each) for each in scenarios for rule in rules(ground, each)))
    futures = [pool.submit(attempt, ground, each, asked, known) for each in scenarios]
    waiting: set[Future[list[CellRow]]] = set(futures)
    try:
        while waiting:
            ended, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for future in ended:
                for row in future.result():
                    progress(row)
    except KeyboardInterrupt:
        stop.set()
        supervisor.shut_down()
    return [row for future in futures for row in future.result()]


def listed(chosen: Sequence[Connector], world_size: int, asked: Asked, device: str = "cpu") -> Iterator[str]:
    """Return every cell that is asked for, then what is left out, each with its reason, a line each."""
    with grounds(world_size, device) as make:
        for connector in chosen:
            ground = make(connector, threading.Event())
            found = plans(ground, asked)
            cells = [f"{rule.id}[{each.id}-{each.load.name}]" for plan in found for each in plan.scenarios
                     for rule in rules(ground, each) if takes(asked, rule, each)]
            yield from cells
            yield f"\n{len(cells)} cells. Left out, and why:"
            yield from (f"  {each.load.name}: {each.id}: {why}" for plan in found for each, why in plan.left_out)
