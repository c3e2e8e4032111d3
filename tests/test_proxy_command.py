"""`kvproof proxy`: the proxy as a program, for clients in any language, and what it says of bad input."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest
import redis

from kvproof.faults.servers import Server, valkey

PROXY = [sys.executable, "-m", "kvproof.cli", "proxy"]
SCHEDULE = [
    {"fault": "nil", "command": "GET", "key": "k"},
    {"fault": "hold", "command": "GET", "key": "held", "until": "go"},
    {"fault": "error", "command": "GET", "key": "never"},
]


@contextmanager
def start(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Start the command; one that goes on when a test has failed is ended, or the test would wait for it."""
    with subprocess.Popen([*PROXY, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def said(pipe: IO[str] | None) -> str:
    assert pipe is not None
    return pipe.readline().strip()


def tell(process: subprocess.Popen[str], line: str) -> str:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()
    return said(process.stdout)


def port(line: str) -> int:
    found = re.match(r"listening on 127\.0\.0\.1:(\d+), before \S+, \d+ faults? armed", line)
    assert found, line
    return int(found[1])


def test_it_serves_a_client_and_tells_what_was_felt(server: Server, tmp_path: Path) -> None:
    schedule, log, document = tmp_path / "schedule.json", tmp_path / "log.jsonl", tmp_path / "marks.json"
    schedule.write_text(json.dumps(SCHEDULE))
    with start("--upstream", f"{server.host}:{server.port}", "--schedule", str(schedule), "--log", str(log),
               "--json", str(document)) as process:
        with redis.Redis("127.0.0.1", port(said(process.stdout)), socket_timeout=10) as client:
            client.set("k", "v")
            client.set("held", "v")
            assert client.get("k") is None
            assert tell(process, "wait reply:GET k").startswith("seen: connection 1 reply GET k 5 bytes null")
            assert tell(process, "release nobody") == (
                "error: release 'nobody': no hold of the schedule waits for it; the names there: go")
            assert tell(process, "release go") == "released go"
            assert client.get("held") == b"v"
            assert tell(process, "ended returned") == "ended returned"
            assert tell(process, "marks") == "1: felt; 2: felt; 3: not struck"
            assert tell(process, "hello").startswith("error: 'hello': expected wait EVENT, release NAME, ")
            process.send_signal(signal.SIGINT)
            rest, errors = process.communicate(timeout=20)
    assert rest.splitlines() == [
        "1. nil at GET k: felt", "2. hold at GET held: felt", "3. error at GET never: not struck"]
    assert (process.returncode, errors) == (3, "")
    assert json.loads(document.read_text())[2] == {"fault": "error", "struck": False, "felt": False}
    events = [json.loads(line) for line in log.read_text().splitlines()]
    assert [event["sequence"] for event in events] == list(range(len(events)))
    assert {event["did"] for event in events} >= {"nil", "held", "released"}


def test_it_reaches_a_unix_socket_and_ends_at_its_input(tmp_path: Path) -> None:
    path = tmp_path / "valkey.sock"
    with valkey(settings={"unixsocket": str(path)}), start("--upstream", f"unix:{path}") as process:
        with redis.Redis("127.0.0.1", port(said(process.stdout)), socket_timeout=10) as client:
            assert client.ping()
        out, errors = process.communicate("stop\n", timeout=20)
    assert (process.returncode, out, errors) == (0, "", "")


@pytest.mark.parametrize(
    ("arguments", "content", "expected"),
    [
        (["--upstream", "nowhere"], None,
         "upstream 'nowhere': expected HOST:PORT, such as 127.0.0.1:6379, or unix:PATH"),
        (["--upstream", "h:99999"], None, "upstream 'h:99999': expected HOST:PORT"),
        (["--upstream", "redis://h:1"], None, "upstream 'redis://h:1': expected HOST:PORT"),
        (["--upstream", "h:1", "--listen", "0.0.0.0:0"], None, "listen on 0.0.0.0: expected a loopback address"),
        (["--upstream", "h:1", "--listen", "7"], None, "--listen '7': expected HOST:PORT"),
        (["--upstream", "h:1", "--schedule", "FILE"], "nonsense",
         "--schedule FILE: a schedule is a JSON array of faults"),
        (["--upstream", "h:1", "--schedule", "FILE"], '[{"fault": "nul"}]',
         "--schedule FILE: schedule entry 1 of 1, field fault: got \"nul\"; allowed: bandwidth, "),
        (["--upstream", "h:1", "--schedule", "FILE"], '[{"fault": "flip", "bit": 8}]',
         "--schedule FILE: schedule entry 1 of 1: flip, field bit: got 8; allowed: an integer from 0 to 7"),
        (["--upstream", "h:1", "--schedule", "absent"], None, "--schedule absent: No such file or directory"),
        (["--upstream", "h:1", "--log", "/no/such"], None, "--log /no/such: No such file or directory"),
    ],
)
def test_bad_input_is_one_line(tmp_path: Path, arguments: list[str], content: str | None, expected: str) -> None:
    path = str(tmp_path / "schedule.json")
    if content is not None:
        Path(path).write_text(content)
    done = subprocess.run([*PROXY, *[path if word == "FILE" else word for word in arguments]], capture_output=True,
                          text=True, timeout=60, stdin=subprocess.DEVNULL)
    assert done.returncode == 2
    assert done.stderr.startswith("kvproof: " + expected.replace("FILE", path)), done.stderr
    assert (done.stdout, done.stderr.count("\n")) == ("", 1)


def test_a_taken_port_is_said(server: Server) -> None:
    done = subprocess.run([*PROXY, "--upstream", "127.0.0.1:1", "--listen", f"127.0.0.1:{server.port}"],
                          capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    assert (done.returncode, done.stderr) == (
        2, f"kvproof: cannot listen on 127.0.0.1:{server.port}: Address already in use\n")


def test_what_is_no_resp_and_who_is_not_there_is_said(server: Server) -> None:
    with start("--upstream", f"{server.host}:{server.port}") as process:
        with socket.create_connection(("127.0.0.1", port(said(process.stdout))), timeout=10) as typed:
            typed.sendall(b"PING\r\n")
            assert typed.recv(100) == b"+PONG\r\n"
            assert tell(process, "wait raw").startswith("seen: connection 1 request raw")
        out, errors = process.communicate("stop\n", timeout=20)
    assert out.startswith("connection 1 passed unread from a request on: malformed RESP at byte 0: ")
    with start("--upstream", "127.0.0.1:1") as process:
        out, errors = process.communicate("stop\n", timeout=20)
    assert errors == "kvproof: nobody answers at 127.0.0.1:1 so far (Connection refused)\n"
