"""A rule: one clause of the contract, the cases in which it is tried, and the function that tries one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kvproof.connectors.adapter import Read
from kvproof.faults.schedule import Schedule

if TYPE_CHECKING:
    from kvproof.rules.cell import Cell
    from kvproof.rules.plan import Plan

PUT = Read("put", payload=False)
"""What stands in the place of a read where storing is what a cell disturbs."""


@dataclass(frozen=True, slots=True)
class Case:
    """One case of a rule: a disturbance, the read that meets it, and what else the rule needs to know.

    fault: its stable id, such as "silence:middle@GET"; "none" without a disturbance. schedule: what the proxy is
    armed with. place: fields of the connector's place that differ from the usual. given: the rule's own, by name.
    """

    fault: str
    read: Read
    schedule: Schedule = ()
    place: Mapping[str, Any] = field(default_factory=dict)
    given: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rule:
    """A clause of the contract.

    id: stable. cases: what it is tried on, for one connector. check: tries one case; it returns when the clause
    holds, and raises Broken when it does not.
    """

    id: str
    cases: Callable[[Plan], Iterable[Case]]
    check: Callable[[Cell], None]

    @property
    def claim(self) -> str:
        """What the rule says, in one line: the first of its function's docstring."""
        return (self.check.__doc__ or "").strip().splitlines()[0]


class Broken(Exception):
    """The rule is broken, and how, in one or two plain sentences; `verdict` says how the cell ended."""

    def __init__(self, explain: str, verdict: str = "fail") -> None:
        """Say what happened."""
        self.explain, self.verdict = explain, verdict
        super().__init__(explain)


class NotFelt(Exception):
    """The disturbance did not happen, or nobody felt it, so the cell tells nothing."""
