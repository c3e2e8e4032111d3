"""The results of one or several runs as one page that needs nothing else."""

from __future__ import annotations

import base64
import hashlib
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvproof import coverage
from kvproof.pages import fields
from kvproof.pages.documents import Run, read
from kvproof.pages.sequence import diagram
from kvproof.pages.text import line, lines
from kvproof.results import ObligationRow, ReplayRow, write_text

if TYPE_CHECKING:
    from jinja2 import Environment

EVIDENCE = 2_500_000
"""Bytes that the evidence of all cells may take on the page; what does not fit stays in the results."""
_WIRE = 300
_SHOWN = {"wire", "steps", "schedule", "stack", "output"}


def write(path: Path, documents: Sequence[Mapping[str, Any]]) -> None:
    """Write the page to `path`; raises UsageError when that is not possible, or when a document is none."""
    write_text(path, page(documents))


def page(documents: Sequence[Mapping[str, Any]]) -> str:
    """Return the page as HTML: nothing from elsewhere, one script of ours, everything escaped and bounded.

    Raises UsageError when a document is not one of results.
    """
    from markupsafe import Markup

    from kvproof import contract

    runs = read(documents)
    claims = contract.claims()
    met = {row.rule for run in runs for row in run.cells}
    clients = {row.rule for run in runs for row in run.cells if not row.world}
    claims |= {rule: claim for rule, claim in contract.of_worlds().items() if rule in met - clients}
    found = fields.matrix(runs, [rule for rule in claims if rule in met or rule not in contract.of_ranks()])
    environment = _environment()
    _evidence(environment, found)
    script = (Path(__file__).parent / "report.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment.get_template("report.html").render(
        runs=runs, matrix=found, claims=claims,
        causes=fields.causes(found, ("finding", "intermittent")), unclear=fields.causes(found, ("inconclusive",)),
        known=fields.causes(found, ("known",)), counts=_counts(runs), replays=_replays(runs),
        obligations=_obligations(runs), covered=_covered(runs), script=Markup(script), digest=digest,
    ) + "\n"


def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("kvproof.pages", "."), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, finalize=lambda value: line(value, 2000) if type(value) is str else value,
    )
    environment.globals.update(
        kind_of=fields.kind_of, letter_of=fields.letter_of, line=line, lines=lines, quote=shlex.quote,
        refuted=refuted, open_queries=open_queries, obligation_kind=obligation_kind, replay_kind=replay_kind)
    return environment


def _evidence(environment: Environment, found: fields.Matrix) -> None:
    """Give the cells their evidence: the first of every cause, then the second of each, until there is no room."""
    template = environment.get_template("evidence.html")
    groups = sorted((group for each in found.ordered() for group in each.groups if group.kind != "neutral"),
                    key=lambda group: fields.KINDS.index(group.kind))
    left = EVIDENCE
    for turn in zip_longest(*(group.cells for group in groups)):
        for cell in turn:
            if cell is None:
                continue
            if left <= 0:
                return
            cell.evidence = _drawn(template, cell)
            left -= len(cell.evidence.encode())


def _drawn(template: Any, cell: fields.Shown) -> str:
    from markupsafe import Markup

    evidence = cell.row.evidence
    wire = lines(evidence.get("wire", []), _WIRE)
    others = [(name, lines(value, 60)) for name, value in evidence.items() if name not in _SHOWN and value]
    return Markup(template.render(
        cell=cell, wire=wire, diagram=Markup(diagram(wire)), steps=lines(evidence.get("steps", []), 60),
        blocks=[(title, lines(evidence[name], 60)) for name, title in (
            ("stack", "Stack, innermost call first"), ("output", "The end of its output"),
            ("schedule", "Schedule")) if evidence.get(name)] + others))


def obligation_kind(row: ObligationRow) -> fields.Kind:
    """Return what an obligation's row means: a limit that is proved is a surprise."""
    if row.limit and row.verdict == "proved":
        return "finding"
    return fields.kind_of(row.verdict, row.known)


def refuted(row: ObligationRow) -> int:
    """Return how many of an obligation's mutants are refuted."""
    return sum(mutant.get("verdict") == "refuted" for mutant in row.mutants)


def open_queries(row: ObligationRow) -> int:
    """Return of how many queries the second solver could not tell."""
    unknown = (row.second_solver or {}).get("unknown")
    return len(unknown) if isinstance(unknown, list) else 0


def replay_kind(row: ReplayRow) -> fields.Kind:
    """Return what a replay's row means: one with a case that could not tell is no pass."""
    kind = fields.kind_of(row.verdict, row.known)
    return "inconclusive" if kind == "pass" and row.inconclusive else kind


def _counts(runs: Sequence[Run]) -> dict[int, dict[str, list[tuple[fields.Kind, str, int]]]]:
    """Return the counts by kind and verdict of each table of each run."""
    found = {}
    for run in runs:
        tables = {
            "cells": [(fields.kind_of(row.verdict, row.known, row.rate), row.verdict) for row in run.cells],
            "replays": [(replay_kind(row), row.verdict) for row in run.replays],
            "obligations": [(obligation_kind(row), row.verdict) for row in run.obligations],
        }
        found[run.number] = {
            name: [(kind, verdict, rows.count((kind, verdict))) for kind, verdict in
                   sorted(set(rows), key=lambda one: (fields.KINDS.index(one[0]), one[1]))]
            for name, rows in tables.items() if rows}
    return found


def _obligations(runs: Sequence[Run]) -> list[tuple[list[int], ObligationRow]]:
    """Return all obligations with the runs that they are of; what several runs found alike stands there once."""
    found: dict[str, list[tuple[list[int], ObligationRow]]] = {}
    for run in runs:
        for row in run.obligations:
            alike = found.setdefault(row.id, [])
            same = next((numbers for numbers, other in alike
                         if replace(other, seconds=row.seconds, slowest=row.slowest) == row), None)
            if same is None:
                alike.append(([run.number], row))
            elif same[-1] != run.number:
                same.append(run.number)
    return [one for alike in found.values() for one in alike]


def _replays(runs: Sequence[Run]) -> list[tuple[int, ReplayRow]]:
    """Return all replays, the same of several runs side by side."""
    rows = [(run.number, row) for run in runs for row in run.replays]
    order = {name: index for index, name in enumerate(dict.fromkeys((row.bug, row.connector) for _, row in rows))}
    return sorted(rows, key=lambda one: order[one[1].bug, one[1].connector])


def _covered(runs: Sequence[Run]) -> list[tuple[coverage.Kind, dict[str, list[tuple[fields.Kind, str]]]]]:
    """Return each kind of fault with what became of whatever stands against it in these runs, by its name."""
    told: dict[str, dict[tuple[fields.Kind, str], None]] = {}
    for run in runs:
        for claim in run.obligations:
            told.setdefault(claim.id, {})[obligation_kind(claim), claim.verdict] = None
        for row in run.replays:
            told.setdefault(row.bug, {})[replay_kind(row), row.verdict] = None
        for cell in run.cells:
            told.setdefault(cell.rule, {})[fields.kind_of(cell.verdict, cell.known, cell.rate), cell.verdict] = None
    return [(kind, {name: list(told.get(name, ())) for name in (*kind.obligations, *kind.replays, *kind.rules)})
            for kind in coverage.kinds()]
