"""What people see of a campaign: a table while it runs, a line now and then in a pipe, and what is left of it after."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from kvproof.campaigns import targets
from kvproof.campaigns.campaign import State, Tried
from kvproof.campaigns.findings import Finding, is_finding
from kvproof.campaigns.listed import listed
from kvproof.errors import UsageError
from kvproof.known.cells import KnownCell
from kvproof.results import CellRow, Results, Where, write_text
from kvproof.traces.text import printable

HEARTBEAT = 60.0
"""Seconds between two lines in a pipe."""
_REDRAWN = 0.5


def span(seconds: float) -> str:
    """Return a duration as people say it."""
    seconds = max(0, round(seconds))
    hours, minutes = seconds // 3600, seconds % 3600 // 60
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {seconds % 60:02} s" if minutes else f"{seconds} s"


def numbers(state: State) -> dict[str, str]:
    """Return what a campaign has come to, by name."""
    played = state.counts["cases"]
    certain = state.findings.certain()
    known, gone = sum(each.known for each in certain), sum(each.gone for each in state.findings.found)
    once = len(state.findings.found) - len(certain) - gone
    return {
        "cases": f"{played}, {played / max(1.0, state.before + state.seconds):.1f} a second",
        **({f"cases of {name}": str(state.counts[f"cases of {name}"]) for name in state.asked.targets}
           if len(state.asked.targets) > 1 else {}),
        "of which felt a fault": str(state.counts["felt"]),
        "kinds of behaviour": str(len(state.behaviours)),
        "last new one": f"{span(state.seconds - state.newest)} ago" if state.newest else "none in this run",
        "findings": str(len(certain) - known) + (f", {known} known" if known else "") + (
            f", {once} seen too seldom to be sure" if once else "") + (f", {gone} gone" if gone else ""),
        "time left": span(state.asked.seconds - state.seconds),
    }


class Watch:
    """Shows a campaign while it runs: a table on a terminal, a line now and then in a pipe."""

    def __init__(self, stream: TextIO = sys.stderr) -> None:
        """Begin with nothing shown."""
        self._stream = stream
        self._live: Any = None
        self._next = time.monotonic() + (_REDRAWN if stream.isatty() else HEARTBEAT)
        self._said: set[str] = set()

    def __call__(self, state: State) -> None:
        """Show it, when it is time."""
        for line in state.says:
            if line not in self._said:
                self._said.add(line)
                self._print(f"kvproof: {printable(line)}")
        if time.monotonic() < self._next:
            return
        if self._stream.isatty():
            self._next = time.monotonic() + _REDRAWN
            self._draw(state)
            return
        self._next = time.monotonic() + HEARTBEAT
        self._print("; ".join(f"{name} {value}" for name, value in numbers(state).items()))

    def _print(self, line: str) -> None:
        if self._live is not None:
            self._live.console.print(line, highlight=False, markup=False)
            return
        print(line, file=self._stream, flush=True)

    def _draw(self, state: State) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.table import Table

        view = Table(box=None, show_header=False, pad_edge=False)
        for name, value in numbers(state).items():
            view.add_row(name, value)
        for each in state.findings.certain()[-12:]:
            view.add_row(f"  {each.id}", printable(str(each.shown["explain"]))[:100])
        if self._live is None:
            self._live = Live(view, console=Console(file=self._stream), auto_refresh=False, transient=True)
            self._live.start()
        self._live.update(view, refresh=True)

    def close(self) -> None:
        """Take the table away."""
        if self._live is not None:
            self._live.stop()
            self._live = None


def mark(state: State, entries: Sequence[KnownCell]) -> None:
    """Mark the findings that a known file lists."""
    for each in state.findings.found:
        tried = state.opened.get(each.target)
        each.known = listed(each, tried.version if tried else "", entries)


def results(state: State, directory: Path) -> Results:
    """Return a campaign as results: a row for each finding, and one for each target that was tried."""
    found = Results(seed=state.asked.seed, seconds=state.before + state.seconds)
    for name in state.asked.targets:
        tried = state.opened.get(name, Tried("", "", 1))
        where = Where(tried.ranks, state.asked.device, tried.server)
        mine = [each for each in state.findings.certain() if each.target == name]
        found.cells += [_row(each, tried.version, where, directory) for each in mine]
        verdict, said = _nothing(state.counts[f"cases of {name}"], state.counts[f"untold of {name}"])
        if not mine or verdict == "error":
            found.cells.append(CellRow(name, tried.version, where, "campaign", "*", "*", verdict, 0.0, said))
    return found


def _nothing(played: int, untold: int) -> tuple[str, str]:
    """Return the verdict on a target of which nothing was found, and why it is that."""
    if not played:
        return "not-run", "no case was played"
    if untold > played / 2:
        return "error", f"of {untold} of {played} cases nothing could be told"
    return "pass", f"{played} cases, and nothing was found{f'; of {untold} nothing could be told' if untold else ''}"


def _row(finding: Finding, version: str, where: Where, directory: Path) -> CellRow:
    shown = finding.shown
    row = CellRow(
        finding.target, version, where, shown["rule"], "+".join(sorted(finding.shape)) or "none",
        finding.id.rpartition("-")[2], shown["verdict"], 0.0, shown["explain"],
        evidence={**shown["evidence"], "schedule": json.dumps(shown["case"].get("schedules", [])),
                  "steps": lines(finding), "again": f"kvproof replay {path(directory, finding)}"})
    row.rate, row.known = finding.rate if finding.rate < 1 else None, finding.known
    return row


def lines(finding: Finding) -> list[str]:
    """Return a finding's smallest case, and what came of each step."""
    return [*targets.read(finding.target, finding.shown["case"]).lines(), *finding.shown["steps"]]


def path(directory: Path, finding: Finding) -> Path:
    """Return the file of a finding."""
    return directory / "findings" / f"{finding.id}.json"


def keep(directory: Path, state: State) -> None:
    """Write each finding into a file of its own, and take away those of findings that have become another."""
    folder = directory / "findings"
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make {folder}: {error.strerror}; the journal has everything: make room for it, and "
                         "go on with --resume") from error
    names = set()
    for each in state.findings.found:
        if each.certain:
            write_text(path(directory, each), json.dumps(each.document(), indent=1) + "\n")
            names.add(path(directory, each).name)
    for old in folder.glob("*.json"):
        if old.name not in names and is_finding(old):
            old.unlink()


def text(state: State, directory: Path) -> str:
    """Return what was found, for a terminal."""
    said = [f"{name}: {value}" for name, value in numbers(state).items() if name != "time left"]
    out = ["; ".join([f"seed: {state.asked.seed}", *said]), ""]
    for number, each in enumerate(state.findings.certain(), 1):
        known = ", known" if each.known else ""
        out += [f"{number}. {each.target}: {each.shown['rule']}: {each.shown['verdict']}{_often(each)}{known}",
                f"  {each.shown['explain']}", *(f"    {line}" for line in lines(each)),
                f"  again: kvproof replay {path(directory, each)}", ""]
    return "".join(f"{printable(line)}\n" for line in out)


def digest(state: State, directory: Path) -> str:
    """Return what was found, in Markdown, for a page of CI."""
    out = [f"## Campaign on {', '.join(state.asked.targets)}", ""]
    out += [f"* {name}: {value}" for name, value in numbers(state).items() if name != "time left"]
    out += ["", "Nothing was found." if not state.findings.certain() else "| finding | rule | what happens | seen |"]
    out += ["| --- | --- | --- | --- |"] if state.findings.certain() else []
    for each in state.findings.certain():
        said = printable(str(each.shown["explain"])).replace("|", "\\|")
        out.append(f"| `{each.id}` | {each.shown['rule']} | {said} | {each.seen}{_often(each)}"
                   f"{', known' if each.known else ''} |")
    out += ["", *(f"> {printable(line)}" for line in state.says)]
    return "\n".join(out).rstrip() + "\n"


def _often(finding: Finding) -> str:
    if finding.least is None:
        return " (not looked into yet)"
    if finding.chance:
        return f" (by chance, in {finding.seen} cases)"
    rate = f" ({finding.rate:.0%} of tries)" if finding.rate < 1 else ""
    return rate if finding.shrunk else f"{rate} (not shrunk to its end)"


