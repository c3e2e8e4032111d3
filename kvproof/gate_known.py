"""Which cells of the contract are known to fail: the [[cell]] entries of known files, read for the pytest gate."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import date
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion

from kvproof.errors import UsageError
from kvproof.results import CellRow


@dataclass(frozen=True, slots=True)
class KnownCell:
    """Cells that are known to fail on a connector; rule, fault and read are globs.

    version: the versions it is true of, a specifier; "" is every version, also an unknown one. reason, issue, since:
    for a person. expiry: after that day the entry covers nothing. intermittent: the measured rate when it does not
    always fail; it may then pass as well.
    """

    connector: str
    rule: str
    fault: str
    read: str
    version: str
    reason: str
    issue: str
    since: date
    expiry: date | None = None
    intermittent: float | None = None

    def names(self, connector: str, version: str, rule: str, fault: str, read: str) -> bool:
        """Whether the entry speaks of this cell."""
        if self.connector != connector.partition("==")[0] or (self.expiry and date.today() > self.expiry):
            return False
        said = ((rule, self.rule), (fault, self.fault), (read, self.read))
        return all(fnmatchcase(name, pattern) for name, pattern in said) and _among(version, self.version)


def _among(version: str, specifier: str) -> bool:
    try:
        return not specifier or SpecifierSet(specifier, prereleases=True).contains(version)
    except InvalidVersion:
        return False


def of_cell(
    entries: Iterable[KnownCell], connector: str, version: str, rule: str, fault: str, read: str
) -> KnownCell | None:
    """Return the first entry that speaks of this cell."""
    return next((entry for entry in entries if entry.names(connector, version, rule, fault, read)), None)


def cell_reason(entries: Iterable[KnownCell], row: CellRow) -> str | None:
    """Return why this cell is known to fail; None when no entry lists it."""
    entry = of_cell(entries, row.connector, row.version, row.rule, row.fault, row.read)
    return f"{entry.reason} ({entry.issue})" if entry is not None else None


def load(path: Path) -> list[KnownCell]:
    """Read the cells of a known file, or of every one in a directory.

    Raises UsageError, in one line, for a file that cannot be read and for an entry that is not as it should be.
    """
    if path.is_dir():
        return [entry for file in sorted(path.glob("*.toml")) for entry in load(file)]
    try:
        document = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"known file {path}: {error}; expected a TOML file with [[cell]] entries") from error
    entries = document.get("cell", [])
    if entries and not isinstance(document.get("connector"), str):
        raise UsageError(f"known file {path}: expected a line such as connector = \"lmcache-resp\"")
    return [_entry(path, document["connector"], number, entry) for number, entry in enumerate(entries, 1)]


def _entry(path: Path, connector: str, number: int, entry: Mapping[str, Any]) -> KnownCell:
    here = f"known file {path}, [[cell]] {number}"
    allowed = [field.name for field in fields(KnownCell) if field.name != "connector"]
    for key in entry:
        if key not in allowed:
            raise UsageError(f"{here}: unknown key {key!r}; expected {', '.join(allowed)}")
    for key in ("rule", "fault", "read", "version", "reason", "issue", "since"):
        expected = date if key == "since" else str
        if type(entry.get(key)) is not expected:
            raise UsageError(f"{here}: {key} must be a {expected.__name__}, got {entry.get(key)!r}")
    if not entry["reason"].strip():
        raise UsageError(f"{here}: the reason is empty; say what happens")
    try:
        SpecifierSet(entry["version"])
    except InvalidSpecifier as error:
        raise UsageError(f"{here}: version must be a specifier such as '<=0.5.6', got {entry['version']!r}") from error
    return KnownCell(connector=connector, **entry)
