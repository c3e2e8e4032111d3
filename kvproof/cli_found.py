"""The command line of what was found: a trace, the log of a real run, the states of a protocol."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kvproof.errors import UsageError


def add(commands: Any) -> None:
    """Add `trace`, `validate` and `explore` to the parser's commands."""
    trace = commands.add_parser("trace", help="show a trace, or check that it is a run of its system")
    trace.add_argument("file", metavar="FILE", type=Path, help="ITF JSON, as `kvproof prove --traces DIR` writes it")
    views = trace.add_mutually_exclusive_group()
    views.add_argument("--text", action="store_true", help="what each step changed, as text (the default)")
    views.add_argument("--mermaid", action="store_true", help="a sequence diagram as Mermaid text")
    trace.add_argument("--svg", metavar="FILE", type=Path, help="write a sequence diagram as SVG (- for screen)")
    trace.add_argument("--html", metavar="FILE", type=Path, help="write a page: diagram, states, what holds where")
    trace.add_argument("--check", action="store_true", help="check that it is a run of its system; exit 1 if it is not")
    trace.set_defaults(command=_trace)

    judged = commands.add_parser("validate", help="say whether the log of a real run is a behaviour of the spec")
    judged.add_argument("log", metavar="LOG", type=Path, help="a line of JSON an event (docs/validating-a-log.md)")
    judged.add_argument(
        "--protocol", default="load", metavar="NAME|FILE.py", help="load (default), completion, ownership, or your own")
    judged.add_argument("--complete", action="store_true", help="a log that ends unfinished is inconclusive: exit 3")
    judged.add_argument("--json", metavar="FILE", type=Path, help="write the judgement as JSON (- for standard output)")
    judged.set_defaults(command=_validate)

    explore = commands.add_parser(
        "explore",
        help="count the loading protocol's states: the Python model beside TLC",
        description=_EXPLORE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    explore.add_argument("-W", "--ranks", type=_count, default=3, metavar="W", help="up to so many ranks (default: 3)")
    explore.add_argument("-n", "--chunks", type=_chunks, default=4, metavar="N", help="and chunks (default: 4)")
    explore.add_argument("--json", metavar="FILE", type=Path, help="write the table as JSON (- for standard output)")
    explore.set_defaults(command=_explore)


_EXPLORE = """Count the states of the loading protocol for every world of up to W ranks and 0 to N chunks.

The Python model and TLC count from two descriptions that share no line; where both are right the numbers agree. TLC
needs Java. The worlds of the default take about a minute, most of it TLC's; those of -W 2 -n 2 a third of that.

columns:
  W, n         ranks, and chunks in the list; with 0 chunks the ranks still exchange that they have none
  Python, TLC  states that can be reached, by each
  steps        ways from one state to another
  longest way  the most steps that the nearest way to a state takes
  states/s     how fast the Python model counts

verdicts and exit codes:
  0  agree
  1  differ; wrong: a state breaks what the model promises, or what TLC checks
  3  not-run: TLC is not there, or the world has too many states
"""


def _count(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 64:
        raise argparse.ArgumentTypeError(f"expected a number from 1 to 64, got {text!r}")
    return int(text)


def _chunks(text: str) -> int:
    return 0 if text == "0" else _count(text)


def _trace(options: argparse.Namespace) -> int:
    from kvproof import traces
    from kvproof.results import check_writable, write_text

    check_writable(options.svg, options.html)
    trace, beside = traces.read(options.file), options.file.parent
    if options.svg:
        from kvproof.traces import svg

        write_text(options.svg, svg.diagram(trace))
    if options.html:
        from kvproof.spec.judge import judge
        from kvproof.traces import page

        write_text(options.html, page.page(trace, judge(trace, beside)))
    if options.mermaid:
        from kvproof.traces import mermaid

        print(mermaid.diagram(trace), end="")
    if options.text or not (options.check or options.svg or options.html or options.mermaid):
        from kvproof.traces import text

        print(text.text(trace), end="")
    if not options.check:
        return 0
    holds, said = traces.checked(trace, beside)
    print(said)
    return 0 if holds else 1


def _validate(options: argparse.Namespace) -> int:
    from kvproof import report, validate
    from kvproof.results import check_writable, write_text

    if options.json:
        for read in (options.log, Path(options.protocol)):
            if options.json.exists() and read.exists() and options.json.samefile(read):
                raise UsageError(f"--json {options.json} would overwrite {read}, which is to be read")
        check_writable(options.json)
    found = validate.validate(
        options.log, options.protocol, report.Counting("events"), complete=options.complete)
    if options.json:
        write_text(options.json, json.dumps(asdict(found), indent=1) + "\n")
    if str(options.json) != "-":
        print(report.judgement(found), end="", flush=True)
    return found.exit_code


def _explore(options: argparse.Namespace) -> int:
    from kvproof import explore, report
    from kvproof.results import check_writable, write_text

    if options.json:
        check_writable(options.json)
    worlds = [(w, n) for w in range(1, options.ranks + 1) for n in range(options.chunks + 1)]
    rows, progress = [], report.Progress(len(worlds))
    for row in explore.counted(worlds):
        progress.world(row)
        rows.append(row)
    if options.json:
        write_text(options.json, json.dumps([row.document() for row in rows], indent=1) + "\n")
    if str(options.json) != "-":
        print(report.worlds(rows), end="", flush=True)
    verdicts = {row.verdict for row in rows}
    return 1 if verdicts & {"differ", "wrong"} else 3 if "not-run" in verdicts else 0
