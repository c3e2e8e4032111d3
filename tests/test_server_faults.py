"""Faults of a real server: each is felt by three clients, says what it did, and undoes what can be undone."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kvproof.errors import DeadlineExceeded, ServerFailed, UsageError
from kvproof.faults import proxy, server_fault, server_faults, servers
from kvproof.faults.proxy import Hold
from kvproof.faults.raw_resp import RawResp
from kvproof.faults.server_faults import (
    Evicted,
    Flushed,
    Kicked,
    Killed,
    OutOfMemory,
    PasswordChanged,
    Paused,
    ServerFault,
    Stopped,
    Unsupported,
)
from kvproof.faults.servers import Server
from tests.feeling import CLIENTS, IMPATIENCE, Felt
from tests.waiting import all_gone, until

DIES_WHILE_IT_IS_STOPPED = """
import os, signal
from kvproof.faults import server_faults, servers

with servers.valkey() as server, server_faults.Stopped().on(server):
    print(server.process.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def disturbed() -> Iterator[Server]:
    """A server that every test leaves as it found it, but for its keys."""
    with servers.valkey() as server:
        yield server


@pytest.fixture(params=CLIENTS)
def felt(request: pytest.FixtureRequest, disturbed: Server) -> Iterator[Felt]:
    """A client that has stored k."""
    with Felt(request.param, disturbed) as client:
        assert client.set("k", b"v") == "ok"
        yield client


@pytest.fixture(params=CLIENTS)
def impatient(request: pytest.FixtureRequest, disturbed: Server) -> Iterator[Felt]:
    """A client that gives up soon, on a server that has k."""
    fill(disturbed, "k")
    with Felt(request.param, disturbed, patience=IMPATIENCE) as client:
        until(lambda: client.get("k") == "hit", "the first answer")
        yield client


def present(server: Server, *keys: str) -> set[str]:
    with server.connect() as raw:
        return {key for key in keys if raw.get(key) is not None}


def fill(server: Server, *keys: str, size: int = 1) -> None:
    with server.connect() as raw:
        raw.command("FLUSHALL")
        for key in keys:
            raw.command("SET", key, b"v" * size)


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


@pytest.mark.parametrize("fault", [PasswordChanged(), Paused(), OutOfMemory()], ids=lambda fault: fault.kind)
def test_where_the_server_has_ended_there_is_nothing_to_undo(fault: ServerFault) -> None:
    with servers.valkey(password="of old") as server:
        assert server.process is not None
        with fault.on(server):
            server.process.close()
        assert server.password == "of old"


def test_subsets_come_smallest_first_in_a_fixed_order() -> None:
    assert list(server_faults.subsets(["a", "b", "c"])) == [
        ("a",), ("b",), ("c",), ("a", "b"), ("a", "c"), ("b", "c"), ("a", "b", "c")]
    assert list(server_faults.subsets([])) == []


@pytest.mark.parametrize("kind", CLIENTS)
def test_each_subset_of_an_objects_keys_is_evicted_between_two_commands(disturbed: Server, kind: str) -> None:
    keys = ["object:metadata", "object:kv_bytes", "object:scales"]
    for gone in server_faults.subsets(keys):
        fill(disturbed, *keys, "another")
        with Felt(kind, disturbed) as client:
            assert client.get(keys[0]) == "hit"
            report = Evicted((*gone, "absent")).strike(disturbed)
            assert [client.get(key) for key in keys] == ["nil" if key in gone else "hit" for key in keys]
            assert client.get("another") == "hit"
        assert report.count == len(gone)
        assert report.did == [f"deleted {key!r}" for key in gone]
        assert report.missed == ["'absent' was not there"]


def test_an_eviction_between_two_commands_of_one_call_that_does_not_return_in_between(disturbed: Server) -> None:
    fill(disturbed, "a", "b")
    schedule = (Hold(command="EXISTS", key="a", until="evicted"),)
    seen: list[object] = []
    with proxy.start(disturbed.address, schedule) as endpoint:

        def call() -> None:
            with RawResp.connect(endpoint.host, endpoint.port) as raw:
                seen.extend((raw.command("EXISTS", "a"), raw.get("a")))

        caller = threading.Thread(target=call)
        caller.start()
        endpoint.wait("held")
        Evicted(("a",)).strike(disturbed)
        endpoint.release("evicted")
        caller.join(10.0)
    assert seen == [1, None], f"expected a key that was there and is not any more, got {seen}"


def test_chosen_keys_are_evicted_for_want_of_memory(disturbed: Server, felt: Felt) -> None:
    fill(disturbed, *(f"k{number}" for number in range(8)), size=1000)
    evictions = stat(disturbed, "evicted_keys")
    with OutOfMemory("volatile-lru", keys=("k2", "k5", "absent")).on(disturbed) as report:
        assert stat(disturbed, "evicted_keys") == evictions + 2
        assert present(disturbed, *(f"k{number}" for number in range(8))) == {"k0", "k1", "k3", "k4", "k6", "k7"}
        assert felt.get("k2") == "nil"
        assert felt.set("k2", b"v") == "OOM"
    assert report.count == 2
    assert report.did[1:] == ["evicted 'k2'", "evicted 'k5'"]
    assert report.missed == ["'absent' was not there"]
    assert felt.set("k2", b"v") == "ok"
    with disturbed.connect() as raw:
        assert raw.command("CONFIG", "GET", "maxmemory") == (b"maxmemory", b"0")
        assert raw.command("CONFIG", "GET", "maxmemory-policy") == (b"maxmemory-policy", b"noeviction")


def test_a_limit_that_is_reached_evicts_while_a_client_writes(disturbed: Server, felt: Felt) -> None:
    keys = [f"big{number}" for number in range(60)]
    fill(disturbed)
    with OutOfMemory("allkeys-lru", limit=server_faults.used_memory(disturbed) + 1_000_000).on(disturbed) as report:
        assert report.count == 0, f"nothing had to go yet: {report.did}"
        assert {felt.set(key, b"v" * 60_000) for key in keys} == {"ok"}
        left = present(disturbed, *keys)
    assert 0 < len(left) < len(keys), f"{len(left)} of 60 keys of 60 kB are in 1 MB"
    assert report.count == len(keys) - len(left)


def test_everything_is_evicted_at_a_limit_of_one_byte(disturbed: Server, felt: Felt) -> None:
    fill(disturbed, *(f"k{number}" for number in range(500)), size=1000)
    assert OutOfMemory().strike(disturbed).count == 500
    assert felt.get("k0") == "nil"


def test_keys_that_an_out_of_memory_fault_left_have_no_expiry_of_its_making(disturbed: Server) -> None:
    fill(disturbed, "k")
    limit = server_faults.used_memory(disturbed) + 10_000_000
    report = OutOfMemory("volatile-lru", limit=limit, keys=("k",)).strike(disturbed)
    assert report.missed == ["'k' is still there"]
    with disturbed.connect() as raw:
        assert raw.command("TTL", "k") == -1


def test_flushed(disturbed: Server, felt: Felt) -> None:
    fill(disturbed, "k", "l")
    report = Flushed().strike(disturbed)
    assert (report.count, report.did) == (2, ["flushed 2 keys"])
    assert felt.get("k") == "nil"


@pytest.mark.parametrize("kind", CLIENTS)
@pytest.mark.parametrize("old", [None, "of old"])
def test_the_password_changed_under_a_client(kind: str, old: str | None) -> None:
    with servers.valkey(password=old) as server, Felt(kind, server, old) as connected:
        assert connected.set("k", b"v") == "ok"
        with PasswordChanged("of now").on(server) as report:
            assert connected.get("k") == "hit", "a connection that was authenticated stays so"
            with Felt(kind, server, old) as another:
                assert another.get("k") == ("WRONGPASS" if old else "NOAUTH")
            with Felt(kind, server, "of now") as another:
                assert another.get("k") == "hit"
            assert server.password == "of now"
        assert report.did == ["changed the password"]
        assert server.password == old
        with PasswordChanged("of now", kick=True).on(server) as report:
            assert report.count == 1
            assert connected.get("k") == "cut off"
            assert connected.get("k") == ("WRONGPASS" if old else "NOAUTH")
        with Felt(kind, server, old) as another:
            assert another.get("k") == "hit"
        assert "of now" not in repr(PasswordChanged("of now"))


def test_all_clients_are_kicked_but_those_that_are_spared(disturbed: Server, felt: Felt) -> None:
    with disturbed.connect() as spared, disturbed.connect() as other:
        other.command("PING")
        report = Kicked(spare=(spared,)).strike(disturbed)
        assert report.count == 2, report.did
        assert spared.get("k") == b"v"
        with pytest.raises((EOFError, OSError)):
            other.command("PING")
    assert felt.get("k") == "cut off"
    assert felt.get("k") == "hit"


def test_only_the_connection_that_is_named_is_kicked(disturbed: Server, felt: Felt) -> None:
    with disturbed.connect() as one, disturbed.connect() as two:
        identity = one.command("CLIENT", "ID")
        listed = {client.id: client.address for client in server_faults.clients(two)}
        assert isinstance(identity, int)
        assert listed[identity] == "{}:{}".format(*one._socket.getsockname())
        report = Kicked(ids=(identity, 10**9)).strike(disturbed)
        assert (report.did, report.missed) == ([f"closed connection {identity}"], [f"connection {10**9} was not there"])
        with pytest.raises((EOFError, OSError)):
            one.command("PING")
        assert two.get("k") == b"v"
    assert felt.get("k") == "hit"


@pytest.mark.parametrize("mode", ["ALL", "WRITE"])
def test_paused(disturbed: Server, impatient: Felt, mode: Any) -> None:
    began = time.monotonic()
    with Paused(mode, at_most=60.0).on(disturbed) as report:
        assert impatient.set("k", b"v") == "no answer"
        if mode == "ALL":
            assert impatient.get("k") == "no answer"
        else:
            until(lambda: impatient.get("k") == "hit", "an answer to a read, which is not paused")
    until(lambda: impatient.get("k") == "hit", "an answer to a read after the pause")
    until(lambda: impatient.set("k", b"v") == "ok", "an answer to a write after the pause")
    assert time.monotonic() - began < 50.0, "the pause went on after its context"
    assert report.did == [f"paused {mode} for 60 s at most"]


def test_a_pause_ends_by_itself(disturbed: Server) -> None:
    fill(disturbed, "k")
    with Paused(at_most=0.2).on(disturbed), disturbed.connect() as raw:
        began = time.monotonic()
        assert raw.get("k") == b"v"
        assert time.monotonic() - began > 0.05


@pytest.mark.parametrize(("mode", "at_most"), [("ALL", 0.5), ("WRITE", 60.0)])
def test_a_pause_is_undone_though_its_own_connection_was_closed(disturbed: Server, mode: Any, at_most: float) -> None:
    with disturbed.connect() as killer:
        with Paused(mode, at_most).on(disturbed):
            killer.command("CLIENT", "KILL", "TYPE", "normal")
        assert killer.command("SET", "k", "w") is not None


def test_a_pause_outlives_no_server(disturbed: Server) -> None:
    with Paused("WRITE", at_most=30.0).on(disturbed):
        Killed().strike(disturbed)
        fill(disturbed, "k")


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


def test_nothing_is_waited_for_without_a_deadline(disturbed: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_fault, "DEADLINE", 0.2)
    with Stopped().on(disturbed), pytest.raises(DeadlineExceeded, match="did not answer in time"):
        Evicted(("k",)).strike(disturbed)


def test_what_does_nothing_has_not_struck(disturbed: Server) -> None:
    fill(disturbed)
    for fault in (Evicted(("absent",)), Kicked(ids=(10**9,)), Kicked()):
        assert not fault.strike(disturbed).struck, fault


def test_a_fault_leaves_the_callers_own_errors_alone(disturbed: Server) -> None:
    for fault in every():
        with pytest.raises(ConnectionResetError, match="of the caller"), fault.on(disturbed):
            raise ConnectionResetError("of the caller")
    assert disturbed.password is None
    fill(disturbed, "k")


def every() -> list[ServerFault]:
    return [fault(("k",)) if fault is Evicted else fault() for fault in server_faults.FAULTS]  # type: ignore[call-arg]


@pytest.mark.parametrize("fault", every(), ids=lambda fault: fault.kind)
def test_the_users_own_server_is_never_disturbed(disturbed: Server, fault: ServerFault) -> None:
    fill(disturbed, "k")
    with servers.own(f"redis://{disturbed.host}:{disturbed.port}") as own:
        with pytest.raises(Unsupported, match=rf"{fault.kind} is unsupported on valkey 9\S+: it is your own"):
            fault.strike(own)
    assert present(disturbed, "k")


def test_fakeredis_is_disturbed_where_it_can_be() -> None:
    with servers.fakeredis() as fake:
        for fault in every():
            fill(fake, "k")
            if "fakeredis" in fault.servers:
                assert fault.strike(fake).struck, f"{fault.kind} did nothing to fakeredis"
            else:
                assert fault.elsewhere, f"{fault.kind} says nothing about fakeredis"
                with pytest.raises(Unsupported, match=fault.elsewhere):
                    fault.strike(fake)
                assert present(fake, "k")
        with fake.connect() as raw:
            raw.command("CONFIG", "SET", "maxmemory", "1")
            raw.command("CONFIG", "SET", "requirepass", "x")
            raw.command("CLIENT", "PAUSE", 60_000, "ALL")
        with Felt("bare", fake) as client:
            assert client.get("k") == "hit", "fakeredis does now what it only answered OK to"


def test_a_server_that_does_not_run_cannot_be_disturbed() -> None:
    with server_faults.later() as later:
        for fault in every():
            with pytest.raises(UsageError, match="is not running"):
                fault.strike(later.server)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: Paused("READ"), "'ALL' and 'WRITE'"),  # type: ignore[arg-type]
        (lambda: Paused(at_most=0), "more than 0 and up to 60"),
        (lambda: OutOfMemory(limit=0), "give 1 or more"),
        (lambda: OutOfMemory(keys=("k",)), "must be a volatile one"),
        (lambda: PasswordChanged(""), "give another one"),
    ],
)
def test_a_fault_that_makes_no_sense_is_refused(wrong: Callable[[], object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        wrong()


def test_a_policy_that_valkey_does_not_know_is_refused_in_its_words(disturbed: Server) -> None:
    with pytest.raises(ServerFailed, match="maxmemory-policy"):
        OutOfMemory("allkeys-least").strike(disturbed)


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


def stat(server: Server, name: str) -> int:
    with server.connect() as raw:
        return int(raw.info("stats")[name])
