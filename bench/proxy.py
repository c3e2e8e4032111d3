"""How fast the fault proxy passes GETs on, against no proxy, socat and HAProxy, as ratios within one run.

Run it by itself: ``python bench/proxy.py`` (socat and haproxy are taken from the PATH; one that is missing is said
and its ratios are not judged). Every figure is a median of interleaved rounds. It exits with 1 when one of the ratios
falls below what is wanted, and with 3 when one could not be measured.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from kvproof import faults
from kvproof.faults.families.hold import Hold
from kvproof.faults.servers import free_port, valkey
from kvproof.models.resp import encode_command

CHUNK = 12_390_400
"""Bytes in one chunk: 256 tokens of 48.4 KB (facts: 1)."""
SMALL = 16
BATCH = 200
"""Small GETs in one round."""
MIB = 1 << 20


class Reader:
    """A bare client that GETs one key, over and over."""

    def __init__(self, address: tuple[str, int], key: str, size: int) -> None:
        """Connect."""
        self._socket = socket.create_connection(address, timeout=20)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._request = encode_command("GET", key)
        self._reply = memoryview(bytearray(size + len(b"$%d\r\n\r\n" % size)))

    def read(self) -> None:
        """GET once."""
        self._socket.sendall(self._request)
        received = 0
        while received < len(self._reply):
            count = self._socket.recv_into(self._reply[received:])
            if not count:
                raise ConnectionError("the connection ended in the middle of a reply")
            received += count

    def reads(self, count: int) -> None:
        """GET `count` times."""
        for _ in range(count):
            self.read()

    def close(self) -> None:
        """Disconnect."""
        self._socket.close()


@dataclass(frozen=True)
class Way:
    """One way to the server: its name, where to connect, and the process in between."""

    name: str
    address: tuple[str, int]
    pid: int | None = None


def listening(address: tuple[str, int], process: subprocess.Popen[bytes]) -> None:
    """Wait until somebody takes connections there."""
    until = time.monotonic() + 10
    while time.monotonic() < until and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(address, timeout=1):
            return
    raise SystemExit(f"{process.args!r} does not listen on {address}")


@contextlib.contextmanager
def another(name: str, upstream: tuple[str, int]) -> Iterator[Way | None]:
    """Start socat or HAProxy in front of the server; None when it is not installed."""
    binary = shutil.which(name) or shutil.which(name, path="/usr/sbin")
    if binary is None:
        print(f"{name}: not installed, its ratios are not measured")
        yield None
        return
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="kvproof-bench-") as directory:
        if name == "socat":
            command = [binary, "-b", str(256 * 1024), f"TCP-LISTEN:{port},bind=127.0.0.1,fork,reuseaddr,nodelay",
                       f"TCP:{upstream[0]}:{upstream[1]},nodelay"]
        else:
            configuration = Path(directory, "haproxy.cfg")
            configuration.write_text(
                "global\n  nbthread 1\n  tune.bufsize 262144\ndefaults\n  mode tcp\n  timeout connect 5s\n"
                "  timeout client 60s\n  timeout server 60s\n"
                f"listen kv\n  bind 127.0.0.1:{port}\n  server one {upstream[0]}:{upstream[1]}\n")
            command = [binary, "-f", str(configuration), "-db", "-q"]
        process = subprocess.Popen(command)
        try:
            listening(("127.0.0.1", port), process)
            yield Way(name, ("127.0.0.1", port), process.pid)
        finally:
            process.terminate()
            process.wait()


def cpu(pid: int) -> float:
    """Return the CPU seconds that a process of one thread has used, to the nanosecond."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def interleaved(contestants: Sequence[Callable[[], object]], rounds: int, warm: int = 3) -> list[float]:
    """Return the median seconds of each, called in turn, the first one changing."""
    times: list[list[float]] = [[] for _ in contestants]
    for turn in range(rounds + warm):
        order = range(len(contestants)) if turn % 2 else reversed(range(len(contestants)))
        for index in order:
            begin = time.perf_counter()
            contestants[index]()
            times[index].append(time.perf_counter() - begin)
    return [statistics.median(each[warm:]) for each in times]


class Judge:
    """Prints each figure beside what is wanted, and remembers whether all held."""

    def __init__(self) -> None:
        """Begin with nothing wrong."""
        self.failed = False
        self.missing = False

    def say(self, what: str, figure: float, wanted: str, holds: bool) -> None:
        """Print one figure."""
        self.failed |= not holds
        print(f"{what}: {figure:.2f} ({wanted} wanted{'' if holds else ': MISSED'})", flush=True)


def compare(ways: Sequence[Way], key: str, size: int, batch: int, rounds: int) -> dict[str, float]:
    """Return for each way its median seconds for `batch` GETs."""
    readers = [Reader(way.address, key, size) for way in ways]
    try:
        medians = interleaved([partial(reader.reads, batch) for reader in readers], rounds)
    finally:
        for reader in readers:
            reader.close()
    for way, median in zip(ways, medians, strict=True):
        rate = f"{size / median / 1e9:.2f} GB/s" if batch == 1 else f"{median / batch * 1e6:.0f} us a GET"
        print(f"  {way.name}: {rate}")
    return {way.name: median for way, median in zip(ways, medians, strict=True)}


def speed(judge: Judge, ways: Sequence[Way], rounds: int) -> None:
    """Large and small GETs by every way."""
    large = compare(ways, "large", CHUNK, 1, rounds)
    ratio = large["direct"] / large["kvproof"]
    judge.say(f"{CHUNK} bytes, of direct", ratio, "0.5", ratio >= 0.5)
    small = compare(ways, "small", SMALL, BATCH, rounds)
    for name in ("socat", "haproxy"):
        if name not in large:
            judge.missing = True
            continue
        ratio = large[name] / large["kvproof"]
        judge.say(f"{CHUNK} bytes, of {name}", ratio, "0.95", ratio >= 0.95)
    if "socat" in small:
        ratio = small["socat"] / small["kvproof"]
        judge.say(f"{SMALL} bytes, of socat", ratio, "0.7", ratio >= 0.7)
    print(f"{SMALL} bytes, of direct: {small['direct'] / small['kvproof']:.2f}")


def spent(ways: Sequence[tuple[int, tuple[str, int]]], rounds: int) -> list[float]:
    """Return the median CPU seconds a gigabyte that each process uses for a large GET, in interleaved rounds."""
    used: list[list[float]] = [[] for _ in ways]
    with contextlib.ExitStack() as stack:
        readers = [stack.enter_context(contextlib.closing(Reader(address, "large", CHUNK))) for _, address in ways]
        for _ in range(rounds):
            for (pid, _), reader, figures in zip(ways, readers, used, strict=True):
                before = cpu(pid)
                reader.read()
                figures.append((cpu(pid) - before) / (CHUNK / 1e9))
    return [statistics.median(figures) for figures in used]


def effort(judge: Judge, upstream: tuple[str, int], rounds: int) -> None:
    """CPU seconds a gigabyte, beside HAProxy's, and what entries that never match add to it."""
    with (faults.proxy(upstream) as bare, faults.proxy(upstream, NEVER) as armed,
          another("haproxy", upstream) as haproxy):
        ways = [(bare.pid, (bare.host, bare.port))]
        if haproxy is not None and haproxy.pid is not None:
            ways.append((haproxy.pid, haproxy.address))
        ours, *theirs = spent(ways, rounds)
        judge.say("CPU seconds a GB", ours, "at most 0.35", ours <= 0.35)
        for figure in theirs:
            print(f"CPU of {CHUNK}-byte GETs, of haproxy's: {ours / figure:.2f}")
        for key, size, batch in (("large", CHUNK, 2), ("small", SMALL, 1500)):
            used = [0.0, 0.0]
            readers = [Reader((each.host, each.port), key, size) for each in (bare, armed)]
            for turn in range(rounds):
                for index in (0, 1) if turn % 2 else (1, 0):
                    before = cpu(bare.pid)
                    readers[index].reads(batch)
                    used[index] += cpu(bare.pid) - before
            for each in readers:
                each.close()
            ratio = used[1] / used[0]
            judge.say(f"CPU of {size}-byte GETs with {len(NEVER)} entries that do not match, of none", ratio,
                      "at most 1.10", ratio <= 1.10)


NEVER = tuple(
    Hold(command=("GET", "SET", "EXISTS", "*")[number % 4], key=f"never-{number}", until="close")
    for number in range(1000))


def memory(judge: Judge, upstream: tuple[str, int]) -> None:
    """Measure the proxy's peak memory while 64 connections read chunks at once."""
    with faults.proxy(upstream) as endpoint:
        address = (endpoint.host, endpoint.port)
        readers = [Reader(address, "large", CHUNK) for _ in range(64)]
        threads = [threading.Thread(target=reader.reads, args=(2,)) for reader in readers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for reader in readers:
            reader.close()
        status = Path(f"/proc/{endpoint.pid}/status").read_text()
        peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) / 1024
    judge.say("MiB at most with 64 connections of large GETs", peak, "under 100", peak < 100)


def main() -> int:
    """Measure; 1 when something is missed, 3 when something could not be measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--only", choices=("speed", "effort", "memory"))
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    judge = Judge()
    with valkey() as server, contextlib.ExitStack() as stack:
        with server.connect() as truth:
            truth.command("SET", "large", os.urandom(CHUNK))
            truth.command("SET", "small", os.urandom(SMALL))
        if options.only in (None, "speed"):
            endpoint = stack.enter_context(faults.proxy(server.address))
            ways = [Way("direct", server.address), Way("kvproof", (endpoint.host, endpoint.port), endpoint.pid)]
            ways += [way for name in ("socat", "haproxy")
                     if (way := stack.enter_context(another(name, server.address))) is not None]
            speed(judge, ways, options.rounds)
        if options.only in (None, "effort"):
            effort(judge, server.address, options.rounds)
        if options.only in (None, "memory"):
            memory(judge, server.address)
    return 1 if judge.failed else 3 if judge.missing else 0


if __name__ == "__main__":
    sys.exit(main())
