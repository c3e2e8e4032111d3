"""What a campaign has found: one finding a cause, with the first and the smallest case, and how often it was seen."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

SCHEMA = "kvproof.finding/2"
_IN_TIME = frozenset({"recovers", "round-trip", "key-per-rank"})
"""Rules that a right client breaks where it does not get its turn in time."""
OFTEN = 3
"""In how many cases what seldom comes again has to be seen, until it is more than the machine's doing."""


@dataclass
class Finding:
    """One cause in one target.

    where, shape: its cause (campaigns.cause). first: as it was seen first. least: the smallest case that shows it, as
    it was then; None while it is looked for. seen: in how many cases, of those that were not played again. rate: of
    how many tries it came again, 1 where always; chance: it did not come again at all in those tries.
    gone: when the campaign went on later, its smallest case did not show it any more.
    """

    target: str
    where: str
    shape: frozenset[str]
    first: Mapping[str, Any]
    least: Mapping[str, Any] | None = None
    seen: int = 1
    rate: float = 0.0
    chance: bool = False
    known: bool = False
    gone: bool = False

    @property
    def shown(self) -> Mapping[str, Any]:
        """The smallest there is."""
        return self.least or self.first

    @property
    def id(self) -> str:
        """Its name, the same in every campaign."""
        words = f"{self.target} {self.where} {'+'.join(sorted(self.shape))}"
        plain = re.sub(r"[^\w.+=-]+", "-", self.target)
        return f"{plain}-{self.shown['rule']}-{blake2b(words.encode(), digest_size=4).hexdigest()}"

    @property
    def certain(self) -> bool:
        """Whether it is one: it mostly came again, or came in many cases; else it may be the machine's doing.

        That something came too late, and never again in the same case, is the machine's doing however often it came.
        """
        late = self.chance and self.shown["verdict"] == "fail" and self.shown["rule"] in _IN_TIME
        return self.least is not None and not self.gone and (self.rate > 0.5 or (self.seen >= OFTEN and not late))

    @property
    def sure(self) -> bool:
        """Whether it came again when it was looked into."""
        return self.least is not None and not self.chance

    @property
    def shrunk(self) -> bool:
        """Whether nothing more can be left out of its smallest case, as far as was tried."""
        return self.least is not None and bool(self.least["done"])

    @property
    def size(self) -> int:
        """How many faults its smallest schedule has."""
        return int(self.shown["size"][0])

    def document(self) -> dict[str, Any]:
        """Return it as JSON data, which `kvproof replay` reads."""
        return {"schema": SCHEMA, "id": self.id, "target": self.target, "where": self.where,
                "shape": sorted(self.shape), "seen": self.seen, "rate": self.rate, "chance": self.chance,
                "known": self.known,
                "first": dict(self.first), "least": dict(self.shown)}


def is_finding(path: Path) -> bool:
    """Whether a file holds a finding."""
    try:
        return bool(json.loads(path.read_bytes()).get("schema") == SCHEMA)
    except (OSError, ValueError, AttributeError, RecursionError):
        return False


@dataclass
class Findings:
    """All findings, put together from what workers report, in whatever order."""

    found: list[Finding] = field(default_factory=list)

    def take(self, record: Mapping[str, Any]) -> Finding | None:
        """Take in a record of a journal; return the finding that it made or changed, if it did."""
        if record["record"] == "found":
            return self._first(record)
        if record["record"] == "shrunk":
            return self._shrunk(record)
        if record["record"] == "seen":
            known = self._of(record["target"], record["where"], frozenset(record["shape"]))
            if known is not None:
                known.seen, known.gone = known.seen + 1, False
            return known
        if record["record"] == "retried":
            known = self._exactly(record["target"], record["where"], frozenset(record["shape"]))
            if known is not None:
                known.gone = not record["came"]
            return known
        return None

    def _exactly(self, target: str, where: str, shape: frozenset[str]) -> Finding | None:
        return next((each for each in self.found if (each.target, each.where, each.shape) == (target, where, shape)),
                    None)

    def taken(self, record: Mapping[str, Any]) -> Finding:
        """Take in a finding that somebody else has looked into."""
        return self._shrunk(record)

    def _of(self, target: str, where: str, shape: frozenset[str]) -> Finding | None:
        """Return the finding that explains this: the one whose shape is part of it, or else any of that place.

        Chance explains what nothing else does.
        """
        those = sorted((each for each in self.found if (each.target, each.where) == (target, where)),
                       key=lambda each: each.chance)
        return next((each for each in those if each.shape <= shape), those[0] if those else None)

    def _first(self, record: Mapping[str, Any]) -> Finding:
        shape = frozenset(record["shape"])
        known = self._exactly(record["target"], record["where"], shape)
        if known is not None:
            known.seen, known.gone = known.seen + 1, False
            return known
        self.found.append(Finding(record["target"], record["where"], shape, record))
        return self.found[-1]

    def _shrunk(self, record: Mapping[str, Any]) -> Finding:
        """Take over the smallest case, whose shape may be less than it seemed; then two findings may be one.

        What came by chance has no shape, and is nothing beside what came again.
        """
        chance = bool(record["chance"])
        raw = frozenset(record.get("was", record["shape"]))
        mine = self._exactly(record["target"], record["where"], raw)
        if mine is None:
            mine = self._first({**record, "shape": sorted(raw)})
        if chance and mine.sure:
            return mine
        shape = frozenset() if chance else frozenset(record["shape"])
        other = next((each for each in self.found if each is not mine and (each.target, each.where, each.shape)
                      == (mine.target, mine.where, shape)), None)
        if other is not None:
            self.found.remove(mine)
            other.seen += mine.seen
            mine = other
        if chance and mine.sure:
            return mine
        if mine.least is None or (mine.chance and not chance) or record["size"] < mine.least["size"] or (
                record["done"] and record["size"] == mine.least["size"]):
            mine.least = record
        mine.shape, mine.rate, mine.chance = shape, max(mine.rate, record["rate"]), chance
        return mine

    def certain(self) -> list[Finding]:
        """Return those that are certain, by target."""
        return sorted((each for each in self.found if each.certain), key=lambda each: (each.target, each.where))


def gathered(records: Iterable[Mapping[str, Any]]) -> Findings:
    """Return the findings of a journal's records."""
    findings = Findings()
    for record in records:
        findings.take(record)
    return findings
