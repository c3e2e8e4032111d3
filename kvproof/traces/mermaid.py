"""A trace as a Mermaid sequence diagram: a lane a rank, and a note for each action and collective."""

from __future__ import annotations

import re

from kvproof.models.trace import Trace
from kvproof.traces.lanes import lanes


def diagram(trace: Trace) -> str:
    """Return the text of the diagram.

    A rank is active while it waits in a collective; where the first leaves it, a note lies across all ranks.
    """
    drawn = lanes(trace)
    lines = ["sequenceDiagram", f"    accTitle: {_escaped(trace.subject)}"]
    lines += [f"    participant r{lane} as {_escaped(name)}" for lane, name in enumerate(drawn.names)]
    across = "r0" if trace.ranks == 1 else f"r0,r{trace.ranks - 1}"
    enters = {number: lane for each in drawn.collectives for lane, number in each.entered.items()}
    leaves = {number: lane for each in drawn.collectives for lane, number in each.left.items()}
    complete = {min(each.left.values()): each for each in drawn.collectives if each.left}
    for number, mark in enumerate(drawn.marks):
        if number in complete:
            lines.append(f"    Note over {across}: {_escaped(complete[number].name)}")
        lines.append(f"    Note over r{mark.lane}: {_escaped(f'{number + 1}. {mark.label}')}")
        lines += [f"    activate r{mark.lane}"] if number in enters else []
        lines += [f"    deactivate r{mark.lane}"] if number in leaves else []
    for each in drawn.collectives:
        waiting = [lane for lane in each.entered if lane not in each.left]
        lines += [f"    Note over r{lane}: waits in {_escaped(each.name)}" for lane in waiting]
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    """Return text in which nothing is Mermaid's: all but plain letters, digits and marks by its number."""
    return re.sub(r"[^\w .,()=-]", lambda found: f"#{ord(found[0])};", text, flags=re.ASCII)
