"""The contract as pytest items: inert unless asked for, with the right outcome for each verdict, alone and by xdist."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from kvproof import connectors, contract, registries
from kvproof.known import cells

ROOT = Path(__file__).parents[1]
INERT = '''
import sys


def pytest_sessionfinish():
    assert "kvproof.plugin" in sys.modules
    heavy = {"torch", "z3", "trio", "hypothesis", "rich", "redis", "kvproof.gate", "kvproof.check", "kvproof.rules"}
    assert not heavy & set(sys.modules), heavy & set(sys.modules)
    print("nothing was imported")
'''
CASES = '''
"""Connectors that get each verdict."""
from tests.liars import Honest


class Takes(Honest):
    """Takes what it has never stored for a hit, in a read of one chunk."""
    def nil(self):
        from kvproof.connectors.adapter import Hit
        return Hit()


class Broken(Honest):
    """Stores nothing."""
    def put(self, chunks):
        raise RuntimeError("no space left")


class Small(Honest):
    """Does not know the CPU."""
    devices = ("cuda",)
'''
KNOWN = '''
connector = "cases:{connector}"

[[cell]]
rule = "miss-is-miss"
fault = "{fault}"
read = "*"
version = ""
reason = "takes a nil for a hit"
issue = "none: it was made so"
since = 2026-11-30
'''
MISSES = ("--kvproof-rule", "miss-is-miss", "--kvproof-fault", "none:1*")
TWO_RULES = ("--kvproof-rule", "miss-is-miss", "--kvproof-rule", "prefix-count", "--kvproof-rule", "key-per-rank")
OUTCOMES = re.compile(r"(PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS).*?(kvproof\.rules::\S+)|(kvproof\.rules::\S+).*?"
                      r"(PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project of somebody's own, with connectors for each verdict."""
    (tmp_path / "cases.py").write_text(CASES)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return tmp_path


def gate(project: Path, *options: str, within: float = 120, **environment: str) -> tuple[int, str]:
    """Run the gate in a project, with no other plugin than ours; return its exit code and everything it said."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--pyargs", "kvproof.rules", *options],
        cwd=project, capture_output=True, text=True, timeout=within,
        env={**os.environ, "COLUMNS": "200", "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
             "PYTEST_PLUGINS": "kvproof.plugin", **environment})
    return done.returncode, done.stdout + done.stderr


def outcomes(screen: str) -> dict[str, str]:
    """Return the outcome of each item on a screen that -v has made, in its order."""
    found: dict[str, str] = {}
    for first, then, named, said in OUTCOMES.findall(screen.partition("short test summary")[0]):
        found.setdefault(then or named, first or said)
    return found


def test_without_a_connector_nothing_is_collected_and_nothing_imported(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(INERT)
    # A copy beside, since this checkout's own conftest.py would be loaded, and imports what it needs.
    installed = tmp_path / "site"
    shutil.copytree(ROOT / "kvproof", installed / "kvproof", ignore=shutil.ignore_patterns("__pycache__"))
    code, said = gate(tmp_path, "-s", PYTHONPATH=str(installed))
    assert code == 5, said
    assert "nothing was imported" in said, said
    assert "collected 0 items" in said, said


def test_an_item_is_a_cell_in_the_order_of_the_plan(project: Path) -> None:
    asked = ("--kvproof-connector", "cases:Honest", "--collect-only", "-q")
    code, said = gate(project, *asked, "--kvproof-rule", "miss-is-miss")
    ids = [line for line in said.splitlines() if line.startswith("kvproof.rules::")]
    assert code == 0, said
    assert len(ids) >= 5, said
    assert all(re.fullmatch(r"kvproof\.rules::miss-is-miss\[\S+-get\]", each) for each in ids), said
    sizes = [int(size) for size in re.findall(r"\[none:(\d+)B-", said)]
    assert sizes == sorted(sizes), said


def test_several_connectors_have_a_level_of_their_own(project: Path) -> None:
    names = ("cases:Honest", "cases:Takes")
    asked = [word for name in names for word in ("--kvproof-connector", name)]
    _, said = gate(project, *asked, *MISSES, "-v")
    found = outcomes(said)
    assert {name.split("::")[1] for name in found} == set(names), said
    assert {outcome for name, outcome in found.items() if "Honest" in name} == {"PASSED"}, said
    assert "FAILED" in {outcome for name, outcome in found.items() if "Takes" in name}, said


def test_a_finding_is_told_in_words_with_its_evidence(project: Path) -> None:
    code, said = gate(project, "--kvproof-connector", "cases:Takes", *MISSES, "--junitxml=j")
    assert code == 1, said
    assert "was a hit" in said, said
    for part in ("the rule: A chunk that is not there is a miss", "steps:", "wire:", "request GET", "alone:"):
        assert part in said, f"{part!r} is not in\n{said}"
    assert "Traceback" not in said, said
    assert "gate.py" not in said, said
    cases = ElementTree.parse(project / "j").getroot().iter("testcase")
    properties = [{each.get("name"): each.get("value") for each in case.iter("property")} for case in cases]
    assert properties
    for each in properties:
        assert list(each) == ["connector", "version", "rule", "fault", "read", "verdict", "masked", "rate"]
        assert (each["connector"], each["rule"], each["read"]) == ("cases:Takes", "miss-is-miss", "get")
    assert "fail" in {each["verdict"] for each in properties}


def test_what_is_known_is_expected_and_what_is_gone_is_stale(project: Path) -> None:
    known = project / "known.toml"
    asked = ("--kvproof-known", str(known), *MISSES, "-v", "-rxf")
    known.write_text(KNOWN.format(connector="Takes", fault="*"))
    code, said = gate(project, "--kvproof-connector", "cases:Takes", *asked)
    assert set(outcomes(said).values()) == {"XFAIL"}, said
    assert "takes a nil for a hit (none: it was made so)" in said, said
    assert code == 0, said
    known.write_text(KNOWN.format(connector="Honest", fault="none:16B"))
    code, said = gate(project, "--kvproof-connector", "cases:Honest", *asked)
    found = outcomes(said)
    assert "stale: it passes now" in said, said
    assert {name for name, outcome in found.items() if outcome == "FAILED"} == {
        name for name in found if "[none:16B" in name}, said
    assert "PASSED" in found.values(), said
    known.write_text(KNOWN.format(connector="Honest", fault="none:16B") + "intermittent = 0.3\n")
    code, said = gate(project, "--kvproof-connector", "cases:Honest", *asked)
    assert set(outcomes(said).values()) == {"PASSED"}, said


def test_what_could_not_tell_is_an_error_and_what_cannot_be_is_skipped(project: Path) -> None:
    _, said = gate(project, "--kvproof-connector", "cases:Broken", "-v", "-rE", *MISSES)
    assert outcomes(said) == {"kvproof.rules::plan": "ERROR"}, said
    assert "no space left" in said, said
    code, said = gate(project, "--kvproof-connector", "cases:Small", "-v", "-rs", *MISSES)
    assert outcomes(said) == {"kvproof.rules::plan": "SKIPPED"}, said
    assert "only knows buffers on cuda" in said, said
    assert code == 0, said
    # A server that is not ours has a password that nobody sets.
    code, said = gate(project, "--kvproof-connector", "cases:Honest", "-v", "-rs", "--kvproof-server", "fakeredis",
                      "--kvproof-rule", "auth-fails-loud")
    assert set(outcomes(said).values()) == {"SKIPPED"}, said
    assert "password cannot be set" in said, said
    assert "auth_fails_loud.py" in said, said


def test_two_workers_find_the_same_as_one(project: Path) -> None:
    asked = ("--kvproof-connector", "cases:Takes", *TWO_RULES, "-v", "--tb=no")
    alone, several = (outcomes(gate(project, *asked, *more)[1]) for more in ((), ("-p", "xdist", "-n", "2")))
    assert alone == several
    assert {"PASSED", "FAILED"} <= set(alone.values()), alone


WHOLE = ("reference", "redis-py", "lmcache-redis", "lmcache-resp")


def verdicts(path: Path) -> dict[str, str]:
    """Return the verdict of each cell in a JUnit file that pytest wrote."""
    found = {}
    for case in ElementTree.parse(path).iter("testcase"):
        said = {one.get("name"): one.get("value") for one in case.iter("property")}
        found[f"{said['rule']}[{said['fault']}-{said['read']}]"] = str(said["verdict"])
    return found


@pytest.mark.nightly
@pytest.mark.parametrize("connector", WHOLE)
def test_the_whole_matrix_is_the_same_again_and_with_xdist_and_without(connector: str, project: Path) -> None:
    runs = {}
    for number, more in enumerate(((), (), ("-p", "xdist", "-n", "2"), ("-p", "xdist", "-n", "2"))):
        junit = project / f"{number}.xml"
        code, said = gate(project, "--kvproof-connector", connector, f"--junitxml={junit}", *more, within=900)
        assert code == 0, said[-3000:]
        runs[number] = verdicts(junit)
    assert len(runs[0]) > 500, f"{len(runs[0])} cells"
    entries = [entry for entry in cells.load(rules=contract.claims()) if entry.intermittent is not None]
    version = connectors.find(connector).version
    for number, run in runs.items():
        assert run.keys() == runs[0].keys(), f"run {number} has other cells"
        differs = {name: (runs[0][name], verdict) for name, verdict in run.items() if verdict != runs[0][name]}
        sure = {name: both for name, both in differs.items() if not any(
            entry.lists(connector, version, name.partition("[")[0], *name[:-1].partition("[")[2].rsplit("-", 1))
            for entry in entries)}
        print(f"{connector}, run {number}: {len(differs)} of {len(run)} differ, {len(sure)} are not intermittent")
        assert not sure, sure


def test_what_is_deselected_is_not_run(project: Path) -> None:
    (project / "conftest.py").write_text(
        "import kvproof.gate\n\ndef pytest_sessionfinish(session):\n"
        "    gate = session.config.pluginmanager.get_plugin('kvproof_gate')\n"
        "    print('begun:', sorted(gate.contracts[0]._begun))\n")
    _, said = gate(project, "--kvproof-connector", "cases:Honest", *MISSES, "-s", "-k", "16B")
    assert "begun: ['miss-is-miss[none:16B-get]']" in said, said
    assert re.search(r"1 passed, \d+ deselected", said), said


@pytest.mark.parametrize(("options", "says"), [
    (("--kvproof-connector", "nothing-like-it"), "no connector is called 'nothing-like-it'"),
    (("--kvproof-connector", "reference", "--kvproof-rule", "nothing"), "--kvproof-rule nothing: no rule"),
    (("--kvproof-connector", "reference", "--kvproof-known", "nothing.toml"), "known file nothing.toml"),
    (("--kvproof-registry", "nothing:there"), "registry nothing:there: ModuleNotFoundError"),
    (("--kvproof-registry", "theirs:names", "--kvproof-exempt", "none.toml"), "exemptions none.toml"),
])
def test_a_wrong_option_is_one_line(project: Path, options: tuple[str, ...], says: str) -> None:
    (project / "theirs.py").write_text("def names():\n    return []\n")
    code, said = gate(project, *options)
    assert code == 4, said
    assert f"ERROR: {says}" in said, said
    assert "Traceback" not in said, said


def demanded(project: Path, exempt: str, *options: str) -> list[str]:
    """Return what a registry of four names is told to lack."""
    (project / "theirs.py").write_text("def names():\n    print('noise')\n    return ['a', 'b', 'honest', 'c']\n")
    (project / "exempt.toml").write_text(exempt)
    _, said = gate(project, "--kvproof-registry", "theirs:names", "--kvproof-exempt", "exempt.toml", *options)
    return [line.removeprefix("ERROR: ").partition(";")[0] for line in said.splitlines() if line.startswith("ERROR: ")]


def test_a_registry_needs_a_check_or_a_reason_for_each(project: Path) -> None:
    reason = '[[exempt]]\nname = "{}"\nreason = "needs a device"\n'
    known = ("--kvproof-connector", "cases:Honest", *MISSES)
    unchecked = "registry theirs:names: {} is neither checked nor exempted"
    assert demanded(project, reason.format("a")) == [unchecked.format(name) for name in ("b", "honest", "c")]
    assert demanded(project, "".join(map(reason.format, "ab")), *known) == [unchecked.format("c")]
    assert demanded(project, "".join(map(reason.format, "abc")), *known) == []
    assert demanded(project, "".join(map(reason.format, "abcd")), *known) == [
        "registry theirs:names: d is exempted, and there is no such connector any more"]
    assert demanded(project, '[[exempt]]\nname = "a"\nreason = " "\n') == ["exemptions exempt.toml: 'a' has no reason"]
    # Workers leave it to the session that started them.
    assert demanded(project, "".join(map(reason.format, "abc")), *known, "-p", "xdist", "-n", "2") == []


def test_every_connector_of_lmcache_has_a_check_or_a_reason() -> None:
    found = registries.names("lmcache")
    assert {"resp", "redis", "valkey", "mooncakestore"} <= set(found)
    exempt = registries.exempt("lmcache")
    assert set(found) == set(exempt) | set(registries.ADAPTERS["lmcache"])
    assert not set(exempt) & set(registries.ADAPTERS["lmcache"])
