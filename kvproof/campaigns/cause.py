"""What makes two findings one: the rule, how it ended, where, and what was done to the connector."""

from __future__ import annotations

from collections.abc import Sequence

from kvproof.campaigns.judge import Violation
from kvproof.causes import alike
from kvproof.faults.families import FAMILIES
from kvproof.rules.menu import MENU, Spot

_SPOT = Spot("GET", "GET", "*", 1, 4096, "bulk", True, 4096)


def _groups() -> dict[str, str]:
    """Return for each family of faults the group of the menu in which most of its entries are."""
    found: dict[str, list[str]] = {}
    for entry in MENU:
        fault = entry.at(_SPOT, 1.0)
        if fault is not None:
            found.setdefault(fault.kind, []).append(entry.group)
    return {kind: max(found.get(kind, [kind]), key=found.get(kind, [kind]).count) for kind in FAMILIES}


GROUPS = _groups()


def cause(violation: Violation, felt: Sequence[str]) -> str:
    """Return the words that all findings of one cause share.

    That is the rule, the verdict, the place where it is stuck (or else what is said, without numbers and chunks), and
    the groups of the faults that were felt.
    """
    shape = "+".join(sorted({GROUPS[kind] for kind in felt})) or "no fault"
    return f"{where(violation)} [{shape}]"


def where(violation: Violation) -> str:
    """Return the cause without the faults: what a finding has that comes by chance, whatever was done meanwhile."""
    said = violation.place or alike(violation.explain)
    return f"{violation.rule}: {violation.verdict}: {said}"
