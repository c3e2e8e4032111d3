"""A trace is a run of its system or is refused at the right place; and it can be written, read and kept as a test."""

from __future__ import annotations

import json
import runpy
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from kvproof.models.trace import Taken, Trace
from kvproof.spec.judge import judge
from kvproof.traces import read
from kvproof.traces.text import diff
from tests import recorded

TURNS = Path(__file__).parent / "protocols" / "turns.py"


def run(*command: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True, timeout=120, cwd=cwd)


def kvproof(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run("kvproof.cli", *arguments)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a protocol of somebody's own, and the traces of its proof."""
    place = tmp_path_factory.mktemp("turns")
    shutil.copy(TURNS, place)
    done = kvproof("prove", str(place / "turns.py"), "--traces", str(place / "traces"), "--json",
                   str(place / "results.json"))
    assert done.returncode == 0, done.stdout + done.stderr
    return place


def test_the_prover_writes_every_trace_and_its_results_name_the_files(folder: Path) -> None:
    written = sorted(path.name for path in (folder / "traces").iterdir())
    assert written == ["turns.alone.same-number.itf.json", "turns.alone.witness.itf.json"]
    [row] = json.loads((folder / "results.json").read_text())["obligations"]
    assert row["witness_path"] == str(folder / "traces" / "turns.alone.witness.itf.json")
    assert row["trace_path"] is None
    [mutant] = row["mutants"]
    assert mutant["trace_path"] == str(folder / "traces" / "turns.alone.same-number.itf.json")
    assert mutant["trace"][0] == "no rigid symbols", "the lines of the diagram are there as before"


def test_what_the_prover_writes_is_a_run_that_ends_as_it_says(folder: Path) -> None:
    for path in (folder / "traces").iterdir():
        judged = judge(read(path))
        assert judged.refusal is None, f"{path.name}: {judged.refusal}"
        assert judged.ends, path.name


def test_a_limit_and_a_model_are_written_too(tmp_path: Path) -> None:
    done = kvproof("prove", "keys.other-world", "--traces", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    traces = [read(path) for path in sorted(tmp_path.iterdir())]
    assert [trace.role for trace in traces[:1]] == ["counterexample"]
    paths = sorted(map(str, tmp_path.iterdir()))
    *_, last = done.stdout.partition(f"\n{len(paths)} traces:\n")
    assert sorted(last.splitlines()) == paths, "the last lines list what was written"
    assert not any(trace.taken for trace in traces), "a model is one state"
    for trace in traces:
        judged = judge(trace)
        assert judged.refusal is None, f"{trace.subject}: {judged.refusal}"
        assert judged.ends, trace.subject


def test_no_id_leads_out_of_the_folder(tmp_path: Path) -> None:
    text = TURNS.read_text().replace('"same-number"', '"../../witness"')
    (tmp_path / "turns.py").write_text(text)
    done = kvproof("prove", str(tmp_path / "turns.py"), "--traces", str(tmp_path / "in"))
    assert done.returncode == 0, done.stdout + done.stderr
    written = sorted(path.name for path in (tmp_path / "in").iterdir())
    assert written == ["turns.alone...%2F..%2Fwitness.itf.json", "turns.alone.witness.itf.json"]


def test_a_mutant_called_witness_does_not_take_the_witness_place(tmp_path: Path) -> None:
    (tmp_path / "turns.py").write_text(TURNS.read_text().replace('"same-number"', '"witness"'))
    done = kvproof("prove", str(tmp_path / "turns.py"), "--traces", str(tmp_path / "in"))
    assert done.returncode == 0, done.stdout + done.stderr
    written = sorted(path.name for path in (tmp_path / "in").iterdir())
    assert written == ["turns.alone.mutant.witness.itf.json", "turns.alone.witness.itf.json"]


def test_wherever_one_value_is_changed_the_trace_is_refused_exactly_there() -> None:
    trace = recorded.early_return()
    assert judge(trace).refusal is None
    tried = 0
    for number, state in enumerate(trace.states):
        for symbol, table in state.items():
            for key, value in table.items():
                other = not value if isinstance(value, bool) else 1 - value if value in (0, 1) else 0
                refusal = judge(recorded.changed(trace, number, symbol, key, other)).refusal
                assert refusal is not None, f"{symbol}{key} = {other} in state {number} was not noticed"
                assert refusal.step == number, f"{symbol}{key} = {other} in state {number}: {refusal}"
                what = f"{symbol}({','.join(map(str, key))})" if number else symbol
                assert what in refusal.says, refusal
                tried += 1
    assert tried == 60


def test_a_refusal_says_the_conjunct_of_the_guard_and_what_it_spoke_of() -> None:
    trace = recorded.early_return()
    twice = replace(trace, taken=(trace.taken[0], Taken("enter_exchange", {"r": 1}, 1)))
    assert str(judge(twice).refusal) == (
        "step 2: enter_exchange(r=1) may not happen: of its guard, `entered(r) == 0` is false, where entered(r) = 1")
    early = replace(trace, states=(trace.states[0], trace.states[0]),
                    taken=(Taken("leave_exchange", {"r": 0, "q": 0}, 0),))
    said = str(judge(early).refusal)
    assert "`entered(r) == 1` is false, where entered(r) = 0; " in said
    assert "`ForAll(p, entered(p) >= 1)` is false for p = rank 0, p = rank 1" in said


@pytest.mark.parametrize(
    ("taken", "said"),
    [
        (Taken("fly", {"r": 0}, 0), "there is no action fly"),
        (Taken("go", {"q": 0}, 0), "go(q=0) has not the picks of go: r"),
        (Taken("go", {"r": 7}, 0), "there is no r = 7 in this world"),
        (Taken("go", {"r": False}, 0), "there is no r = false in this world"),
        (Taken("go", {"r": 0}, 1), "is said to be rank 1's"),
        (Taken("go", {"r": 1}, 1), "go(r=1) may not happen: of its guard, "),
    ],
)
def test_another_action_or_pick_is_refused(taken: Taken, said: str) -> None:
    trace = recorded.early_return()
    refusal = judge(replace(trace, taken=(trace.taken[0], taken))).refusal
    assert refusal is not None
    assert refusal.step == 2
    assert said in refusal.says


@pytest.mark.parametrize(
    ("symbol", "key", "value", "said"),
    [
        ("entered", (0,), True, "entered(0) is true; expected a whole number"),
        ("gone", (0,), 0, "gone(0) is 0; expected true or false"),
        ("least", (0,), 2, "least(0) is 2; expected a rank below 2"),
        ("least", (2,), 0, "least is given for 3 arguments; expected 2"),
        ("least", None, 0, "least is 0; expected a function"),
        ("left", None, {(0,): 0, (5,): 0}, "left is given for (5), which is not in this world"),
    ],
)
def test_a_value_that_its_symbol_cannot_have_is_refused(
    symbol: str, key: tuple[int, ...] | None, value: object, said: str
) -> None:
    refusal = judge(recorded.changed(recorded.early_return(), 1, symbol, key, value)).refusal
    assert (refusal and refusal.step, refusal and refusal.says) == (1, said)


def test_other_rigid_symbols_make_another_world() -> None:
    trace = recorded.early_return()
    refusal = judge(replace(trace, rigid={**trace.rigid, "uniform": True})).refusal
    assert refusal is not None
    assert refusal.says.startswith("it is not allowed by the axioms: `")
    assert refusal.says.endswith("== uniform` is false, where uniform = true")
    refusal = judge(replace(trace, rigid={**trace.rigid, "length": {(0,): 2, (1,): 0}})).refusal
    assert refusal is not None
    assert "size 1" in refusal.says


def test_a_run_that_ends_elsewhere_is_no_counterexample() -> None:
    trace = recorded.early_return()
    judged = judge(replace(trace, states=trace.states[:2], taken=trace.taken[:1]))
    assert (judged.refusal, judged.ends) == (None, False)


def test_the_false_claim_is_named_with_the_ranks_for_which_it_fails() -> None:
    judged = judge(recorded.early_return())
    assert [(number, each.name) for number, each in judged.false] == [(2, "no-skip")]
    [(number, truth)] = judged.false
    said = truth.sentence(number)
    assert said.startswith("the claim no-skip is false in state 2: it fails for (r = rank 0, q = rank 1), where "), said
    assert "gone(r) = true" in said
    assert len(judged.truths) == 19, "13 conjuncts of the invariant and 6 claims"
    assert judge(recorded.witness()).false == []


def test_the_difference_of_two_states_is_what_changed_and_nothing_else() -> None:
    first, second, third = recorded.early_return().states
    assert diff(first, first) == []
    assert diff(first, second) == ["entered(1): 0 -> 1"]
    assert diff(third, first) == ["entered(1): 1 -> 0", "gone(0): true -> false"]
    assert diff({"n": 1, "s": frozenset({1})}, {"n": True, "s": frozenset()}) == ["s: {1} -> {}"]


def test_a_trace_is_shown_as_text_and_checked(folder: Path) -> None:
    path = folder / "traces" / "turns.alone.same-number.itf.json"
    done = kvproof("trace", str(path), "--text", "--check")
    assert done.returncode == 0, done.stderr
    assert "1. draw(r=1) by rank 1\n  drawn(1): 0 -> 1\n" in done.stdout
    assert done.stdout.endswith("each of its 2 steps is allowed; it ends where the claim fails\n")
    path = folder / "changed.itf.json"
    path.write_text(recorded.changed(read(folder / "traces" / "turns.alone.same-number.itf.json"), 2, "drawn", (0,),
                                     7).to_itf())
    done = kvproof("trace", str(path), "--check")
    assert done.returncode == 1
    assert "refused at step 2: after draw(r=0), drawn(0) is 7, and would be 1\n" in done.stdout


def test_a_system_is_found_beside_its_trace(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = replace(read(folder / "traces" / "turns.alone.same-number.itf.json"), system="somewhere/turns.py")
    path = folder / "moved.itf.json"
    path.write_text(trace.to_itf())
    assert kvproof("trace", str(path), "--check").returncode == 0
    path = folder / "traces" / "moved.itf.json"
    path.write_text(trace.to_itf())
    done = kvproof("trace", str(path), "--check")
    path.unlink()
    assert done.returncode == 2
    assert "somewhere/turns.py, which the trace is of, is not there" in done.stderr


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"system": "os"}, "the trace is of 'os'; expected a Python file, or one of prefix, load"),
        ({"claim": "load.nothing"}, "load states no obligation 'load.nothing'"),
        ({"mutant": "nobody"}, "load has no system 'EarlyReturn'"),
        ({"theory": "Load"}, "load has no system 'Load'"),
        ({"claim": "", "mutant": "", "theory": "Path"}, "load has no system 'Path'"),
    ],
)
def test_a_system_that_is_not_there_is_one_clear_line(changes: dict[str, str], said: str, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(replace(recorded.early_return(), **changes).to_itf())  # type: ignore[arg-type]  # by name
    done = kvproof("trace", str(path), "--check")
    assert done.returncode == 2, done.stdout
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


def written_test(trace: Trace, folder: Path) -> tuple[Path, subprocess.CompletedProcess[str]]:
    (folder / "trace.itf.json").write_text(trace.to_itf())
    path = folder / "test_of_a_trace.py"
    return path, kvproof("replay", str(folder / "trace.itf.json"), "--pytest", str(path))


def passes(path: Path) -> tuple[bool, str]:
    """Whether the one test of a module passes, and what it says if not."""
    module = runpy.run_path(str(path))
    [test] = [value for name, value in module.items() if name.startswith("test_")]
    try:
        test()
    except AssertionError as error:
        return False, str(error)
    return True, ""


def test_a_trace_is_kept_as_a_test_until_the_protocol_is_mended_and_after_it(folder: Path, tmp_path: Path) -> None:
    mine = tmp_path / "turns.py"
    mine.write_text(TURNS.read_text())
    trace = replace(read(folder / "traces" / "turns.alone.same-number.itf.json"), system="turns.py")
    path, done = written_test(trace, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith(": it is a run that ends where the claim fails\n")
    done = run("pytest", "-q", "-p", "no:cacheprovider", str(path))
    assert "1 passed" in done.stdout, done.stdout + done.stderr
    assert passes(path)[0]

    mine.write_text(mine.read_text().replace("drawn=put(s.drawn, r, s.next))\n",
                                             "drawn=put(s.drawn, r, s.next), next=s.next + 1)\n"))
    good, said = passes(path)
    assert not good, "the protocol is mended, and the test does not notice"
    assert "if the protocol was mended, write this test again" in said
    path, done = written_test(trace, tmp_path)
    assert "it is refused at step 1: after draw(r=1), next is 1, and would be 2" in done.stdout
    assert passes(path)[0]

    mine.write_text(TURNS.read_text())
    good, said = passes(path)
    assert not good, "the mistake is back, and the test does not notice"
    assert "the protocol allows this run (again)" in said


def test_a_test_with_one_value_changed_fails(tmp_path: Path) -> None:
    path, done = written_test(recorded.early_return(), tmp_path)
    assert done.returncode == 0, done.stderr
    text = path.read_text()
    at = text.rindex('"gone": {"#map": [[0, true]')
    path.write_text(text[:at] + text[at:].replace("true", "false", 1))
    good, said = passes(path)
    assert not good
    assert "refused at step 2: after go(r=0), gone(0) is false, and would be true" in said


def test_a_run_that_ends_elsewhere_is_no_test(tmp_path: Path) -> None:
    trace = recorded.early_return()
    path, done = written_test(replace(trace, states=trace.states[:2], taken=trace.taken[:1]), tmp_path)
    assert done.returncode == 2
    assert "there is nothing to assert" in done.stderr
    assert not path.exists()


def test_what_a_hostile_trace_says_is_no_code_in_its_test(tmp_path: Path) -> None:
    told = '"""\nraise SystemExit(9)\nr"""\\'
    path, done = written_test(replace(recorded.early_return(), expected=told, place=told, versions={told: told}),
                              tmp_path)
    assert done.returncode == 0, done.stderr
    assert passes(path)[0]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("replay", "TRACE", "-c", "reference"), "replaying a trace on a connector is not there yet"),
        (("replay", "TRACE"), "name its file with --pytest FILE"),
        (("replay", "nil-get"), "name one with -c"),
        (("replay", "nil-get", "-c", "reference", "--pytest", "x.py"), "--pytest writes a trace as a test"),
        (("replay", "nowhere.json", "-c", "reference"), "nowhere.json is no file; expected a finding"),
        (("trace", "nowhere.json"), "cannot read nowhere.json: No such file or directory"),
        (("trace", "WRONG"), "the document: found no '#meta'"),
        (("trace", "TRACE", "--svg", "nowhere/a.svg"), "cannot write nowhere/a.svg"),
        (("prove", "load.no-skip", "--traces", "TRACE"), "cannot make the directory"),
        (("prove", "load.no-skip", "--list", "--traces", "x"), "goes with no --traces"),
    ],
)
def test_a_wrong_command_is_one_clear_line(arguments: tuple[str, ...], said: str, tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_text(recorded.early_return().to_itf())
    (tmp_path / "wrong.json").write_text("{}")
    names = {"TRACE": str(tmp_path / "trace.json"), "WRONG": str(tmp_path / "wrong.json")}
    done = kvproof(*(names.get(each, each) for each in arguments))
    assert done.returncode == 2, done.stdout
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr


def test_a_deadlock_is_said_without_a_reason_that_is_none() -> None:
    judged = judge(recorded.of_mutant("load.no-deadlock", "waits-for-all"))
    assert judged.ends
    assert "the claim load.no-deadlock is false in state 0" in [each.sentence(number) for number, each in judged.false]
