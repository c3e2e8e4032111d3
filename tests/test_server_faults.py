"""Faults of a real server: each is felt by three clients, says what it did, and undoes what can be undone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from kvproof import faults
from kvproof.errors import DeadlineExceeded, ServerFailed, UsageError
from kvproof.faults import server_fault, server_faults, servers
from kvproof.faults.families import Hold
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
from tests.feeling import CLIENTS, Felt, fill, present
from tests.waiting import until


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
    with faults.proxy(disturbed.address, schedule) as endpoint:

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
    return [fault(("k",)) if fault is Evicted else fault() for fault in server_faults.FAULTS]  # type: ignore[call-arg]  # of several kinds


@pytest.mark.parametrize("fault", every(), ids=lambda fault: fault.kind)
def test_the_users_own_server_is_never_disturbed(disturbed: Server, fault: ServerFault) -> None:
    fill(disturbed, "k")
    with servers.own(f"redis://{disturbed.host}:{disturbed.port}") as own:
        with pytest.raises(Unsupported, match=rf"{fault.kind} is unsupported on valkey 9\S+ at \S+: it is your own"):
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
        (lambda: Paused("READ"), "'ALL' and 'WRITE'"),  # type: ignore[arg-type]  # wrong on purpose
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


def stat(server: Server, name: str) -> int:
    with server.connect() as raw:
        return int(raw.info("stats")[name])
