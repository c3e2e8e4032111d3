"""What is known to be broken, written down: one TOML file a connector, checked against every run."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import date
from pathlib import Path
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from kvproof import connectors
from kvproof.errors import UsageError
from kvproof.results import Complaint, ReplayRow, is_finding

SHIPPED = Path(__file__).parent
"""The directory of the files that come with kvproof."""


@dataclass(frozen=True, slots=True)
class KnownReplay:
    """A historic bug that a connector is known to have.

    version: the versions it is true of, a specifier such as "<=0.5.6"; "" is every version, also an unknown one.
    reason: what happens, for a person. issue: where it is reported, or why it is not. since: when it was first seen.
    expiry: after that day the entry is a finding itself. intermittent: the measured rate when the bug does not always
    show; it may then pass as well.
    """

    connector: str
    bug: str
    version: str
    reason: str
    issue: str
    since: date
    expiry: date | None = None
    intermittent: float | None = None

    def names(self, connector: str, bug: str) -> bool:
        """Whether the entry speaks of this bug on this connector, in whatever version."""
        return (self.connector, self.bug) == (connector.partition("==")[0], bug)

    def covers(self, row: ReplayRow) -> bool:
        """Whether the entry speaks of this row."""
        if not self.names(row.connector, row.bug):
            return False
        return SpecifierSet(self.version, prereleases=True).contains(row.version)


def load(path: Path = SHIPPED, bugs: Iterable[str] = ()) -> list[KnownReplay]:
    """Read a known file, or every one in a directory.

    Raises UsageError, in one line, for a file that cannot be read and for an entry with an unknown key or bug.
    """
    names = set(bugs)
    return [_entry(file, document["connector"], number, entry, names)
            for file, document in documents(path) for number, entry in enumerate(document.get("replay", []), 1)]


def documents(path: Path = SHIPPED) -> list[tuple[Path, dict[str, Any]]]:
    """Read a known file, or every one in a directory, as TOML with a connector that there is; raises UsageError."""
    if path.is_dir():
        return [read for file in sorted(path.glob("*.toml")) for read in documents(file)]
    try:
        document = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        expected = "expected a TOML file with [[replay]] and [[cell]] entries"
        raise UsageError(f"known file {path}: {error}; {expected}") from error
    unknown = set(document) - {"connector", "replay", "cell"}
    if unknown:
        key = min(unknown)
        raise UsageError(f"known file {path}: unknown key {key!r}; expected connector, [[replay]], [[cell]]")
    for key in ("replay", "cell"):
        tables = document.get(key, [])
        if not isinstance(tables, list) or not all(isinstance(each, dict) for each in tables):
            raise UsageError(f"known file {path}: expected entries that begin with a line [[{key}]]")
    entries = [*document.get("replay", []), *document.get("cell", [])]
    if entries and not isinstance(document.get("connector"), str):
        raise UsageError(f"known file {path}: expected a line such as connector = \"lmcache-resp\"")
    if entries and ":" not in document["connector"] and document["connector"] not in connectors.names():
        raise UsageError(f"known file {path}: no connector is called {document['connector']!r}")
    return [(path, document)]


def _entry(path: Path, connector: str, number: int, entry: Mapping[str, Any], bugs: set[str]) -> KnownReplay:
    here = f"known file {path}, [[replay]] {number}"
    check(here, entry, [field.name for field in fields(KnownReplay) if field.name != "connector"], ("bug",))
    if bugs and entry["bug"] not in bugs:
        raise UsageError(f"{here}: unknown bug {entry['bug']!r}; expected one of {', '.join(sorted(bugs))}")
    return KnownReplay(connector=connector, **entry)


def check(here: str, entry: Mapping[str, Any], allowed: Sequence[str], needed: Sequence[str]) -> None:
    """Raise UsageError, which begins with `here`, for an entry that lacks a key, or has one that does not fit."""
    for key in entry:
        if key not in allowed:
            raise UsageError(f"{here}: unknown key {key!r}; expected {', '.join(allowed)}")
    for key in (*needed, "version", "reason", "issue", "since"):
        if key not in entry:
            raise UsageError(f"{here}: {key!r} is missing")
    for key in ("since", "expiry"):
        if key in entry and type(entry[key]) is not date:
            raise UsageError(f"{here}: {key} must be a date such as 2026-11-29, got {entry[key]!r}")
    for key in ("version", "reason", "issue"):
        if not isinstance(entry[key], str):
            raise UsageError(f"{here}: {key} must be a string, got {entry[key]!r}")
    if not entry["reason"].strip():
        raise UsageError(f"{here}: reason must say why this is expected")
    rate = entry.get("intermittent")
    if "intermittent" in entry and not (isinstance(rate, int | float) and 0 < rate <= 1):
        raise UsageError(f"{here}: intermittent must be a share of tries, above 0 and at most 1, got {rate!r}")
    try:
        SpecifierSet(entry["version"])
    except InvalidSpecifier as error:
        raise UsageError(f"{here}: version must be a specifier such as '<=0.5.6', got {entry['version']!r}") from error


def judge(rows: Iterable[ReplayRow], entries: Iterable[KnownReplay], today: date) -> list[Complaint]:
    """Mark the rows that are as the entries say, and return what is wrong with the entries.

    An entry that speaks of none of the rows is outside the selection and says nothing.
    """
    complaints: list[Complaint] = []
    for entry in entries:
        covered = [row for row in rows if entry.covers(row)]
        if not covered:
            continue
        failing = [row for row in covered if is_finding(row.verdict)]
        name = f"replay {entry.bug}"
        if entry.expiry is not None and today > entry.expiry:
            complaints.append(Complaint(entry.connector, name, f"expired on {entry.expiry}: fix it or renew the entry"))
            continue
        passing = [row for row in covered if row.verdict in ("absent", "pass")]
        if passing and entry.intermittent is None:
            complaints.append(Complaint(entry.connector, name, "stale: it no longer happens; remove the entry"))
        for row in failing:
            row.known = True
    return complaints
