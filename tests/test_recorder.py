"""The recorder: whole lines, numbered as they stand in the file, whoever calls it and whatever becomes of the file."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from kvproof.recorder import Recorder


def numbers(log: Path) -> list[int]:
    """The number of each line, in the order of the file."""
    return [json.loads(line)["seq"] for line in log.read_text().splitlines()]


def test_lines_stand_in_the_order_of_their_numbers_whatever_threads_record(tmp_path: Path) -> None:
    threads, calls = 4, 3000
    with Recorder(tmp_path / "log") as record:
        ready = threading.Barrier(threads)

        def work() -> None:
            ready.wait()
            for number in range(calls):
                record("look", step=number)

        running = [threading.Thread(target=work) for _ in range(threads)]
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            for thread in running:
                thread.start()
            for thread in running:
                thread.join()
        finally:
            sys.setswitchinterval(interval)
    assert numbers(tmp_path / "log") == list(range(threads * calls))


@pytest.mark.parametrize("call", [
    {"step": None}, {"step": -1}, {"step": True}, {"step": 1.5}, {"what": object()}, {"what": math.nan},
    {"what": [math.inf]}, {"event": 3},
    {"x": {1: 2, "1": 3}}, {"x": [{None: 2, "null": 3}]}, {"step": 2**53 + 1},
])
def test_a_call_that_is_refused_leaves_no_trace(call: dict[str, Any], tmp_path: Path) -> None:
    values = {name: value for name, value in call.items() if name != "event"}
    with Recorder(tmp_path / "log") as record:
        record("begin")
        with pytest.raises((TypeError, ValueError)):
            record(call.get("event", "look"), **values)
        record("look")
    assert numbers(tmp_path / "log") == [0, 1]


@pytest.mark.parametrize("rank", [True, None, 1.5, -1, "0", 2**53 + 1])
def test_a_rank_that_is_none_is_refused_and_no_file_is_made(rank: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"rank is .*; expected a natural number"):
        Recorder(tmp_path / "log", rank)
    assert not (tmp_path / "log").exists()


def test_a_closed_recorder_touches_no_file_that_has_its_number_now(tmp_path: Path) -> None:
    record = Recorder(tmp_path / "log")
    record.close()
    with open(tmp_path / "other", "wb", buffering=0) as other:
        with pytest.raises(ValueError, match="the recorder is closed; look was not recorded"):
            record("look")
        record.close()
        other.write(b"mine")
    assert (tmp_path / "other").read_bytes() == b"mine"


FULL = """
import resource, sys
from kvproof.recorder import Recorder
record = Recorder(sys.argv[1])
record("look")
lost = []
for room in map(int, sys.argv[2].split(",")):
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
    try:
        record("look")
    except OSError as error:
        lost.append(error.strerror)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
record("look")
print(len(lost))
"""


@pytest.mark.parametrize(("rooms", "failed", "left"), [
    ("70", 1, [0, 1, 2]),
    # Two calls whose line the file took nothing of: the log says that they are missing.
    ("70,70,80", 3, [0, 1, 4]),
    ("55", 1, [0, 2]),
])
def test_a_line_of_which_the_file_took_a_part_is_finished_before_the_next(
    rooms: str, failed: int, left: list[int], tmp_path: Path
) -> None:
    log = tmp_path / "log"
    done = subprocess.run([sys.executable, "-c", FULL, str(log), rooms], capture_output=True, text=True, timeout=60,
                          check=True)
    assert int(done.stdout) == failed
    assert numbers(log) == left


def test_a_forked_process_is_told_to_make_a_recorder_of_its_own(tmp_path: Path) -> None:
    with Recorder(tmp_path / "log") as record:
        record("begin")
        said, says = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                with record:
                    record("look")
            except RuntimeError as error:
                os.write(says, str(error).encode())
            with Recorder(tmp_path / "log", rank=1) as own:
                own("look")
            os._exit(0)
        os.close(says)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        record("look")
    with open(said, "rb") as told:
        assert b"forked" in told.read()
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [(line["rank"], line["seq"]) for line in lines] == [(0, 0), (1, 0), (0, 1)]


HANDLER = """
import signal, sys
from kvproof.recorder import Recorder
record = Recorder(sys.argv[1])
count = 0
def died(number, frame):
    global count
    count += 1
    record("die")
signal.signal(signal.SIGALRM, died)
signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
while count < 100:
    record("look")
signal.setitimer(signal.ITIMER_REAL, 0)
"""


def test_a_signal_handler_may_record_while_its_thread_records(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", HANDLER, str(tmp_path / "log")], timeout=60, check=False)
    assert done.returncode == 0, "it waits for itself"
    assert sorted(numbers(tmp_path / "log")) == list(range(len(numbers(tmp_path / "log"))))
