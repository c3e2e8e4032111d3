"""Servers: many at once, each its own; no password anywhere; wrong addresses in one line."""

from __future__ import annotations

import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from kvproof.errors import ServerFailed, UsageError
from kvproof.faults import servers
from kvproof.faults.raw_resp import RawResp, ReplyError
from tests.waiting import all_gone

STARTS_FOUR = """
import sys
from contextlib import ExitStack
from kvproof.faults import servers

with ExitStack() as stack:
    for _ in range(4):
        server = stack.enter_context(servers.valkey())
        with server.connect() as raw:
            print(server.port, server.process.pid, raw.info()["process_id"], flush=True)
    print("up", flush=True)
    sys.stdin.readline()
"""


def test_32_servers_at_once_from_8_processes_each_answer_for_themselves() -> None:
    starters = [
        subprocess.Popen(
            [sys.executable, "-c", STARTS_FOUR], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(8)
    ]
    seen: list[tuple[int, int, int]] = []
    for starter in starters:
        assert starter.stdout is not None
        while (line := starter.stdout.readline().strip()) not in ("up", ""):
            port, pid, answered = line.split()
            seen.append((int(port), int(pid), int(answered)))
    assert len(seen) == 32, f"only {len(seen)} servers came up"
    assert all(pid == answered for _, pid, answered in seen), f"somebody else answers: {seen}"
    assert len({port for port, _, _ in seen}) == 32, "two servers on one port"
    for index, starter in enumerate(starters):
        if index % 2:
            starter.kill()
        starter.communicate()
    ended = [pid for _, pid, _ in seen]
    all_gone(ended)
    for port, _, _ in seen:
        # Somebody else's server may have come to this port by now; one of these has not stayed there.
        with suppress(OSError, EOFError, ReplyError), RawResp.connect("127.0.0.1", port, timeout=5.0) as raw:
            assert int(raw.info()["process_id"]) not in ended


def test_a_port_that_somebody_took_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with servers.valkey() as other:
        ports = iter([other.port, other.port, servers.free_port()])
        monkeypatch.setattr(servers, "free_port", lambda: next(ports))
        with servers.valkey() as ours:
            assert ours.port != other.port
            assert ours.process is not None
            with ours.connect() as raw:
                assert raw.info()["process_id"] == str(ours.process.pid)


def test_a_server_that_cannot_start_shows_the_end_of_its_log() -> None:
    with pytest.raises(ServerFailed, match="Bad directive"):
        with servers.valkey(settings={"no-such-setting": "1"}):
            pass


def test_the_private_directory_goes_with_the_server() -> None:
    with servers.valkey() as server:
        with server.connect() as raw:
            reply = raw.command("CONFIG", "GET", "dir")
        assert isinstance(reply, tuple)
        assert isinstance(reply[1], bytes)
        directory = Path(reply[1].decode())
        assert directory.is_dir()
    assert not directory.exists()


@pytest.mark.parametrize("password", ["secret", 'with " and \\ in it', "spaces  and 'quotes'"])
def test_a_password_stands_nowhere(password: str) -> None:
    with servers.valkey(password=password) as server:
        assert server.process is not None
        shown = Path(f"/proc/{server.process.pid}/cmdline").read_bytes()
        environment = Path(f"/proc/{server.process.pid}/environ").read_bytes()
        for place, text in (("command line", shown), ("environment", environment), ("log", server.log().encode())):
            assert password.encode() not in text, f"the password stands in the server's {place}"
        assert password not in repr(server)
        with pytest.raises(ReplyError, match="NOAUTH"), RawResp.connect(server.host, server.port) as stranger:
            stranger.command("PING")


def test_the_users_own_server_is_used_under_a_prefix(server: servers.Server) -> None:
    with servers.own(f"redis://{server.host}:{server.port}") as own:
        assert (own.kind, own.process) == ("own", None)
        assert own.prefix
        assert own.description.startswith("valkey 9")


def test_the_password_of_the_users_own_server_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with servers.valkey(password="p@ss/word") as guarded:
        monkeypatch.setenv(servers.PASSWORD_VARIABLE, "p@ss/word")
        with servers.open_server(f"redis://{guarded.host}:{guarded.port}") as own, own.connect() as raw:
            assert raw.command("SET", "kvproof", "1") is not None


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("memcached", "expected valkey, fakeredis or redis://HOST:PORT"),
        ("http://127.0.0.1:80", "expected valkey, fakeredis or redis://HOST:PORT"),
        ("redis://127.0.0.1:99999", "expected valkey, fakeredis or redis://HOST:PORT"),
        ("redis://", "expected valkey, fakeredis or redis://HOST:PORT"),
        ("redis://127.0.0.1:1", "no usable server there"),
        ("redis://:hunter2@127.0.0.1:1", "no usable server there"),
        ("redis://somebody:hunter2@127.0.0.1:1", "user name"),
    ],
)
def test_a_wrong_address_is_one_clear_line_without_the_password(choice: str, expected: str) -> None:
    with pytest.raises(UsageError) as caught, servers.open_server(choice):
        pass
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_a_wrong_password_is_refused_by_name_only() -> None:
    with servers.valkey(password="right") as guarded:
        with pytest.raises(UsageError) as caught, servers.open_server(f"redis://:wrong0@127.0.0.1:{guarded.port}"):
            pass
    assert "WRONGPASS" in str(caught.value)
    assert "wrong0" not in str(caught.value)


def test_fakeredis_says_that_it_is_second_class() -> None:
    with servers.fakeredis() as server:
        assert "second class" in server.description
        with server.connect() as raw:
            raw.command("SET", "key", b"value")
            assert raw.get("key") == b"value"
            assert raw.get("absent") is None


def test_deleting_by_prefix_leaves_others_alone(server: servers.Server) -> None:
    with server.connect() as raw:
        for key in ("run[1]*:a", "run[1]*:b", "run1x:a", "other"):
            raw.command("SET", key, "1")
        assert raw.delete_prefix("run[1]*:") == 2
        assert raw.get("run1x:a") == b"1"
        assert raw.get("other") == b"1"


def test_a_raw_connection_that_is_cut_off_is_an_error_and_not_a_hang() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        raw = RawResp.connect("127.0.0.1", listener.getsockname()[1], timeout=2.0)
        accepted, _ = listener.accept()
        accepted.close()
        with raw, pytest.raises((EOFError, OSError)):
            raw.command("PING")


def test_servers_listen_on_loopback_only() -> None:
    with servers.valkey() as server:
        assert server.process is not None
        for table in ("/proc/net/tcp", "/proc/net/tcp6"):
            for line in Path(table).read_text().splitlines()[1:]:
                address, state = line.split()[1], line.split()[3]
                if state == "0A" and int(address.rpartition(":")[2], 16) == server.port:
                    assert address.startswith("0100007F:"), f"{server.port} listens on {address}"
