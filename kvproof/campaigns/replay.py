"""Playing a finding again, from its file or from a test."""

from __future__ import annotations

import json
import pprint
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvproof import check
from kvproof.campaigns import records, targets
from kvproof.campaigns.cause import where
from kvproof.campaigns.findings import SCHEMA
from kvproof.campaigns.target import Case, Played, Target
from kvproof.errors import UsageError
from kvproof.runner.forks import ImportCrashed, ImportHung

TIMES = 3
"""How often a finding is played again."""
_MODULE = '''"""{title}; `kvproof replay --pytest` wrote this.

It needs kvproof, and what is tried. The test fails for as long as the finding is there.
"""

import pytest

from kvproof.campaigns import replay

TARGET = {target!r}
CASE = {case}


def test_{name}() -> None:
    for played in replay.played(TARGET, CASE):
        if played.violation is not None:
            pytest.fail(f"{{played.violation.rule}}: {{played.violation}}", pytrace=False)
        assert not played.error, played.error
'''


def load(path: Path) -> dict[str, Any]:
    """Return the finding in a file; raises UsageError for what is none."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        said = error.strerror if isinstance(error, OSError) else "it is no JSON"
        raise UsageError(f"{path}: {said}; expected a finding of `kvproof fuzz`") from error
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        raise UsageError(f"{path}: expected a finding of `kvproof fuzz` (schema {SCHEMA})")
    why = records.wrong(found, records.FINDING) or records.wrong(found["least"], records.LEAST)
    if why:
        raise UsageError(f"{path}: no finding as `kvproof fuzz` writes it: {why}")
    targets.read(found["target"], found["least"]["case"])
    return dict(found)


@dataclass(frozen=True, slots=True)
class _Asked:
    """One target, opened to play one case at a time; see `targets.Asking`."""

    targets: tuple[str, ...]
    server: str | None
    device: str
    ranks: int
    at_once: int = check.AT_ONCE


def played(target: str, case: Mapping[str, Any], times: int = TIMES, *, server: str | None = None,
           device: str = "cpu") -> list[Played]:
    """Play a case of a target so many times; return what came of each."""
    asked = _Asked((target,), server, device, case.get("ranks", 1))
    with targets.Opener(asked, threading.Event(), plays=True) as opener:
        opened = opener(target)
        read = opened.read(case)
        return [_played(opened, read, f"replay {target} {number}") for number in range(times)]


def _played(target: Target, case: Case, name: str) -> Played:
    try:
        return target.play(case, name)
    except (ImportHung, ImportCrashed) as error:
        return Played(error=f"{error}; {error.stacks}")


def again(path: Path, *, server: str | None = None, device: str = "cpu") -> tuple[int, str]:
    """Play the finding in a file again; return the exit code and what is said of it."""
    finding = load(path)
    tries = played(finding["target"], finding["least"]["case"], server=server, device=device)
    same = [each for each in tries if each.violation is not None and where(each.violation) == finding["where"]]
    out = [f"{finding['id']}: {len(same)} of {len(tries)} times"]
    shown = (same or tries)[0]
    if shown.violation is not None:
        out.append(f"  {shown.violation.rule}: {shown.violation.verdict}: {shown.violation}")
    out += [f"    {step}" for step in shown.steps]
    out += [f"  {each.error}" for each in tries if each.error]
    if not any(each.error or each.violation for each in tries):
        out.append("it is gone: nothing is broken any more in this case")
    told = "\n".join(out) + "\n"
    if same:
        return 1, told
    return (3 if any(each.error for each in tries) else 1 if any(each.violation for each in tries) else 0), told


def module(path: Path) -> str:
    """Return the finding in a file as a pytest module of its own."""
    finding = load(path)
    case = pprint.pformat(finding["least"]["case"], width=110, sort_dicts=False)
    title = str(finding["least"]["explain"]).replace("\\", "").replace('"', "'")
    name = "".join(letter if letter.isalnum() else "_" for letter in finding["id"])
    return _MODULE.format(title=title, target=finding["target"], case=case, name=name)


