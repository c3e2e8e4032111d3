"""`kvproof proxy`: the fault proxy by itself, for a client in any language."""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from kvproof.errors import KvproofError, UsageError

if TYPE_CHECKING:
    from kvproof.faults.endpoint import Proxy
    from kvproof.faults.schedule import Schedule

DESCRIPTION = """Stand between a client and a server that speak RESP, and do what a schedule says (docs/faults.md).

It serves until it is interrupted, and tells then of each fault whether it struck, and whether the client felt that.
Lines on standard input steer it, and each is answered with one line:

  wait EVENT            wait, 30 s at most, until that was seen: held, released, struck, open, close, raw,
                        request:COMMAND KEY-GLOB, reply:COMMAND KEY-GLOB
  release NAME          end every hold, or refusal, that waits for NAME
  ended returned        the client's call that was disturbed has returned (or: ended raised)
  marks                 say of each fault what has become of it so far
  stop                  end
"""
EPILOG = """exit codes:
  0  every fault was felt
  2  wrong usage: no such server address, a malformed schedule
  3  a fault did not strike, or was not felt
"""
_PATIENCE = 30.0
_LOOK = 0.2
"""Seconds between two looks at the log."""


def add(commands: Any) -> None:
    """Add the command."""
    command = commands.add_parser(
        "proxy", help="the fault proxy by itself, for a client in any language", description=DESCRIPTION, epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    command.add_argument("--upstream", required=True, metavar="HOST:PORT|unix:PATH", help="the server")
    command.add_argument("--listen", default="127.0.0.1:0", metavar="HOST:PORT",
                         help="a loopback address; port 0, the default, is a free one")
    command.add_argument("--schedule", metavar="FILE", type=Path, help="the faults, as JSON; none when left out")
    command.add_argument("--log", metavar="FILE", type=Path, help="append the wire log, an event a line of JSON")
    command.add_argument("--json", metavar="FILE", type=Path, help="at the end write what became of each fault")
    command.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    """Serve until interrupted; 0 when every fault was felt, else 3."""
    from kvproof import faults
    from kvproof.faults.endpoint import read_address
    from kvproof.results import check_writable, write_text

    schedule = read(options.schedule)
    listen = read_address(options.listen, "--listen")
    if options.json:
        check_writable(options.json)
    with ExitStack() as stack:
        log = Copied(stack.enter_context(_appending(options.log)) if options.log else None)
        endpoint = stack.enter_context(faults.proxy(options.upstream, schedule, listen=listen))
        print(f"listening on {endpoint.host}:{endpoint.port}, before {options.upstream}, "
              f"{len(schedule)} {'fault' if len(schedule) == 1 else 'faults'} armed", flush=True)
        _look_for(options.upstream)
        try:
            _serve(endpoint, log)
        except KeyboardInterrupt:
            pass
        for end in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # It ends already; what became of the faults is still to be said.
            signal.signal(end, signal.SIG_IGN)
        marks = endpoint.marks()
        log.add(endpoint)
        unread = [event for event in endpoint.log() if event.did == "raw"]
    for event in unread[:5]:
        print(f"connection {event.connection} passed unread from a {event.direction} on: {event.detail}; inline "
              "commands, as typed into nc, and TLS are not understood")
    for number, (fault, mark) in enumerate(zip(schedule, marks, strict=True), start=1):
        print(f"{number}. {fault.kind} at {fault.command} {fault.key}: {mark}")
    if options.json:
        write_text(options.json, json.dumps([
            {"fault": fault.kind, "struck": mark.struck, "felt": mark.felt}
            for fault, mark in zip(schedule, marks, strict=True)], indent=1) + "\n")
    return 0 if all(mark.felt for mark in marks) else 3


def _look_for(upstream: str) -> None:
    """Say when nobody answers there: the server may come later, or the address be wrong."""
    from kvproof.faults.endpoint import read_upstream

    where = read_upstream(upstream)
    try:
        with socket.socket(socket.AF_UNIX if isinstance(where, str) else socket.AF_INET) as probe:
            probe.settimeout(1)
            probe.connect(where)
    except OSError as error:
        print(f"kvproof: nobody answers at {upstream} so far ({error.strerror or error})", file=sys.stderr)


def read(path: Path | None) -> Schedule:
    """Return the schedule in a file; raises UsageError that names the file, the entry and the field."""
    from kvproof.faults.schedule import from_json

    if path is None:
        return ()
    try:
        return from_json(path.read_bytes())
    except OSError as error:
        raise UsageError(f"--schedule {path}: {error.strerror}") from None
    except UsageError as error:
        raise UsageError(f"--schedule {path}: {error}") from None


def _appending(path: Path) -> IO[str]:
    try:
        return path.open("a", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--log {path}: {error.strerror}") from None


class Copied:
    """A file, or none, to which the wire log is copied as it grows."""

    def __init__(self, file: IO[str] | None) -> None:
        """Copy nothing yet."""
        self._file, self._next = file, 0

    def add(self, endpoint: Proxy) -> None:
        """Copy what has come since the last time."""
        if self._file is None:
            return
        events = endpoint.log(self._next)
        if events and events[0].sequence > self._next:
            print(f"kvproof: {events[0].sequence - self._next} events of the wire log came too fast to be kept",
                  file=sys.stderr)
        try:
            for event in events:
                self._next = event.sequence + 1
                self._file.write(json.dumps(event.to_json()) + "\n")
            self._file.flush()
        except OSError as error:
            print(f"kvproof: --log {self._file.name}: {error.strerror}; the wire log ends here", file=sys.stderr)
            self._file = None


def _serve(endpoint: Proxy, log: Copied) -> None:
    """Answer what is said on standard input, until "stop" or an interruption."""
    lines = _lines()
    while True:
        log.add(endpoint)
        for line in next(lines):
            if line == "stop":
                return
            print(_answer(endpoint, line), flush=True)


def _answer(endpoint: Proxy, line: str) -> str:
    match line.split():
        case ["release", name]:
            try:
                endpoint.release(name)
            except KvproofError as error:
                return f"error: {error}"
            return f"released {name}"
        case ["ended", "returned" | "raised" as how]:
            endpoint.ended(how)
            return f"ended {how}"
        case ["wait", *event] if event:
            try:
                return f"seen: {endpoint.wait(' '.join(event), deadline=_PATIENCE)}"
            except KvproofError as error:
                return f"error: {error}"
        case ["marks"]:
            said = [f"{number}: {mark}" for number, mark in enumerate(endpoint.marks(), start=1)]
            return "; ".join(said) or "no faults"
        case _:
            return f"error: {line!r}: expected wait EVENT, release NAME, ended returned, ended raised, marks or stop"


def _lines() -> Iterator[list[str]]:
    """Yield, at least every `_LOOK` seconds, the lines that have come on standard input."""
    rest, there = b"", sys.stdin is not None
    while True:
        if not select.select([sys.stdin.fileno()] if there else [], [], [], _LOOK)[0]:
            yield []
            continue
        data = os.read(sys.stdin.fileno(), 4096)
        there = bool(data)
        *whole, rest = (rest + (data or b"\n")).split(b"\n")
        yield [line for each in whole if (line := each.decode(errors="replace").strip())]
