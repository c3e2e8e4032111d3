"""Whether what a campaign has found is what a connector's known file lists already."""

from __future__ import annotations

import json
from collections.abc import Sequence
from fnmatch import fnmatchcase

from kvproof.campaigns.findings import Finding
from kvproof.faults import schedule
from kvproof.faults.fault import Fault
from kvproof.known.cells import KnownCell
from kvproof.ranks import disturbances
from kvproof.rules.menu import MENU, TYPICAL

_ON_THE_WIRE = frozenset(entry.id.partition(":")[0] for entry in MENU) | {"*"}
_TELLING = ("frame", "code", "gives", "null", "of", "honest")
"""The fields in which entries of the menu of one family differ by more than where they strike."""


def listed(finding: Finding, version: str, entries: Sequence[KnownCell]) -> bool:
    """Whether each fault that the smallest case needs is one that the connector is known not to stand.

    Which it needs is certain once it is shrunk and comes again every time; until then one that is listed explains it.
    What needs no fault is known when the rule is known to be broken where nothing is disturbed on the way to the
    server; what needs one that is listed nowhere is nothing that is known.
    """
    explained = all if finding.shrunk and finding.rate == 1 else any
    felt = set(finding.shown["felt"])
    case = finding.shown["case"]
    if "ranks" in case:
        return bool(felt) and explained(_listed_of_ranks(finding, version, kind, entries) for kind in felt)
    faults = [fault for each in case.get("schedules", ()) for fault in schedule.from_json(json.dumps(each))
              if fault.kind in felt]
    if not faults:
        return not felt and any(_undisturbed(finding, version, entry) for entry in entries)
    return explained(_listed(finding.target, version, fault, entries) for fault in faults)


def _undisturbed(finding: Finding, version: str, entry: KnownCell) -> bool:
    """Whether an entry lists a finding's rule in a cell in which nothing is done to what passes."""
    return entry.speaks_of(finding.target, version) and fnmatchcase(finding.shown["rule"], entry.rule) and any(
        pattern.partition("@")[0].partition(":")[0] not in _ON_THE_WIRE for pattern in entry.fault)


def _listed_of_ranks(finding: Finding, version: str, kind: str, entries: Sequence[KnownCell]) -> bool:
    """Whether a rule is known to be broken by what does this to a rank: a fault's kind, or a seam and what happens."""
    names = {each.id for each in disturbances.MENU if kind in (
        f"{each.seam} {each.does}", _kind(each), "eviction" if each.evicts else "")}
    return any(entry.speaks_of(finding.target, version) and fnmatchcase(finding.shown["rule"], entry.rule)
               and pattern.partition("@")[0] in names for entry in entries for pattern in entry.fault)


def _kind(disturbance: disturbances.Disturbance) -> str:
    fault = disturbance.wire(disturbances.Spot("GET", 1, "bulk")) if disturbance.wire is not None else None
    return fault.kind if fault is not None else ""


def _listed(target: str, version: str, fault: Fault, entries: Sequence[KnownCell]) -> bool:
    names = ids(fault)
    return any(entry.speaks_of(target, version) and pattern.partition("@")[0] in names
               for entry in entries for pattern in entry.fault)


def ids(fault: Fault) -> set[str]:
    """Return the entries of the menu that do what this fault does, wherever."""
    found = set()
    for entry in MENU:
        usual = entry.at(TYPICAL, 1.0)
        if usual is not None and usual.kind == fault.kind and all(
                getattr(usual, name) == getattr(fault, name) for name in _TELLING if hasattr(fault, name)):
            found.add(entry.id)
    return found
