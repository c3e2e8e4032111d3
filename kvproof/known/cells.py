"""Cells that are known to fail: the `[[cell]]` entries of a known file, and the writing of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from datetime import date
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion

from kvproof.causes import words
from kvproof.errors import UsageError
from kvproof.known import SHIPPED, KnownReplay, check, documents
from kvproof.known import load as load_replays
from kvproof.results import INCONCLUSIVE, CellRow, Complaint, is_finding, write_text

_LISTS = ("fault", "read")
_GLOB = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True)
class KnownCell:
    """Cells of one rule that fail for one reason.

    fault, read: ids, or globs over them; every combination is listed. The other fields are those of `KnownReplay`.
    """

    connector: str
    rule: str
    fault: tuple[str, ...]
    read: tuple[str, ...]
    version: str
    reason: str
    issue: str
    since: date
    expiry: date | None = None
    intermittent: float | None = None

    def lists(self, connector: str, version: str, rule: str, fault: str, read: str) -> bool:
        """Whether the entry speaks of this cell."""
        same = self.rule == rule and self.speaks_of(connector, version)
        return same and _among(fault, self.fault) and _among(read, self.read)

    def speaks_of(self, connector: str, version: str) -> bool:
        """Whether the entry is about this connector, in this version."""
        return self.connector == connector.partition("==")[0] and _is_true_of(self.version, version)

    def covers(self, row: CellRow) -> bool:
        """Whether the entry speaks of this row."""
        return self.lists(row.connector, row.version, row.rule, row.fault, row.read)

    @property
    def name(self) -> str:
        """What the entry is called in a complaint."""
        return f"cell {self.rule}[{'|'.join(self.fault)[:80]}-{'|'.join(self.read)}]"


def _among(name: str, patterns: Iterable[str]) -> bool:
    return any(name == pattern or fnmatchcase(name, pattern) for pattern in patterns)


def _is_true_of(specifier: str, version: str) -> bool:
    try:
        return not specifier or SpecifierSet(specifier, prereleases=True).contains(version)
    except InvalidVersion:
        return False


def load(path: Path = SHIPPED, rules: Iterable[str] = ()) -> list[KnownCell]:
    """Read the entries of a known file, or of every one in a directory.

    Raises UsageError, in one line, for a file that cannot be read and for an entry with an unknown key or rule.
    """
    allowed = [field.name for field in fields(KnownCell) if field.name != "connector"]
    names, found = set(rules), []
    for file, document in documents(path):
        for number, entry in enumerate(document.get("cell", []), 1):
            here = f"known file {file}, [[cell]] {number}"
            check(here, entry, allowed, ("rule", *_LISTS))
            if not isinstance(entry["rule"], str) or (names and entry["rule"] not in names):
                raise UsageError(f"{here}: unknown rule {entry['rule']!r}; expected one of {', '.join(sorted(names))}")
            found.append(KnownCell(connector=document["connector"], **{
                **entry, **{key: _listed(here, key, entry[key]) for key in _LISTS}}))
    return found


def _listed(here: str, key: str, given: object) -> tuple[str, ...]:
    several = [given] if isinstance(given, str) else given
    if not isinstance(several, list) or not several or not all(isinstance(one, str) for one in several):
        raise UsageError(f"{here}: {key} must be a string or a list of them, got {given!r}")
    return tuple(several)


def require_cells(
    entries: Iterable[KnownCell], connector: str, version: str, cells: Sequence[tuple[str, str, str]]
) -> None:
    """Raise UsageError for an entry that names a fault or a read of which there is no cell (rule, fault, read)."""
    for entry in entries:
        if not entry.speaks_of(connector, version):
            continue
        for what, place, patterns in (("fault", 1, entry.fault), ("read", 2, entry.read)):
            there = {cell[place] for cell in cells if cell[0] == entry.rule}
            for pattern in patterns:
                if not any(_among(name, (pattern,)) for name in there):
                    raise UsageError(f"known file of {entry.connector}, {entry.name}: {entry.rule} has no {what} "
                                     f"{pattern!r}; `kvproof check -c {connector} --list` shows those it has")


def judge(rows: Iterable[CellRow], entries: Iterable[KnownCell], today: date) -> list[Complaint]:
    """Mark the rows that are as the entries say, and return what is wrong with the entries.

    A listed cell that passes every time makes its entry stale, unless that is intermittent. An entry that speaks of
    none of the rows is outside the selection and says nothing.
    """
    complaints: list[Complaint] = []
    for entry in entries:
        covered = [row for row in rows if entry.covers(row)]
        if not covered:
            continue
        if entry.expiry is not None and today > entry.expiry:
            complaints.append(Complaint(
                entry.connector, entry.name, f"expired on {entry.expiry}: fix it or renew the entry"))
            continue
        passing = [row for row in covered if row.verdict == "pass"]
        if passing and entry.intermittent is None:
            names = ", ".join(row.id for row in passing[:3]) + (", ..." if len(passing) > 3 else "")
            complaints.append(Complaint(
                entry.connector, entry.name,
                f"stale: {len(passing)} of {len(covered)} cells pass now, so take them out of the entry: {names}"))
        for row in covered:
            row.known = row.known or is_finding(row.verdict)
    return complaints


def update(path: Path, connector: str, rows: Sequence[CellRow], today: date) -> int:
    """Write the known file of one connector so that it lists exactly the cells that fail in `rows`; return how many.

    Replays, and the reason, issue, date and expiry of entries that list a cell already, are kept; what is new gets
    what happened as its reason, one for the cells that end alike, for somebody to write a better one. What entries
    list of cells that were not tried, or of other versions, stays, and so does a glob that lists one that fails.
    """
    old = [entry for entry in (load(path) if path.exists() else []) if entry.connector == connector]
    tried = {(row.rule, row.fault, row.read) for row in rows if row.verdict not in INCONCLUSIVE}
    failing = [row for row in rows if is_finding(row.verdict)]
    globs = [entry for entry in old if _GLOB.search("".join(entry.fault + entry.read)) and any(
        entry.covers(row) for row in failing)]
    groups: dict[tuple[Any, ...], list[CellRow]] = {}
    reasons: dict[tuple[str, str, str], str] = {}
    for row in failing:
        if any(entry.covers(row) for entry in globs):
            continue
        entry = next((entry for entry in old if entry.covers(row)), None)
        explain = reasons.setdefault((row.rule, row.read, words(row)), row.explain)
        told = (entry.reason, entry.issue, entry.since, entry.expiry, entry.version) if entry else (
            explain, "not reported yet", today, None, f"=={row.version}")
        rate = row.rate if row.rate is not None else entry.intermittent if entry else None
        groups.setdefault((row.rule, row.read, *told, rate), []).append(row)
    made = [
        KnownCell(connector, rule, tuple(sorted({row.fault for row in those})), (read,), version, reason, issue, since,
                  expiry, rate)
        for (rule, read, reason, issue, since, expiry, version, rate), those in groups.items()]
    kept = [*globs, *(each for entry in old if entry not in globs
                      for each in _untouched(entry, tried, {row.version for row in rows}))]
    entries = sorted([*made, *kept], key=lambda entry: (entry.rule, entry.read, entry.reason, entry.fault))
    replays = [entry for entry in (load_replays(path) if path.exists() else []) if entry.connector == connector]
    text = f"connector = {json.dumps(connector)}\n" + "".join(
        _table("replay", entry) for entry in replays) + "".join(_table("cell", entry) for entry in entries)
    write_text(path, text)
    return len(failing)


def _untouched(
    entry: KnownCell, tried: Iterable[tuple[str, str, str]], versions: Iterable[str]
) -> list[KnownCell]:
    """Return what an entry lists beyond the cells that were tried; a glob of which one was tried is left out."""
    if not any(_is_true_of(entry.version, version) for version in versions):
        return [entry]
    ended = {(fault, read) for rule, fault, read in tried if rule == entry.rule}
    if not any(_among(fault, entry.fault) and _among(read, entry.read) for fault, read in ended):
        return [entry]
    left: dict[tuple[str, ...], list[str]] = {}
    for read in entry.read:
        faults = tuple(fault for fault in entry.fault if (fault, read) not in ended and not _GLOB.search(fault + read))
        if faults:
            left.setdefault(faults, []).append(read)
    return [replace(entry, fault=faults, read=tuple(reads)) for faults, reads in left.items()]


def _table(kind: str, entry: KnownReplay | KnownCell) -> str:
    lines = [f"\n[[{kind}]]"]
    for field in fields(entry):
        value = getattr(entry, field.name)
        if field.name == "connector" or value is None:
            continue
        if isinstance(value, tuple) and len(value) > 1:
            words = "".join(f"    {json.dumps(word, ensure_ascii=False)},\n" for word in value)
            lines.append(f"{field.name} = [\n{words}]")
            continue
        plain = value[0] if isinstance(value, tuple) else value
        said = str(plain) if isinstance(plain, date | float) else json.dumps(plain, ensure_ascii=False)
        lines.append(f"{field.name} = {said}")
    return "\n".join(lines) + "\n"
