"""A server's process that ends and starts again, stands still, or starts after its clients."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from kvproof.errors import DeadlineExceeded, ServerFailed, UsageError
from kvproof.faults.server_fault import DEADLINE, Report, ServerFault, second_channel, setting, wait_until
from kvproof.faults.servers import DUMP, Server, launch, prepared
from kvproof.faults.supervisor import Process

DATA_DEADLINE = 60.0
"""Seconds within which a server writes its data, and loads them again."""


@dataclass(frozen=True)
class Killed(ServerFault):
    """The server ends by SIGKILL, and starts again on the same port at the end of the context.

    In between connecting is refused, and the kernel gives the port to nobody else. It comes back empty, or with_data:
    with every write that was acknowledged, because writes are paused while the data are saved before the kill. It has
    its password still; what CONFIG SET changed otherwise, it has not.
    """

    kind: ClassVar[str] = "killed"
    elsewhere: ClassVar[str] = "it takes a port that the kernel chooses, so it cannot come back on its own"

    with_data: bool = False

    @contextmanager
    def on(self, server: Server) -> Iterator[Report]:
        """Strike; start the server again at the end. Raises ServerFailed when that fails."""
        report = self.begin(server)
        process = _process(server)
        dump = _save(server) if self.with_data else None
        try:
            process.send_signal(signal.SIGKILL)
            end = process.wait(DEADLINE)
            if end is None:
                raise DeadlineExceeded(f"process {process.pid} did not end within {DEADLINE:g} s of SIGKILL")
            process.close()
            report.did.append(f"process {process.pid} {end}")
            try:
                yield report
            finally:
                _launch(server, dump)
                report.did.append(f"started again as process {_process(server).pid}, "
                                  + ("with its data" if self.with_data else "empty"))
        finally:
            if dump is not None:
                os.close(dump)


@dataclass(frozen=True)
class Stopped(ServerFault):
    """The server stands still by SIGSTOP, and goes on by SIGCONT at the end of the context.

    The kernel goes on accepting connections and bytes for it, as many as its queues hold. A server whose starter
    ends meanwhile is killed by the supervisor like any other.
    """

    kind: ClassVar[str] = "stopped"
    servers: ClassVar[frozenset[str]] = frozenset({"valkey", "fakeredis"})

    @contextmanager
    def on(self, server: Server) -> Iterator[Report]:
        """Strike, once every thread stands still; let them go on at the end."""
        report = self.begin(server)
        process = _process(server)
        process.send_signal(signal.SIGSTOP)
        try:
            wait_until(lambda: _states(process) == {"T"}, f"process {process.pid} stood still")
            report.did.append(f"stopped process {process.pid}")
            yield report
        finally:
            process.send_signal(signal.SIGCONT)
            wait_until(lambda: "T" not in _states(process) or not process.alive, f"process {process.pid} went on")


@dataclass
class Later:
    """A server that has a port and is not there yet: connecting is refused until `start`."""

    server: Server
    report: Report = field(default_factory=lambda: Report("later"))

    def start(self) -> Server:
        """Start it, with its clients there or not; returns when it serves. Raises ServerFailed, UsageError."""
        if self.server.process is not None:
            raise UsageError(f"later: the server on port {self.server.port} was started already")
        _launch(self.server, None)
        self.report.did.append(f"started on port {self.server.port}")
        return self.server


@contextmanager
def later(*, password: str | None = None, settings: Mapping[str, str] | None = None) -> Iterator[Later]:
    """Hold a port for a valkey-server that starts after its clients; end it, if it was started.

    The port is bound and not listened to, so that the kernel refuses connections and gives the port to nobody else.
    """
    with prepared(password=password, settings=settings) as server:
        yield Later(server)


def _process(server: Server) -> Process:
    assert server.process is not None
    return server.process


def _launch(server: Server, dump: int | None) -> None:
    if not launch(server, dump, DATA_DEADLINE):
        raise ServerFailed(f"somebody has taken port {server.port} while the server was being started; try again")


def _save(server: Server) -> int:
    """Pause writes, save the data, and return a descriptor of the file, which may be deleted meanwhile."""
    with second_channel(server, DATA_DEADLINE) as raw:
        if setting(raw, "appendonly") != "no":
            raise UsageError("killed: with_data is for a server without appendonly, which would begin with its log")
        raw.command("CLIENT", "PAUSE", int(1000 * DATA_DEADLINE), "WRITE")
        try:
            raw.command("SAVE")
            return os.open(Path(setting(raw, "dir"), DUMP), os.O_RDONLY | os.O_CLOEXEC)
        except BaseException:
            raw.command("CLIENT", "UNPAUSE")
            raise


def _states(process: Process) -> set[str]:
    """Return the states of a process's threads, such as {"S", "T"}; none when it is gone."""
    found = set()
    try:
        for thread in os.scandir(f"/proc/{process.pid}/task"):
            stat = Path(thread.path, "stat").read_text()
            found.add(stat.rpartition(")")[2].split()[0])
    except (FileNotFoundError, ProcessLookupError):
        pass
    return found
