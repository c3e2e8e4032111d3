"""What a sequence diagram shows, before it is drawn: lanes, marks, waits and collectives."""

from __future__ import annotations

from dataclasses import dataclass

from kvproof.models.trace import Trace, changes, shown
from kvproof.traces.text import printable


@dataclass(frozen=True)
class Mark:
    """An action: the lane of the rank that takes it, what to call it there, and what it changed."""

    lane: int
    label: str
    changed: str


@dataclass
class Collective:
    """One collective: its kind and ordinal, the mark at which each lane entered it, and that at which it left."""

    kind: str
    ordinal: int
    entered: dict[int, int]
    left: dict[int, int]

    @property
    def name(self) -> str:
        """Its name for a person."""
        return f"{self.kind} {self.ordinal}"


@dataclass(frozen=True)
class Lanes:
    """The lanes by name, a mark for each action, in order, and the collectives in the order of their beginning."""

    names: tuple[str, ...]
    marks: tuple[Mark, ...]
    collectives: tuple[Collective, ...]


def lanes(trace: Trace) -> Lanes:
    """Return a lane for each rank, and one more where actions are nobody's.

    An action called enter_X begins a collective X, or joins it; the n-th time that a rank enters an X it is the n-th X,
    and leave_X leaves the last one that it has entered.
    """
    elsewhere = any(taken.rank is None for taken in trace.taken)
    names = (*(f"rank {rank}" for rank in range(trace.ranks)), *(["no rank"] if elsewhere else []))
    marks: list[Mark] = []
    found: dict[tuple[str, int], Collective] = {}
    entries: dict[tuple[str, int], int] = {}
    for number, taken in enumerate(trace.taken):
        lane = trace.ranks if taken.rank is None else taken.rank
        verb, _, kind = taken.action.partition("_")
        rest = [f"{name}={shown(value)}" for name, value in list(taken.picks.items())[taken.rank is not None :]]
        changed = "; ".join(change.after for change in changes(*trace.states[number : number + 2]))
        label = taken.action + (f"({', '.join(rest)})" if rest else "")
        marks.append(Mark(lane, printable(label), printable(changed) or "nothing changes"))
        if verb == "enter" and kind and taken.rank is not None:
            ordinal = entries[kind, lane] = entries.get((kind, lane), 0) + 1
            collective = found.setdefault((kind, ordinal), Collective(printable(kind), ordinal, {}, {}))
            collective.entered[lane] = number
        elif verb == "leave" and (kind, lane) in entries:
            found[kind, entries[kind, lane]].left.setdefault(lane, number)
    return Lanes(names, tuple(marks), tuple(found.values()))
