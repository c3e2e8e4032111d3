"""A trace as text: what each step changed, and nothing that stayed."""

from __future__ import annotations

from collections.abc import Mapping

from kvproof.models.itf import Value
from kvproof.models.trace import Trace, changes, shown
from kvproof.models.trace import printable as printable


def diff(before: Mapping[str, Value], after: Mapping[str, Value]) -> list[str]:
    """Return one line for each value that differs between two states: what it was, and what it is."""
    return [f"{change.what}: {shown(change.old)} -> {shown(change.new)}" for change in changes(before, after)]


def text(trace: Trace) -> str:
    """Return the rigid symbols, the first state, and each action with what it changed."""
    lines = [trace.subject, f"{trace.ranks} ranks, integers 0..{trace.size}"]
    lines += [f"{name}: {told}" for name, told in described(trace)]
    lines += ["", *(f"{name} = {shown(value)}" for name, value in trace.rigid.items()), "", "the first state"]
    lines += [f"  {name} = {shown(value)}" for name, value in trace.states[0].items()]
    for number, taken in enumerate(trace.taken, 1):
        by = "" if taken.rank is None else f" by rank {taken.rank}"
        lines += ["", f"{number}. {taken}{by}"]
        lines += [f"  {line}" for line in diff(*trace.states[number - 1 : number + 1])] or ["  nothing changes"]
    return "\n".join(printable(line) for line in lines) + "\n"


def described(trace: Trace) -> list[tuple[str, str]]:
    """Return the metadata that is there, by name."""
    told = [("expected", trace.expected), ("mistake", trace.mistake), ("observed", trace.observed)]
    told += [("place", trace.place)]
    told += [("seed", "" if trace.seed is None else str(trace.seed))]
    told += [("versions", ", ".join(f"{name} {version}" for name, version in trace.versions.items()))]
    return [(name, value) for name, value in told if value]
