"""Whether every run of a model ends."""

from __future__ import annotations

from typing import Any

from kvproof.models.explore import explore


def endless(first: Any) -> str:
    """Say that a run can go on for ever, back to a state where it was; "" when none can."""
    found = explore(first)
    left, order = dict.fromkeys(found.came, 0), []
    for state in found.came:
        for event in state.events():
            left[state.after(event)] += 1
    ready = [state for state, count in left.items() if count == 0]
    while ready:
        state = ready.pop()
        order.append(state)
        for event in state.events():
            after = state.after(event)
            left[after] -= 1
            if left[after] == 0:
                ready.append(after)
    return "" if len(order) == len(found.came) else "a run can come back to where it was, and so go on for ever"
