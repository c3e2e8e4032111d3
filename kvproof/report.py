"""Results for people at a terminal and for CI: a table, progress lines, JUnit."""

from __future__ import annotations

import io
import os
import sys
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

from kvproof.connectors.listing import Entry
from kvproof.explore import Counted
from kvproof.results import (
    INCONCLUSIVE,
    INTERRUPTED,
    NEUTRAL,
    CellRow,
    ObligationRow,
    ReplayRow,
    Results,
    is_finding,
)
from kvproof.traces.text import printable

if TYPE_CHECKING:
    from rich.console import Console

    from kvproof.log import Line
    from kvproof.validate import Judgement

WIDTH = 120
"""Columns of a table that goes into a pipe or a file."""
ENDS = 8
"""Unfinished steps of a log that are shown."""
COLOURS = {"finding": "bold red", "known": "yellow", "neutral": "dim", "inconclusive": "bold magenta", "pass": "green"}


def kind_of(row: ReplayRow | CellRow) -> str:
    """Return what a row means for the run: finding, known, neutral, inconclusive or pass."""
    if is_finding(row.verdict):
        return "known" if row.known else "finding"
    if row.verdict in NEUTRAL:
        return "neutral"
    return "inconclusive" if row.verdict in INCONCLUSIVE else "pass"


class Progress:
    """One line a finished row on a terminal; nothing in a pipe."""

    def __init__(self, total: int, stream: TextIO = sys.stderr) -> None:
        """Count up to `total` rows."""
        self._total, self._done = total, 0
        self._stream = stream if stream.isatty() else None

    def __call__(self, row: ReplayRow) -> None:
        """Show that a replay is done."""
        self._show(f"{row.bug} on {row.connector}: {row.verdict} ({row.seconds:.1f} s)")

    def obligation(self, row: ObligationRow) -> None:
        """Show that an obligation is done."""
        self._show(f"{row.id}: {row.verdict} ({row.seconds:.1f} s)")

    def world(self, row: Counted) -> None:
        """Show that a world is counted."""
        self._show(f"W = {row.world_size}, n = {row.chunks}: {row.states} states, {row.verdict}")

    def _show(self, line: str) -> None:
        self._done += 1
        if self._stream is not None:
            done = f"[{self._done}/{self._total}] {line}"
            self._stream.write(f"\r\x1b[K{done}" if self._done < self._total else "\r\x1b[K")
            self._stream.flush()


class CellProgress(Progress):
    """One line a finished cell on a terminal; nothing in a pipe."""

    def __init__(self, stream: TextIO = sys.stderr) -> None:
        """Count up to what is planned."""
        super().__init__(0, stream)

    def planned(self, count: int) -> None:
        """Take note of so many more cells."""
        self._total += count

    def __call__(self, row: CellRow) -> None:  # type: ignore[override]  # cells in place of replays
        """Show that a cell is done."""
        self._show(f"{row.connector} {row.id}: {row.verdict} ({row.seconds:.1f} s)")


class Counting:
    """How far something long has come: a line on a terminal, nothing in a pipe."""

    def __init__(self, what: str, stream: TextIO = sys.stderr, every: int = 1000) -> None:
        """Count `what`."""
        self._what, self._every = what, every
        self._stream = stream if stream.isatty() else None

    def __call__(self, count: int) -> None:
        """Show that so many are done."""
        if self._stream is not None and count % self._every == 0:
            self._stream.write(f"\r\x1b[K{count} {self._what}\r")
            self._stream.flush()


def judgement(found: Judgement) -> str:
    """Return what became of a log, in a few lines."""
    return "".join(f"{printable(line)}\n" for line in _judged(found))


def _judged(found: Judgement) -> list[str]:
    said = [_wrong(found, found.line)] if found.line is not None else _right(found)
    return [*said, "the last line is cut off, and was left out"] if found.cut else said


def _right(found: Judgement) -> list[str]:
    """Return what is said of a log that is all explained."""
    told = f"{found.events} events are a behaviour of the protocol"
    filled = f"; not recorded, and filled in: {', '.join(found.filled)}" if found.filled else ""
    ends = [f"  {each}" for each in found.unfinished[:ENDS]]
    if len(found.unfinished) > ENDS:
        ends.append(f"  and {len(found.unfinished) - ENDS} more, which --json lists")
    if found.verdict == "inconclusive":
        why = "the log ends unfinished:" if ends else f"whether the log ends finished is not told: {found.silent}"
        return [f"inconclusive: {why}", *ends]
    if ends:
        return [f"accepted so far: {told}{filled}; the log ends unfinished:", *ends]
    return [f"accepted: {told}; {found.silent or 'it ends finished'}{filled}"]


def _wrong(found: Judgement, line: Line) -> str:
    """Return what is wrong with a line."""
    if found.lost:
        return f"{found.verdict}: line {line.number}: {found.why}"
    values = ", ".join(f"{name} = {value}" for name, value in line.values.items() if line.event != "begin")
    said = f"line {line.number}: {line.event} of rank {line.rank}{f' ({values})' if values else ''}"
    said += f" in {found.place} {line.step}"
    if found.verdict == "unclear":
        return f"unclear: {said}: {found.why}"
    why = f"{found.means} ({found.why})" if found.means else found.why
    hint = f"; {found.hint}" if found.hint else ""
    return f"rejected: {said} is explained by no behaviour: {why}{hint}"


def console(out: io.StringIO, width: int | None = None) -> Console:
    """Return a console that writes into `out` what suits standard output: its width and colours, or none in a pipe."""
    from rich.console import Console

    terminal = sys.stdout.isatty()
    if width is None and not terminal:
        width = int(os.environ.get("COLUMNS") or WIDTH)
    return Console(file=out, width=width, force_terminal=terminal, highlight=False)


def table(results: Results, *, width: int | None = None) -> str:
    """Return the table of replays, what happened in each that is not a pass, and the sum."""
    from rich.table import Table
    from rich.text import Text

    out = io.StringIO()
    screen = console(out, width)
    bugs = list(dict.fromkeys(row.bug for row in results.replays))
    rows: dict[tuple[str, str], dict[str, ReplayRow]] = {}
    for row in results.replays:
        rows.setdefault((row.connector, row.version), {})[row.bug] = row
    view = Table(title="Historic bugs on connectors", title_justify="left", box=None, pad_edge=False)
    for heading in ("connector", "version", *bugs):
        view.add_column(heading, no_wrap=True)
    for (connector, version), by_bug in rows.items():
        cells = [_cell(by_bug.get(bug)) for bug in bugs]
        view.add_row(connector, version, *[Text(text, style) for text, style in cells])
    screen.print(view)
    for row in results.replays:
        kind = kind_of(row)
        if kind == "pass" or row.verdict == "not-run" or row.explain == INTERRUPTED:
            continue
        screen.print()
        screen.print(Text(f"{row.bug} on {row.connector} {row.version}: {row.verdict}", COLOURS[kind]))
        screen.print(Text(f"  {printable(row.explain)}"))
        if row.inconclusive and kind in ("finding", "known"):
            screen.print(Text(f"  {row.inconclusive} of its cases could not tell", COLOURS["inconclusive"]))
    for line in dict.fromkeys(row.explain for row in results.replays if row.verdict == "not-run"):
        screen.print()
        screen.print(Text(f"not run: {line}", COLOURS["inconclusive"]))
    if results.interrupted:
        done = sum(row.explain != INTERRUPTED for row in results.replays)
        screen.print()
        screen.print(Text(f"interrupted: {done} of {len(results.replays)} rows were done", COLOURS["inconclusive"]))
    for complaint in results.complaints:
        screen.print()
        screen.print(Text(f"known file of {complaint.connector}, {complaint.entry}: {complaint.problem}", "bold red"))
    screen.print()
    screen.print(Text(closing(results)))
    return out.getvalue()


def worlds(rows: Sequence[Counted], *, width: int | None = None) -> str:
    """Return the table of state counts, the Python model's beside TLC's, and what is wrong with any."""
    from rich.table import Table
    from rich.text import Text

    out = io.StringIO()
    screen = console(out, width)
    view = Table(title="States of the loading protocol", title_justify="left", box=None, pad_edge=False)
    for heading in ("W", "n", "Python", "TLC", "steps", "longest way", "states/s", ""):
        view.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    for row in rows:
        style = {"agree": "green", "not-run": "bold magenta"}.get(row.verdict, "bold red")
        view.add_row(
            str(row.world_size), str(row.chunks), str(row.states), "" if row.tlc is None else str(row.tlc),
            str(row.steps), str(row.depth), f"{row.rate:.0f}", Text(row.verdict, style))
    screen.print(view)
    for said in dict.fromkeys(text for row in rows for text in (row.wrong, row.why) if text):
        screen.print()
        screen.print(Text(printable(said)))
    return out.getvalue()


def obligations(results: Results, *, width: int | None = None) -> str:
    """Return the table of obligations, the trace of each that is not as it should be, and the sum."""
    from rich.table import Table
    from rich.text import Text

    out = io.StringIO()
    screen = console(out, width)
    view = Table(title="Proof obligations", title_justify="left", box=None, pad_edge=False)
    for heading, wrap in (("id", False), ("claim", True), ("verdict", False), ("mutants", False), ("time", False)):
        view.add_column(heading, no_wrap=not wrap, overflow="fold")
    for row in results.obligations:
        refuted = sum(mutant["verdict"] == "refuted" for mutant in row.mutants)
        style = "green" if row.verdict == "proved" else "yellow" if row.known else "bold red"
        said = f"{row.verdict}{' (a limit)' if row.known else ''}"
        count = f"{refuted}/{len(row.mutants)}" if row.mutants else ""
        view.add_row(row.id, row.claim, Text(said, style), count, f"{row.seconds:.2f} s")
    screen.print(view)
    for row in results.obligations:
        if row.verdict != "proved" and not row.known:
            screen.print()
            screen.print(Text(f"{row.id}: {row.verdict}: {printable(row.explain)}", "bold red"))
            for line in row.trace:
                screen.print(Text(f"  {line}"))
    second = [row.second_solver for row in results.obligations if row.second_solver]
    if second:
        asked, unknown = sum(one["queries"] for one in second), [each for one in second for each in one["unknown"]]
        screen.print()
        screen.print(Text(f"{second[0]['name']} {second[0]['version']}: {len(unknown)} of {asked} queries unknown"))
        for line in dict.fromkeys(unknown):
            screen.print(Text(f"  {printable(line)}"))
    screen.print()
    screen.print(Text(last_line(results, Counter(
        f"{row.verdict}{' (a limit)' if row.known else ''}" for row in results.obligations))))
    return out.getvalue()


def proofs(results: Results) -> str:
    """Return one line for the obligations when all are as they should be, else their table; nothing without any."""
    rows = results.obligations
    if not rows:
        return ""
    if not all(row.verdict == "proved" or row.known for row in rows):
        return obligations(results)
    limits, mutants = sum(row.known for row in rows), sum(len(row.mutants) for row in rows)
    return f"Proof obligations: {len(rows) - limits} proved, {limits} limits, {mutants} mutants refuted\n"


def explained(row: ObligationRow) -> str:
    """Return everything there is to say about one obligation, as text."""
    lines = [f"{row.id}: {row.claim}", f"scope: {row.scope}", f"fragment: {row.fragment}",
             f"verdict: {row.verdict}{' (a limit)' if row.known else ''}"]
    lines += [f"assumes: {assumption}" for assumption in row.assumes]
    lines += [f"why: {row.explain}"] if row.explain else []
    if row.witness:
        lines += ["", "a witness:", *(f"  {line}" for line in row.witness)]
    if row.trace:
        lines += ["", "the counterexample:", *(f"  {line}" for line in row.trace)]
    for mutant in row.mutants:
        lines += ["", f"mutant {mutant['id']} ({mutant['says']}): {mutant['verdict']}"]
        lines += [f"  {line}" for line in mutant["trace"]]
        lines += [f"  bad, because {mutant['consequence']}"] if mutant["consequence"] else []
        lines += [f"  it redefines {mutant['redefines']}"] if mutant.get("redefines") else []
    return "\n".join(lines) + "\n"


def written(rows: Sequence[ObligationRow]) -> str:
    """Return the list of the traces that were written; nothing when none was."""
    paths = [path for row in rows for path in (
        row.witness_path, row.trace_path, *(mutant.get("trace_path", "") for mutant in row.mutants)) if path]
    return "\n".join(["", f"{len(paths)} traces:", *paths, ""]) if paths else ""


def _cell(row: ReplayRow | None) -> tuple[str, str]:
    if row is None:
        return "", ""
    kind = kind_of(row)
    return f"{row.verdict}{' (known)' if kind == 'known' else ''}", COLOURS[kind]


def connectors(entries: Sequence[Entry]) -> str:
    """Return the table of connectors, and what installs those that are missing."""
    from rich.table import Table
    from rich.text import Text

    out = io.StringIO()
    screen = console(out)
    view = Table(box=None, pad_edge=False)
    for heading in ("connector", "version", "devices", "reads"):
        view.add_column(heading, no_wrap=heading != "reads")
    for entry in entries:
        state = entry.version or "not installed"
        told = ", ".join(entry.reads) or printable(entry.problem)
        view.add_row(entry.name, state, ", ".join(entry.devices), Text(told))
    screen.print(view)
    return out.getvalue()


def closing(results: Results) -> str:
    """Return the last line for the replays: how many of what, how long, and the exit code with its reason."""
    return last_line(results, Counter(row.verdict + (" (known)" if row.known else "") for row in results.replays))


def last_line(results: Results, counts: Counter[str]) -> str:
    """Return the last line of a view whose rows were counted so."""
    rows: list[ReplayRow | CellRow] = [*results.replays, *results.cells]
    servers = ", ".join(dict.fromkeys(row.where.server for row in rows if row.where.server))
    sums = ", ".join(f"{number} {verdict}" for verdict, number in sorted(counts.items())) or "nothing was run"
    why = {
        0: "all as expected",
        1: "a finding that is not known, or a known entry that is stale or expired" if rows else "a finding",
        3: "inconclusive",
    }[results.exit_code]
    cut = "interrupted; " if results.interrupted else ""
    on = f" on {servers}" if servers else ""
    return f"{sums}; {results.seconds:.1f} s{on}; {cut}exit code {results.exit_code}: {why}"
