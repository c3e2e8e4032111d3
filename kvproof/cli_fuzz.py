"""The command line of campaigns: `kvproof fuzz`."""

from __future__ import annotations

import argparse
import contextlib
import re
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvproof.errors import UsageError

if TYPE_CHECKING:
    from kvproof.campaigns.campaign import Asked, State
    from kvproof.campaigns.journal import Journal

_FUZZ = """Try cases that nobody wrote down, for hours, and keep what breaks a rule of the contract.

Cases are stores, reads, evictions, threads, early completions and ranks, under schedules of faults; of a connector that
has ranks, prompts that a world of them serves while one is struck. kvproof's own decoder, models and obligations can be
tried as well. What is found is shrunk, and is one finding a cause.

Everything is in the campaign's directory (--dir): the journal, and a file for each finding, which `kvproof replay`
plays again or makes a test of. A campaign that has ended, however it did, goes on with --resume.

verdicts and exit codes:
  0  nothing was found but what the known file lists
  1  findings
  2  wrong usage, something is not installed, or the disk is full
  3  nothing could be told: of most cases, or no case was played
"""
_OWN = {
    "decoder": "RESP decoder and frame scanners, by streams that are cut anywhere",
    "models": "models, by long walks of which every step is asked of the spec",
    "obligations": "obligations, by other seeds of the solver, and its explorer by larger bounds",
}
_UNITS = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}


def add(commands: Any) -> None:
    """Add `fuzz` to the parser's commands."""
    fuzz = commands.add_parser("fuzz", help="try connectors for hours, on cases that nobody wrote down",
                               description=_FUZZ, formatter_class=argparse.RawDescriptionHelpFormatter)
    fuzz.add_argument("-c", "--connector", action="append", metavar="NAME", default=[],
                      help="NAME, NAME==VERSION or module:Class; may be given more than once")
    fuzz.add_argument("--ranks", type=_count, metavar="W", help="ranks of a world (default: 2)")
    for name, said in _OWN.items():
        fuzz.add_argument(f"--{name}", action="append_const", dest="own", const=name, help=f"try kvproof's own {said}")
    fuzz.add_argument("--for", dest="seconds", type=_span, default=600.0, metavar="TIME",
                      help="how long: 90s, 10m, 8h (default: 10m)")
    fuzz.add_argument("--seed", type=int, default=0, metavar="N", help="what cases are drawn from (default: 0)")
    fuzz.add_argument("--dir", type=Path, default=Path("kvproof-campaign"), metavar="DIR",
                      help="the campaign's directory (default: kvproof-campaign)")
    fuzz.add_argument("--resume", action="store_true", help="go on with the campaign in that directory")
    fuzz.add_argument("--corpus", metavar="WHERE", help="share cases by a directory, or redis://HOST:PORT")
    fuzz.add_argument("--workers", type=_count, default=1, metavar="N", help="processes that play (default: 1)")
    fuzz.add_argument("--at-once", type=_count, default=12, metavar="N", help="cases at once in all (default: 12)")
    fuzz.add_argument("--on", metavar="RAY", help="where they run: ray, or ray://HOST:PORT, in place of processes here")
    fuzz.add_argument("--unguided", action="store_true", help="make every case from nothing")
    fuzz.add_argument("--server", metavar="SERVER", help="valkey (default), fakeredis or redis://HOST:PORT")
    fuzz.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where buffers live")
    fuzz.add_argument("--known", metavar="PATH", type=Path, help="a known file, or a directory of them")
    for what, said in (("json", "the results as JSON (- for standard output)"), ("junit", "JUnit XML"),
                       ("html", "one page to look at"), ("digest", "a digest in Markdown")):
        fuzz.add_argument(f"--{what}", metavar="FILE", type=Path, help=f"write {said}")
    fuzz.set_defaults(command=_fuzz)


def _span(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([a-z]*)", text)
    if found is None or found[2] not in _UNITS or not 0 < float(found[1]) * _UNITS[found[2]] < 1e8:
        raise argparse.ArgumentTypeError(f"expected a time such as 90s, 10m or 8h, got {text!r}")
    return float(found[1]) * _UNITS[found[2]]


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or not 1 <= int(text) <= 1024:
        raise argparse.ArgumentTypeError(f"expected a number from 1 to 1024, got {text!r}")
    return int(text)


def _fuzz(options: argparse.Namespace) -> int:
    from kvproof import contract, known
    from kvproof.campaigns import corpus, hosts, views
    from kvproof.campaigns.campaign import Campaign
    from kvproof.campaigns.journal import Journal
    from kvproof.known import cells
    from kvproof.results import check_writable

    check_writable(options.json, options.junit, options.html, options.digest)
    listed = cells.load(options.known or known.SHIPPED, contract.claims())
    shared = corpus.opened(options.corpus, options.server) if options.corpus is not None else None
    if not options.resume:
        _asked(options)
    make = hosts.maker(options.on)
    journal = Journal(options.dir, fresh=not options.resume)
    fresh = not options.resume
    watch, stopped = views.Watch(), threading.Event()
    try:
        campaign = Campaign(_asked(options, journal), journal, shared)
        try:
            campaign.run(make, watch, stopped)
        except KeyboardInterrupt:
            stopped.set()
    finally:
        watch.close()
        journal.close()
    state = campaign.state
    if fresh and not state.opened and not stopped.is_set():
        # The directory is as it was, so that the right words may be said again.
        journal.path.unlink()
        with contextlib.suppress(OSError):
            # Unless there was something in it.
            options.dir.rmdir()
        raise UsageError("; ".join(state.says) or "no worker could be started")
    watch(state)
    views.mark(state, listed)
    views.keep(options.dir, state)
    return _written(options, state)


def _asked(options: argparse.Namespace, journal: Journal | None = None) -> Asked:
    """Return what is asked for; of a campaign that goes on, what it was begun with."""
    from kvproof import connectors
    from kvproof.campaigns import campaign, targets
    from kvproof.campaigns.journal import SCHEMA
    from kvproof.ranks.check import MOST

    begun = campaign.settings(journal.records) if journal is not None else None
    if options.resume and journal is not None and begun is None:
        raise UsageError(f"{journal.path}: the line that says what campaign it is of is damaged; name another "
                         "directory")
    names, seed, ranks = [*options.connector, *(options.own or ())], options.seed, options.ranks or 2
    if begun is not None:
        if begun["schema"] != SCHEMA:
            raise UsageError(f"{options.dir} is a campaign of another kvproof ({begun['schema']}; this one writes "
                             f"{SCHEMA}); name another directory")
        if names and sorted(names) != sorted(begun["targets"]):
            raise UsageError(f"{options.dir} is a campaign on {', '.join(begun['targets'])}; leave -c out with "
                             "--resume, or name another directory")
        if options.ranks not in (None, begun["ranks"]):
            raise UsageError(f"{options.dir} is a campaign of {begun['ranks']} ranks; leave --ranks out with --resume, "
                             "or name another directory")
        names, seed, ranks = begun["targets"], begun["seed"], begun["ranks"]
    if not names:
        raise UsageError("name a connector with -c; `kvproof connectors` lists them")
    if ranks > MOST:
        raise UsageError(f"--ranks {ranks}: expected a number from 1 to {MOST}")
    found = [connectors.find(connectors.for_device(name, options.device))
             for name in dict.fromkeys(names) if name not in targets.OWN]
    if options.server is not None and not found:
        raise UsageError(f"--server {options.server}: {', '.join(names)} has no server; leave it out")
    if options.ranks is not None and not any(each.ranks for each in found):
        raise UsageError(f"--ranks {options.ranks}: none of {', '.join(names)} has ranks; leave it out")
    return campaign.Asked(tuple(dict.fromkeys(names)), options.seconds, seed, options.workers,
                          max(options.at_once, options.workers), options.on, not options.unguided, options.server,
                          options.device, ranks)


def _written(options: argparse.Namespace, state: State) -> int:
    from kvproof import junit
    from kvproof.campaigns import views
    from kvproof.results import write_text

    results = views.results(state, options.dir)
    if options.json:
        results.write(options.json)
    if str(options.json) != "-":
        print(views.text(state, options.dir), end="", flush=True)
    if options.junit:
        write_text(options.junit, junit.document(results))
    if options.digest:
        write_text(options.digest, views.digest(state, options.dir))
    if options.html:
        from kvproof.pages import report as pages

        pages.write(options.html, [results.document()])
    return results.exit_code


def is_finding(path: str) -> bool:
    """Whether a file holds what a campaign has found."""
    from kvproof.campaigns import findings

    return findings.is_finding(Path(path))


def replay(options: argparse.Namespace) -> int:
    """Play a finding again, or write it as a test."""
    from kvproof.campaigns import replay
    from kvproof.results import check_writable, write_text

    if options.connector:
        raise UsageError("a finding names what it is of itself; leave -c out")
    path = Path(options.bug)
    if options.pytest:
        check_writable(options.pytest)
        write_text(options.pytest, replay.module(path))
        print(f"written: {options.pytest}, which fails for as long as the finding is there; it was not played now")
        return 0
    code, said = replay.again(path, server=options.server, device=options.device)
    print(said, end="", flush=True)
    return code
