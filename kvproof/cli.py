"""The command line: what is asked for, and the exit code."""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from kvproof import __version__
from kvproof.errors import KvproofError, UsageError

if TYPE_CHECKING:
    from kvproof.connectors import Connector


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 as expected, 1 a finding, 2 wrong usage, 3 inconclusive."""
    options = parser().parse_args(arguments)
    if getattr(options, "server", None):
        hide(options.server)
    try:
        code: int = options.command(options)
        return code
    except KvproofError as error:
        print(f"kvproof: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        return 2
    except KeyboardInterrupt:
        print("kvproof: interrupted", file=sys.stderr)
        return 3


def parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    top = argparse.ArgumentParser(
        prog="kvproof", description="Formal verification and fault injection for the remote KV caches of LLM serving."
    )
    top.add_argument("--version", action="version", version=f"kvproof {__version__}")
    commands = top.add_subparsers(title="commands", required=True, metavar="COMMAND")

    run = commands.add_parser("run", help="replay the historic bugs on every connector that is installed")
    run.add_argument("-c", "--connector", action="append", metavar="NAME", help="only these connectors")
    _add_common(run)
    run.set_defaults(command=_run)

    replay = commands.add_parser("replay", help="replay one historic bug on one connector")
    replay.add_argument("bug", metavar="BUG", help="lost-completion, nil-get, worker-key or cancel-cross-talk")
    replay.add_argument(
        "-c", "--connector", action="append", metavar="NAME", required=True, help="NAME, NAME==VERSION or module:Class"
    )
    _add_common(replay)
    replay.set_defaults(command=_replay)

    listing = commands.add_parser("connectors", help="what is installed; install another version beside")
    listing.add_argument("--install", metavar="NAME==VERSION", help="install this version in a directory of its own")
    listing.add_argument("--json", metavar="FILE", type=Path, help="write the list as JSON (- for standard output)")
    listing.set_defaults(command=_connectors)
    return top


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
        found = _found(options)
        missing: list[str] = []
    else:
        found, missing = replay.installed(connectors.selection(options.device), connectors.find)
    for line in missing:
        print(f"not run: {line}", file=sys.stderr)
    return _replayed(options, found, list(REPLAYS))


def _replay(options: argparse.Namespace) -> int:
    from kvproof.replays import REPLAYS

    if options.bug not in REPLAYS:
        raise UsageError(f"no replay is called {options.bug!r}; expected one of {', '.join(REPLAYS)}")
    return _replayed(options, _found(options), [options.bug])


def _found(options: argparse.Namespace) -> list[Connector]:
    from kvproof import connectors

    return [connectors.find(connectors.for_device(name, options.device)) for name in options.connector]


def _replayed(options: argparse.Namespace, found: list[Connector], bugs: list[str]) -> int:
    from kvproof import known, replay, report
    from kvproof.replays import REPLAYS
    from kvproof.results import Results, check_writable, write_text

    for path in (options.json, options.junit):
        if path is not None:
            check_writable(path)
    entries = known.load(options.known or known.SHIPPED, bugs=REPLAYS)
    results, begun, stopped = Results(), time.monotonic(), threading.Event()
    progress = report.Progress(len(found) * len(bugs))
    results.replays = list(
        replay.run(found, bugs, server=options.server, device=options.device, progress=progress, stopped=stopped)
    )
    results.interrupted = stopped.is_set()
    results.seconds = time.monotonic() - begun
    results.complaints = known.judge(results.replays, entries, date.today())
    if options.json:
        results.write(options.json)
    if options.junit:
        write_text(options.junit, report.junit(results))
    if str(options.json) != "-":
        print(report.table(results), end="")
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
