"""A server that is killed, stands still, or starts late, and the port that stays its own."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from kvproof.errors import ServerFailed, UsageError
from kvproof.faults import server_fault, server_faults, servers
from kvproof.faults.server_faults import (
    Killed,
    Stopped,
)
from kvproof.faults.servers import Server
from tests.feeling import CLIENTS, Felt, fill, present
from tests.waiting import all_gone, until

DIES_WHILE_IT_IS_STOPPED = """
import os, signal
from kvproof.faults import server_faults, servers

with servers.valkey() as server, server_faults.Stopped().on(server):
    print(server.process.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(("with_data", "afterwards"), [(False, "nil"), (True, "hit")])
def test_killed_and_back_on_the_same_port(disturbed: Server, felt: Felt, with_data: bool, afterwards: str) -> None:
    assert disturbed.process is not None
    pid = disturbed.process.pid
    with Killed(with_data).on(disturbed) as report:
        assert report.did == [f"process {pid} killed by signal 9"]
        assert felt.get("k") == "cut off"
        assert felt.get("k") == "refused"
    assert felt.get("k") == afterwards
    assert disturbed.process.pid != pid
    with disturbed.connect() as raw:
        assert raw.info()["process_id"] == str(disturbed.process.pid)
    assert report.did[1].startswith(f"started again as process {disturbed.process.pid}, ")


def test_with_its_data_is_with_every_write_that_was_acknowledged(disturbed: Server) -> None:
    fill(disturbed)
    acknowledged: list[int] = []
    begun = threading.Event()

    def write() -> None:
        try:
            with disturbed.connect() as raw:
                for number in range(10_000_000):
                    raw.command("SET", f"w{number}", b"x")
                    acknowledged.append(number)
                    if number == 200:
                        begun.set()
        except (OSError, EOFError):
            return

    writer = threading.Thread(target=write)
    writer.start()
    assert begun.wait(10.0)
    Killed(with_data=True).strike(disturbed)
    writer.join(10.0)
    assert len(acknowledged) > 200
    with disturbed.connect() as raw:
        lost = [number for number in acknowledged if raw.get(f"w{number}") is None]
    assert not lost, f"of {len(acknowledged)} acknowledged writes {lost} are gone"


def test_a_server_with_its_data_is_back_once_it_has_loaded_them() -> None:
    slowly = {"key-load-delay": "2000", "loading-process-events-interval-bytes": "1024"}
    with servers.valkey(settings=slowly) as server, Felt("bare", server) as client:
        fill(server, *(f"k{number}" for number in range(300)), size=100)
        Killed(with_data=True).strike(server)
        assert client.get("k299") == "hit"
        assert server.log().count("DB loaded from disk") == 1


def test_a_server_that_is_killed_keeps_its_password_and_its_port() -> None:
    with servers.valkey(password="of old") as server:
        with Killed(with_data=True).on(server):
            for reuse in (0, 1):
                with socket.socket() as thief:
                    thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
                    with pytest.raises(OSError, match="in use"):
                        thief.bind(server.address)
            for _ in range(300):
                # A client whose own port is the server's would be connected to itself.
                with socket.socket() as client:
                    assert client.connect_ex(server.address) == errno.ECONNREFUSED
        with Felt("bare", server, "of old") as client:
            assert client.get("k") == "nil"
        with Felt("bare", server) as stranger:
            assert stranger.get("k") == "NOAUTH"


def test_stopped_and_going_on(disturbed: Server, impatient: Felt) -> None:
    with Stopped().on(disturbed) as report:
        assert disturbed.process is not None
        assert report.did == [f"stopped process {disturbed.process.pid}"]
        assert impatient.get("k") == "no answer"
    until(lambda: impatient.get("k") == "hit", "an answer after SIGCONT")


def test_what_was_asked_of_a_stopped_server_is_answered_when_it_goes_on(disturbed: Server) -> None:
    fill(disturbed, "k")
    with socket.create_connection(disturbed.address, timeout=5.0) as early:
        with Stopped().on(disturbed):
            early.sendall(b"GET k\r\n")
            with socket.create_connection(disturbed.address, timeout=5.0) as late:
                late.sendall(b"GET k\r\n")
                late.settimeout(0.1)
                with pytest.raises(TimeoutError):
                    late.recv(1)
        assert early.recv(100) == b"$1\r\nv\r\n"


def test_a_stopped_server_dies_with_its_starter() -> None:
    starter = subprocess.run([sys.executable, "-c", DIES_WHILE_IT_IS_STOPPED], capture_output=True, timeout=60)
    assert starter.returncode == -signal.SIGKILL, starter.stderr.decode()
    all_gone([int(starter.stdout)])


def test_a_server_that_was_stopped_can_be_ended() -> None:
    with servers.valkey() as server:
        assert server.process is not None
        with Stopped().on(server):
            end = server.process.close()
    assert end.signal == signal.SIGKILL


@pytest.mark.parametrize("kind", CLIENTS)
def test_a_server_that_starts_after_its_client(kind: str) -> None:
    with server_faults.later(password="pw") as later, Felt(kind, later.server, "pw") as client:
        assert not later.report.struck
        assert [client.get("k") for _ in range(3)] == ["refused"] * 3
        server = later.start()
        assert client.get("k") == "nil"
        with server.connect() as raw:
            assert server.process is not None
            assert raw.info()["process_id"] == str(server.process.pid)
        assert later.report.did == [f"started on port {server.port}"]
        with pytest.raises(UsageError, match="started already"):
            later.start()
        pid = server.process.pid
    all_gone([pid])


def test_a_port_that_is_taken_at_the_last_moment_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    original = servers._launch
    with socket.socket() as thief, server_faults.later() as later:

        def launch(*args: Any) -> Any:
            thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            thief.bind(later.server.address)
            thief.listen()
            thief.settimeout(5.0)
            threading.Thread(target=lambda: thief.accept()[0].close()).start()
            return original(*args)

        monkeypatch.setattr(servers, "_launch", launch)
        with pytest.raises(ServerFailed, match="taken port"):
            later.start()


def test_saved_data_and_a_log_of_writes_do_not_go_together() -> None:
    with servers.valkey(settings={"appendonly": "yes"}) as server:
        with pytest.raises(UsageError, match="without appendonly"):
            Killed(with_data=True).strike(server)
        assert present(server) == set()


def test_no_descriptor_and_no_directory_is_left_behind(disturbed: Server) -> None:
    def directory(server: Server) -> Path:
        with server.connect() as raw:
            return Path(server_fault.setting(raw, "dir"))

    used = [directory(disturbed)]
    Killed(with_data=True).strike(disturbed)
    descriptors = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        used.append(directory(disturbed))
        Killed(with_data=True).strike(disturbed)
        with server_faults.later() as later:
            used.append(directory(later.start()))
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert len(set(used)) == 7
    assert not [path for path in used if path.exists()]
