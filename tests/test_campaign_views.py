"""What people see of a campaign, and which of its findings are known already."""

from __future__ import annotations

import io
import json
import os
import pty
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from kvproof.campaigns import views
from kvproof.campaigns.campaign import Asked, State, Tried
from kvproof.campaigns.findings import SCHEMA, gathered
from kvproof.campaigns.listed import ids, listed
from kvproof.faults import schedule
from kvproof.faults.families import Delay, Error, Insert, Nil
from kvproof.faults.fault import Fault
from kvproof.known.cells import KnownCell
from kvproof.rules.menu import MENU, TYPICAL


def finding(*faults: Fault, felt: tuple[str, ...] = (), **what: Any) -> dict[str, Any]:
    """Return the record of a finding that was looked into."""
    case = {"place": {}, "steps": [{"do": "read", "how": "get", "chunks": [0]}], "masked": False,
            "schedules": [json.loads(schedule.to_json(faults))]}
    return {"record": "shrunk", "target": "some", "where": "no-stale-hit: fail: so | so", "shape": sorted(felt),
            "rule": "no-stale-hit", "verdict": "fail", "explain": "so | so", "case": case, "size": [len(faults), 1],
            "felt": list(felt), "steps": ["0: get c0a1: hit, poison"], "evidence": {"wire": []}, "was": sorted(felt),
            "done": True, "rate": 1.0, "chance": False, **what}


def state(*records: dict[str, Any]) -> State:
    """Return a campaign that has found these."""
    made = State(Asked(("some", "other"), 60.0, seed=7), gathered(records))
    made.counts.update({"cases": 120, "cases of some": 120, "felt": 30})
    made.opened["some"] = Tried("1.2", "valkey 9", 1)
    return made


def entry(fault: str, **what: Any) -> KnownCell:
    return KnownCell(**{"connector": "some", "rule": "recovers", "fault": (fault,), "read": ("*",), "version": "==1.2",
                        "reason": "so", "issue": "none", "since": date(2026, 1, 1), **what})


def test_every_entry_of_the_menu_is_found_again_by_what_it_does() -> None:
    for each in MENU:
        fault = each.at(TYPICAL, 1.0)
        if fault is not None:
            assert each.id in ids(fault)
            assert {other.partition(":")[0] for other in ids(fault)} <= {each.id.partition(":")[0], "hold", "silence"}
    assert ids(Error(command="SET", code="OOM")) == {"error:OOM"}
    assert ids(Insert(command="GET", frame="push")) == {"insert:push"}


@pytest.mark.parametrize(("faults", "felt", "entries", "known"), [
    ((Nil(command="GET"),), ("nil",), [entry("nil@GET")], True),
    ((Nil(command="GET"),), ("nil",), [entry("nil@GET", version="==1.1")], False),
    ((Nil(command="GET"),), ("nil",), [entry("nil@GET", connector="another")], False),
    ((Nil(command="GET"),), ("nil",), [entry("error:OOM@SET")], False),
    ((Nil(command="GET"), Error(command="SET", code="OOM")), ("nil", "error"), [entry("nil@GET")], False),
    ((Nil(command="GET"), Delay(command="SET", seconds=1)), ("nil",), [entry("nil@GET")], True),
    ((), (), [entry("none:in-turn")], False),
])
def test_a_finding_is_known_when_all_its_faults_are(
    faults: tuple[Fault, ...], felt: tuple[str, ...], entries: list[KnownCell], known: bool
) -> None:
    [found] = gathered([finding(*faults, felt=felt)]).found
    assert listed(found, "1.2", entries) is known


@pytest.mark.parametrize("what", [{"done": False}, {"rate": 0.75}])
@pytest.mark.parametrize(("fault", "known"), [("nil@GET", True), ("nil@SET", True), ("error:LOADING@GET", False)])
def test_a_finding_that_is_not_shrunk_or_comes_only_sometimes_is_known_by_any_of_its_faults(
    what: dict[str, Any], fault: str, known: bool
) -> None:
    faults = (Nil(command="GET"), Error(command="SET", code="OOM"))
    [found] = gathered([finding(*faults, felt=("nil", "error"), **what)]).found
    assert listed(found, "1.2", [entry(fault)]) is known


def test_what_is_written_of_a_campaign(tmp_path: Path) -> None:
    (tmp_path / "findings").mkdir()
    (tmp_path / "findings" / "old.json").write_text(json.dumps({"schema": SCHEMA}))
    (tmp_path / "findings" / "mine.json").write_text("{}")
    found = state(finding(Nil(command="GET"), felt=("nil",)))
    views.keep(tmp_path, found)
    path, mine = sorted((tmp_path / "findings").iterdir(), key=lambda path: path.name == "mine.json")
    assert mine.read_text() == "{}", "what is no finding is not ours"
    [each] = found.findings.certain()
    assert path.stem == each.id
    said = views.text(found, tmp_path)
    assert "seed: 7" in said
    assert "    0: nil at reply 1 of GET *\n    0: get c0a1: hit, poison\n" in said
    assert f"again: kvproof replay {path}" in said
    assert f"| `{each.id}` | no-stale-hit | so \\| so | 1 |" in views.digest(found, tmp_path)
    results = views.results(found, tmp_path)
    assert [(row.connector, row.verdict) for row in results.cells] == [("some", "fail"), ("other", "not-run")]
    assert results.exit_code == 1
    views.mark(found, [entry("nil@GET")])
    assert views.results(found, tmp_path).exit_code == 3, "what is known decides nothing; other was not run"
    assert ", known |" in views.digest(found, tmp_path)
    nothing = views.digest(state(), tmp_path)
    assert "Nothing was found." in nothing


@pytest.mark.parametrize(("untold", "verdict", "exit_code"), [(0, "pass", 0), (60, "pass", 0), (61, "error", 3)])
def test_a_target_of_which_little_can_be_told_does_not_pass(
    untold: int, verdict: str, exit_code: int, tmp_path: Path
) -> None:
    found = state()
    found.asked = Asked(("some",), 60.0)
    found.counts["untold of some"] = untold
    results = views.results(found, tmp_path)
    [row] = results.cells
    assert (row.verdict, results.exit_code) == (verdict, exit_code)
    assert ("nothing could be told" in row.explain) == (untold > 0)


@pytest.mark.parametrize(("felt", "entries", "known"), [
    (("nil",), [entry("nil@last")], True),
    (("nil",), [entry("nil@first", rule="no-skip")], False),
    (("get kill",), [entry("killed@last")], True),
    (("get kill", "nil"), [entry("killed@last")], False),
    ((), [entry("none")], False),
])
def test_a_finding_of_a_world_is_known_when_all_that_was_done_to_a_rank_is(
    felt: tuple[str, ...], entries: list[KnownCell], known: bool
) -> None:
    case = {"ranks": 2, "load": "load", "place": {}, "steps": [], "schedules": [[], []]}
    [found] = gathered([finding(felt=felt, case=case, rule="recovers")]).found
    assert listed(found, "1.2", entries) == known


def test_in_a_pipe_a_line_comes_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "HEARTBEAT", 0.0)
    out = io.StringIO()
    watch, found = views.Watch(out), state()
    found.say("worker 1 has ended")
    watch(found)
    watch(found)
    lines = out.getvalue().splitlines()
    assert lines[0] == "kvproof: worker 1 has ended"
    assert len(lines) == 3
    assert all(line.startswith("cases 120, ") and "findings 0" in line for line in lines[1:])


def test_on_a_terminal_there_is_a_table_that_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "_REDRAWN", 0.0)
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as terminal:
        watch = views.Watch(terminal)
        watch(state(finding(Nil(command="GET"), felt=("nil",))))
        watch.close()
    shown = os.read(ours, 65536).decode()
    os.close(ours)
    assert "time left" in shown
    assert "so | so" in shown


@pytest.mark.parametrize(("seconds", "says"), [(0.4, "0 s"), (59.7, "1 min 00 s"), (61, "1 min 01 s"),
                                               (3600 * 8 + 60 * 5, "8 h 05 min"), (-3, "0 s")])
def test_a_span_is_said_as_people_say_it(seconds: float, says: str) -> None:
    assert views.span(seconds) == says


def test_what_went_wrong_is_said_once_whatever_numbers_are_in_it() -> None:
    found = state()
    for number in range(100):
        found.say(f"worker {number} has ended")
    assert found.says == ["worker 0 has ended"]
