"""Whether what a campaign has found is what a connector's known file lists already."""

from __future__ import annotations

from collections.abc import Sequence

from kvproof.campaigns import case as cases
from kvproof.campaigns.findings import Finding
from kvproof.faults.fault import Fault
from kvproof.known.cells import KnownCell
from kvproof.rules.menu import MENU, TYPICAL

_TELLING = ("frame", "code", "gives", "null", "of", "honest")
"""The fields in which entries of the menu of one family differ by more than where they strike."""


def listed(finding: Finding, version: str, entries: Sequence[KnownCell]) -> bool:
    """Whether each fault that the smallest case needs is one that the connector is known not to stand.

    What needs no fault, or one that is listed nowhere, is nothing that is known.
    """
    felt = set(finding.shown["felt"])
    faults = [fault for each in cases.read(finding.shown["case"]).schedules for fault in each if fault.kind in felt]
    return bool(faults) and all(_listed(finding.connector, version, fault, entries) for fault in faults)


def _listed(connector: str, version: str, fault: Fault, entries: Sequence[KnownCell]) -> bool:
    names = ids(fault)
    return any(entry.speaks_of(connector, version) and pattern.partition("@")[0] in names
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
