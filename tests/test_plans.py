"""`kvproof plan` and `kvproof simulate` as their users run them: figures, files, plots, and what is refused."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvproof.economics import plans
from kvproof.economics.trace import read
from kvproof.models import reuse
from kvproof.models.estimate import Estimate
from kvproof.models.requests import Request
from tests.test_requests import HEAD, TRACE, power

COST = ("--size", "48400", "--rate", "52200", "--bandwidth", "10.76e9", "--fixed", "0.33")


def kvproof(*words: str, within: float = 120.0) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "kvproof", *words], capture_output=True, text=True, timeout=within,
                          check=False)


def data(*words: str) -> Any:
    done = kvproof(*words, "--json", "-")
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return json.loads(done.stdout)


def test_a_hit_is_loaded_or_recomputed_by_its_length() -> None:
    found = data("plan", *COST, "--tokens", "16390", "--tokens", "200000")
    assert found["break_even"] == pytest.approx(2.53e9, rel=0.002)
    assert found["least_tokens"] == pytest.approx(22_512, abs=1)
    assert [each["choice"] for each in found["hits"]] == ["recompute", "load"]
    assert found["hits"][0]["gains"] == pytest.approx(0.09, abs=0.001), "as the source measured it"
    said = kvproof("plan", *COST, "--tokens", "16390").stdout
    assert "from n* = 22,512 tokens on a hit is loaded" in said
    slow = data("plan", "--size", "48400", "--rate", "52200", "--bandwidth", "1.71e9", "--tokens", "200000")
    assert (slow["least_tokens"], slow["hits"][0]["choice"]) == (None, "recompute")


@pytest.mark.parametrize("connector", ["reference", pytest.param("lmcache-redis", marks=pytest.mark.nightly)])
def test_what_a_load_costs_is_measured_on_a_connector(connector: str, tmp_path: Path) -> None:
    words = ("plan", "--measure", "-c", connector, "--chunk-bytes", "65536", "--size", "256", "--rate", "20000",
             "--tokens", "5000")
    done = kvproof(*words, "--json", str(tmp_path / "json"), "--html", str(tmp_path / "html"))
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    found = json.loads((tmp_path / "json").read_text())
    measured = found[0] if isinstance(found, list) else found
    assert len(measured["loads"]) == measured["points"] == 6
    assert all(len(each["seconds"]) == 12 and min(each["seconds"]) > 0 for each in measured["loads"])
    assert measured["bandwidth_interval"][0] <= measured["bandwidth"] <= measured["bandwidth_interval"][1]
    assert measured["bandwidth"] > 1e6
    # How well a line fits is this machine's doing; where it does not, nothing is said of hits.
    assert isinstance(found, list) == (measured["worst"] <= plans.MISSES)
    if isinstance(found, list):
        assert found[1]["bandwidth"] == measured["bandwidth"]
        assert found[1]["hits"][0]["regret_at_most"] >= 0
    page = (tmp_path / "html").read_text()
    assert "<svg" in page
    assert "tokens served from the cache" in page


def test_tiers_of_a_trace_are_planned(tmp_path: Path) -> None:
    plots = [tmp_path / "tiers.png", tmp_path / "tiers.svg"]
    for plot in plots:
        assert kvproof("plan", "tiers", str(HEAD), "--plot", str(plot)).returncode == 0
    assert plots[0].read_bytes()[:4] == b"\x89PNG"
    assert "hit rate of blocks" in plots[1].read_text()
    found = data("plan", "tiers", str(HEAD), "--capacity", "100", "--capacity", "6000", "--servers", "4")
    assert found["unbounded_hit_rate"] == pytest.approx(676 / 8490)
    assert [each["blocks"] for each in found["curve"]] == [100, 6000]
    curve = reuse.curve(read(HEAD))
    assert [each["hit_rate"] for each in found["curve"]] == [curve.rate(100), curve.rate(6000)]
    assert found["curve"][1]["bytes"] == 6000 * 512 * 131_072
    assert all(each["pooled"] >= each["split"] for each in found["pooled"])
    assert found["fit"]["holds"] is False


def test_c_star_follows_only_from_a_law_that_holds() -> None:
    lawful = power(0.5, 0.5 / 4000**0.5)
    found = plans.tiers(lawful, 1000, [100], 20, 2000, 1, (1e-4, 1e-12))
    assert found.data["fit"]["holds"]
    best = {each["beta"]: each["blocks"] for each in found.data["best"]}
    assert list(best.values()) == sorted(best.values()) or len(best) == 3
    assert "C* with beta" in "\n".join(found.lines)
    turns = [Request(float(number), 512, 1, (block,)) for number, block in enumerate([*range(500)] * 8)]
    none = plans.tiers([*turns, *lawful[:2000]], 1000, [100], 1, 600, 1, (1e-4, 1e-12))
    assert "best" not in none.data
    assert any("does not hold here" in line for line in none.lines)


def test_routing_of_a_trace_is_planned(tmp_path: Path) -> None:
    done = kvproof("plan", "routing", str(TRACE), "--plot", str(tmp_path / "routes.svg"), "--json",
                   str(tmp_path / "json"))
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    found = json.loads((tmp_path / "json").read_text())
    assert [each["policy"] for each in found["policies"]] == [
        "round robin", "least loaded", "bounded hash", "prefix aware"]
    assert all(sum(each["requests"]) == found["requests"] for each in found["policies"])
    assert 0 < found["moved"] < 0.25
    assert "route consistency" in (tmp_path / "routes.svg").read_text()


def test_route_consistency_and_the_hit_rate_part_on_prompts_that_are_made_up() -> None:
    found = {each["policy"]: each for each in data("plan", "routing", "--prefixes", "60")["policies"]}
    assert found["round robin"]["consistency"] == pytest.approx(0.125, abs=0.02)
    assert found["round robin"]["hit_rate"] > 0.97


def test_measured_runs_are_simulated_with_their_deviations(tmp_path: Path) -> None:
    words = [word for name in ("h1b", "h2b", "h3", "h5b") for word in ("--facts", name)]
    found = data("simulate", *words, "--seeds", "3")
    assert [each["run"] for each in found] == ["h1b", "h2b", "h3", "h5b"]
    for each in found:
        assert each["assumed"]
        for figure in each["figures"]:
            assert figure["deviation"] == pytest.approx(figure["simulated"] / figure["measured"] - 1)
    said = kvproof("simulate", "--facts", "h3", "--seeds", "3", "--plot", str(tmp_path / "l.png")).stdout
    assert "median  measured 0.41 s, simulated 0.41 s: -1%" in said
    assert "the source does not give when requests came" in said


def test_an_engine_of_ones_own_is_simulated() -> None:
    words = ("simulate", "--size", "48400", "--rate", "52200", "--bandwidth", "0.85e9", "--arrivals", "1.0", "--tokens",
             "16390", "--seeds", "3")
    slow, fast = data(*words), data(*words, "--instances", "8")
    assert slow["median"] > 3 * fast["median"]
    late = data(*words, "--asynchronous", "--deadline", "0.5")
    assert late["shares"]["late"] > 0.9


@pytest.mark.parametrize(("words", "says"), [
    (("plan",), "needs --size --rate --bandwidth"),
    (("plan", "--measure"), "name the connector with -c"),
    (("plan", "--measure", "-c", "reference", "--bandwidth", "1e9"), "--bandwidth is what --measure finds"),
    (("plan", "--measure", "-c", "reference", "--size", "1"), "give --size and --rate both"),
    (("plan", "--measure", "-c", "nowhere"), "no connector is called 'nowhere'"),
    (("plan", "--measure", "-c", "sharded-reference"), "has ranks"),
    (("plan", *COST, "--plot", "x.pdf"), "ends in .png or .svg"),
    (("plan", *COST, "--plot", "/nowhere/x.png"), "/nowhere/x.png"),
    (("plan", "tiers", "/nowhere"), "cannot read /nowhere"),
    (("plan", "routing"), "name a TRACE, or --prefixes N"),
    (("plan", "routing", str(HEAD), "--prefixes", "3"), "name a TRACE, or --prefixes N"),
    (("plan", "tiers", __file__), "line 1: got"),
    (("plan", "tiers", str(HEAD), "--saves", "1"), "needs both --saves and --rent"),
    (("plan", "tiers", str(HEAD), "--from", "10", "--to", "5"), "expected the lesser first"),
    (("simulate",), "needs --size --rate --bandwidth --arrivals --tokens"),
    (("simulate", "--facts", "h9"), "expected one of h1b, h2b, h3, h5b"),
    (("simulate", "--facts", "h3", "--facts", "h5b", "--plot", "x.png"), "--plot draws one run"),
    (("plan", "-c", "redis-py"), "--connector is of --measure; give both"),
    (("plan", "--measure", "-c", "redis-py", "--tokens", "5"), "needs --size and --rate"),
    (("plan", "routing", str(HEAD), "--requests", "3"), "leave it out with a trace"),
    (("simulate", "--facts", "h3", "--instances", "2"), "has figures of its own; leave --instances out"),
    (("simulate", "--facts", "h3", "--asynchronous", "--requests", "9"), "leave --requests --asynchronous out"),
    (("simulate", "--size", "1", "--rate", "1", "--bandwidth", "1", "--arrivals", "1", "--tokens", "1", "--deadline",
      "1"), "--deadline is of --asynchronous"),
])
def test_wrong_usage_is_said_in_a_line(words: tuple[str, ...], says: str) -> None:
    done = kvproof(*words)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert says in done.stderr


@pytest.mark.parametrize("words", [("plan", "--size", "-1"), ("plan", "--size", "x"), ("plan", "--rate", "0"),
                                   ("simulate", "--cached", "2"), ("plan", "tiers", "t", "--servers", "1.5")])
def test_numbers_out_of_bounds_are_refused(words: tuple[str, ...]) -> None:
    done = kvproof(*words)
    assert done.returncode == 2
    assert "expected a" in done.stderr


def test_a_queue_that_is_overloaded_is_no_steady_one() -> None:
    words = ("--size", "48400", "--rate", "52200", "--bandwidth", "0.85e9", "--tokens", "16390", "--arrivals")
    done = kvproof("simulate", *words, "1.21")
    assert done.stdout.startswith("1.21 requests a second are more than it keeps up with (1.07): there is no steady"), (
        done.stdout)
    assert kvproof("simulate", *words, "1.0").stdout.startswith("TTFT: median")


@pytest.mark.parametrize(("tokens", "chosen", "most"), [(1000, "recompute", 0.0), (19_000, "recompute", 0.0223),
                                                        (100_000, "load", 0.0), (21_000, "load", 0.0283)])
def test_a_choice_by_an_estimate_costs_at_most_what_its_intervals_allow(tokens: int, chosen: str, most: float) -> None:
    measured = Estimate(0.3, (0.28, 0.32), 1e9, (0.9e9, 1.1e9), 0.1, 6)
    plan = plans.cost(10_000.0, 40_000.0, 1e9, 0.3, [tokens], measured)
    [one] = plan.data["hits"]
    assert (one["choice"], one["regret_at_most"]) == (chosen, pytest.approx(most, abs=0.002))
    for fixed in (0.28, 0.32):
        for bandwidth in (0.9e9, 1.1e9):
            load, recompute = fixed + tokens * 10_000 / bandwidth, tokens / 40_000
            cost = load - recompute if chosen == "load" else recompute - load
            assert cost <= one["regret_at_most"] + 1e-9


def test_plots_without_matplotlib_are_refused_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "matplotlib.py").write_text("raise ImportError('none here')\n")
    done = subprocess.run([sys.executable, "-m", "kvproof", "plan", *COST, "--plot", str(tmp_path / "x.png")],
                          capture_output=True, text=True, timeout=60, check=False,
                          env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert (done.returncode, done.stderr) == (2, "kvproof: plots need matplotlib: pip install 'kvproof[plots]'\n")


def test_what_is_without_bounds_is_null_in_json(tmp_path: Path) -> None:
    choose, trace = random.Random(1), tmp_path / "trace.jsonl"
    trace.write_text("".join(json.dumps({
        "timestamp": 5_000_000 + number * 1000, "input_length": 512, "output_length": 1,
        "hash_ids": [choose.randrange(300)]}) + "\n" for number in range(4000)))
    found = data("plan", "tiers", str(trace), "--saves", "1", "--rent", "1e-12")
    assert found["seconds"] == 3999.0
    assert any(each["blocks"] is None for each in found["best"])


@pytest.mark.parametrize(("lines", "says"), [
    ([{"timestamp": 0, "input_length": 10**400, "output_length": 0, "hash_ids": []}], "line 1"),
    ([{"timestamp": 0, "input_length": 1, "output_length": 0, "hash_ids": [1, 7]},
      {"timestamp": 0, "input_length": 1, "output_length": 0, "hash_ids": [2, 7]}], "equal for equal prefixes only"),
])
def test_a_trace_that_cannot_be_is_said_in_a_line(lines: list[Any], says: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
    for kind in ("tiers", "routing"):
        done = kvproof("plan", kind, str(trace))
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
        assert says in done.stderr


def test_what_is_written_may_be_named_before_or_after_the_kind(tmp_path: Path) -> None:
    for name, words in (("a", ("plan", "--json", str(tmp_path / "a"), "routing", str(HEAD))),
                        ("b", ("plan", "routing", str(HEAD), "--json", str(tmp_path / "b")))):
        assert kvproof(*words).returncode == 0
        assert json.loads((tmp_path / name).read_text())["plan"] == "routing"
    empty = tmp_path / "empty.jsonl"
    empty.write_text('{"timestamp": 0, "input_length": 0, "output_length": 0, "hash_ids": []}\n')
    assert kvproof("plan", "tiers", str(empty), "--servers", "3").returncode == 0
    huge = kvproof("plan", "--size", "1", "--rate", "1e17", "--bandwidth", "1e-300", "--tokens", "100000000")
    assert (huge.returncode in (0, 2), "Traceback" in huge.stderr) == (True, False)
