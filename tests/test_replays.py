"""The historic bugs on real connectors: reproduced where they are, absent where they are not, and why, in evidence."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvproof.connectors.adapter import Adapter, Hit, Miss, Outcome, Place, Read
from kvproof.connectors.reference import Reference
from kvproof.faults.gates import Gap, Line
from kvproof.replay import self_test, summary
from kvproof.replays.stage import Case
from kvproof.rig import blocked_at
from tests.waiting import all_gone, running, until

KVPROOF = [sys.executable, "-m", "kvproof.cli"]
MARK = "KVPROOF_TEST_MARK"
BUGS = ("lost-completion", "nil-get", "worker-key", "cancel-cross-talk")
ALL_ABSENT = dict.fromkeys(BUGS, "absent")
CAUGHT = dict.fromkeys(BUGS, "pass")
EXPECTED = {
    "reference": ALL_ABSENT,
    "lmcache-resp": {**dict.fromkeys(BUGS, "reproduced"), "cancel-cross-talk": "absent"},
    "lmcache-redis": {**ALL_ABSENT, "worker-key": "reproduced"},
    "lmcache-valkey": {**ALL_ABSENT, "worker-key": "reproduced"},
    "lmcache-l2-resp": {**ALL_ABSENT, "nil-get": "reproduced"},
    "lmcache-fs": dict.fromkeys(BUGS, "unsupported"),
    "redis-py": ALL_ABSENT,
    "redis-py-asyncio": ALL_ABSENT,
    "valkey-py": ALL_ABSENT,
    "valkey-glide-sync": {**ALL_ABSENT, "lost-completion": "unsupported"},
    "coredis": {**ALL_ABSENT, "lost-completion": "unsupported"},
    "redis-py==4.5.3": ALL_ABSENT,
    "redis-py-asyncio==4.5.3": {**ALL_ABSENT, "cancel-cross-talk": "reproduced"},
    **{f"reference+{bug}": CAUGHT for bug in BUGS},
}
"""The verdicts of today's releases."""


def kvproof(*arguments: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*KVPROOF, *arguments], capture_output=True, text=True, timeout=600.0, env={**os.environ, **(environment or {})}
    )


def verdicts(document: dict[str, Any]) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for row in document["replays"]:
        found.setdefault(row["connector"], {})[row["bug"]] = row["verdict"]
    return found


def test_the_release_that_mended_the_cross_talk_is_cleared() -> None:
    done = kvproof("replay", "cancel-cross-talk", "-c", "redis-py-asyncio==4.5.4")
    assert (done.returncode, "absent" in done.stdout) == (0, True), done.stdout + done.stderr


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Everything that `kvproof run` finds, once."""
    path = tmp_path_factory.mktemp("run") / "results.json"
    mark = str(path)
    done = kvproof("run", "--only", "proofs", "--only", "replays", "--json", str(path), environment={MARK: mark})
    document: dict[str, Any] = json.loads(path.read_text())
    return {**document, "done": done, "mark": mark}


def row(document: dict[str, Any], connector: str, bug: str) -> dict[str, Any]:
    [found] = [found for found in document["replays"] if (found["connector"], found["bug"]) == (connector, bug)]
    return dict(found)


def test_every_verdict_is_as_it_is_known_to_be(whole: dict[str, Any]) -> None:
    explained = [f"{found['connector']} {found['bug']}: {found['explain']}" for found in whole["replays"]]
    assert verdicts(whole) == EXPECTED, "\n".join(explained)
    assert whole["done"].returncode == 0, whole["done"].stdout + whole["done"].stderr
    assert whole["complaints"] == []


def test_a_whole_run_proves_as_well(whole: dict[str, Any]) -> None:
    assert {row["verdict"] for row in whole["obligations"] if not row["limit"]} == {"proved"}
    assert {row["verdict"] for row in whole["obligations"] if row["limit"]} == {"refuted"}
    limits = sum(row["limit"] for row in whole["obligations"])
    assert f"Proof obligations: {len(whole['obligations']) - limits} proved, {limits} limits" in whole["done"].stdout


def test_a_lost_completion_is_explained_by_the_two_places_and_the_blocked_caller(whole: dict[str, Any]) -> None:
    found = row(whole, "lmcache-resp", "lost-completion")
    for case in found["evidence"]:
        if case["verdict"] == "reproduced":
            assert "nobody had registered for it" in case["evidence"]["completion"], case
            assert len(case["evidence"]["between"]) == 2, case
            assert "_register_future_sync" in case["evidence"]["between"][1], case
            assert any("connector_client_base.py" in frame for frame in case["evidence"]["stack"]), case
    ways = {case["evidence"]["way"] for case in found["evidence"] if case["verdict"] == "reproduced"}
    assert ways == {"held submission", "paused caller"}


def test_a_nil_get_shows_the_bytes_the_buffer_and_what_came_after(whole: dict[str, Any]) -> None:
    found = row(whole, "lmcache-resp", "nil-get")
    for case in found["evidence"]:
        evidence = case["evidence"]
        assert any("b'$-1\\r\\n'" in line for line in evidence["wire"]), case
        assert evidence["buffer"] == "still poisoned", case
        if evidence["bytes"] == 16:
            assert evidence["absent key"][0] == "hit, poison", case
        else:
            assert "present key" not in evidence["present key afterwards"], case
            assert not evidence["present key afterwards"].startswith("hit"), case
    assert {len(str(case["evidence"]["bytes"])) for case in found["evidence"]} == {2, 3, 4, 8}


def test_an_absent_nil_get_was_felt(whole: dict[str, Any]) -> None:
    for connector in ("reference", "redis-py", "redis-py-asyncio", "lmcache-redis"):
        for case in row(whole, connector, "nil-get")["evidence"]:
            assert case["verdict"] == "absent", case
            assert case["evidence"]["wire"], f"{connector}: absent without a nil on the wire: {case}"
            assert case["evidence"]["present key afterwards"].startswith("hit"), case


def test_a_worker_key_shows_what_is_stored_and_what_is_asked_for(whole: dict[str, Any]) -> None:
    for connector in ("lmcache-resp", "lmcache-redis", "lmcache-valkey"):
        cases = row(whole, connector, "worker-key")["evidence"]
        wrong = {case["evidence"]["read"] for case in cases if case["verdict"] == "reproduced"}
        assert wrong == {"batched_get_non_blocking"}, f"{connector}: {wrong}"
        asked = {(case["evidence"]["world size"], case["evidence"]["worker"]) for case in cases}
        assert asked == {(2, 1), (4, 1), (4, 2), (4, 3)}
        for case in cases:
            assert case["evidence"]["stored"], case
            assert case["evidence"]["asked"], case


def test_a_cross_talk_says_whose_value_came(whole: dict[str, Any]) -> None:
    found = row(whole, "redis-py-asyncio==4.5.3", "cancel-cross-talk")
    assert "get of ff66 returned the value of ee55" in found["explain"]
    for connector in ("reference", "redis-py", "redis-py-asyncio"):
        for case in row(whole, connector, "cancel-cross-talk")["evidence"]:
            assert any("held" in line for line in case["evidence"]["wire"]), f"{connector}: nothing was held: {case}"


def test_other_replays_run_with_the_lost_completion_masked(whole: dict[str, Any]) -> None:
    for bug in ("nil-get", "worker-key", "cancel-cross-talk"):
        assert row(whole, "lmcache-resp", bug)["masked"] == "lost-completion"
    assert row(whole, "lmcache-resp", "lost-completion")["masked"] == ""
    assert row(whole, "redis-py", "nil-get")["masked"] == ""


def test_nothing_is_left_running(whole: dict[str, Any]) -> None:
    assert _marked(whole["mark"]) == [], "processes of the run live on"


def test_the_mark_of_a_run_is_seen_on_its_processes() -> None:
    with subprocess.Popen([*KVPROOF, "replay", "nil-get", "-c", "lmcache-resp"], env={**os.environ, MARK: "seen"},
                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        until(lambda: len(_marked("seen")) >= 4, "the run, its supervisor, its server and a fork server")
        process.kill()
    until(lambda: not _marked("seen"), "the end of all")


def _marked(value: str) -> list[str]:
    """Return the processes whose environment carries this mark, which everything that a run starts inherits."""
    found = []
    for directory in Path("/proc").iterdir():
        try:
            if f"{MARK}={value}".encode() in (directory / "environ").read_bytes().split(b"\0"):
                found.append((directory / "cmdline").read_bytes().decode(errors="replace"))
        except OSError:
            continue
    return found


def test_the_exit_codes_of_one_replay(tmp_path: Path) -> None:
    done = kvproof("replay", "nil-get", "-c", "reference")
    assert done.returncode == 0, done.stdout + done.stderr
    (tmp_path / "empty.toml").write_text("")
    done = kvproof("replay", "nil-get", "-c", "lmcache-resp", "--known", str(tmp_path / "empty.toml"))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "nil-get on lmcache-resp 0.5.6: reproduced" in done.stdout
    assert done.stderr == "", "progress belongs on a terminal only"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["replay", "nil-get", "-c", "lmcache-resp==0.0.1"], "kvproof connectors --install lmcache-resp==0.0.1"),
        (["replay", "nil-get", "-c", "lmcache-rsp"], "lmcache-resp"),
        (["replay", "nil-gte", "-c", "reference"], "expected one of"),
        (["replay", "nil-get", "-c", "nowhere.at:All"], "nowhere.at"),
        (["replay", "nil-get", "-c", "reference", "--server", "memcached"], "expected valkey, fakeredis"),
        (["replay", "nil-get", "-c", "reference", "--known", "/nowhere.toml"], "known file /nowhere.toml"),
        (["replay", "nil-get", "-c", "reference", "--json", "/nowhere/at/all.json"], "cannot write"),
        (["connectors", "--install", "redis-py"], "write NAME==VERSION"),
        (["connectors", "--install", "nothing==1"], "no connector is called"),
    ],
)
def test_wrong_usage_is_one_clear_line_and_exit_2(arguments: list[str], expected: str) -> None:
    done = kvproof(*arguments)
    assert done.returncode == 2, done.stdout + done.stderr
    assert expected in done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert "Traceback" not in done.stderr


def test_junit_and_json_are_written(tmp_path: Path) -> None:
    from xml.etree import ElementTree

    junit, path = tmp_path / "junit.xml", tmp_path / "results.json"
    done = kvproof("replay", "worker-key", "-c", "redis-py", "--junit", str(junit), "--json", str(path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert ElementTree.parse(junit).getroot().get("tests") == "1"
    assert json.loads(path.read_text())["replays"][0]["where"]["server"].startswith("valkey")


def test_results_on_standard_output_are_json_alone() -> None:
    done = kvproof("replay", "worker-key", "-c", "redis-py", "--json", "-")
    assert json.loads(done.stdout)["summary"]["exit_code"] == 0


def test_a_password_of_the_users_own_server_is_in_no_output(server: object) -> None:
    from kvproof.faults import servers

    with servers.valkey(password="never-to-be-seen") as guarded:
        url = f"redis://:never-to-be-seen@{guarded.host}:{guarded.port}"
        command = [*KVPROOF, "replay", "nil-get", "-c", "reference", "-c", "redis-py", "--server", url, "--json", "-"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            shown = Path(f"/proc/{process.pid}/cmdline")
            until(lambda: b"***" in shown.read_bytes(), "the password to be hidden in the process list")
            out, err = process.communicate(timeout=120)
        with guarded.connect() as raw:
            assert raw.command("DBSIZE") == 0, "keys of ours were left on the user's server"
    assert process.returncode == 0, out + err
    assert "never-to-be-seen" not in out + err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda each: each.name)
def test_an_interrupted_run_writes_what_is_known_and_leaves_nothing(number: signal.Signals, tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    names = ["reference", "reference+nil-get", "redis-py", "tests.test_replays:Waits"]
    chosen = [word for name in names for word in ("-c", name)]
    command = [*KVPROOF, "run", "--only", "replays", *chosen, "--json", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        servers = until(lambda: _below(process.pid, "valkey-server"), "the server", 60.0)
        until(lambda: _below(process.pid, "kvproof.runner.forkserver"), "a fork server", 60.0)
        process.send_signal(number)
        out, err = process.communicate(timeout=90)
    all_gone(servers)
    assert process.returncode == 3, out + err
    assert "Traceback" not in err
    document = json.loads(path.read_text())
    assert document["summary"]["interrupted"]
    assert len(document["replays"]) == 16
    found = {row["verdict"] for row in document["replays"]}
    # What Waits has nothing for is unsupported, where that was known before the interruption.
    assert found <= {"absent", "pass", "error", "unsupported"}, f"an interruption has become a finding: {found}"
    assert "of 16 rows were done" in out


def test_a_killed_run_leaves_nothing() -> None:
    command = [*KVPROOF, "run", "--only", "replays", "-c", "tests.test_replays:Waits"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        until(lambda: _below(process.pid, "kvproof.runner.forkserver"), "a fork server", 60.0)
        until(lambda: _below(process.pid, "kvproof.faults.proxy_server"), "the proxy", 60.0)
        below = _below(process.pid, "")
        process.kill()
    all_gone(below)


def _below(pid: int, command: str) -> list[int]:
    from kvproof.faults.spawner import descendants

    return [each for each in descendants(pid) if each in running(command)]


class Waits(Adapter):
    """Opens, and then takes its time about everything."""

    name = "waits"
    distribution = "kvproof"
    reads = (Read("get"),)

    def put(self, chunks: object) -> list[Outcome]:  # type: ignore[override]  # it never looks
        """Take long."""
        signal.pause()
        return []

    read = put  # type: ignore[assignment]  # reading takes as long

    def close(self) -> None:
        """Close."""


class Deaf(Adapter):
    """Says what one wants to hear and never talks to the server."""

    name = "deaf"
    distribution = "kvproof"
    reads = (Read("get"),)
    abandons = "timeout"

    def put(self, chunks: object) -> list[Outcome]:  # type: ignore[override]  # it never looks
        """Store nothing."""
        return [Hit() for _ in chunks]  # type: ignore[attr-defined]  # it is a list

    def read(self, read: Read, chunks: object) -> list[Outcome]:  # type: ignore[override]  # nor here
        """Read nothing."""
        return [Miss() for _ in chunks]  # type: ignore[attr-defined]  # it is a list

    def close(self) -> None:
        """Close."""


class Forgetful(Reference):
    """Knows by heart what it has stored, and asks the server for nothing else."""

    def read(self, read: Read, chunks: Any) -> list[Outcome]:
        """Ask for what is known to be there only."""
        return super().read(read, chunks) if all(key.chunk == "aa11" for key, _ in chunks) else [Miss() for _ in chunks]


class Moved(Deaf):
    """A later version in which the line that a replay needs is gone."""

    def gaps(self) -> list[Gap]:  # type: ignore[override]  # a list will do
        """Name a line that is not there."""
        str(Line(Deaf.put, "self.register_future"))
        return []


class Refuses(Deaf):
    """Cannot be opened."""

    def __init__(self, place: Place) -> None:
        raise ConnectionError("no route to anywhere")


@pytest.mark.parametrize(
    ("adapter", "bug", "verdict", "words"),
    [
        ("Deaf", "nil-get", "error", "of a chunk that was just stored: miss"),
        ("Forgetful", "nil-get", "not-felt", "no nil reply reached the client"),
        ("Deaf", "lost-completion", "unsupported", "the adapter names no call that hands"),
        ("Deaf", "cancel-cross-talk", "error", "of a chunk that was just stored: miss"),
        ("Moved", "lost-completion", "unsupported", "has no line that matches"),
        ("Refuses", "nil-get", "error", "no route to anywhere"),
    ],
)
def test_what_could_not_tell_says_so(adapter: str, bug: str, verdict: str, words: str) -> None:
    done = kvproof("replay", bug, "-c", f"tests.test_replays:{adapter}", "--json", "-")
    [found] = json.loads(done.stdout)["replays"]
    assert found["verdict"] == verdict, found
    assert words in found["explain"], found
    assert done.returncode == 3, done.returncode


@pytest.mark.parametrize(
    ("cases", "verdict"),
    [
        ([], "unsupported"),
        (["absent", "absent"], "absent"),
        (["absent", "unsupported"], "unsupported"),
        (["absent", "not-felt"], "not-felt"),
        (["absent", "error", "not-felt"], "error"),
        (["absent", "error", "reproduced"], "reproduced"),
    ],
)
def test_the_verdict_of_many_cases(cases: list[str], verdict: str) -> None:
    assert summary([Case("case", each, "so it was") for each in cases])[0] == verdict


def test_a_self_test_that_is_not_caught_is_toothless() -> None:
    assert self_test("nil-get", "nil-get", "reproduced", "")[0] == "pass"
    assert self_test("nil-get", "nil-get", "absent", "")[0] == "toothless"
    assert self_test("nil-get", "nil-get", "not-felt", "")[0] == "toothless"
    assert self_test("nil-get", "worker-key", "absent", "")[0] == "pass"
    assert self_test("nil-get", "worker-key", "reproduced", "")[0] == "error"
    assert self_test("nil-get", "worker-key", "not-felt", "")[0] == "not-felt"


def test_the_place_where_somebody_is_blocked_is_their_code() -> None:
    frames = [f'"{os.__file__}", line 1 in wait', '"/x/site-packages/lmcache/client.py", line 7 in exists_sync']
    assert blocked_at(frames) == "exists_sync (client.py:7)"
    assert blocked_at([]) == "an unknown place"


@pytest.mark.nightly
def test_20_runs_in_a_row_give_the_same_verdicts(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    for number in range(20):
        done = kvproof("run", "--only", "replays", "--json", str(path))
        document = json.loads(path.read_text())
        print(f"run {number + 1}: exit code {done.returncode}, {document['seconds']} s", flush=True)
        assert verdicts(document) == EXPECTED, f"run {number + 1}: {verdicts(document)}"
        assert done.returncode == 0, done.stdout
