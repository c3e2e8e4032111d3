"""Causes: failing cells that fail in the same way are one finding."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from kvproof.results import CellRow, is_finding
from kvproof.rig import blocked_at


@dataclass(frozen=True, slots=True)
class Cause:
    """One way in which a connector breaks the contract, with every cell in which it showed; the first is the least."""

    connector: str
    words: str
    rows: tuple[CellRow, ...]

    @property
    def rules(self) -> tuple[str, ...]:
        """The rules that it breaks, in order."""
        return tuple(dict.fromkeys(row.rule for row in self.rows))

    @property
    def known(self) -> bool:
        """Whether each of its cells is listed in the known file."""
        return all(row.known for row in self.rows)


def causes(rows: Iterable[CellRow]) -> list[Cause]:
    """Group the cells that are findings: those that hang at one place, and those of one rule that end alike.

    The least cell of a group comes first: the one with the fewest faults, then the shortest name.
    """
    groups: dict[tuple[str, str], list[CellRow]] = {}
    for row in rows:
        if is_finding(row.verdict):
            groups.setdefault((row.connector, words(row)), []).append(row)
    return [Cause(connector, said, tuple(sorted(those, key=_size))) for (connector, said), those in groups.items()]


def _size(row: CellRow) -> tuple[bool, int]:
    return (row.fault.partition(":")[0] != "none", len(row.id))


def words(row: CellRow) -> str:
    """Return what a failing cell has in common with others: where it hangs or crashes, else how its rule is broken."""
    stack = row.evidence.get("stack")
    if stack and row.verdict in ("hang", "crash", "leak"):
        return f"{row.verdict} in {blocked_at(stack)}"
    plain = row.explain.replace(row.fault, "FAULT")
    plain = re.sub(rf"\b{re.escape(row.read)}\b", "READ", plain)
    plain = re.sub(r"\b[abc][0-9][a-e][0-9]\b", "CHUNK", plain)
    plain = re.sub(r"\d+(\.\d+)?", "N", plain)
    return f"{row.rule}: {row.verdict}: {plain}"
