"""lost-completion: a completion that comes before its future is registered is dropped, and the caller waits for ever.

Two ways force it (facts: 1), neither of which edits the code under test: the native client is replaced by one whose
submission returns only after the completion was drained, or the caller is paused on the line before it registers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from kvproof.faults.gates import PlaceGone, pause_before
from kvproof.replays.stage import Case, Replay, Stage
from kvproof.rig import NotOpened, Unsupported, blocked_at, briefly, trouble
from kvproof.runner import Answer, Hung, Returned, buffers, calls
from kvproof.runner.child import Session

WAYS = ("held submission", "paused caller")
_CHUNK = "dd44"
_ARRIVAL = 2.0
"""Seconds within which a completion of a server on this machine must have come."""
_SLACK = _ARRIVAL


def plan(stage: Stage) -> list[Callable[[], Case]]:
    """Strike every gap that the connector has, both ways, each on a fresh connector."""
    with stage.rig(stage.place("gaps")) as rig:
        answer = rig.run("kvproof.replays.lost_completion:inside_gaps")
    if not isinstance(answer, Returned):
        raise NotOpened(f"asking for its gaps: {briefly(answer)}")
    if not answer.value:
        raise Unsupported("the adapter names no call that hands an operation over and then waits for its completion "
                          "(gaps())")
    cases: list[Callable[[], Case]] = []
    for index, gap in enumerate(answer.value):
        if "gone" in gap:
            cases.append(partial(Case, gap["call"], "unsupported", gap["gone"]))
        else:
            cases += [partial(_case, stage, index, gap, way) for way in WAYS]
    return cases


def _case(stage: Stage, index: int, gap: dict[str, str], way: str) -> Case:
    name = f"{gap['call']}, {way}"
    with stage.rig(stage.place(name)) as rig:
        rig.put((_CHUNK, 1))
        answer = rig.run("kvproof.replays.lost_completion:inside", slack=_SLACK, index=index, way=way, chunk=_CHUNK)
        explained = trouble(answer, rig.runner)
        alive = rig.trustworthy(stage, _CHUNK)
    notes = {key: value for note in answer.notes for key, value in note.items()}
    evidence: dict[str, Any] = {
        "call": gap["call"],
        "way": way,
        "between": [gap["hand_over"], gap["wait"]],
        "completion": notes.get("arrived"),
        "dropped": notes.get("dropped"),
        "ended": briefly(answer),
        **explained,
    }
    verdict, explain = _judge(name, gap, answer, notes, alive, explained.get("stack", []))
    return Case(name, verdict, explain, evidence)


def _judge(
    name: str, gap: dict[str, str], answer: Answer, notes: dict[str, Any], alive: bool, stack: list[str]
) -> tuple[str, str]:
    arrived = notes.get("arrived")
    if not arrived or not notes.get("reached"):
        missing = "the completion never came" if not arrived else "the place was never reached"
        return "not-felt", f"{name}: {missing} ({briefly(answer)})"
    what = f"{arrived}, between {gap['hand_over']} and {gap['wait']}"
    if isinstance(answer, Returned) and answer.value == "hit":
        return "absent", f"{what}; {gap['call']} returned all the same"
    if not notes.get("dropped"):
        return "error", f"{what}, so it was not lost; but {gap['call']} ended so: {briefly(answer)}"
    if not alive:
        return "error", f"the server or the proxy did not survive the case ({what}; {briefly(answer)})"
    if isinstance(answer, Hung):
        return "reproduced", f"{what}; {gap['call']} waits for it for ever in {blocked_at(stack)}"
    return "reproduced", f"{what}; {gap['call']} lost it: {briefly(answer)}"


def inside_gaps(session: Session) -> list[dict[str, str]]:
    """Return the connector's gaps in words (in the runner)."""
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


def inside(session: Session, index: int, way: str, chunk: str) -> str:
    """Make the call of one gap with its completion forced to come early (in the runner); return its outcome."""
    connector = session.connector
    gap = connector.gaps()[index]
    place = connector.place
    key, buffer = place.key(chunk), buffers.poisoned(place.chunk_bytes, place.device)
    held = way == WAYS[0]
    with gap.watch(_ARRIVAL if held else 0.0) as watch:

        def tell() -> None:
            arrival = watch.arrived(_ARRIVAL)
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


REPLAY = Replay(
    "lost-completion",
    "a completion that arrives between submitting an operation and registering its future is dropped; the caller "
    "waits for ever",
    plan,
)
