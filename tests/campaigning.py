"""Campaigns in tests: `kvproof fuzz` as its users run it, and what it leaves behind."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kvproof.campaigns.findings import Finding, gathered
from kvproof.campaigns.journal import NAME, parsed


def begun(directory: Path, *words: str) -> subprocess.Popen[str]:
    """Start a campaign in a process of its own."""
    return subprocess.Popen([sys.executable, "-m", "kvproof", "fuzz", "--dir", str(directory), *words],
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(directory: Path, *words: str, within: float = 120) -> subprocess.CompletedProcess[str]:
    """Run a campaign to its end."""
    return subprocess.run([sys.executable, "-m", "kvproof", "fuzz", "--dir", str(directory), *words],
                          capture_output=True, text=True, timeout=within, check=False)


def records(directory: Path) -> list[dict[str, Any]]:
    """Return the journal's whole records; a last line that is still written, or cut off, is left out."""
    path = directory / NAME
    data = path.read_bytes() if path.exists() else b""
    found, complaints = parsed(data[:data.rfind(b"\n") + 1], path)
    assert complaints == []
    return found


def findings(directory: Path) -> list[Finding]:
    """Return the findings that are certain."""
    return gathered(records(directory)).certain()


def wait_for(what: Callable[[], bool], within: float = 150.0) -> None:
    """Wait until something is so; fail where it does not come to that."""
    until = time.monotonic() + within
    while not what():
        assert time.monotonic() < until, "it did not come"
        time.sleep(0.05)


def shrunk(directory: Path, count: int = 1) -> Callable[[], bool]:
    """Return whether so many findings have been looked into."""
    return lambda: sum(record["record"] == "shrunk" for record in records(directory)) >= count


def load(path: Path) -> Any:
    """Return what a file of JSON holds."""
    return json.loads(path.read_text())


def left(directory: Path) -> Sequence[str]:
    """Return the processes that have the campaign's directory in their command line."""
    found = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = process.read_bytes().split(b"\0")
        except OSError:
            continue
        if str(directory).encode() in words:
            found.append(process.parent.name)
    return found
