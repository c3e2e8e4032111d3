"""Causes: failing cells that fail in the same way are one finding."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvproof.results import CellRow, is_finding

_WAITING = re.compile(r"/(threading|selectors|queue|socket|ssl|concurrent/futures/\w+|asyncio/\w+)\.py\"?, line ")
"""Frames in which anything may wait, whatever its cause."""
_VARYING = re.compile(r"(?:\b[0-9a-f]*\d[0-9a-f]*\b|\d+)(?:\.\d+)?")


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
    """Group the cells that are findings: those that hang at one place, and those that end alike.

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
    """Return what tells a failing cell's cause from others: where it is stuck, else what is said without numbers."""
    place = innermost(row)
    if place:
        return f"{row.verdict} in {place}"
    said = row.explain
    for name in (row.fault, row.read):
        said = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", "…", said) if name else said
    return f"{row.verdict}: {alike(said)}"


def alike(said: str) -> str:
    """Return what is said without its numbers and hashes: what two of one cause have in common."""
    return _VARYING.sub("#", said)


def innermost(row: CellRow) -> str:
    """Return the innermost frame of a row's stack that does not only wait, as file:line and function; "" without."""
    return frame_of(row.evidence.get("stack") or [])


def frame_of(stack: str | Sequence[object]) -> str:
    """Return the innermost frame of a stack that does not only wait, as file:line and function; "" without one."""
    found = [frame for frame in (stack.splitlines() if isinstance(stack, str) else map(str, stack))
             if ", line " in frame]
    if not found:
        return ""
    frame = next((each for each in found if not _WAITING.search(each)), found[0])
    parts = re.search(r"([^/\"]+)\"?, line (\d+)(?:,? in (\S+))?", frame)
    return f"{parts[1]}:{parts[2]}{f' ({parts[3]})' if parts[3] else ''}" if parts else frame
