"""What makes two findings one: the rule, how it ended, where, and what was done to the connector."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from kvproof.campaigns.target import Violation
from kvproof.causes import alike
from kvproof.faults.families import FAMILIES
from kvproof.rules.menu import MENU, TYPICAL


def _groups() -> dict[str, str]:
    """Return for each family of faults the group of the menu in which most of its entries are."""
    found: dict[str, list[str]] = {}
    for entry in MENU:
        fault = entry.at(TYPICAL, 1.0)
        if fault is not None:
            found.setdefault(fault.kind, []).append(entry.group)
    return {kind: max(found.get(kind, [kind]), key=found.get(kind, [kind]).count) for kind in FAMILIES}


GROUPS = _groups()


def shape(felt: Sequence[str]) -> frozenset[str]:
    """Return the groups of the faults that were felt; what is no fault of a family is a group of its own."""
    return frozenset(GROUPS.get(kind, kind) for kind in felt)


def cause(violation: Violation, felt: Sequence[str]) -> str:
    """Return the words that all findings of one cause share: `where`, and the shape of what was felt."""
    return f"{where(violation)} [{'+'.join(sorted(shape(felt))) or 'no fault'}]"


def where(violation: Violation) -> str:
    """Return rule, verdict, and where it is stuck, or else what is said without numbers, chunks and the read."""
    said = violation.explain
    if violation.read:
        said = re.sub(rf"(?<!\w){re.escape(violation.read)}(?!\w)", "a read", said)
    said = f"in {violation.place}" if violation.place else alike(said)
    return f"{violation.rule}: {violation.verdict}: {said}"


class Causes:
    """The causes that are known already, by where and by the shape of what has to be felt, and what came by chance."""

    def __init__(self) -> None:
        """Begin with none."""
        self._shapes: dict[str, list[frozenset[str]]] = {}
        self._chances: Counter[str] = Counter()
        self._busy: set[str] = set()

    def add(self, place: str, felt: frozenset[str]) -> None:
        """Take note of one that comes again wherever no less than this is felt."""
        self._shapes.setdefault(place, []).append(felt)

    def add_chance(self, place: str) -> None:
        """Take note of one that did not come again."""
        self._chances.setdefault(place, 1)

    def explains(self, place: str, felt: frozenset[str]) -> bool:
        """Whether a known cause needs no more than this, or chance may explain it; to be asked once a sighting.

        Chance is looked into again at the second sighting, the fourth, the eighth, and so on: what comes seldom and
        what always comes under a fault may have the same words.
        """
        if any(known <= felt for known in self._shapes.get(place, ())):
            return True
        if place not in self._chances:
            return False
        self._chances[place] += 1
        return self._chances[place].bit_count() > 1

    def take(self, place: str) -> bool:
        """Whether nobody is looking into this place yet; from now on somebody is."""
        if place in self._busy:
            return False
        self._busy.add(place)
        return True

    def leave(self, place: str) -> None:
        """Somebody has looked into it."""
        self._busy.discard(place)
