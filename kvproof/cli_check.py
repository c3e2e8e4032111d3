"""The command line of the contract: `kvproof check`, and the page of its results."""

from __future__ import annotations

import argparse
import json
import threading
import time
from datetime import date
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvproof.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvproof.check import Asked
    from kvproof.connectors import Connector
    from kvproof.known.cells import KnownCell
    from kvproof.results import Results

_CHECK = """Try the contract on connectors: every rule, by every read, under every fault that could break it.

Rules, faults and reads are ids or globs over them, as --list shows them, such as --fault 'silence*' or --fault nil.

verdicts and exit codes (the highest code that a cell asks for, but a finding, 1, comes before all):
  0  pass; unsupported; a finding that the connector's known file lists
  1  fail, hang, crash, leak; a listed cell that passes, or whose entry has expired
  2  wrong usage, or something is not installed
  3  not-felt, error
"""


def add(commands: Any) -> None:
    """Add `check` and `report` to the parser's commands."""
    check = commands.add_parser("check", help="try the contract on connectors", description=_CHECK,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    check.add_argument("-c", "--connector", action="append", metavar="NAME", required=True,
                       help="NAME, NAME==VERSION or module:Class; may be given more than once")
    for what in ("rule", "fault", "read"):
        check.add_argument(f"--{what}", action="append", default=[], metavar="ID", help=f"only this {what}; a glob")
    check.add_argument("--list", action="store_true", help="only list the cells, and what is left out and why")
    check.add_argument("--server", metavar="SERVER", help="valkey (default), fakeredis or redis://HOST:PORT")
    check.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where buffers live")
    check.add_argument("--ranks", type=_ranks, metavar="W", help="how many ranks a connector of ranks has")
    check.add_argument("--deadline", type=_seconds, default=5.0, metavar="S",
                       help="seconds that an adapter may declare for a call (default: 5)")
    check.add_argument("--again", type=_times, default=2, metavar="N",
                       help="how often a finding that nobody expected is tried again (default: 2)")
    check.add_argument("--known", metavar="PATH", type=Path, help="a known file, or a directory of them")
    check.add_argument("--update-known", metavar="FILE", type=Path,
                       help="write the known file of this connector, so that it lists what fails now")
    check.add_argument("--json", metavar="FILE", type=Path, help="write the results as JSON (- for standard output)")
    check.add_argument("--junit", metavar="FILE", type=Path, help="write the results as JUnit XML")
    check.add_argument("--pytest", metavar="FILE", type=Path,
                       help="write the least failing cell of each cause as a pytest module of its own")
    check.add_argument("--witnesses", metavar="DIR", type=Path, help="write the evidence of each cause into a file")
    check.add_argument("--html", metavar="FILE", type=Path, help="write one page to look at")
    check.set_defaults(command=_check)

    report = commands.add_parser(
        "report", help="draw a page from results, several runs side by side",
        description="Draw one page from the results that `kvproof run`, `check` or `replay` wrote with --json FILE, or "
                    "from the directory of a campaign, also while it runs; several are put side by side.")
    report.add_argument("results", nargs="+", metavar="RESULTS", type=Path,
                        help="what --json FILE wrote, or the directory of a campaign")
    report.add_argument("--html", metavar="FILE", type=Path, required=True, help="the page")
    report.set_defaults(command=_report)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 86_400:
        raise argparse.ArgumentTypeError(f"expected seconds, above 0, got {text!r}")
    return value


def _ranks(text: str) -> int:
    from kvproof.ranks.check import MOST

    if not (text.isascii() and text.isdigit()) or not 1 <= int(text) <= MOST:
        raise argparse.ArgumentTypeError(f"expected a number of ranks from 1 to {MOST}, got {text!r}")
    return int(text)


def _times(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) > 100:
        raise argparse.ArgumentTypeError(f"expected a number from 0 to 100, got {text!r}")
    return int(text)


def _check(options: argparse.Namespace) -> int:
    from kvproof import check, connectors, contract, junit, report_cells, witnesses
    from kvproof.causes import causes
    from kvproof.known import cells
    from kvproof.results import Results, check_writable, make_directory, write_text

    claims = contract.claims()
    for pattern in options.rule:
        if not any(fnmatchcase(rule, pattern) for rule in claims):
            raise UsageError(f"no rule is called {pattern!r}; expected one of {', '.join(claims)}, or a glob over them")
    if options.ranks and options.server not in (None, "valkey"):
        raise UsageError(f"--ranks {options.ranks} with --server {options.server}: each rank has a valkey-server of "
                         "its own, which kvproof starts; leave --server out")
    found = [connectors.find(connectors.for_device(name, options.device)) for name in options.connector]
    asked = check.Asked(tuple(options.rule), tuple(options.fault), tuple(options.read), options.deadline, options.again)
    if options.list:
        return _list(found, asked, options)
    check_writable(options.json, options.junit, options.html, options.pytest, options.update_known)
    if options.witnesses:
        make_directory(options.witnesses)
    if options.update_known and len(found) != 1:
        raise UsageError("--update-known writes the file of one connector; name one with -c")
    results, begun, stopped = Results(), time.monotonic(), threading.Event()
    entries = tried(results, found, asked, options, stopped, options.ranks)
    results.interrupted = stopped.is_set()
    results.seconds = time.monotonic() - begun
    if options.update_known:
        name = found[0].name.partition("==")[0]
        count = cells.update(options.update_known, name, results.cells, date.today())
        entries = cells.load(options.update_known, claims)
        print(f"{options.update_known}: {count} cells fail now, and are listed")
    results.complaints = cells.judge(results.cells, entries, date.today())
    found_causes = causes(results.cells)
    if options.witnesses:
        witnesses.write(options.witnesses, found_causes)
    if options.pytest:
        write_text(options.pytest, witnesses.module(found_causes))
    if str(options.json) != "-":
        print(report_cells.table(results), end="", flush=True)
    if options.json:
        results.write(options.json)
    if options.junit:
        write_text(options.junit, junit.document(results))
    if options.html:
        from kvproof.pages import report as pages

        pages.write(options.html, [results.document()])
    written = [str(path) for path in (options.json, options.junit, options.html, options.pytest, options.witnesses)
               if path is not None and str(path) != "-"]
    if written and str(options.json) != "-":
        print(f"written: {', '.join(written)}")
    return results.exit_code


def tried(
    results: Results, found: Sequence[Connector], asked: Asked, options: argparse.Namespace, stopped: threading.Event,
    ranks: int | None = None,
) -> list[KnownCell]:
    """Try the contract, on so many ranks if any, put its rows into the results, and return what is known to fail."""
    from kvproof import check, contract, known, report
    from kvproof.known import cells
    from kvproof.ranks import check as worlds

    entries = cells.load(options.known or known.SHIPPED, contract.claims())
    progress = report.CellProgress()
    if ranks:
        results.cells += worlds.run(
            found, ranks, asked, device=options.device, progress=progress, planned=progress.planned,
            stopped=stopped, known=entries)
    else:
        results.cells += check.run(
            found, asked, server=options.server, device=options.device, progress=progress, planned=progress.planned,
            stopped=stopped, known=entries)
    return entries


def _report(options: argparse.Namespace) -> int:
    from kvproof.pages import report as pages
    from kvproof.results import check_writable

    check_writable(options.html)
    pages.write(options.html, [_document(path) for path in options.results])
    return 0


def _document(path: Path) -> Any:
    if path.is_dir():
        from kvproof.campaigns import campaign, views

        return views.results(campaign.looked_at(path), path).document()
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        said = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"{path}: {said}; expected results that kvproof wrote with --json") from error


def _list(found: list[Connector], asked: Asked, options: argparse.Namespace) -> int:
    from kvproof import check
    from kvproof.ranks import check as worlds
    from kvproof.rules import RULES
    from kvproof.rules.left_out import LEFT_OUT

    if options.ranks:
        for line in worlds.listed(found, options.ranks, asked, options.device):
            print(line)
        return 0
    count = 0
    for name, cell in check.listed(found, asked, server=options.server, device=options.device):
        print(f"{name} {cell.id}" if len(found) > 1 else cell.id)
        count += 1
    if not count:
        raise UsageError("nothing is selected: no cell has such a rule, fault and read")
    print(f"\n{count} cells. Left out, and why:")
    shown = [rule for rule in RULES if not asked.rules or any(fnmatchcase(rule, glob) for glob in asked.rules)]
    for rule in ("*", *shown):
        for faults, why in LEFT_OUT.get(rule, {}).items():
            print(f"  {rule}: {faults}: {why}")
    return 0
