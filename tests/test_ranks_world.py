"""A world of ranks: who listens where, what is told of a rank that dies, and wrong use in one line."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvproof import check as plain
from kvproof import connectors, validate
from kvproof.connectors.rank_adapter import Load
from kvproof.faults.spawner import descendants
from kvproof.faults.supervisor import supervisor
from kvproof.models.chunks import block_cyclic
from kvproof.ranks import check, scenario
from kvproof.ranks.world import Ground, World
from kvproof.results import Results
from kvproof.runner import Returned
from kvproof.witnesses import again


@pytest.fixture(scope="module")
def ground() -> Iterator[Ground]:
    with check.grounds(3, "cpu") as make:
        yield make(connectors.find("sharded-reference"), threading.Event())


def listening(pids: set[int]) -> set[str]:
    """Return the addresses, as the kernel writes them, on which these processes listen for TCP."""
    inodes = set()
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                inodes.add(str(link.readlink()))
            except OSError:
                continue
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and f"socket:[{words[9]}]" in inodes:
                found.add(words[1].partition(":")[0])
    return found


def test_ranks_listen_on_the_loopback_interface_only(ground: Ground) -> None:
    with World(ground, "listening", Load("load")) as world:
        pids = {runner.process.pid for runner in world.runners}
        everybodys = {*descendants(supervisor().process.pid)}
        assert pids <= everybodys
        assert listening(pids), "gloo listens on something"
        loopback = {"0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F"}
        assert listening(everybodys) <= loopback


def test_a_rank_that_is_killed_is_named_by_what_the_others_saw(ground: Ground) -> None:
    [planned] = [plan for plan in check.plans(ground, plain.Asked(faults=("killed-at-broadcast@last",),
                                                                   reads=("load",))) if plan.scenarios]
    evidence, steps = scenario.play(ground, planned.scenarios[0])
    ends = {end.rank: end for end in evidence.step.ends}
    assert [ends[rank].how for rank in range(3)] == ["aborted", "aborted", "crash"]
    assert "killed by signal 9" in ends[2].words
    told = evidence.trouble["stall"]
    says = (r"ranks? [01 and]+ waited in collective 2, broadcast in broadcast \(rank_group\.py:\d+\), which rank 2 "
            r"never entered: rank 2 crash: the process killed by signal 9")
    assert re.fullmatch(says, told), told
    assert evidence.log == "", "with its death recorded, the log is a behaviour of the protocol"
    assert evidence.again is not None
    assert [end.uses for end in evidence.again.ends] == [5, 5, 5]
    assert any("with rank [2] anew" in step for step in steps)


@pytest.mark.parametrize("owners", [block_cyclic(6, 3, 2), (2, 2, 2, 0, 1, 0), (1,) * 6], ids=str)
def test_any_owner_map_will_do(owners: tuple[int, ...], ground: Ground) -> None:
    name = f"owners-{'-'.join(map(str, owners))}"
    with World(ground, name, Load("load"), owners=owners) as world:
        prompt = scenario.chunks(name, 6)
        world.store(prompt, 1)
        reports, found = world.lookup(dict.fromkeys(world.ranks, prompt))
        assert (set(reports.values()), found) == ({6}, 6)
        ends = world.load(dict.fromkeys(world.ranks, prompt), 1)
        assert [(end.uses, all(end.exact)) for end in ends] == [(6, True)] * 3
        assert {chunk: {rank for rank, _ in keys} for chunk, keys in world.keys.items()} == {
            chunk: {owner} for chunk, owner in zip(prompt, owners, strict=True)}
        assert validate.validate(world.log, complete=True).verdict == "accepted"


@pytest.mark.parametrize(("bandwidth", "fixed", "chunks", "loaded"), [
    (1.71e9, 0, 700, 0), (2.6e9, 0, 1, 1), (10.76e9, 0.33, 67, 0), (10.76e9, 0.33, 90, 90)], ids=str)
def test_a_hit_is_loaded_only_where_that_takes_less_time(
    bandwidth: float, fixed: float, chunks: int, loaded: int, ground: Ground
) -> None:
    # One instance is slower than the break-even 2.53 GB/s; with eight, 17,000 tokens are too few (facts: 1).
    cost = (48_400, 52_200, bandwidth, fixed)
    with World(ground, "policy", Load("load"), cost=cost) as world:
        answer = world.runners[0].call("kvproof.ranks.inside:schedule", 5.0, reports=[chunks, chunks + 1, chunks])
    assert answer == Returned(loaded)


def test_what_is_stored_is_found_by_a_world_of_new_processes(ground: Ground) -> None:
    prompt = scenario.chunks("lasting", 4)
    with World(ground, "lasting", Load("load")) as world:
        world.store(prompt, 1)
        left = world.close()
        assert [each["processes"] for each in left] == [[], [], []]
        assert not any("kvproof" in name for each in left for name in each["threads"]), left
    with World(ground, "lasting", Load("load")) as world:
        world.keys = {chunk: set() for chunk in prompt}
        assert world.lookup(dict.fromkeys(world.ranks, prompt))[1] == 4
        assert all(all(end.exact) for end in world.load(dict.fromkeys(world.ranks, prompt), 1))


def test_a_finding_is_told_with_the_command_that_finds_it_again() -> None:
    name = "sharded-reference+own-extras"
    row = plain.one(name, "same-prefix", "other-layout@last", "load", ranks=2)
    assert row.verdict == "fail"
    assert again(row) == (
        f"kvproof check -c {name} --rule same-prefix --fault 'other-layout@last' --read 'load' --ranks 2")
    assert row.evidence["disturbance"] == "rank 1: the victim's KV cache has another layout"
    assert any(step.startswith("rank 0 returned and computes with") for step in row.evidence["steps"])
    document = Results(cells=[row]).document()
    assert document["cells"][0]["where"]["ranks"] == 2


@pytest.mark.parametrize(("options", "says"), [
    (("-c", "sharded-reference"), "sharded-reference: ShardedReference has ranks; say how many with --ranks W"),
    (("-c", "reference", "--ranks", "2"), "reference: Reference is no RankAdapter; leave --ranks out"),
    (("-c", "sharded-reference", "--ranks", "0"), "expected a number of ranks from 1 to 64, got '0'"),
    (("-c", "sharded-reference", "--ranks", "2", "--server", "fakeredis"), "each rank has a valkey-server of its own"),
    (("-c", "sharded-reference", "--ranks", "2", "--fault", "nothing"), "nothing is selected"),
    (("-c", "sharded-reference+nothing", "--ranks", "2"), "no connector is called 'sharded-reference+nothing'"),
    (("-c", "sharded-reference", "--ranks", "2", "--rule", "nothing"), "no rule is called 'nothing'"),
])
def test_wrong_use_of_ranks_is_one_line(options: tuple[str, ...], says: str) -> None:
    done = subprocess.run([sys.executable, "-m", "kvproof", "check", *options], capture_output=True, text=True,
                          timeout=100)
    assert done.returncode == 2, done.stdout + done.stderr
    assert says in done.stderr.replace("\n", " ")
    assert "Traceback" not in done.stderr


_BARE = """
from kvproof.connectors.rank_adapter import Load, RankAdapter

class Bare(RankAdapter):
    name, distribution, loads = "bare", "kvproof", (Load("load"),)
    store = lookup = load = close = lambda self, *chunks: None
"""


def test_only_ranks_that_join_another_group_need_a_rebuild(tmp_path: Path) -> None:
    for rebuilds, code, says in (("", 2, "Bare.rebuild is"), ("    rebuilds = False\n", 3, "bare:Bare")):
        (tmp_path / "bare.py").write_text(_BARE + rebuilds)
        done = subprocess.run([sys.executable, "-m", "kvproof", "check", "-c", "bare:Bare", "--ranks", "2", "--fault",
                               "none"], capture_output=True, text=True, timeout=100, cwd=tmp_path, check=False)
        assert done.returncode == code, done.stdout + done.stderr
        assert ("expected a method of its own" in done.stderr) == (code == 2), done.stderr
        assert says in done.stderr + done.stdout


def test_the_plan_is_listed_with_what_is_left_out() -> None:
    command = [sys.executable, "-m", "kvproof", "check", "-c", "sharded-reference", "--ranks", "2", "--list"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "no-skip[killed-at-broadcast@last-load]" in lines
    assert "  async-load: evicted@first: the load asks the instance for nothing: the bytes have come before" in lines
    count = sum(line.endswith("]") for line in lines)
    assert f"{count} cells. Left out, and why:" in lines
