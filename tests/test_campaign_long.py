"""Campaigns at length: the historic bugs without a hint, kills at any moment, a cluster, a driver that stays small."""

from __future__ import annotations

import importlib.util
import os
import random
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kvproof import connectors
from kvproof.campaigns.findings import Finding
from kvproof.errors import NotInstalled
from tests.campaigning import begun, findings, records, run, shrunk, wait_for

pytestmark = pytest.mark.nightly


def is_there(name: str) -> None:
    """Skip the test where a connector is not installed."""
    try:
        connectors.find(name)
    except NotInstalled as error:
        pytest.skip(str(error))


def steps(finding: Finding) -> list[dict[str, Any]]:
    return list(finding.shown["case"]["steps"])


def absent(finding: Finding) -> bool:
    """Whether a finding needs no fault, but that a chunk is read that nobody stored."""
    stored: set[int] = set()
    for step in steps(finding):
        chunks = set(step.get("chunks", ()))
        if step["do"] == "put":
            stored |= chunks
        elif step["do"] in ("read", "threads") and "get" in str(step["how"]) and chunks - stored:
            return finding.size == 0
    return False


def test_ten_minutes_find_the_historic_bugs(tmp_path: Path) -> None:
    is_there("lmcache-resp")
    done = run(tmp_path / "dir", "-c", "lmcache-resp", "-c", "lmcache-redis", "--for", "10m", within=900)
    print(done.stdout)
    found = [each for each in findings(tmp_path / "dir") if each.size <= 3]
    of = {name: [each for each in found if each.target == name] for name in ("lmcache-resp", "lmcache-redis")}
    nil = [each for each in of["lmcache-resp"] if absent(each)]
    lost = [each for each in of["lmcache-resp"] if "whose completion comes before it waits" in each.where]
    key = [each for each in of["lmcache-redis"] if each.shown["rule"] == "key-per-rank"]
    assert [len(nil), len(lost), len(key)] == [1, 1, 1], "each is one finding"
    assert [steps(each)[-1]["how"] for each in key] == ["batched_get_non_blocking"]


def test_fifteen_minutes_find_nothing_in_right_clients_and_the_driver_stays_small(tmp_path: Path) -> None:
    running = begun(tmp_path / "dir", "-c", "reference", "-c", "redis-py", "--for", "15m", "--workers", "2")
    seen: list[tuple[int, int]] = []
    while running.poll() is None:
        try:
            running.wait(15)
        except subprocess.TimeoutExpired:
            status = Path(f"/proc/{running.pid}/statm").read_text().split()
            seen.append((int(status[1]) * os.sysconf("SC_PAGESIZE") >> 20,
                         len(list(Path(f"/proc/{running.pid}/fd").iterdir()))))
    said, complaints = running.communicate()
    print(said, complaints, seen[:: max(1, len(seen) // 10)])
    assert running.returncode == 0, said
    third = len(seen) // 3
    for what, name in enumerate(("MiB", "descriptors")):
        early, late = max(each[what] for each in seen[2:third]), max(each[what] for each in seen[-third:])
        assert late <= 1.1 * early + 8, f"{early} {name} in the first third, {late} in the last"


def _more(directory: Path, before: int, running: subprocess.Popen[str]) -> bool:
    return len(records(directory)) > before + 3 or running.poll() is not None


def _findings(directory: Path) -> list[dict[str, Any]]:
    return [record for record in records(directory) if record["record"] in ("found", "shrunk")]


def test_a_hundred_kills_lose_no_finding(tmp_path: Path) -> None:
    directory, choose = tmp_path / "dir", random.Random(0)
    before = 0
    bugs = ("-c", "reference+worker-key", "-c", "reference+nil-get")
    for kill in range(100):
        running = begun(directory, *(["--resume"] if kill else bugs), "--for", "10m")
        wait_for(partial(_more, directory, before, running))
        assert running.poll() is None, running.communicate()
        try:
            running.wait(choose.random() * 4)
        except subprocess.TimeoutExpired:
            pass
        known = _findings(directory)
        running.send_signal(signal.SIGKILL)
        running.communicate(timeout=30)
        assert _findings(directory)[: len(known)] == known
        before = len(records(directory))
    print(f"{before} records, {len(findings(directory))} findings")
    done = run(directory, "--resume", "--for", "5s")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "key-per-rank" in {each.shown["rule"] for each in findings(directory)}


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="not run: Ray is not installed (kvproof[ray])")
def test_two_workers_on_ray_find_what_one_process_finds_and_one_may_be_killed(tmp_path: Path) -> None:
    alone = tmp_path / "alone"
    done = run(alone, "-c", "reference+worker-key", "--for", "60s")
    assert done.returncode == 1, done.stdout + done.stderr
    directory = tmp_path / "ray"
    running = begun(directory, "-c", "reference+worker-key", "--for", "120s", "--on", "ray", "--workers", "2")
    wait_for(lambda: {record["worker"] for record in records(directory) if record["record"] == "kept"} == {1, 2}, 90)
    actors = subprocess.run(["pgrep", "-f", "ray::Worker"], capture_output=True, text=True, check=False)
    wait_for(shrunk(directory), 90)
    known = records(directory)
    os.kill(int(actors.stdout.split()[0]), signal.SIGKILL)
    said, complaints = running.communicate(timeout=240)
    assert running.returncode == 1, said + complaints
    assert "another one goes on" in complaints
    assert records(directory)[: len(known)] == known
    assert max(record["number"] for record in records(directory) if record["record"] == "worker") == 3
    causes = [{(each.where, each.shape) for each in findings(place)} for place in (alone, directory)]
    assert causes[0] == causes[1], (causes, sys.version)
