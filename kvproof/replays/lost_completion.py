"""lost-completion: a completion that comes before its future is registered is dropped, and the caller waits for ever.

Each gap that the connector has is struck in both ways of `runner.gaps` (facts: 1).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from kvproof.replays.stage import Case, Replay, Stage
from kvproof.rig import NotOpened, Unsupported, blocked_at, briefly, trouble
from kvproof.runner import Answer, Hung, Returned
from kvproof.runner.gaps import ARRIVAL, WAYS

_CHUNK = "dd44"


def plan(stage: Stage) -> list[Callable[[], Case]]:
    """Strike every gap that the connector has, both ways, each on a fresh connector."""
    with stage.rig(stage.place("gaps")) as rig:
        answer = rig.run("kvproof.runner.gaps:named")
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
        answer = rig.run("kvproof.runner.gaps:strike", slack=ARRIVAL, index=index, way=way, chunk=_CHUNK)
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


REPLAY = Replay(
    "lost-completion",
    "a completion that arrives between submitting an operation and registering its future is dropped; the caller "
    "waits for ever",
    plan,
)
