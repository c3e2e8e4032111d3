"""Campaigns on worlds of ranks: a right one has no finding, a mistaken one is found, and cases are data."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from kvproof.campaigns.worlds.case import MOST_FAULTS, MOST_STEPS, Case, Step, read
from kvproof.campaigns.worlds.generate import Generator, simpler
from kvproof.errors import UsageError
from kvproof.faults.families import Nil
from kvproof.ranks.disturbances import Spot
from kvproof.ranks.scenario import Seen
from tests.campaigning import findings, records, run

SEEN = Seen((Spot("EXISTS", 3, "integer"),), (Spot("GET", 1, "bulk"),), frozenset({"get", "collective"}), 3)
MAKES = Generator(2, {"load": {0: SEEN, 1: SEEN}}, {"load": True}, memory=True)


def made(count: int) -> list[Case]:
    """Return cases from nothing, and changed ones."""
    choose, found = random.Random(1), [MAKES.fresh(random.Random(0))]
    while len(found) < count:
        fresh = choose.random() < 0.5
        found.append(MAKES.fresh(choose) if fresh else MAKES.changed(found[-1], choose, choose.choice(found)))
    return found


def test_cases_are_data_within_bounds_and_of_every_kind() -> None:
    cases = made(400)
    for case in cases:
        assert read(case.document()) == case
        assert len(case.steps) <= MOST_STEPS
        assert sum(map(len, case.schedules)) <= MOST_FAULTS
    steps = [step for case in cases for step in case.steps]
    assert {step.do for step in steps} == {"serve", "evict", "strike"}
    assert {step.how for step in steps if step.do == "serve"} == {"", "list", "empty-list"}
    assert {step.how for step in steps if step.do == "strike"} == {
        "get raise", "get kill", "collective raise", "collective kill"}
    kinds = {fault.kind for case in cases for each in case.schedules for fault in each}
    assert {"nil", "error", "silence", "close", "reset"} <= kinds
    assert {rank for case in cases for rank, each in enumerate(case.schedules) if each} == {0, 1}


def test_simpler_cases_are_smaller() -> None:
    for case in made(60):
        for less in simpler(case):
            assert less.size < case.size or less.document() == case.document() or any(
                one.match > other.match for one, other in zip(case.steps, less.steps, strict=False))
    least = Case(2, "load", {}, (Step("serve", (0,)),), ((), ()))
    assert [each.steps for each in simpler(least)] == [()]


def test_faults_inside_of_ranks_count() -> None:
    steps = (Step("serve", (0,)), Step("strike", (), 1, "get raise"), Step("serve", (0,), 1, "list"))
    case = Case(2, "load", {}, steps, ((Nil(command="GET"),), ()))
    assert (case.faults, case.size[0]) == (3, 3)
    assert case.lines() == ["2 ranks, load", "rank 0: nil at reply 1 of GET *"]


@pytest.mark.parametrize(("wrong", "says"), [
    ([], "a case is an object"),
    ({"ranks": 0}, "ranks: got 0"),
    ({"load": 3}, "load: got 3"),
    ({"place": {"timeout": 1}}, "expected an object of chunk_bytes, memory_bytes"),
    ({"schedules": [[]]}, "one for each of 2 ranks"),
    ({"steps": [{"do": "put"}]}, "`do` is one of serve, evict, strike"),
    ({"steps": [{"do": "serve", "rank": 2}]}, "a rank below 2"),
    ({"steps": [{"do": "serve", "how": "get raise"}]}, "list, empty-list"),
    ({"steps": [{"do": "strike", "how": "get"}]}, "of a strike SEAM WHAT"),
    ({"steps": [{"do": "serve", "path": [0] * 9}]}, "a path of at most 8 numbers"),
    ({"steps": [{"do": "serve", "match": 0}]}, "a match from 1 on"),
])
def test_what_is_no_case_is_said(wrong: object, says: str) -> None:
    right = Case(2, "load", {}, (Step("serve", (0,)),), ((), ())).document()
    with pytest.raises(UsageError, match=says) as error:
        read({**right, **wrong} if isinstance(wrong, dict) else wrong)
    assert "\n" not in str(error.value)


def test_nothing_is_found_in_the_sharded_reference(tmp_path: Path) -> None:
    done = run(tmp_path / "dir", "-c", "sharded-reference", "--ranks", "2", "--for", "12s")
    assert done.returncode == 0, done.stdout + done.stderr
    assert findings(tmp_path / "dir") == []
    kept = [record for record in records(tmp_path / "dir") if record["record"] == "kept"]
    assert len(kept) > 3
    assert {record["case"]["ranks"] for record in kept} == {2}
    refused = run(tmp_path / "dir", "--resume", "--ranks", "3", "--for", "1s")
    assert (refused.returncode, refused.stderr.count("\n"), "of 2 ranks" in refused.stderr) == (2, 1, True)


def test_a_mistake_of_ranks_is_found_and_replayed(tmp_path: Path) -> None:
    done = run(tmp_path / "dir", "-c", "sharded-reference+own-key", "--for", "20s")
    assert done.returncode == 1, done.stdout + done.stderr
    found = [each for each in findings(tmp_path / "dir") if each.shown["rule"] == "same-prefix"]
    [finding] = found
    assert finding.size == 0
    assert "promised 0 (rank 0 promises" in finding.shown["explain"]
    path = tmp_path / "dir" / "findings" / f"{finding.id}.json"
    again = subprocess.run([sys.executable, "-m", "kvproof", "replay", str(path)], capture_output=True, text=True,
                           timeout=90, check=False)
    assert (again.returncode, f"{finding.id}: 3 of 3 times" in again.stdout) == (1, True), again.stdout + again.stderr


def test_a_server_of_ones_own_is_no_server_for_ranks(tmp_path: Path) -> None:
    done = run(tmp_path / "dir", "-c", "sharded-reference", "--for", "1s", "--server", "redis://127.0.0.1:1")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "each with an instance of its own; leave --server out" in done.stderr
