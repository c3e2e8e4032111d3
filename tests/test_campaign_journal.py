"""What a campaign keeps: its journal, its findings, and the corpus that it shares."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvproof.campaigns import corpus
from kvproof.campaigns.campaign import Asked, Campaign
from kvproof.campaigns.corpus import CorpusFailed
from kvproof.campaigns.findings import gathered
from kvproof.campaigns.journal import NAME, Journal, parsed
from kvproof.errors import UsageError
from kvproof.faults.servers import valkey

CASE = {"place": {}, "steps": [{"do": "put", "chunks": [0]}], "schedules": [[]], "masked": False}
FAULTY = {**CASE, "schedules": [[{"fault": "nil", "command": "GET"}]]}


def record(kind: str, **what: Any) -> dict[str, Any]:
    return {"record": kind, "target": "some", "where": "no-stale-hit: fail: so", "shape": [], "rule": "no-stale-hit",
            "verdict": "fail", "explain": "so", "case": CASE, "felt": [], "steps": [], "evidence": {},
            "size": [sum(map(len, what.get("case", CASE)["schedules"])), 1], "done": True, **what}


def worker(number: int) -> dict[str, Any]:
    return {"record": "worker", "number": number}


def test_what_was_appended_is_there_when_it_is_opened_again(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "new", fresh=True)
    for number in range(3):
        journal.append(worker(number))
    journal.close()
    again = Journal(tmp_path / "new", fresh=False)
    assert [each["number"] for each in again.records] == [0, 1, 2]
    assert again.complaints == []
    again.close()


def test_a_line_that_was_cut_off_is_taken_away_and_one_that_is_no_record_is_told(tmp_path: Path) -> None:
    journal = Journal(tmp_path, fresh=True)
    journal.append(worker(0))
    journal.close()
    with (tmp_path / NAME).open("ab") as file:
        file.write(b'rubbish\n[1]\n{"record": "worker", "number": 1}\n{"record": "ke')
    journal = Journal(tmp_path, fresh=False)
    assert [each["number"] for each in journal.records] == [0, 1]
    assert [each.partition(": ")[0][-6:] for each in journal.complaints] == ["line 2", "line 3"]
    assert all("the rest is kept" in each and "\n" not in each for each in journal.complaints)
    journal.append(worker(2))
    journal.close()
    journal = Journal(tmp_path, fresh=False)
    assert [each["number"] for each in journal.records] == [0, 1, 2]
    journal.close()


def test_a_directory_holds_one_campaign_and_one_process_has_it(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no campaign"):
        Journal(tmp_path, fresh=False)
    journal = Journal(tmp_path, fresh=True)
    with pytest.raises(UsageError, match="--resume"):
        Journal(tmp_path, fresh=True)
    with pytest.raises(UsageError, match="running already"):
        Journal(tmp_path, fresh=False)
    journal.close()
    with pytest.raises(UsageError, match="cannot open"):
        Journal(Path("/proc/nowhere"), fresh=True)


_FILLS = """
import sys
from pathlib import Path
from kvproof.campaigns.journal import Journal, JournalFailed
journal = Journal(Path(sys.argv[1]), fresh=True)
for number in range(10_000):
    try:
        journal.append({"record": "worker", "number": number, "with": "x" * 1000})
    except JournalFailed as error:
        print(number, error)
        break
"""


def test_a_full_disk_is_one_line_and_loses_nothing(tmp_path: Path) -> None:
    def little() -> None:
        # A file that may not grow is what a full disk is to whoever writes it.
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    done = subprocess.run([sys.executable, "-c", _FILLS, str(tmp_path)], capture_output=True, text=True, timeout=60,
                          preexec_fn=little, check=False)
    [said] = done.stdout.splitlines()
    assert "what was found before is kept" in said, done.stderr
    journal = Journal(tmp_path, fresh=False)
    assert [each["number"] for each in journal.records] == list(range(int(said.split()[0])))
    assert len(journal.records) > 10
    journal.close()


def test_findings_of_one_cause_are_one_with_the_smallest_case() -> None:
    nil = {"shape": ["nil"], "felt": ["nil"], "case": FAULTY}
    findings = gathered([
        record("found", **nil), record("seen", shape=["nil", "cut"]), record("found", where="other: fail: too"),
        record("shrunk", was=["nil"], rate=1.0, chance=False), record("seen", shape=["cut"])])
    first, other = findings.found
    assert (first.where, sorted(first.shape), first.seen, first.rate, first.size) == (
        "no-stale-hit: fail: so", [], 3, 1.0, 0)
    assert first.first["felt"] == ["nil"]
    assert findings.certain() == [first], "the other was seen once, and not looked into"
    assert other.least is None
    # Looked into at once, then shrunk; and found once more under another shape that shrinks to the same.
    findings.take(record("shrunk", was=[], rate=1.0, chance=False))
    for each in (record("found", **nil), record("shrunk", was=["nil"], rate=1.0, chance=False, **nil | {"shape": []})):
        findings.take(each)
    assert len(findings.found) == 2
    assert first.id.startswith("some-no-stale-hit-")


def test_what_comes_by_chance_is_a_finding_once_it_was_seen_three_times() -> None:
    findings = gathered([record("found"), record("shrunk", was=[], rate=0.25, chance=True)])
    assert findings.certain() == []
    findings.take(record("seen"))
    assert findings.certain() == []
    findings.take(record("seen"))
    assert [each.seen for each in findings.certain()] == [3]


def test_what_comes_by_chance_hides_nothing_that_comes_again_nor_is_taken_for_it() -> None:
    seldom = [record("found"), record("shrunk", was=[], rate=0.25, chance=True)]
    nil = {"shape": ["nil"], "felt": ["nil"], "case": FAULTY}
    surely = [record("found", **nil), record("shrunk", was=["nil"], rate=1.0, chance=False, **nil)]
    for before in (seldom + surely, surely + seldom):
        findings = gathered([*before, record("seen", shape=["cut", "nil"]), record("seen", shape=["cut"])])
        assert {tuple(each.shape): (each.seen, each.rate, each.chance) for each in findings.found} == {
            (): (2, 0.25, True), ("nil",): (2, 1.0, False)}
    # The same shape by chance elsewhere is that finding once more; and what came again replaces what did not.
    findings = gathered([*surely, record("found", **nil), record("shrunk", was=["nil"], rate=0.25, chance=True, **nil)])
    assert [(each.seen, each.rate, each.chance) for each in findings.found] == [(2, 1.0, False)]
    again = record("shrunk", was=[], rate=1.0, chance=False)
    findings = gathered([*seldom, *seldom, again, *seldom])
    assert [(each.seen, each.rate, each.chance, each.least) for each in findings.found] == [(3, 1.0, False, again)]


@pytest.mark.parametrize("where", ["directory", "server"])
def test_a_corpus_gives_back_what_was_put_into_it(where: str, tmp_path: Path) -> None:
    with valkey() as server:
        shared = corpus.opened(str(tmp_path) if where == "directory" else f"redis://127.0.0.1:{server.port}")
        entry = {"target": "some", "case": CASE}
        name = shared.put(entry)
        assert shared.put(dict(reversed(entry.items()))) == name
        assert shared.names() == {name}
        assert shared.get(name) == entry
        assert shared.get("nobody") is None
        # What others put there that is no entry is none.
        if where == "directory":
            (tmp_path / "cases" / f"{name}.json").write_text("rubbish")
        else:
            with server.connect() as raw:
                raw.command("SET", f"kvproof:corpus:{name}", "rubbish")
        assert shared.get(name) is None
    if where == "server":
        with pytest.raises(CorpusFailed, match="does not serve it"):
            shared.names()


def test_a_corpus_that_cannot_be_is_one_line() -> None:
    for where, server, says in (
            ("redis://127.0.0.1:1", None, "start it, or leave --corpus out"),
            ("redis://127.0.0.1:7777", "redis://127.0.0.1:7777", "is the server under test"),
            ("http://127.0.0.1", None, "expected a directory"),
            ("/proc/nowhere", None, "name a directory that can be made")):
        with pytest.raises(UsageError, match=says) as error:
            corpus.opened(where, server)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("where", ["directory", "server"])
def test_hypothesis_has_its_database_in_the_same_place(where: str, tmp_path: Path) -> None:
    from hypothesis import Phase, given, settings, strategies

    with valkey() as server:
        place = str(tmp_path) if where == "directory" else f"redis://127.0.0.1:{server.port}"

        def failing(phases: tuple[Phase, ...]) -> list[int]:
            tried: list[int] = []

            @settings(database=corpus.hypothesis(place), phases=phases, derandomize=False, max_examples=500)
            @given(strategies.integers(0, 10_000))
            def holds(number: int) -> None:
                tried.append(number)
                assert number < 777

            with pytest.raises(AssertionError):
                holds()
            return tried

        failing((Phase.generate, Phase.shrink))
        # What one process has found, another tries first, and needs no search for it.
        assert failing((Phase.reuse,))[0] == 777


@pytest.mark.parametrize(("line", "why"), [
    (b'{"record": "campaign", "schema": "x", "ranks": 2, "seed": 0}', "it has no targets"),
    (b'{"record": "campaign", "schema": "x", "targets": "reference", "ranks": 2, "seed": 0}', "its targets is"),
    (b'{"record": "kept", "target": "some", "case": {}, "behaviour": [[1]]}', "its behaviour is"),
    (b'{"record": "counted", "seconds": "a", "counts": {}}', "its seconds is"),
    (b'{"record": "seen", "target": "some", "where": "x"}', "it has no shape"),
    (b"[" * 100_000, "it is no JSON"), (b"3", "it is no record"), (b'{"record": 3}', "it is no record"),
])
def test_a_record_that_lacks_something_is_left_out_and_told(line: bytes, why: str, tmp_path: Path) -> None:
    found, complaints = parsed(line + b'\n{"record": "worker", "number": 1}\n', tmp_path)
    assert [each["record"] for each in found] == ["worker"]
    [said] = complaints
    assert f"({why}" in said


@pytest.mark.parametrize("entry", [
    {"target": "some", "case": {}, "behaviour": [[1]]}, {"target": "some", "case": CASE},
    {"id": "x", "target": "some", "where": "x", "shape": [], "least": {"target": "some", "case": CASE}},
])
def test_an_entry_of_a_corpus_that_lacks_something_is_told_before_it_is_journalled(
    entry: dict[str, Any], tmp_path: Path
) -> None:
    journal = Journal(tmp_path, fresh=True)
    shared = corpus.opened(str(tmp_path / "shared"))
    shared.put(entry)
    campaign = Campaign(Asked(("some",), 1.0), journal, shared)
    campaign._exchange_cases([])
    assert len(campaign.state.says) == 1
    assert "has an entry that is none, which is left out" in campaign.state.says[0]
    journal.close()
    assert [each["record"] for each in Journal(tmp_path, fresh=False).records] == ["campaign"]


def test_what_does_not_come_again_is_gone_until_it_is_seen_again() -> None:
    before = [record("found"), record("shrunk", was=[], rate=1.0, chance=False)]
    assert len(gathered(before).certain()) == 1
    retried = record("retried", came=0)
    assert gathered([*before, retried]).certain() == []
    assert len(gathered([*before, record("retried", came=2)]).certain()) == 1
    assert len(gathered([*before, retried, record("seen")]).certain()) == 1
    assert len(gathered([*before, retried, record("found")]).certain()) == 1


@pytest.mark.parametrize(("rule", "verdict", "certain"), [
    ("recovers", "fail", 0), ("round-trip", "fail", 0), ("bounded-time", "hang", 1), ("no-stale-hit", "fail", 1)])
def test_what_came_too_late_by_chance_is_the_machines_doing_however_often(
    rule: str, verdict: str, certain: int
) -> None:
    found = [record("found", rule=rule, verdict=verdict),
             record("shrunk", rule=rule, verdict=verdict, was=[], rate=0.25, chance=True), *[record("seen")] * 30]
    assert len(gathered(found).certain()) == certain
