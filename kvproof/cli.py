"""The command line: what is asked for, and the exit code."""

from __future__ import annotations

import argparse
import ctypes
import errno
import io
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from kvproof import __version__, cli_canary, cli_check, cli_economics, cli_found, cli_fuzz, proxy
from kvproof.errors import KvproofError, UsageError

if TYPE_CHECKING:
    from kvproof.connectors import Connector
    from kvproof.results import Results

_EPILOG = """exit codes:
  0  all pass, or exactly as the known files say
  1  a finding that is not listed, or an entry that is stale or expired
  2  wrong usage, or something is not installed
  3  inconclusive, and no finding

environment:
  KVPROOF_SERVER        the password of --server redis://HOST:PORT, or the whole address when --server is not given
  KVPROOF_ENVIRONMENTS  where `kvproof connectors --install` puts other versions
"""
_PARTS = ("proofs", "replays", "contract")
"""What a whole run does, in this order."""
_PROOFS = """Prove obligations for any number of ranks and chunks; ours take 20 s on two cores.

verdicts and exit codes (the highest code that a row asks for, but a finding, 1, comes before all):
  0  proved; refuted, for a declared limit
  1  refuted, vacuous, toothless
  2  wrong usage, or a file that is no protocol
  3  unknown, not-run, error
"""
_REPLAYS = """Replay one historic bug on one connector, without editing its code.

  nil-get            the reply to a GET of an absent key is read as the header of a value
  worker-key         with a replicated KV one read asks for its own worker's key, which nobody stored
  cancel-cross-talk  a read that is given up leaves its reply for the next caller; needs the adapter's `abandons`
  lost-completion    a completion that comes before its future is registered is dropped; needs the adapter's `gaps()`
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 as expected, 1 a finding, 2 wrong usage, 3 inconclusive."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a character shows its number.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    options = parser().parse_args(arguments)
    for number in (signal.SIGTERM, signal.SIGHUP):
        # However a run is ended, it ends what it started and writes what it knows.
        signal.signal(number, _interrupt)
    if getattr(options, "server", None):
        hide(options.server)
    try:
        code: int = options.command(options)
        return code
    except KvproofError as error:
        print(f"kvproof: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # Whoever read our output has gone; nothing more can be said there.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 2
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        print(f"kvproof: standard output: {error.strerror}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 2
    except KeyboardInterrupt:
        print("kvproof: interrupted", file=sys.stderr)
        return 3


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


class _Parser(argparse.ArgumentParser):
    """Says in one line what is wrong, as whatever else is refused."""

    def error(self, message: str) -> NoReturn:
        """Exit with 2."""
        self.exit(2, f"kvproof: {UsageError(message)}; see {self.prog} --help\n")


def parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    top = _Parser(
        prog="kvproof",
        description="Formal verification and fault injection for the remote KV caches of LLM serving.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"kvproof {__version__}")
    commands = top.add_subparsers(title="commands", required=True, metavar="COMMAND")

    said = "prove, replay the historic bugs, and try the contract on every connector that is installed"
    run = commands.add_parser("run", help=said, description=f"{said[0].upper()}{said[1:]}.")
    run.add_argument("-c", "--connector", action="append", metavar="NAME", help="only these; may be repeated")
    run.add_argument("--only", action="append", choices=_PARTS, help="only this part of it; may be repeated")
    _add_common(run)
    run.set_defaults(command=_run)

    prove = commands.add_parser(
        "prove",
        help="prove obligations, ours or those of a protocol of your own",
        description=_PROOFS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    prove.add_argument("what", nargs="*", metavar="ID|GLOB|FILE.py", help="which; all of ours when none is named")
    prove.add_argument("--list", action="store_true", help="only list them")
    prove.add_argument("--explain", action="store_true", help="show the witness and every mutant with its trace")
    prove.add_argument("--smt2", metavar="DIR", type=Path, help="only write the queries as SMT-LIB, with their sha256")
    prove.add_argument("--traces", metavar="DIR", type=Path, help="write every witness and counterexample as ITF JSON")
    prove.add_argument("--second", action="store_true", help="have cvc5 cross-examine every query")
    prove.add_argument("--seed", type=int, default=0, help="the solver's seed")
    prove.add_argument("--timeout", type=_positive, metavar="MS", help="milliseconds for one query (default: 60000)")
    prove.add_argument("--json", metavar="FILE", type=Path, help="write the results as JSON (- for standard output)")
    prove.add_argument("--junit", metavar="FILE", type=Path, help="write the results as JUnit XML")
    prove.set_defaults(command=_prove)

    replay = commands.add_parser(
        "replay",
        help="replay one historic bug on one connector",
        description=_REPLAYS,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    replay.add_argument(
        "bug", metavar="BUG|FILE",
        help="lost-completion, nil-get, worker-key or cancel-cross-talk; or a .json file that is there: a finding of a "
             "campaign, or a trace",
    )
    replay.add_argument(
        "-c", "--connector", action="append", metavar="NAME",
        help="NAME, NAME==VERSION or module:Class; may be given more than once",
    )
    replay.add_argument("--pytest", metavar="FILE", type=Path, help="write the finding or trace as a pytest module")
    _add_common(replay)
    replay.set_defaults(command=_replay)

    cli_check.add(commands)

    cli_fuzz.add(commands)
    cli_economics.add(commands)
    cli_canary.add(commands)

    cli_found.add(commands)

    proxy.add(commands)

    listing = commands.add_parser("connectors", help="what is installed; install another version beside")
    listing.add_argument("--install", metavar="NAME==VERSION", help="install this version in a directory of its own")
    listing.add_argument("--json", metavar="FILE", type=Path, help="write the list as JSON (- for standard output)")
    listing.set_defaults(command=_connectors)
    return top


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number of milliseconds from 1 on, got {text!r}")
    return int(text)


def _add_common(command: argparse.ArgumentParser) -> None:
    command.add_argument("--server", metavar="SERVER", help="valkey (default), fakeredis or redis://HOST:PORT")
    command.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where buffers live")
    command.add_argument("--known", metavar="PATH", type=Path, help="a known file, or a directory of them")
    command.add_argument("--json", metavar="FILE", type=Path, help="write the results as JSON (- for standard output)")
    command.add_argument("--junit", metavar="FILE", type=Path, help="write the results as JUnit XML")


def _run(options: argparse.Namespace) -> int:
    from kvproof import connectors, replay
    from kvproof.replays import REPLAYS

    if options.connector:
        return _replayed(options, _found(options), list(REPLAYS), parts=options.only or _PARTS[1:])
    found, missing = replay.installed(connectors.selection(options.device))
    worlds, _ = replay.installed(connectors.of_ranks())
    return _replayed(options, [*found, *worlds], list(REPLAYS), missing, parts=options.only or _PARTS)


def _prove(options: argparse.Namespace) -> int:
    from kvproof import prove, report
    from kvproof.results import Results, check_writable, make_directory

    check_writable(options.json, options.junit)
    proving = options.json or options.junit or options.timeout or options.second or options.traces
    if options.smt2 and (proving or options.list):
        raise UsageError("--smt2 only writes the queries: it goes with no --json, --junit, --timeout, --second, "
                         "--traces, --list")
    if options.list and options.traces:
        raise UsageError("--list only lists: it goes with no --traces")
    asked = prove.Asked(tuple(options.what), options.seed, options.timeout, options.second, options.traces)
    if options.list:
        for obligation in prove.selected(asked.patterns):
            print(f"{obligation.id:32} {obligation.claim}")
        return 0
    if options.smt2:
        print(f"{prove.write_smt2(asked.patterns, options.smt2)} queries in {options.smt2}")
        return 0
    if options.traces:
        make_directory(options.traces)
    results, begun = Results(seed=options.seed), time.monotonic()
    stopped, progress = threading.Event(), report.Progress(len(prove.selected(asked.patterns)))
    results.obligations = prove.run(asked, progress.obligation, stopped=stopped)
    results.interrupted = stopped.is_set()
    results.seconds = time.monotonic() - begun
    if str(options.json) != "-":
        if options.explain:
            print("\n".join(report.explained(row) for row in results.obligations))
        print(report.obligations(results), end="", flush=True)
        print(report.written(results.obligations), end="")
    _write(options, results)
    return results.exit_code


def _write(options: argparse.Namespace, results: Results) -> None:
    from kvproof import junit
    from kvproof.results import write_text

    if options.json:
        results.write(options.json)
    if options.junit:
        write_text(options.junit, junit.document(results))


def _replay(options: argparse.Namespace) -> int:
    from kvproof.replays import REPLAYS

    if options.bug.endswith(".json") and Path(options.bug).exists():
        return cli_fuzz.replay(options) if cli_fuzz.is_finding(options.bug) else _replay_trace(options)
    if options.bug not in REPLAYS and ("/" in options.bug or options.bug.endswith(".json")):
        raise UsageError(f"{options.bug} is no file; expected a finding of a campaign, or a trace (.json)")
    if options.bug not in REPLAYS:
        raise UsageError(f"no replay is called {options.bug!r}; expected one of {', '.join(REPLAYS)}")
    if options.pytest:
        raise UsageError(f"--pytest writes a trace as a test, and {options.bug} is none; expected a .json file")
    if not options.connector:
        raise UsageError(f"{options.bug} is replayed on a connector; name one with -c, such as -c reference")
    return _replayed(options, _found(options), [options.bug])


def _replay_trace(options: argparse.Namespace) -> int:
    from kvproof import traces
    from kvproof.results import check_writable, write_text
    from kvproof.traces import as_test

    if options.connector:
        raise UsageError("replaying a trace on a connector is not there yet; without -c, --pytest FILE writes a test")
    if not options.pytest:
        raise UsageError("a trace is replayed as a test; name its file with --pytest FILE (`kvproof trace` shows it)")
    check_writable(options.pytest)
    told, text = as_test.module(traces.read(Path(options.bug)), Path(options.bug).parent)
    write_text(options.pytest, text)
    if str(options.pytest) != "-":
        print(f"{options.pytest}: {told}")
    return 0


def _found(options: argparse.Namespace) -> list[Connector]:
    from kvproof import connectors

    return [connectors.find(connectors.for_device(name, options.device)) for name in options.connector]


def _replayed(
    options: argparse.Namespace,
    found: list[Connector],
    bugs: list[str],
    missing: Mapping[str, str] | None = None,
    *,
    parts: Sequence[str] = ("replays",),
) -> int:
    """Do those parts of a whole run; show and write what was found."""
    from kvproof import known, prove, replay, report, report_cells
    from kvproof.check import Asked
    from kvproof.known import cells
    from kvproof.replays import REPLAYS
    from kvproof.results import Results, check_writable

    check_writable(options.json, options.junit)
    entries = known.load(options.known or known.SHIPPED, bugs=REPLAYS)
    results, begun, stopped = Results(), time.monotonic(), threading.Event()
    # A bug of one client is replayed on a client; ranks are tried as worlds.
    found, worlds = [each for each in found if not each.ranks], [each for each in found if each.ranks]
    if worlds and not found and "contract" not in parts:
        raise UsageError(f"{worlds[0].name} has ranks, and the replays are of one client; "
                         f"try `kvproof check -c {worlds[0].name} --ranks 2`")
    if "proofs" in parts:
        progress = report.Progress(len(prove.selected(())))
        results.obligations = prove.run(prove.Asked(), progress.obligation, stopped=stopped)
    progress = report.Progress(len(found) * len(bugs) if "replays" in parts else 0)
    try:
        results.replays = list(
            replay.run(
                found if "replays" in parts and not stopped.is_set() else [],
                bugs,
                server=options.server,
                device=options.device,
                progress=progress,
                stopped=stopped,
                expected=lambda connector, bug: any(entry.names(connector, bug) for entry in entries),
            )
        )
    except KeyboardInterrupt:
        # Before anything had begun, or again while it ended: what is known is written all the same.
        stopped.set()
    if "replays" in parts:
        results.replays += replay.not_run(missing or {}, bugs, options.device)
    results.complaints = known.judge(results.replays, entries, date.today())
    # A connector with a bug switched on is a test of the replays themselves.
    sound = [each for each in found if "+" not in each.name] if "contract" in parts else []
    if sound and not stopped.is_set():
        listed = cli_check.tried(results, sound, Asked(), options, stopped)
        results.complaints += cells.judge(results.cells, listed, date.today())
    if worlds and "contract" in parts and not stopped.is_set():
        before = len(results.cells)
        listed = cli_check.tried(results, worlds, Asked(), options, stopped, ranks=2)
        results.complaints += cells.judge(results.cells[before:], listed, date.today())
    results.interrupted = stopped.is_set()
    results.seconds = time.monotonic() - begun
    if str(options.json) != "-":
        views = [report.proofs(results), report.table(results) if "replays" in parts or not results.cells else "",
                 report_cells.table(results) if results.cells else ""]
        print("\n".join(view for view in views if view), end="", flush=True)
    _write(options, results)
    return results.exit_code


def _connectors(options: argparse.Namespace) -> int:
    from kvproof import connectors, report
    from kvproof.connectors import listing
    from kvproof.results import write_text

    if options.install:
        print(f"installed in {connectors.install(options.install)}")
        return 0
    entries = listing.entries()
    if options.json:
        write_text(options.json, json.dumps([asdict(entry) for entry in entries], indent=1) + "\n")
    if str(options.json) != "-":
        print(report.connectors(entries), end="")
    return 0


def hide(secret: str) -> None:
    """Overwrite an argument of this process where the process list shows it, if it holds a password.

    The kernel serves /proc/PID/cmdline from this process's own memory; what was given there is worth more hidden.
    """
    if "@" not in secret:
        return
    try:
        with open("/proc/self/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        start, end = int(fields[45]), int(fields[46])
        shown = ctypes.string_at(start, end - start)
        at = shown.find(secret.encode())
        if at >= 0:
            ctypes.memset(start + at, ord("*"), len(secret.encode()))
    except (OSError, IndexError, ValueError):
        return


if __name__ == "__main__":
    sys.exit(main())
