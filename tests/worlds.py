"""Worlds of ranks in tests: a connector's cells, tried on as many ranks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from kvproof import connectors
from kvproof.check import Asked
from kvproof.ranks import check
from kvproof.results import CellRow

Tried = Callable[..., list[CellRow]]


@contextmanager
def worlds(ranks: int) -> Iterator[Tried]:
    """Yield what tries a connector's cells once each, on instances and fork servers that are opened once."""
    with check.grounds(ranks, "cpu") as make, ThreadPoolExecutor(4) as pool:

        def tried(name: str, *, faults: Sequence[str] = (), reads: Sequence[str] = ()) -> list[CellRow]:
            asked = Asked(faults=tuple(faults), reads=tuple(reads), again=0)
            ground = make(connectors.find(name), threading.Event())
            scenarios = [each for plan in check.plans(ground, asked) for each in plan.scenarios]
            return [row for rows in pool.map(lambda each: check.attempt(ground, each, asked, ()), scenarios)
                    for row in rows]

        yield tried


def tried(name: str, ranks: int, *, faults: Sequence[str] = (), reads: Sequence[str] = ()) -> list[CellRow]:
    """Return the rows of a connector's cells, each tried once, as `kvproof check` tries them."""
    asked = Asked(faults=tuple(faults), reads=tuple(reads), again=0)
    return check.run([connectors.find(name)], ranks, asked)


def wrong(rows: Sequence[CellRow]) -> dict[str, str]:
    """Return what did not pass, and how; what had nothing to judge is told by `unjudged`."""
    return {row.id: f"{row.verdict}: {row.explain}" for row in rows if row.verdict not in ("pass", "unsupported")}


def unjudged(rows: Sequence[CellRow]) -> dict[str, set[str]]:
    """Return the disturbances under which a rule had nothing to judge, by rule and reason."""
    found: dict[str, set[str]] = {}
    for row in rows:
        if row.verdict == "unsupported":
            found.setdefault(f"{row.rule}: {row.explain}", set()).add(row.fault.partition("@")[0])
    return found
