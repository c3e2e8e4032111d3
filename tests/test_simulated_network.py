"""The reference client on a network in which every byte and every delay is chosen: nothing lost, late or another's."""

from __future__ import annotations

import time
from collections.abc import Hashable

import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from kvproof.connectors.reference_bugs import FixedHeaderClient, ForgetfulClient
from kvproof.connectors.reference_client import Client
from kvproof.connectors.reference_driver import CLOSED, Driver
from kvproof.models.client import Absent, Connection, Done, Failed, Found, Outcome
from kvproof.models.payloads import POISON, encode, identify
from kvproof.models.pool import Action
from tests.simulated import TIMEOUT, Answer, Call, Course, Script, Step, play

CLOSE_TO = 1e-6
"""Seconds that sums of simulated times may be off by."""
REFUSALS = ("refused by the script", "no answer to the connection attempt")

# What is drawn most is what lets one operation meet another: replies that come whole, but not at once.
DELAYS = st.sampled_from([0.0, 0.5, 1.0, 3.25, 0.001, 2.5, 2.999, 3.5, 10.0])
COUNTS = st.integers(0, 40) | st.sampled_from([4095, 4096, 4097, 100_000])
ANSWERS = st.builds(
    Answer,
    status=st.sampled_from(["found", "found", "found", "found", "absent", "error"]),
    size=st.sampled_from([16, 16, 16, 16, 16, 16, 16, 0, 1, 5, 10, 37, 4090, 5000, 70_000, 300_000]),
    pieces=st.lists(st.tuples(DELAYS, COUNTS), max_size=5).map(tuple),
    end=st.sampled_from(["rest", "rest", "rest", "rest", "rest", "rest", "silence", "close"]),
)
STEPS = st.builds(
    Step,
    kind=st.sampled_from(["get", "get", "exists", "set"]),
    answers=st.lists(ANSWERS, min_size=1, max_size=2).map(tuple),
    at=st.sampled_from([0.0, 0.5, 0.0, 1.0, 2.0, 3.0, 4.0]),
    cancel=st.none() | st.sampled_from([0.0, 0.001, 0.5, 1.0, 2.9]),
)
OPENS = st.lists(st.sampled_from([0.0, 0.5, 2.0, 5.0, None]), max_size=4).map(tuple)


def scripts(close: st.SearchStrategy[float | None]) -> st.SearchStrategy[Script]:
    steps = st.lists(STEPS, min_size=2, max_size=8).map(tuple)
    connections = st.sampled_from([1, 1, 1, 2, 3])
    return st.builds(Script, steps=steps, connections=connections, opens=OPENS, close=close, order=st.integers(0, 9))


OPEN = scripts(st.none())
CLOSED_AT = scripts(st.sampled_from([0.0, 0.25, 1.0, 3.0, 3.25]))


def complaints(script: Script, course: Course) -> list[str]:
    """Return what is wrong about a course, in words: nothing, for a right client."""
    found = [*course.wrong]
    for call in course.calls:
        found += [f"{call.keys}: {line}" for line in about_call(script, call)]
        for index, key in enumerate(call.keys[: len(call.outcomes)]):
            found += [f"{key}: {line}" for line in about_key(script, course, call, index)]
    for identity in {call.identity for call in course.calls}:
        if course.drained.count(identity) != 1:
            found.append(f"operation {identity} was handed out {course.drained.count(identity)} times")
    if len(set(course.asked)) < len(course.asked):
        found.append(f"a request was sent twice: {course.asked}")
    most = script.connections if script.close is None else 0
    if course.left > most:
        found.append(f"{course.left} connections are open at the end where {most} may be")
    found += about_last(script, course.last)
    return found


def about_call(script: Script, call: Call) -> list[str]:
    if len(call.outcomes) != len(call.keys):
        return [f"{len(call.outcomes)} outcomes"]
    allowed = TIMEOUT if call.step.cancel is None else min(TIMEOUT, call.step.cancel)
    taken = call.ended - call.begun
    lines = []
    if taken > allowed + CLOSE_TO:
        lines.append(f"took {taken} s where {allowed} s were allowed")
    if call.later != call.content:
        lines.append("a buffer was written to after the operation had ended")
    return lines


def about_key(script: Script, course: Course, call: Call, index: int) -> list[str]:
    answer, outcome, key = call.step.answers[index], call.outcomes[index], call.keys[index]
    whole = course.answered.get(key)
    right = meaning(call.step.kind, answer)
    lines = []
    if isinstance(outcome, Failed) and outcome != right:
        if not is_honest(outcome.reason, script, call):
            lines.append(f"failed, and the reason is not so: {outcome.reason}")
        given_up = min(call.ended, call.begun + TIMEOUT, call.begun + (call.step.cancel or TIMEOUT))
        if whole is not None and whole < given_up - CLOSE_TO and call.step.cancel != 0.0:
            lines.append(f"failed ({outcome.reason}), and its reply had come whole")
    elif outcome != right:
        lines.append(f"ended with {outcome} where the server says {right}")
    elif whole is None or whole > call.ended + CLOSE_TO:
        lines.append(f"ended with {outcome} at {call.ended}, before its reply was whole ({whole})")
    content = call.content[index]
    expected = encode(key, 1, answer.size)
    if call.step.kind == "get" and outcome == Found() and content != expected:
        lines.append(f"its buffer holds {whose(course, content)}")
    if call.step.kind == "get" and outcome == Absent() and content != bytes([POISON]) * answer.size:
        lines.append(f"a miss, and its buffer holds {whose(course, content)}")
    if isinstance(outcome, Failed) and call.step.kind == "get":
        lines += [f"holds a byte of another: {whose(course, content)}"] if not is_mixed(content, expected) else []
    return lines


def meaning(kind: str, answer: Answer) -> Outcome:
    if answer.status == "error" or (kind == "set" and answer.status == "absent"):
        return Failed("the server answered: ERR scripted")
    return Found() if answer.status == "found" else Absent()


def is_honest(reason: str, script: Script, call: Call) -> bool:
    """Whether what a failure gives as its reason is what happened."""
    if reason.startswith("deadline exceeded"):
        return call.ended - call.begun > TIMEOUT - CLOSE_TO
    if reason == "cancelled":
        return call.step.cancel is not None
    if reason == CLOSED:
        return script.close is not None
    if reason in REFUSALS:
        return any(delay is None or delay >= TIMEOUT for delay in script.opens)
    if reason == "the server closed the connection" or reason.startswith("the connection was lost"):
        # Also the request that came just after the reply with which the server closed.
        return any(answer.end == "close" for step in script.steps for answer in step.answers)
    return False


def is_mixed(content: bytes, expected: bytes) -> bool:
    return all(byte in (expected[at], POISON) for at, byte in enumerate(content))


def whose(course: Course, content: bytes) -> str:
    return identify(content, [(key, 1) for call in course.calls for key in call.keys]).whose


def about_last(script: Script, last: Call | None) -> list[str]:
    if last is None:
        return ["the script did not come to its end"]
    if script.close is not None:
        return [] if last.outcomes == (Failed(CLOSED),) else [f"after close an operation ended with {last.outcomes}"]
    if last.outcomes != (Found(),) or last.content != [encode("last.0", 1, 16)]:
        return [f"on a network that works again an operation ended with {last.outcomes}"]
    return []


@given(OPEN)
def test_every_operation_ends_in_time_with_its_own_value_or_an_honest_failure(script: Script) -> None:
    found = complaints(script, play(script))
    assert not found, "\n".join(found)


@given(CLOSED_AT)
def test_close_ends_everything_at_once_and_nothing_afterwards(script: Script) -> None:
    assert script.close is not None
    course = play(script)
    found = complaints(script, course)
    found += [f"{call.keys} ended at {call.ended}" for call in course.calls if call.ended > script.close + CLOSE_TO]
    assert not found, "\n".join(found)


BEHIND = {
    "a connection that is closed": (Step("get", (Answer(pieces=((0.5, 7),), end="close"),)), 0.5),
    "a reply that never comes": (Step("get", (Answer(end="silence"),)), TIMEOUT),
    "a reply that comes late": (Step("get", (Answer(pieces=((5.0, 0),)),)), TIMEOUT),
    "a read that is cancelled": (Step("get", (Answer(pieces=((1.0, 7), (1.0, 0))),), cancel=1.5), 1.5),
    "a SET that is cancelled": (Step("set", (Answer(size=1_000_000, end="silence"),), cancel=0.5), 0.5),
}


@pytest.mark.parametrize("fault", BEHIND)
def test_what_waits_behind_a_fault_is_served_as_soon_as_that_is_over(fault: str) -> None:
    first, over = BEHIND[fault]
    script = Script((first, Step("get", at=0.25)))
    course = play(script)
    assert complaints(script, course) == []
    waiting = next(call for call in course.calls if call.step is script.steps[1])
    assert waiting.outcomes == (Found(),), fault
    assert abs(waiting.ended - over) < CLOSE_TO, f"served at {waiting.ended} s, and {fault} was over at {over} s"


def test_a_script_has_one_course() -> None:
    answers = (Answer("found", 5000, ((0.5, 7), (2.0, 4096))), Answer("absent", 16, ((3.5, 1),)), Answer(end="close"))
    steps = (Step("get", answers), Step("set", answers, 0.5), Step("exists", answers, 1.0, 1.5))
    script = Script(steps, connections=2, opens=(2.0, None))
    first = play(script)
    for _ in range(5):
        again = play(script)
        assert again == first


def test_simulated_seconds_cost_no_real_ones() -> None:
    script = Script(tuple(Step("get", (Answer(end="silence"),), at=4.0 * number) for number in range(10)))
    begin = time.monotonic()
    course = play(script)
    assert complaints(script, course) == []
    assert [round(call.ended - call.begun, 3) for call in course.calls[:-1]] == [TIMEOUT] * 10
    assert time.monotonic() - begin < TIMEOUT, "forty simulated seconds"


class LatecomersConnection(Connection):
    """A request whose deadline has passed is forgotten, although its reply is still to come."""

    def expire(self, identity: Hashable, reason: str) -> list[Done]:
        self._waiting.popleft()
        self._target = None
        return [Done(identity, Failed(reason))]


class LatecomersClient(Client):
    connection = LatecomersConnection


class TimelessDriver(Driver):
    """Deadlines are not kept."""

    def _expire(self) -> list[Action]:
        self._pool._deadlines.clear()
        return []


class TimelessClient(Client):
    driver = TimelessDriver


class AbandoningDriver(Driver):
    """What has ended is forgotten one time in three."""

    def _finish(self, identity: int) -> None:
        super()._finish(identity)
        if identity % 3 == 0:
            self._completions.pop()


class AbandoningClient(Client):
    driver = AbandoningDriver


CROSS = ("its buffer holds key", "where the server says")
PLANTED: dict[str, tuple[type[Client], tuple[str, ...]]] = {
    "reference+cancel-cross-talk": (ForgetfulClient, CROSS),
    "reference+nil-get": (FixedHeaderClient, ("its buffer holds poison",)),
    "a late reply is the next one's": (LatecomersClient, CROSS),
    "deadlines are not kept": (TimelessClient, ("s were allowed",)),
    "completions are lost": (AbandoningClient, ("handed out 0 times",)),
}
"""Each bug, the client that has it, and words of the complaint by which it is to be told."""


def caught(bug: str, script: Script) -> bool:
    kind, words = PLANTED[bug]
    return any(part in line for line in complaints(script, play(script, kind)) for part in words)


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_found(bug: str) -> None:
    tried = 0

    def is_caught(script: Script) -> bool:
        nonlocal tried
        tried += 1
        return caught(bug, script)

    # Only as far as to the first script that shows it.
    found = find(OPEN, is_caught, settings=settings(max_examples=10_000, phases=[Phase.generate]))
    print(f"{bug}: found by script {tried}")
    assert complaints(found, play(found)) == [], "what the script does is no fault of its own"


@pytest.mark.nightly
@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_shrinks_to_few_operations(bug: str) -> None:
    least = find(OPEN, lambda script: caught(bug, script))
    print(f"{bug}: {least}")
    assert sum(len(step.answers) for step in least.steps) <= 3, f"not shrunk: {least}"
