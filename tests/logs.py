"""Logs for tests: what ranks and clients record, written down by hand."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kvproof import report
from kvproof.validate import Judgement, validate

Lines = list[dict[str, Any]]


def numbered(lines: Lines) -> Lines:
    """Give each rank's events their numbers."""
    counts: dict[int, int] = {}
    result = []
    for line in lines:
        seq = counts[line["rank"]] = counts.get(line["rank"], -1) + 1
        result.append({**line, "seq": seq})
    return result


def judged(path: Path, lines: Lines, protocol: str = "load", *, complete: bool = False) -> Judgement:
    """Write lines as a log, and judge it."""
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return validate(path, protocol, complete=complete)


def line(rank: int, event: str, step: int = 0, **values: Any) -> dict[str, Any]:
    """Return a line that has no number yet."""
    return {"rank": rank, "step": step, "event": event, "values": values}


def begins(ranks: int, chunks: int, step: int = 0) -> Lines:
    """Return what each rank was told."""
    return [line(rank, "begin", step, world_size=ranks, length=chunks) for rank in range(ranks)]


def everybody(ranks: Iterable[int], event: str, step: int = 0, **values: Any) -> Lines:
    """Return the same event of each rank."""
    return [line(rank, event, step, **values) for rank in ranks]


def a_step(ranks: int, chunks: int, step: int = 0, short: int | None = None) -> Lines:
    """Return a load step in which no chunk is missed; the rank `short` leaves out its last broadcast."""
    all_ranks = range(ranks)
    found = begins(ranks, chunks, step)
    found += everybody(all_ranks, "enter_exchange", step, failure=chunks)
    found += everybody(all_ranks, "leave_exchange", step, agreed=chunks)
    for chunk in range(chunks):
        missed = short if chunk == chunks - 1 else None
        found += everybody([rank for rank in all_ranks if rank != missed], "enter_broadcast", step)
        if missed is None:
            found += everybody(all_ranks, "leave_broadcast", step)
    return found


def operations(*events: str) -> Lines:
    """Return what a client records: "register 1" is the event of operation 1."""
    found = []
    for event in events:
        name, _, operation = event.partition(" ")
        found.append(line(0, name, **({"operation": int(operation)} if operation else {})))
    return found


def requests(*events: str) -> Lines:
    """Return what a connection records: "read 1" is the event of request 1."""
    found = []
    for event in events:
        name, _, request = event.partition(" ")
        found.append(line(0, name, **({"request": int(request)} if request else {})))
    return found


def said(path: Path, lines: Lines, protocol: str = "load", *, complete: bool = False) -> str:
    """Return what is shown of a log."""
    return report.judgement(judged(path, numbered(lines), protocol, complete=complete))
