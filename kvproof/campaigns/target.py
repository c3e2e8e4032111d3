"""What a campaign is of: a target makes cases, changes them, plays one and says what came of it.

Everything else (workers, journals, findings, the corpus) knows no more of a target and of its cases than this.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Protocol


class Violation(Exception):
    """A rule is broken: which, how it ended, and what happened in a sentence.

    place: where it is stuck. read: the read that showed it; by another one it is the same.
    """

    def __init__(self, rule: str, verdict: str, explain: str, place: str = "", read: str = "") -> None:
        """Say what happened."""
        self.rule, self.verdict, self.explain, self.place, self.read = rule, verdict, explain, place, read
        super().__init__(explain)


@dataclass
class Played:
    """What came of a case.

    violation: the first rule that was broken, None when none was. error: why nothing can be said, "" when something
    can. behaviour: what was seen, each as a short text: two cases that behave alike have the same. steps: what was
    done and what came of it. felt: the kinds of the faults that were felt. seconds: wall time.
    """

    violation: Violation | None = None
    error: str = ""
    behaviour: set[str] = field(default_factory=set)
    steps: list[str] = field(default_factory=list)
    felt: list[str] = field(default_factory=list)
    evidence: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0


class Case(Protocol):
    """A case of any target, as a value."""

    @property
    def faults(self) -> int:
        """How many faults there are in all."""

    @property
    def size(self) -> tuple[int, ...]:
        """How large it is, its faults first: of two cases that show the same, the smaller one is shown."""

    def document(self) -> dict[str, Any]:
        """Return it as JSON data."""

    def lines(self) -> list[str]:
        """Say for a person what it begins with, a line each; what it does is in the steps of what is played."""


class Target(Protocol):
    """One target, opened.

    version, server, ranks: of what is tried; one rank where it has none. lanes: how many cases may have begun at once;
    most of one that hangs is waiting.
    """

    version: str
    server: str
    ranks: int
    lanes: int

    def fresh(self, choose: random.Random) -> Any:
        """Return a case that is made from nothing."""

    def changed(self, case: Any, choose: random.Random, other: Any) -> Any:
        """Return a case with one to three changes; other: one of which a part may be taken."""

    def simpler(self, case: Any) -> Iterator[Any]:
        """Return cases that have less than this one, or simpler, those that leave out most first."""

    def read(self, document: Any) -> Any:
        """Read a case's document; raises UsageError that says what is wrong with it."""

    def play(self, case: Any, name: str) -> Played:
        """Play a case under a name that no other has; every way in which that can go wrong is in the result."""

    def learn(self, case: Any, violation: Violation, always: bool) -> None:
        """Take note of a finding's smallest case; always: it comes every time, and nothing has to be done for it."""


def numbers(behaviour: Iterable[str]) -> set[int]:
    """Return each behaviour as a number of 64 bits."""
    return {int.from_bytes(blake2b(each.encode(), digest_size=8).digest(), "big") for each in behaviour}
