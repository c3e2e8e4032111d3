"""Nothing a connector does may hang, kill or fool the suite: every misbehaviour has its verdict."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from kvproof.connectors.adapter import Endpoint, Place
from kvproof.runner import Died, ForkServer, Grew, Hung, Raised, Returned, Runner, verdict_of
from kvproof.runner.forks import ImportCrashed, ImportHung
from tests.waiting import all_gone, running, until

DEADLINE = 1.0
PLACE = Place(Endpoint("127.0.0.1", 1), chunk_bytes=64)
READ = {"read": "get", "chunks": ["ab"]}


@pytest.fixture(scope="module")
def forks() -> Iterator[ForkServer]:
    server = ForkServer()
    yield server
    server.close()


def opened(forks: ForkServer, name: str) -> Runner:
    runner = forks.runner(f"tests.hostile:{name}")
    answer = runner.open(PLACE)
    assert isinstance(answer, Returned), f"{name} could not be opened: {answer}"
    return runner


def polite_is_fine(forks: ForkServer) -> None:
    with opened(forks, "Polite") as runner:
        answer = runner.call("kvproof.runner.calls:read", DEADLINE, **READ)
    assert isinstance(answer, Returned), f"the next connector does not run as if nothing had happened: {answer}"
    assert answer.value[0]["outcome"] == "miss", answer


@pytest.mark.parametrize(
    ("name", "verdict", "evidence"),
    [
        ("Segfault", "crash", "in misbehave"),
        ("Exits", "crash", "no stacks: the process exited with 3"),
        ("HoldsTheInterpreter", "hang", "in misbehave"),
        ("Spins", "hang", "in misbehave"),
        ("IgnoresTermination", "hang", "in misbehave"),
        ("Stops", "hang", "no stacks: it is stopped by a signal"),
        ("Grows", "leak", "no stacks: it was ended while it grew"),
        ("CrashesLater", "crash", "in misbehave"),
        ("LeavesAChildAndExits", "leak", "no stacks: the process exited with 0"),
    ],
)
def test_a_hostile_call_gets_its_verdict_in_time_with_stacks(
    forks: ForkServer, name: str, verdict: str, evidence: str
) -> None:
    with opened(forks, name) as runner:
        runner.memory_limit = 128 << 20
        begun = time.monotonic()
        answer = runner.call("kvproof.runner.calls:read", DEADLINE, **READ)
        took = time.monotonic() - begun
        assert verdict_of(answer) == verdict, answer
        assert isinstance(answer, (Hung, Died, Grew)), answer
        assert evidence in answer.stacks, f"{name}: expected {evidence!r} in the stacks, got: {answer.stacks}"
        assert took < DEADLINE + 1.0, f"{name}: {took:.2f} s for a deadline of {DEADLINE} s"
        assert not runner.usable
        pid = runner.process.pid
    all_gone([pid])
    polite_is_fine(forks)


@pytest.mark.parametrize("name", ["Prints", "RaisesInDel", "ChangesSignals", "ClosesDescriptors", "ReplacesStreams"])
def test_a_rude_call_that_returns_is_not_a_failure(forks: ForkServer, name: str) -> None:
    with opened(forks, name) as runner:
        for _ in range(2 if name not in ("ClosesDescriptors",) else 1):
            answer = runner.call("kvproof.runner.calls:read", 5.0, **READ)
            assert verdict_of(answer) == "pass", answer
        closed = runner.call("kvproof.runner.calls:close", DEADLINE)
        assert isinstance(closed, Returned), closed
        assert closed.value == {"threads": [], "processes": []}, closed
    polite_is_fine(forks)


def test_its_output_lands_with_the_runner_and_is_bounded(
    forks: ForkServer, capfd: pytest.CaptureFixture[str]
) -> None:
    with opened(forks, "Prints") as runner:
        runner.call("kvproof.runner.calls:read", 5.0, **READ)
        assert runner.output.total == 100_000_000, runner.output.total
        assert len(runner.output.text) < 40_000, f"kept {len(runner.output.text)} characters"
        assert "[... 9" in runner.output.text, "does not say how much was dropped"
    with opened(forks, "RaisesInDel") as runner:
        runner.call("kvproof.runner.calls:read", 5.0, **READ)
        assert "raised in __del__" in runner.output.text
    seen = capfd.readouterr()
    assert seen.out == seen.err == "", "a connector's output reached the terminal"


def test_a_daemon_left_behind_is_named_and_ended(forks: ForkServer) -> None:
    with opened(forks, "LeavesAChild") as runner:
        answer = runner.call("kvproof.runner.calls:read", DEADLINE, **READ)
        assert isinstance(answer, Returned), answer
        until(lambda: running("sleep 2001"), "the daemon")
        daemons = running("sleep 2001")
        closed = runner.call("kvproof.runner.calls:close", DEADLINE)
        assert isinstance(closed, Returned), closed
        assert any("sleep 2001" in process for process in closed.value["processes"]), closed
    all_gone(daemons)


def test_an_exception_of_any_kind_is_the_connectors_failure(forks: ForkServer) -> None:
    with opened(forks, "Raises") as runner:
        answer = runner.call("kvproof.runner.calls:read", DEADLINE, **READ)
        assert isinstance(answer, Raised), answer
        assert (answer.error, answer.text) == ("SystemExit", "the connector wants to leave")
        assert "in misbehave" in answer.traceback
        assert verdict_of(answer) == "fail"
        assert runner.usable, "an exception should not cost the runner"


def test_a_connector_that_never_opens_hangs_in_its_own_name(forks: ForkServer) -> None:
    with forks.runner("tests.hostile:HangsWhileOpening") as runner:
        answer = runner.open(PLACE, DEADLINE)
        assert isinstance(answer, Hung), answer
        assert "in __init__" in answer.stacks


def test_a_crash_at_import_says_where() -> None:
    server = ForkServer()
    try:
        with pytest.raises(ImportCrashed) as caught:
            server.runner("tests.hostile_crash_at_import:Anything")
        assert caught.value.end.signal == signal.SIGSEGV
        assert "hostile_crash_at_import.py" in caught.value.stacks
        assert not server.alive
    finally:
        server.close()


def test_a_hang_at_import_says_where() -> None:
    server = ForkServer(import_deadline=1.0)
    begun = time.monotonic()
    with pytest.raises(ImportHung) as caught:
        server.runner("tests.hostile_hang_at_import:Anything")
    assert time.monotonic() - begun < 2.5
    assert "hostile_hang_at_import.py" in caught.value.stacks
    assert not server.alive


def test_an_error_at_import_is_told_and_the_fork_server_lives_on(forks: ForkServer) -> None:
    from kvproof.errors import RunnerFailed

    with pytest.raises(RunnerFailed, match=r"libsomething\.so\.1"):
        forks.runner("tests.hostile_error_at_import:Anything")
    polite_is_fine(forks)


def test_where_an_import_has_started_cuda_a_runner_is_executed_and_can_use_it() -> None:
    server = ForkServer()
    try:
        polite_is_fine(server)
        with opened(server, "StartsCuda") as runner:
            answer = runner.call("kvproof.runner.calls:read", DEADLINE, **READ)
    finally:
        server.close()
    assert isinstance(answer, Returned), answer


def test_a_runner_that_ended_says_so_when_it_is_used_again(forks: ForkServer) -> None:
    from kvproof.errors import RunnerFailed

    with opened(forks, "Exits") as runner:
        runner.call("kvproof.runner.calls:read", DEADLINE, **READ)
        with pytest.raises(RunnerFailed, match="take a fresh one"):
            runner.call("kvproof.runner.calls:read", DEADLINE, **READ)


def test_a_dead_runner_is_replaced_quickly(forks: ForkServer) -> None:
    took = []
    for _ in range(11):
        opened(forks, "Polite").close()
        begun = time.perf_counter()
        runner = opened(forks, "Polite")
        took.append(time.perf_counter() - begun)
        runner.close()
    print(f"a warm runner with its connector open: median {1000 * statistics.median(took):.1f} ms")
    assert statistics.median(took) < 1.0, f"not warm at all: {took}"


def test_runners_end_when_the_suite_is_killed() -> None:
    script = (
        "import sys, time\n"
        "from tests.test_runner import *\n"
        "server = ForkServer()\n"
        "runner = opened(server, 'IgnoresTermination')\n"
        "print(runner.process.pid, server.process.pid, flush=True)\n"
        "runner.call('kvproof.runner.calls:read', 60.0, **READ)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, cwd=os.getcwd()) as suite:
        assert suite.stdout is not None
        pids = [int(word) for word in suite.stdout.readline().split()]
        suite.kill()
    all_gone(pids)


def test_values_that_are_no_json_are_the_adapters_error(forks: ForkServer) -> None:
    with opened(forks, "Polite") as runner:
        answer = runner.call("tests.test_runner:returns_a_set", DEADLINE)
        assert isinstance(answer, Raised), answer
        assert "JSON" in answer.text, answer


def returns_a_set(session: object) -> set[int]:
    return {1}
