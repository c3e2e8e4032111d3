"""The command line of the canary: `kvproof canary -- CMD`."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvproof.errors import UsageError

if TYPE_CHECKING:
    from kvproof.canary.cause import Cause
    from kvproof.canary.tree import Tree
    from kvproof.canary.watch import Ready

_CANARY = """Run an engine's start, or any command, and say why it fails.

The command and all that it begins are followed: each process's output is kept apart, with its exit code or signal, and
the log files that it has open. It has to serve (--ready TEXT or --port N), or else to end with exit code 0; what does
neither in time is ended, and says where it was. Then everything of it is ended.

  kvproof canary --port 8000 -- vllm serve MODEL
  kvproof canary --factor CONNECTOR=none,lmcache --factor BLOCKS=512,4096 --repeat 3 -- ./start.sh {CONNECTOR} {BLOCKS}

A factor is in the command as {NAME}, and in the environment. Exit codes: 0 it starts, 1 it does not (with factors: not
always), 2 wrong usage.
"""


_LONGEST = 150
"""Characters of levels in the name of a file; the number before them tells runs apart."""


def add(commands: Any) -> None:
    """Add `canary` to the parser's commands."""
    canary = commands.add_parser("canary", help="run an engine's start, and say why it fails", description=_CANARY,
                                 formatter_class=argparse.RawDescriptionHelpFormatter,
                                 usage="kvproof canary [options] -- CMD ...")
    canary.add_argument("--within", type=_seconds, default=300.0, metavar="SECONDS", help="it has to serve in (300)")
    canary.add_argument("--ready", metavar="REGEX", help="it serves once this is in its output")
    canary.add_argument("--port", type=int, metavar="N", help="it serves once this port takes connections")
    canary.add_argument("--log", action="append", metavar="GLOB", default=[], help="a log file; may be repeated")
    canary.add_argument("--factor", action="append", metavar="NAME=a,b", default=[], help="may be repeated")
    canary.add_argument("--repeat", type=int, default=1, metavar="N", help="how often each combination is run (1)")
    canary.add_argument("--json", metavar="FILE", type=Path, help="write everything as JSON (- for standard output)")
    canary.add_argument("--outputs", metavar="DIR", type=Path, help="write each process's output to a file")
    canary.add_argument("words", nargs=argparse.REMAINDER, metavar="CMD")
    canary.set_defaults(command=_canary)


def _seconds(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < 1e6:
        raise argparse.ArgumentTypeError(f"expected seconds above 0, got {text!r}")
    return found


def _canary(options: argparse.Namespace) -> int:
    from kvproof.canary import factors
    from kvproof.canary.watch import Ready
    from kvproof.results import check_writable, make_directory

    command = options.words[1:] if options.words[:1] == ["--"] else options.words
    if not command:
        raise UsageError("name the command after --: kvproof canary -- CMD ...")
    if not 1 <= options.repeat <= 1000:
        raise UsageError(f"--repeat {options.repeat}: expected a number from 1 to 1000")
    if options.port is not None and not 0 < options.port < 65536:
        raise UsageError(f"--port {options.port}: expected a port from 1 to 65535")
    if not all(options.log):
        raise UsageError("--log: expected the name of a file, or a pattern of such names; got nothing")
    if options.ready == "":
        raise UsageError("--ready: expected a regular expression; got nothing")
    try:
        re.compile(options.ready or "")
    except re.error as error:
        raise UsageError(f"--ready {options.ready}: expected a regular expression: {error}") from error
    chosen = dict(factors.read(text) for text in options.factor)
    if len(chosen) < len(options.factor):
        raise UsageError(f"--factor {' --factor '.join(options.factor)}: a factor is given twice; expected each once")
    if chosen and (unknown := factors.unknown(command, chosen)):
        print(f"kvproof: {' '.join(unknown)} stays in the command as it is: the factors are {' '.join(chosen)}",
              file=sys.stderr)
    check_writable(options.json)
    if options.outputs is not None:
        make_directory(options.outputs)
    ready = Ready(options.ready or "", options.port or 0)
    runs = []
    for levels in factors.combinations(chosen):
        for number in range(options.repeat):
            runs.append((levels, number, *_one(options, factors.placed(command, levels), levels, ready)))
    unstarted = [why.line for *_, why in runs if why is not None and why.kind == "no start"]
    if len(unstarted) == len(runs):
        raise UsageError(unstarted[0])
    return _told(options, chosen, runs)


def _one(options: argparse.Namespace, command: list[str], levels: Mapping[str, str], ready: Ready
         ) -> tuple[Tree, Cause | None]:
    from kvproof.canary.cause import Cause, cause, who
    from kvproof.canary.tree import Process, Tree
    from kvproof.canary.watch import CannotStart, run

    try:
        tree = run(command, within=options.within, ready=ready, logs=options.log, environment=levels,
                   progress=_progress)
    except CannotStart as error:
        # Of one combination among others it is what came of it.
        root = Process(0, 0, shlex.join(command), 0.0, 0.0, 127 << 8)
        return Tree(command, {0: root}), Cause("no start", str(error), who(root), 0.0)
    if sys.stderr.isatty():
        print("\r" + " " * 60 + "\r", end="", file=sys.stderr, flush=True)
    return tree, cause(tree, ready.asked)


def _progress(seconds: float, processes: int) -> None:
    if sys.stderr.isatty():
        print(f"\r{seconds:.0f} s, {processes} processes ", end="", file=sys.stderr, flush=True)


def _told(options: argparse.Namespace, chosen: Mapping[str, tuple[str, ...]], runs: list[Any]) -> int:
    from kvproof.canary import factors, shown
    from kvproof.results import write_text

    failed = [why is not None for _, _, _, why in runs]
    effects = factors.effects(chosen, [(levels, bad) for (levels, *_), bad in zip(runs, failed, strict=True)])
    if options.outputs is not None:
        for index, (levels, _, tree, _) in enumerate(runs):
            at = "".join(f"-{re.sub(r'[^A-Za-z0-9.]+', '_', level)[:40]}" for level in levels.values())[:_LONGEST]
            for name, text in shown.outputs(tree).items():
                write_text(options.outputs / f"{index:03}{at}-{name}", text)
    if options.json is not None:
        document = json.dumps(shown.document(runs, effects), indent=1) + "\n"
        if str(options.json) == "-":
            print(document, end="")
        else:
            write_text(options.json, document)
    if str(options.json) != "-":
        print("\n".join(shown.lines(runs, effects)), flush=True)
    return 1 if any(failed) else 0
