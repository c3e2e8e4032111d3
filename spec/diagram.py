"""A run as text: a lane for each rank, an action in the lane of the rank that takes it, and what it changed."""

from __future__ import annotations

from kvproof.spec.search import Model, Run, shown

_LANE = 18


def diagram(trace: Model | Run) -> list[str]:
    """Return the lines of a sequence diagram for a run, or the symbols of a model."""
    if isinstance(trace, Model):
        return [f"{trace.ranks} ranks, size {trace.size}", *trace.describe()]
    lines = [", ".join(f"{name} = {shown(value)}" for name, value in trace.rigid.items()) or "no rigid symbols"]
    lines.append("".join(f"rank {rank}".ljust(_LANE) for rank in range(trace.ranks)).rstrip())
    for index, (name, picks) in enumerate(trace.actions):
        before, after = trace.states[index], trace.states[index + 1]
        lane = picks[0] if picks and isinstance(picks[0], int) and picks[0] < trace.ranks else 0
        rest = f"({', '.join(map(str, picks[1:]))})" if len(picks) > 1 else ""
        lanes = "".join((f"{name}{rest}" if rank == lane else "|").ljust(_LANE) for rank in range(trace.ranks))
        lines.append(f"{lanes}{'; '.join(_changes(before, after))}".rstrip())
    lines.append("the last state: " + "; ".join(f"{name} = {shown(value)}" for name, value in trace.states[-1].items()))
    return lines


def _changes(before: dict[str, object], after: dict[str, object]) -> list[str]:
    found = []
    for name, value in after.items():
        old = before[name]
        if isinstance(value, dict) and isinstance(old, dict):
            changed = [key for key in value if value[key] != old[key]]
            found += [f"{name}({','.join(map(str, key))}) = {shown(value[key])}" for key in changed]
        elif value != old:
            found.append(f"{name} = {shown(value)}")
    return found
