"""Cases of a campaign: what they are, how new ones are made, how they are judged and shrunk."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from kvproof.campaigns.cause import Causes, cause, shape, where
from kvproof.campaigns.clients import case as cases
from kvproof.campaigns.clients.case import CHUNKS, MOST_FAULTS, MOST_STEPS, Case, Step
from kvproof.campaigns.clients.generate import SIZES, Generator
from kvproof.campaigns.clients.judge import Judge
from kvproof.campaigns.clients.simpler import simpler
from kvproof.campaigns.shrink import shrink
from kvproof.campaigns.target import Violation
from kvproof.connectors.adapter import Read
from kvproof.errors import UsageError
from kvproof.faults.families import Error, Nil, Silence
from kvproof.rig import Found
from kvproof.rules.menu import Spot

GET, EXISTS, BATCH = Read("get"), Read("exists", payload=False), Read("batched_get", batch=True)
SPOTS = (Spot("GET", "GET", "*", 1, 4104, "bulk", True, 4096),
         Spot("SET", "SET", "*", 1, 5, "simple-string", False, 4096))
MAKER = Generator((GET, EXISTS, BATCH), SPOTS, (0, 2), SIZES, 1.0, False, False, False)


def made(count: int) -> list[Case]:
    """Return cases, half of them changed ones."""
    fresh = [MAKER.fresh(random.Random(f"fresh {number}")) for number in range(count)]
    return fresh + [MAKER.changed(case, random.Random(f"changed {number}"), fresh[0])
                    for number, case in enumerate(fresh)]


def test_a_case_comes_back_from_json_as_it_was() -> None:
    for case in made(200):
        assert cases.read(json.loads(json.dumps(case.document()))) == case


def test_cases_stay_within_bounds_and_are_the_same_for_a_seed() -> None:
    found = made(300)
    assert found == made(300)
    for case in found:
        assert case.faults <= MOST_FAULTS
        assert len(case.steps) <= MOST_STEPS
        assert all(step.by < case.instances for step in case.steps)
    assert {step.do for case in found for step in case.steps} == set(cases.KINDS)
    assert {case.faults for case in found} == {0, 1, 2, 3}
    assert {case.instances for case in found} == {1, 2}
    assert {bool(case.place.get("replicated")) for case in found} == {False, True}
    assert {step.gap for case in found for step in case.steps if step.do == "early"} == {0, 2}
    kinds = {fault.kind for case in found for each in case.schedules for fault in each}
    assert len(kinds) > 15
    assert not kinds & {"duplicate", "flip", "blank", "insert"}, "what this client could not see, or does not speak"


@pytest.mark.parametrize(("given", "says"), [
    ([], "a case is an object"),
    ({"place": {"rank": 1}}, "a case's place"),
    ({"place": {"world_size": True}}, "a case's place"),
    ({"place": {}, "schedules": []}, "a case's schedules"),
    ({"place": {}, "schedules": [[]], "steps": {}}, "a case's steps"),
    ({"place": {}, "schedules": [[]], "steps": [{"do": "dance"}]}, "whose `do` is one of put, read"),
    ({"place": {}, "schedules": [[]], "steps": [{"do": "put", "chunks": [9]}]}, "chunks by number"),
    ({"place": {}, "schedules": [[]], "steps": [{"do": "put", "by": 1}]}, "below 1"),
    ({"place": {}, "schedules": [[{"fault": "nothing"}]], "steps": []}, "schedule entry 1 of 1"),
], ids=str)
def test_what_is_no_case_is_told_in_one_line(given: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says) as error:
        cases.read(given)
    assert "\n" not in str(error.value)


def found(outcome: str, holds: str = "?", exact: bool = False, chunk: int = 0) -> Found:
    return Found(CHUNKS[chunk], None, outcome, holds, exact)


def own(version: int, chunk: int = 0) -> Found:
    return found("hit", f"{CHUNKS[chunk]} version {version}", True, chunk)


def stored(judge: Judge, *outcomes: str) -> Judge:
    for outcome in outcomes:
        judge.put(0, 0, judge.next_version(0), outcome)
    return judge


WRONG: dict[str, Callable[[Judge], None]] = {
    "round-trip": lambda judge: stored(judge, "hit").read(0, GET, [0], [found("miss")]),
    "round-trip of a put": lambda judge: stored(judge, "failed: no"),
    "miss-is-miss of what failed": lambda judge: judge.read(0, GET, [0], [found("failed: no answer")]),
    "miss-is-miss of what gave up": lambda judge: judge.read(
        0, GET, [0], [Found(CHUNKS[0], None, "miss", seconds=1.0)]),
    "round-trip of a call": lambda judge: judge.call(0, "a call", "failed: no answer"),
    "miss-is-miss": lambda judge: judge.read(0, EXISTS, [0], [found("hit")]),
    "no-stale-hit": lambda judge: stored(judge, "hit").read(0, GET, [0], [found("hit", "poison", True)]),
    "no-stale-hit of mixed bytes": lambda judge: stored(judge, "hit").read(
        0, GET, [0], [found("hit", f"{CHUNKS[0]} version 1", False)]),
    "no-cross-talk": lambda judge: stored(judge, "hit").read(
        0, GET, [0], [found("hit", f"{CHUNKS[1]} version 1", True)]),
    "linearizable": lambda judge: stored(judge, "hit", "hit").read(0, GET, [0], [own(1)]),
    "lookup-coherent": lambda judge: (stored(judge, "hit"), judge.evicted(0, 0),
                                      judge.read(0, EXISTS, [0], [found("hit")]))[-1],
    "honest-error": lambda judge: judge.acknowledged(0, 0, there=False),
}


@pytest.mark.parametrize("rule", WRONG)
def test_what_may_not_happen_is_called_by_its_rule(rule: str) -> None:
    with pytest.raises(Violation) as violation:
        WRONG[rule](Judge(shared=True, replicated=False))
    assert violation.value.rule == rule.partition(" of ")[0]


def test_a_replicated_chunk_that_another_worker_misses_is_a_matter_of_keys() -> None:
    judge = stored(Judge(shared=True, replicated=True), "hit")
    with pytest.raises(Violation) as violation:
        judge.read(1, GET, [0], [found("miss")])
    assert violation.value.rule == "key-per-rank"
    judge.put(1, 1, 1, "miss")


def test_what_may_happen_is_nothing_wrong() -> None:
    judge = stored(Judge(shared=True, replicated=False), "hit")
    judge.read(0, GET, [0], [own(1)])
    judge.read(0, BATCH, [0, 1, 0], [own(1), found("miss", chunk=1), found("miss")])
    judge.evicted(0, 0)
    judge.read(0, GET, [0], [found("miss")])
    judge.disturbed.add(0)
    stored(judge, "failed: reset").read(0, GET, [0], [own(2)])
    judge.read(0, GET, [0], [own(1)])
    stored(judge, "hit")
    judge.read(0, GET, [0], [own(2)])
    judge.read(0, GET, [0], [found("failed: reset")])
    apart = stored(Judge(shared=False, replicated=False), "hit")
    apart.read(1, GET, [0], [found("miss")])


def test_shrinking_leaves_what_is_needed() -> None:
    def needs(case: Case) -> bool:
        puts = [at for at, step in enumerate(case.steps) if step.do == "put"]
        reads = [at for at, step in enumerate(case.steps) if step.how == "get"]
        kinds = [fault.kind for each in case.schedules for fault in each]
        return bool(puts and reads and puts[0] < reads[-1] and "nil" in kinds)

    large = Case(
        {"world_size": 4, "replicated": True, "chunk_bytes": 512},
        (Step("evict", 0, (3,)), Step("put", 1, (2, 4)), Step("read", 0, (1,), "exists"), Step("put", 0, (5,)),
         Step("read", 1, (2, 5, 4), "get"), Step("release")),
        ((Silence(command="GET", match=3), Nil(command="GET", key="*c2*", match=2)),
         (Error(command="SET", code="OOM"),)),
        masked=True)
    assert needs(large)
    small, _ = shrink(large, "", simpler, lambda those: ["" if needs(each) else None for _, each in those], 200)
    assert needs(small)
    assert [(step.do, len(step.chunks)) for step in small.steps] == [("put", 1), ("read", 1)]
    assert (small.faults, small.place, small.masked) == (1, {}, False)
    [fault] = [fault for each in small.schedules for fault in each]
    assert (fault.kind, fault.match, fault.key) == ("nil", 1, "*")


def test_shrinking_ends_after_so_many_tries() -> None:
    asked: list[Case] = []

    def shows(those: Sequence[tuple[int, Case]]) -> list[None]:
        asked.extend(case for _, case in those)
        return [None] * len(those)

    case = max(made(20), key=lambda each: len(each.steps))
    assert shrink(case, None, simpler, shows, 5) == (case, None)
    assert 0 < len(asked) <= 5


def test_a_cause_is_where_it_is_and_what_was_felt() -> None:
    stuck = Violation("bounded-time", "hang", "get of c0a1 did not come back", "client.py:7 (wait)")
    assert cause(stuck, ["silence", "half-open"]) == "bounded-time: hang: in client.py:7 (wait) [stall]"
    wrong = Violation("no-stale-hit", "fail", "get of c0a1 was a hit, and its buffer was never written")
    other = Violation("no-stale-hit", "fail", "batched_get of c3e4 was a hit, and its buffer was never written",
                      read="batched_get")
    wrong.read = "get"
    assert where(wrong) == where(other)
    known = Causes()
    known.add(where(wrong), shape(["nil"]))
    assert known.explains(where(other), shape(["nil", "close"]))
    assert not known.explains(where(other), shape(["close"]))
    known.add(where(wrong), frozenset())
    assert known.explains(where(other), shape([]))
    known.add_chance("seldom")
    looked_into = [number for number in range(2, 20) if not known.explains("seldom", shape(["close"]))]
    assert looked_into == [2, 4, 8, 16], "chance hides nothing for good"
    known.add("seldom", shape(["close"]))
    assert all(known.explains("seldom", shape(["close"])) for _ in range(20))
    assert known.take("here")
    assert not known.take("here")
    known.leave("here")
    assert known.take("here")
