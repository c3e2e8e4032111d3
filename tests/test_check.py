"""`kvproof check`: the matrix, its exit codes, what is known, and what is wrong usage."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from itertools import permutations
from pathlib import Path

import pytest

from kvproof import check, connectors, contract, witnesses
from kvproof.causes import Cause, causes
from kvproof.connectors.adapter import PayloadRange, Read
from kvproof.errors import UsageError
from kvproof.faults.wire import WireEvent
from kvproof.known import cells
from kvproof.results import CellRow, Results, Where, is_finding
from kvproof.rules import RULES
from kvproof.rules.left_out import LEFT_OUT
from kvproof.rules.menu import GROUPS, MENU
from kvproof.rules.plan import VICTIMS, Recording
from kvproof.runner import child
from kvproof.runner.declared import InvalidAdapter
from tests.zoo.honest import Honest

TODAY = date(2026, 11, 30)


def run(*words: str) -> subprocess.CompletedProcess[str]:
    """Run `kvproof check` with these words."""
    command = [sys.executable, "-m", "kvproof.cli", "check", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def row(verdict: str = "fail", **changes: object) -> CellRow:
    """Return a cell's row."""
    fields = {"connector": "redis-py", "version": "8.1.0", "where": Where(1, "cpu", "valkey"), "rule": "recovers",
              "fault": "close@GET", "read": "get", "verdict": verdict, "seconds": 0.1, "explain": "it did not"}
    return CellRow(**{**fields, **changes})  # type: ignore[arg-type]  # fields of a dataclass by name


def entry(**changes: object) -> cells.KnownCell:
    """Return a known cell."""
    fields = {"connector": "redis-py", "rule": "recovers", "fault": ("close@GET",), "read": ("get",), "version": "",
              "reason": "why", "issue": "none", "since": TODAY}
    return cells.KnownCell(**{**fields, **changes})  # type: ignore[arg-type]  # fields of a dataclass by name


def test_the_reference_passes_the_whole_contract() -> None:
    rows = check.run([connectors.find("reference")])
    wrong = [f"{each.id}: {each.verdict}: {each.explain}" for each in rows if each.verdict != "pass"]
    assert not wrong, "\n".join(wrong[:20])
    assert len(rows) >= 1200, f"expected 1200 cells or more, got {len(rows)}"
    assert {each.rule for each in rows} == set(RULES)
    assert len({each.id for each in rows}) == len(rows), "two cells have one name"


def test_the_plan_is_the_same_twice() -> None:
    asked = check.Asked(rules=("no-stale-hit", "recovers"))
    first, second = ([cell.id for _, cell in check.listed([connectors.find("redis-py")], asked)] for _ in range(2))
    assert first == second
    assert len(first) > 100


def test_the_places_of_a_read_do_not_depend_on_the_order_in_which_it_asked() -> None:
    def recorded(*chunks: str) -> Recording:
        events = [event for number, chunk in enumerate(chunks) for event in (
            WireEvent(number, "request", "GET", f"model@{chunk}@bfloat16", size=40, sequence=2 * number),
            WireEvent(number, "reply", "GET", f"model@{chunk}@bfloat16", size=9, head=b"$3", sequence=2 * number + 1))]
        return Recording(tuple(events), 0)

    first, *others = (recorded(*chunks).spots(4096) for chunks in permutations(VICTIMS))
    assert [spot.name for spot in first] == ["GET", "GET#3"]
    assert all(spots == first for spots in others)


def test_a_finding_is_told_and_is_exit_code_one(tmp_path: Path) -> None:
    files = {name: str(tmp_path / f"r.{name}") for name in ("json", "junit", "html")}
    done = run("-c", "tests.zoo.absence:NilIsHit", "--rule", "miss-is-miss", "--read", "get", "--again", "1",
               *(word for name, path in files.items() for word in (f"--{name}", path)))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "nobody stored, was a hit" in done.stdout
    found = json.loads((tmp_path / "r.json").read_text())
    failing = [cell for cell in found["cells"] if cell["verdict"] == "fail"]
    assert failing
    assert failing[0]["evidence"]["steps"]
    assert failing[0]["evidence"]["wire"]
    assert "<failure" in (tmp_path / "r.junit").read_text()
    assert "miss-is-miss" in (tmp_path / "r.html").read_text()
    assert done.stderr == "", "progress in a pipe"


def test_what_the_known_file_lists_is_as_expected(tmp_path: Path) -> None:
    words = ("-c", "tests.zoo.absence:NilIsHit", "--rule", "miss-is-miss", "--read", "get")
    known = tmp_path / "known.toml"
    assert run(*words, "--update-known", str(known)).returncode == 0
    assert run(*words, "--known", str(known)).returncode == 0
    text = known.read_text()
    assert run(*words, "--update-known", str(known)).returncode == 0
    assert known.read_text() == text, "a second update changes the file"
    honest = run("-c", "tests.zoo.honest:Honest", "--rule", "miss-is-miss", "--read", "get", "--known", str(known))
    assert honest.returncode == 0, "an entry of another connector says nothing of this one"
    wide = text.replace(text[text.index("fault ="):text.index("read =")], 'fault = "*"\n')
    known.write_text(wide)
    stale = run("-c", "tests.zoo.absence:NilIsHit", "--rule", "miss-is-miss", "--known", str(known), "--read", "get")
    assert ("stale" in stale.stdout) == (stale.returncode == 1)


def test_what_is_kept_of_a_finding_tries_it_again(tmp_path: Path) -> None:
    module, witnesses = tmp_path / "test_kept.py", tmp_path / "witnesses"
    connector = "tests.zoo.absence:NilIsHit"
    done = run("-c", connector, "--rule", "miss-is-miss", "--read", "get", "--again", "0", "--pytest", str(module),
               "--witnesses", str(witnesses), "--json", str(tmp_path / "r.json"))
    assert done.returncode == 1, done.stderr
    failing = [cell for cell in json.loads((tmp_path / "r.json").read_text())["cells"] if cell["verdict"] == "fail"]
    files = sorted(str(path) for path in witnesses.iterdir())
    assert sorted({cell["witness"] for cell in failing}) == files, "each failing cell names a witness that is there"
    kept = json.loads(Path(files[0]).read_text())
    words = shlex.split(kept["again"])
    assert run(*words[2:], "--again", "0").returncode == 1, kept["again"]
    assert kept["cell"]["evidence"]["steps"]
    ended = subprocess.run([sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(module)], timeout=120,
                           capture_output=True, text=True)
    assert f"{len(files)} failed" in ended.stdout, ended.stdout[-2000:]
    assert "nobody stored, was a hit" in ended.stdout
    text = module.read_text()
    module.write_text(text.replace("NilIsHit", "Honest").replace("zoo.absence", "zoo.honest"))
    ended = subprocess.run([*ended.args], timeout=120, capture_output=True, text=True)
    assert f"{len(files)} passed" in ended.stdout, ended.stdout[-2000:]


def test_an_update_of_some_cells_loses_nothing_of_the_others(tmp_path: Path) -> None:
    known = tmp_path / "known.toml"
    close, wide, older = entry(fault=("close@GET", "reset@GET")), entry(rule="no-stale-hit", fault=("*",)), entry(
        fault=("close@GET",), version="==4.5.3", reason="another version")
    known.write_text('connector = "redis-py"\n' + "".join(cells._table("cell", each) for each in (close, wide, older)))
    rows = [row(fault="close@GET"), row(rule="no-stale-hit", fault="empty@GET"), row(verdict="pass", fault="nil@GET")]
    assert cells.update(known, "redis-py", rows, TODAY) == 2
    listed = sorted((each.rule, each.version, fault) for each in cells.load(known) for fault in each.fault)
    assert listed == [("no-stale-hit", "", "*"), ("recovers", "", "close@GET"), ("recovers", "", "reset@GET"),
                      ("recovers", "==4.5.3", "close@GET")]


def test_a_cell_that_there_is_not_is_wrong_usage() -> None:
    with pytest.raises(UsageError, match=r"reference has no cell recovers\[close@GETS-get\]|nothing is selected"):
        check.one("reference", "recovers", "close@GETS", "get")


@pytest.mark.parametrize("rule_and_fault", [
    ("keys-separate", "none:model"), ("key-per-rank", "none:sharded-1-of-2"), ("lookup-coherent", "evicted:all")])
def test_a_read_that_knows_no_absence_tells_nothing_else(rule_and_fault: tuple[str, str]) -> None:
    found = check.one("tests.zoo.absence:NilIsHit", *rule_and_fault, "get")
    assert found.verdict == "unsupported", f"{found.verdict}: {found.explain}"
    assert "see miss-is-miss" in found.explain


@pytest.mark.parametrize(("what", "names"), [("fault", 'fault = "closs@GET"'), ("read", 'read = "gat"')])
def test_a_known_entry_of_no_cell_is_wrong_usage(what: str, names: str, tmp_path: Path) -> None:
    known = tmp_path / "known.toml"
    fields = {"fault": 'fault = "close@GET"', "read": 'read = "get"', what: names}
    known.write_text("\n".join(['connector = "reference"', "[[cell]]", 'rule = "recovers"', *fields.values(),
                                'version = ""', 'reason = "why"', 'issue = "none"', "since = 2026-11-30", ""]))
    done = run("-c", "reference", "--rule", "prefix-count", "--known", str(known))
    assert done.returncode == 2, done.stdout
    assert f"recovers has no {what} {names.partition('= ')[2]!s}".replace('"', "'") in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr


def test_wrong_usage_is_one_line_and_exit_code_two() -> None:
    for words, expected in (
        (("-c", "reference", "--rule", "no-such"), "no rule is called 'no-such'"),
        (("-c", "refrence"), "no connector is called 'refrence'"),
        (("-c", "reference", "--fault", "no-such"), "nothing is selected"),
        (("-c", "reference", "-c", "redis-py", "--update-known", "x.toml"), "one connector"),
    ):
        done = run(*words)
        assert done.returncode == 2, f"{words}: {done.returncode}: {done.stderr}"
        assert expected in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1, done.stderr


def test_the_list_says_what_is_left_out_and_why() -> None:
    done = run("-c", "reference", "--list", "--rule", "round-trip")
    assert done.returncode == 0
    assert "round-trip[none:4096B-get]" in done.stdout
    assert "round-trip: stall, late, cut" in done.stdout
    assert "recovers: duplicate: a second reply" not in done.stdout, "of another rule than the one asked for"
    assert "recovers: duplicate: a second reply" in run("-c", "reference", "--list", "--rule", "recovers").stdout
    assert set(LEFT_OUT) == {"*", *RULES}
    assert {entry.group for entry in MENU} == set(GROUPS)


@pytest.mark.parametrize("verdict", ["fail", "hang", "crash", "leak"])
def test_a_listed_finding_is_known(verdict: str) -> None:
    rows = [row(verdict), row("pass", fault="close@SET")]
    assert cells.judge(rows, [entry()], TODAY) == []
    assert rows[0].known
    assert Results(cells=rows).exit_code == 0


def test_a_listed_cell_that_passes_is_stale() -> None:
    assert "stale" in cells.judge([row("pass")], [entry()], TODAY)[0].problem
    assert cells.judge([row("pass")], [entry(intermittent=0.3)], TODAY) == []
    assert cells.judge([row("pass", version="9.0")], [entry(version="<9")], TODAY) == []


def test_what_could_not_tell_is_never_known() -> None:
    rows = [row("not-felt")]
    assert cells.judge(rows, [entry()], TODAY) == []
    assert Results(cells=rows).exit_code == 3


def test_an_expired_entry_is_a_finding() -> None:
    rows = [row()]
    assert "expired" in cells.judge(rows, [entry(expiry=date(2026, 11, 29))], TODAY)[0].problem
    assert not rows[0].known


def test_the_known_files_that_come_with_kvproof_can_be_read() -> None:
    entries = cells.load(rules=contract.claims())
    short = [f"{one.connector}: {one.name}" for one in entries if len(one.reason) < 30 or not one.issue]
    assert not short, f"entries without a reason or an issue: {short}"


def test_cells_that_hang_at_one_place_are_one_cause() -> None:
    stack = ['"/a/site-packages/lib/wait.py", line 7 in wait']
    rows = [row("hang", fault="a@GET", evidence={"stack": stack}), row("hang", rule="bounded-time",
            evidence={"stack": stack}), row("fail", explain="get of a0c1 was 12 bytes"),
            row("fail", fault="b@GET", explain="get of a1c2 was 7 bytes"), row("pass")]
    found = causes(rows)
    assert [len(cause.rows) for cause in found] == [2, 2]
    assert found[0].rules == ("recovers", "bounded-time")


def test_a_witness_has_a_name_that_a_file_can_have(tmp_path: Path) -> None:
    rows = [row(connector="c" * 300 + end) for end in "ab"]
    assert len({path.name for path in witnesses.write(tmp_path, causes(rows))}) == 2


DECLARED: dict[str, dict[str, object]] = {
    "reads-alike": {"reads": (Read("get"), Read("get", payload=False))},
    "read-put": {"reads": (Read("put", payload=False),)},
    "read-escapes": {"reads": (Read("get\x1b[31m"),)},
    "read-long": {"reads": (Read("n" * 65),)},
    "read-number": {"reads": (Read(5),)},  # type: ignore[arg-type]  # what is wrong with it
    "endless": {"deadline": float("inf")},
    "never-recovers": {"recovery": 1e300},
    "no-step": {"payload": PayloadRange(step=0)},
    "sizes-in-words": {"payload": PayloadRange(smallest="16")},  # type: ignore[arg-type]  # what is wrong with it
    "masks-number": {"masks": 5},
}
"""What adapters declare that no plan can be made of."""


def declared(which: str) -> type[Honest]:
    """Return an adapter that declares this."""
    return type("Declared", (Honest,), DECLARED[which])


@pytest.mark.parametrize("which", DECLARED)
def test_a_wrong_declaration_is_wrong_usage_and_says_what_is_expected(which: str) -> None:
    [attribute] = DECLARED[which]
    with pytest.raises(InvalidAdapter, match=rf"^Declared\.{attribute} is .*; expected "):
        child.adapter_class(f"{__name__}:declared({which})")


@pytest.mark.parametrize(("line", "said"), [
    ("rule = ['recovers']", "unknown rule"), ("intermittent = 3", "intermittent must be"),
    ("intermittent = 'often'", "intermittent must be"), ("reason = ' '", "reason must say"),
])
def test_a_known_entry_that_does_not_fit_is_wrong_usage(line: str, said: str, tmp_path: Path) -> None:
    lines = {"rule": "rule = 'recovers'", "fault": "fault = '*'", "read": "read = '*'", "version": "version = ''",
             "reason": "reason = 'why'", "issue": "issue = ''", "since": "since = 2026-11-30"}
    lines[line.partition(" ")[0]] = line
    file = tmp_path / "known.toml"
    file.write_text("\n".join(["connector = 'redis-py'", "[[cell]]", *lines.values()]))
    with pytest.raises(UsageError, match=said):
        cells.load(file, RULES)


@pytest.mark.parametrize("entries", ["cell = [1]", "cell = 'x'", "[cell]\nrule = 'recovers'", "replay = 1"])
def test_what_is_no_list_of_entries_is_wrong_usage(entries: str, tmp_path: Path) -> None:
    file = tmp_path / "known.toml"
    file.write_text(f"connector = 'redis-py'\n{entries}\n")
    with pytest.raises(UsageError, match=r"begin with a line \[\["):
        cells.load(file, RULES)


INTERRUPTED = """
import threading
from kvproof import check, connectors

rows = []

def progress(row):
    rows.append(row)
    if len(rows) == 3:
        raise KeyboardInterrupt

stopped = threading.Event()
found = check.run([connectors.find("reference")], check.Asked(("no-stale-hit",)), progress=progress, stopped=stopped)
verdicts = {row.verdict for row in found}
print(stopped.is_set(), len(found) > 20, sum(row.verdict == "pass" for row in found) >= 3, "error" in verdicts)
"""


def test_what_was_done_before_an_interruption_is_kept() -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=120)
    assert done.stdout == "True True True True\n", done.stdout + done.stderr


def test_what_could_not_tell_keeps_its_known_entry(tmp_path: Path) -> None:
    file = tmp_path / "known.toml"
    cells.update(file, "redis-py", [row()], TODAY)
    cells.update(file, "redis-py", [row("error")], TODAY)
    assert [each.fault for each in cells.load(file)] == [("close@GET",)]


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["lmcache-resp", "lmcache-redis", "lmcache-valkey", "lmcache-l2-resp", "lmcache-fs"])
def test_the_least_cell_of_each_cause_fails_ten_times_of_ten_or_has_its_rate(name: str) -> None:
    connector = connectors.find(name)
    found = causes(check.run([connector], check.Asked(again=0)))
    asked = check.Asked(again=0)
    with check.grounds(None, "cpu") as make, ThreadPoolExecutor(check.BEGUN) as pool:
        ground = make(connector, threading.Event())
        planned = {cell.id: cell for cell in check.plan(ground, pool, asked)}

        def failed(cause: Cause) -> int:
            """Play a cause's least cell ten times, whatever comes of the first; return how often it failed."""
            cell = planned[cause.rows[0].id]
            return sum(is_finding(check.attempt(ground, cell, asked).verdict) for _ in range(10))

        counts = dict(zip((cause.rows[0].id for cause in found), pool.map(failed, found), strict=True))
    others = {cell: f"{count} of 10" for cell, count in counts.items() if count < 10}
    print(f"{name}: {len(found)} causes, {len(found) - len(others)} of them ten times of ten; others: {others}")
    assert found, f"{name} has no cause at all"
    assert len(others) <= 0.1 * len(found), others
    assert all(counts.values()), others
