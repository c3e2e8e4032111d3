"""A run as text: a lane for each rank, an action in the lane of the rank that takes it, and what it changed.

What no rank does stands in a lane of its own; an action's other picks follow it in parentheses.
"""

from __future__ import annotations

from kvproof.models.trace import changes, shown
from kvproof.spec.search import Model, Run

_LANE = 18


def diagram(trace: Model | Run) -> list[str]:
    """Return the lines of a sequence diagram for a run, or the symbols of a model."""
    if isinstance(trace, Model):
        return [f"{trace.ranks} ranks, size {trace.size}", *trace.describe()]
    lines = [", ".join(f"{name} = {shown(value)}" for name, value in trace.rigid.items()) or "no rigid symbols"]
    lanes: list[int | None] = list(range(trace.ranks))
    if None in trace.lanes:
        # Where no action is a rank's, there are no ranks to speak of.
        lanes = [*lanes, None] if any(place is not None for place in trace.lanes) else [None]
    if lanes != [None]:
        lines.append("".join(("outside" if lane is None else f"rank {lane}").ljust(_LANE) for lane in lanes).rstrip())
    for index, ((name, picks), place) in enumerate(zip(trace.actions, trace.lanes, strict=True)):
        before, after = trace.states[index], trace.states[index + 1]
        taker = None if place is None else picks[place]
        rest = ", ".join(str(pick) for number, pick in enumerate(picks) if number != place)
        said = f"{name}({rest})" if rest else name
        drawn = "".join((said if lane == taker else "|").ljust(_LANE) for lane in lanes)
        lines.append(f"{drawn} {'; '.join(change.after for change in changes(before, after))}".rstrip())
    lines.append("the last state: " + "; ".join(f"{name} = {shown(value)}" for name, value in trace.states[-1].items()))
    return lines
