"""Exit codes follow from verdicts, and no verdict that could not tell is ever a pass."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from xml.etree import ElementTree

import pytest

from kvproof import junit, known, report
from kvproof.errors import UsageError
from kvproof.results import CellRow, Complaint, ReplayRow, Results, Where

HERE = Where(1, "cpu", "valkey 9.1.2")
TODAY = date(2026, 11, 29)


def row(
    verdict: str, *, connector: str = "c", bug: str = "nil-get", version: str = "1.2", known: bool = False
) -> ReplayRow:
    return ReplayRow(bug, connector, version, HERE, verdict, 0.5, f"it was {verdict}", known)


def cell(verdict: str) -> CellRow:
    return CellRow("c", "1.2", HERE, "round-trip", "none", "get", verdict, 0.1, "so it was")


@pytest.mark.parametrize(
    ("verdicts", "code"),
    [
        (["absent"], 0),
        (["pass", "absent", "unsupported"], 0),
        (["reproduced"], 1),
        (["toothless"], 1),
        (["absent", "reproduced", "error"], 1),
        (["not-felt"], 3),
        (["error"], 3),
        (["unknown"], 3),
        (["not-run"], 3),
        (["absent", "not-felt"], 3),
        (["a verdict that nobody has heard of"], 1),
        (["unsupported"], 3),
        ([], 3),
    ],
)
def test_the_exit_code_of_replays(verdicts: list[str], code: int) -> None:
    results = Results(replays=[row(verdict) for verdict in verdicts])
    assert results.exit_code == code, f"{verdicts}: expected {code}, got {results.exit_code}"


@pytest.mark.parametrize(
    ("verdict", "code"),
    [("pass", 0), ("fail", 1), ("hang", 1), ("crash", 1), ("leak", 1), ("not-felt", 3), ("error", 3)],
)
def test_the_exit_code_of_cells(verdict: str, code: int) -> None:
    assert Results(cells=[cell("pass"), cell(verdict)]).exit_code == code


def test_what_is_known_is_as_expected_and_what_is_interrupted_is_not() -> None:
    assert Results(replays=[row("reproduced", known=True)]).exit_code == 0
    assert Results(replays=[row("reproduced", known=True), row("reproduced")]).exit_code == 1
    assert Results(replays=[row("absent")], interrupted=True).exit_code == 3
    assert Results(replays=[row("absent")], complaints=[Complaint("c", "replay nil-get", "stale")]).exit_code == 1


def test_a_finding_whose_other_cases_could_not_tell_is_inconclusive_even_if_known() -> None:
    found = row("reproduced", known=True)
    found.inconclusive = 2
    assert Results(replays=[found]).exit_code == 3


def test_the_document_holds_everything(tmp_path: Path) -> None:
    results = Results(seed=7, seconds=1.5, replays=[row("reproduced", known=True), row("absent")])
    path = tmp_path / "results.json"
    results.write(path)
    document = json.loads(path.read_text())
    assert document["schema"] == "kvproof.results/1"
    assert document["seed"] == 7
    assert document["replays"][0] == {
        "bug": "nil-get", "connector": "c", "version": "1.2",
        "where": {"ranks": 1, "device": "cpu", "server": "valkey 9.1.2"},
        "verdict": "reproduced", "known": True, "seconds": 0.5, "explain": "it was reproduced",
        "masked": "", "inconclusive": 0, "evidence": [],
    }
    assert document["summary"]["exit_code"] == 0
    assert document["summary"]["replays"] == {"absent": 1, "reproduced": 1}
    assert {"python", "kvproof"} <= set(document["versions"])


def test_a_file_that_cannot_be_written_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot write .*nowhere"):
        Results().write(tmp_path / "nowhere" / "results.json")


def test_junit_tells_findings_from_what_could_not_tell() -> None:
    rows = [row("reproduced"), row("not-felt", bug="a"), row("unsupported", bug="b"), row("absent", bug="c")]
    rows.append(row("reproduced", bug="d", known=True))
    suite = ElementTree.fromstring(junit.document(Results(replays=rows)))
    assert dict(suite.attrib) == {
        "name": "kvproof", "tests": "5", "failures": "1", "errors": "1", "skipped": "2",
    }
    tags = {case.get("name"): [child.tag for child in case] for case in suite}
    assert tags == {"nil-get": ["failure"], "a": ["error"], "b": ["skipped"], "c": [], "d": ["skipped"]}


def test_the_table_says_what_was_found_and_why_the_exit_code() -> None:
    results = Results(seconds=2.0, replays=[row("reproduced"), row("absent", connector="other")])
    shown = report.table(results, width=100)
    assert "nil-get on c 1.2: reproduced" in shown
    assert "it was reproduced" in shown
    assert "it was absent" not in shown
    assert "1 absent, 1 reproduced; 2.0 s on valkey 9.1.2; exit code 1: a finding" in shown


def entry(**changes: object) -> known.KnownReplay:
    fields: dict[str, object] = {
        "connector": "c", "bug": "nil-get", "version": ">=1", "reason": "because", "issue": "none", "since": TODAY
    }
    return known.KnownReplay(**{**fields, **changes})  # type: ignore[arg-type]  # fields of a dataclass by name


def test_a_listed_finding_is_known() -> None:
    rows = [row("reproduced"), row("reproduced", version="0.9"), row("reproduced", connector="other")]
    assert known.judge(rows, [entry()], TODAY) == []
    assert [found.known for found in rows] == [True, False, False]


def test_the_entries_of_a_connector_speak_of_its_other_versions_too() -> None:
    rows = [row("reproduced", connector="c==4.5.3", version="4.5.3"), row("absent", version="8.1.0")]
    assert known.judge(rows, [entry(version="<=4.5.3")], TODAY) == []
    assert [found.known for found in rows] == [True, False]


def test_a_listed_entry_that_passes_is_stale_unless_it_is_intermittent() -> None:
    complaints = known.judge([row("absent")], [entry()], TODAY)
    assert [complaint.problem[:5] for complaint in complaints] == ["stale"]
    assert known.judge([row("absent")], [entry(intermittent=0.1)], TODAY) == []


def test_what_could_not_tell_neither_confirms_nor_refutes_an_entry() -> None:
    rows = [row("not-felt")]
    assert known.judge(rows, [entry()], TODAY) == []
    assert not rows[0].known
    assert Results(replays=rows).exit_code == 3


def test_an_expired_entry_is_a_complaint_and_covers_nothing() -> None:
    rows = [row("reproduced")]
    complaints = known.judge(rows, [entry(expiry=date(2026, 11, 28))], TODAY)
    assert "expired" in complaints[0].problem
    assert not rows[0].known
    assert known.judge([row("reproduced")], [entry(expiry=TODAY)], TODAY) == []


def test_an_entry_outside_the_selection_says_nothing() -> None:
    assert known.judge([row("absent", bug="worker-key")], [entry()], TODAY) == []


GOOD = """connector = "redis-py"
[[replay]]
bug = "nil-get"
version = "<=1"
reason = "because"
issue = "none"
since = 2026-11-29
"""


def test_a_known_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(GOOD)
    assert [found.bug for found in known.load(tmp_path, ["nil-get"])] == ["nil-get"]
    (tmp_path / "empty.toml").write_text("")
    assert known.load(tmp_path / "empty.toml", ["nil-get"]) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("connector = ", "expected a TOML file"),
        (GOOD.replace("nil-get", "nil-gte"), "unknown bug 'nil-gte'"),
        (GOOD.replace("reason", "raison"), "unknown key 'raison'"),
        (GOOD.replace('reason = "because"\n', ""), "'reason' is missing"),
        (GOOD.replace("<=1", "one"), "version must be a specifier"),
        (GOOD.replace("2026-11-29", '"yesterday"'), "since must be a date"),
        (GOOD.replace('connector = "redis-py"', ""), "expected a line such as connector"),
        (GOOD.replace("connector", "conector"), "unknown key 'conector'"),
        (GOOD.replace("redis-py", "redis-pie"), "no connector is called 'redis-pie'"),
        (GOOD.replace("2026-11-29", "2026-11-29T10:00:00"), "since must be a date"),
        (GOOD.replace('"<=1"', "[]"), "version must be a string"),
    ],
)
def test_a_wrong_known_file_is_one_clear_line(text: str, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "known.toml"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        known.load(path, ["nil-get"])
    assert expected in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_shipped_known_files_are_right() -> None:
    from kvproof.replays import REPLAYS

    entries = known.load(bugs=REPLAYS)
    assert {(found.connector, found.bug) for found in entries} == {
        ("lmcache-resp", "lost-completion"), ("lmcache-resp", "nil-get"), ("lmcache-resp", "worker-key"),
        ("lmcache-redis", "worker-key"), ("lmcache-valkey", "worker-key"), ("redis-py-asyncio", "cancel-cross-talk"),
        ("lmcache-l2-resp", "nil-get"),
    }
    for found in entries:
        assert found.reason, found
        assert found.issue, found
