"""Processes that we start end with us, however we end, with everything below them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kvproof.faults import spawner
from kvproof.faults.spawner import descendants
from kvproof.faults.supervisor import supervisor
from tests.waiting import all_gone, running, until


def test_a_process_reports_its_exit_code() -> None:
    with supervisor().spawn(["sh", "-c", "exit 7"]) as process:
        end = process.wait(5.0)
        assert end is not None, "not reported within 5 s"
        assert end.exit == 7, end
        assert str(end) == "exited with 7"


def test_a_process_reports_the_signal_that_ended_it() -> None:
    with supervisor().spawn(["sleep", "1000"]) as process:
        assert process.alive
        process.send_signal(signal.SIGUSR1)
        end = process.wait(5.0)
        assert end is not None, "not reported within 5 s"
        assert end.signal == signal.SIGUSR1, end


def test_a_command_that_does_not_exist_is_seen_to_end() -> None:
    read, write = os.pipe()
    with supervisor().spawn(["/nowhere/at-all"], fds={2: write}) as process:
        os.close(write)
        end = process.wait(5.0)
        assert end is not None, "not reported within 5 s"
        assert end.exit == 127, end
    with os.fdopen(read) as said:
        assert "/nowhere/at-all" in said.read()


def test_closing_a_process_ends_its_whole_tree() -> None:
    script = "setsid sleep 1001 & (setsid sh -c 'sleep 1002 & sleep 1003' &) ; trap '' TERM INT; sleep 1004"
    process = supervisor().spawn(["sh", "-c", script])
    sleepers = [f"sleep {number}" for number in (1001, 1002, 1003, 1004)]
    until(lambda: all(running(sleeper) for sleeper in sleepers), "all four sleepers")
    below = [pid for sleeper in sleepers for pid in running(sleeper)]
    end = process.close()
    assert end.signal == signal.SIGKILL, end
    all_gone([process.pid, *below])


def test_orphans_of_a_dead_process_are_ended_and_named(tmp_path: Path) -> None:
    # Its parent leaves once the orphan's own shell, which stays, has its name: a process within its exec has none.
    os.mkfifo(tmp_path / "there")
    script = "setsid sh -c 'echo > there; sleep 1005; :' & read there < there; exit 0"
    with supervisor().spawn(["sh", "-c", script], directory=str(tmp_path)) as process:
        end = process.wait(5.0)
        assert end is not None, "not reported within 5 s"
        assert any("sleep 1005" in orphan for orphan in end.orphans), end


def test_a_child_begins_clean(tmp_path: Path) -> None:
    report = tmp_path / "report"
    script = (
        "import os, signal, sys\n"
        "fds = sorted(int(fd) for fd in os.listdir('/proc/self/fd'))\n"
        "open(sys.argv[1], 'w').write(f'{[fd for fd in fds if fd < 200][:3]} {len(fds)} '\n"
        "  f'{signal.getsignal(signal.SIGTERM) == signal.SIG_DFL} {os.getsid(0) == os.getpid()}')\n"
    )
    with supervisor().spawn([sys.executable, "-c", script, str(report)]) as process:
        process.wait(10.0)
    # The listing itself is the fourth descriptor.
    assert report.read_text() == "[0, 1, 2] 4 True True"


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, None], ids=str)
def test_nothing_is_left_when_the_parent_ends(how: int | None, tmp_path: Path) -> None:
    kept = tmp_path / "directory"
    kept.mkdir()
    script = (
        "import os, sys\n"
        "from kvproof.faults.supervisor import supervisor\n"
        "with supervisor().spawn(['sh', '-c', 'setsid sleep 1006 & sleep 1007'], remove=[sys.argv[1]]) as process:\n"
        "    print(process.pid, supervisor().process.pid, flush=True)\n"
        "    sys.stdin.readline()\n"
    )
    command = [sys.executable, "-c", script, str(kept)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as parent:
        assert parent.stdout is not None
        child, spawner = (int(word) for word in parent.stdout.readline().split())
        until(lambda: len(descendants(child)) == 2, "two sleepers")
        below = descendants(child)
        if how is None:
            assert parent.stdin is not None
            parent.stdin.close()
        else:
            parent.send_signal(how)
        parent.wait(10.0)
    all_gone([child, spawner, *below])
    assert not kept.exists(), "the private directory was not removed"


@pytest.mark.parametrize("listed", [True, False])
def test_descendants_are_found_whether_the_kernel_lists_children_or_not(
    listed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if listed and not spawner._CHILDREN_LISTED:
        pytest.skip("this kernel has no /proc/PID/task/TID/children (CONFIG_PROC_CHILDREN)")
    monkeypatch.setattr(spawner, "_CHILDREN_LISTED", listed)
    with supervisor().spawn(["sh", "-c", "sh -c 'sleep 1009; true' & wait"]) as process:
        until(lambda: len(descendants(process.pid)) == 2, "a shell with a sleeper")
        shell, sleeper = descendants(process.pid)
        assert spawner.children_of(process.pid) == [shell]
        assert spawner.children_of(shell) == [sleeper]
    all_gone([process.pid, shell, sleeper])
    assert spawner.children_of(process.pid) == []


def test_even_without_the_supervisor_its_children_end() -> None:
    script = (
        "import sys\n"
        "from kvproof.faults.supervisor import supervisor\n"
        "process = supervisor().spawn(['sleep', '1008'])\n"
        "print(process.pid, supervisor().process.pid, flush=True)\n"
        "sys.stdin.readline()\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child, spawner = (int(word) for word in parent.stdout.readline().split())
        os.kill(spawner, signal.SIGKILL)
        all_gone([child])
        parent.kill()


def test_a_forked_child_gets_a_supervisor_of_its_own() -> None:
    mine = supervisor().process.pid
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(write, str(supervisor().process.pid).encode())
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    theirs = int(os.read(read, 100))
    os.close(read)
    os.close(write)
    assert theirs != mine
    all_gone([theirs])
    assert supervisor().process.pid == mine
    with supervisor().spawn(["true"]) as process:
        assert process.wait(5.0) is not None, "the parent's own supervisor does not work any more"


def test_a_dead_supervisor_is_an_error_and_not_a_hang() -> None:
    script = (
        "import os, signal\n"
        "from kvproof.errors import KvproofError\n"
        "from kvproof.faults.supervisor import supervisor\n"
        "started = supervisor()\n"
        "os.kill(started.process.pid, signal.SIGKILL); started.process.wait()\n"
        "try: started.spawn(['true'])\n"
        "except KvproofError as error: print('said:', error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30)
    assert "said:" in done.stdout, done.stderr
