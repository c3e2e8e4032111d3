"""The gaps of a connector, in its runner: calls whose completion is made to come before the caller waits for it.

Two ways force it, neither of which edits the code under test: the native client is replaced by one whose submission
returns only after the completion was drained, or the caller is paused on the line before it registers.
"""

from __future__ import annotations

import threading

from kvproof.errors import UsageError
from kvproof.faults.gates import PlaceGone, pause_before
from kvproof.runner import buffers, calls
from kvproof.runner.child import Session

WAYS = ("held submission", "paused caller")
ARRIVAL = 2.0
"""Seconds within which a completion of a server on this machine must have come."""


def named(session: Session) -> list[dict[str, str]]:
    """Return the connector's gaps in words."""
    try:
        gaps = session.connector.gaps()
    except PlaceGone as gone:
        return [{"call": "any", "gone": str(gone)}]
    found: list[dict[str, str]] = []
    for gap in gaps:
        try:
            found.append({"call": gap.call, "hand_over": gap.hand_over, "wait": str(gap.wait)})
        except PlaceGone as gone:
            found.append({"call": gap.call, "gone": str(gone)})
    return found


def strike(session: Session, index: int, way: str, chunk: str) -> str:
    """Make the call of one gap with its completion forced to come early; return its outcome."""
    connector = session.connector
    gaps = connector.gaps()
    if not 0 <= index < len(gaps):
        raise UsageError(f"there is no gap number {index}; {type(connector).__name__} has {len(gaps)}")
    gap = gaps[index]
    place = connector.place
    key, buffer = place.key(chunk), buffers.poisoned(place.chunk_bytes, place.device)
    held = way == WAYS[0]
    with gap.watch(ARRIVAL if held else 0.0) as watch:

        def tell() -> None:
            arrival = watch.arrived(ARRIVAL)
            if arrival is not None:
                session.note(arrived=arrival.words, dropped=arrival.dropped, reached=True)

        if held:
            # The call's own thread stays inside the submission meanwhile, so another one watches.
            teller = threading.Thread(target=tell, daemon=True)
            teller.start()
            outcome = gap.run(key, buffer)
            teller.join()
        else:
            with pause_before(gap.wait, tell):
                outcome = gap.run(key, buffer)
    return calls.words(outcome)
