"""The suite's side of the fork servers from which runners come: one, and those of a run by connector."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kvproof.connectors import Connector
from kvproof.errors import RunnerFailed, UsageError
from kvproof.faults.supervisor import End, Process, SpawnerGone, SpawnerStuck, request, supervisor
from kvproof.runner.declared import InvalidAdapter
from kvproof.runner.evidence import Stacks
from kvproof.runner.forkserver import IMPORT_DEADLINE
from kvproof.runner.host import DYING, STACKS, Runner

_MODULES: Mapping[str, tuple[str, ...]] = {"cpu": (), "cuda": ("torch",)}
"""What the buffers of a device need, by device."""
_ANSWERING = 0.6
"""Seconds after an import's deadline within which the fork server must have said how it went."""


class ForkServer:
    """A warm process from which runners for the adapters of one environment are forked.

    environment: a directory of packages that is put before all others (an environment beside), or None.
    modules: what is imported before any adapter, because every runner will need it.
    import_deadline: seconds that the imports of one adapter may take.
    """

    def __init__(
        self,
        environment: Path | None = None,
        *,
        modules: Sequence[str] = (),
        import_deadline: float = IMPORT_DEADLINE,
    ) -> None:
        """Start it; nothing third-party is imported before the first runner is asked for."""
        self.import_deadline = import_deadline
        self.stacks = Stacks()
        self._closed = False
        self._lock = threading.Lock()
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.process = supervisor().spawn_module(
                "kvproof.runner.forkserver",
                str(import_deadline),
                *modules,
                fds={3: theirs.fileno(), 4: self.stacks.fd},
                first=[str(environment)] if environment is not None else [],
            )
        self.control = mine

    @property
    def alive(self) -> bool:
        """Whether runners can still be forked from it."""
        return not self._closed and self.process.alive

    def runner(self, target: str) -> Runner:
        """Fork a runner for the adapter ``module:Class``.

        The first call for a target imports it. Raises ImportHung, ImportCrashed or RunnerFailed when that goes wrong.
        """
        channel, channel_there = socket.socketpair()
        output, output_there = os.pipe()
        stacks = Stacks()
        try:
            with self._lock:
                fds = [channel_there.fileno(), output_there, stacks.fd]
                process = self._process(target, fds)
        except BaseException:
            channel.close()
            os.close(output)
            stacks.close()
            raise
        finally:
            channel_there.close()
            os.close(output_there)
        return Runner(process, channel, output, stacks)

    def _process(self, target: str, fds: list[int]) -> Process:
        try:
            return request(self.control, {"target": target}, fds, self.import_deadline + _ANSWERING)
        except SpawnerGone as error:
            end = self.process.wait(DYING) or self.process.close()
            raise ImportCrashed(target, end, self.stacks.fresh()) from error
        except SpawnerStuck as error:
            stacks = self.stacks.wait(STACKS)
            self.close()
            raise ImportHung(target, self.import_deadline, stacks) from error
        except RunnerFailed as error:
            invalid = str(error).partition(f"{InvalidAdapter.__name__}: ")[2]
            if invalid:
                raise UsageError(invalid) from error
            raise

    def close(self) -> None:
        """End it with all its runners."""
        if self._closed:
            return
        self._closed = True
        self.control.close()
        self.process.close()
        self.stacks.close()


class ImportCrashed(RunnerFailed):
    """Importing a connector ended the process that did it."""

    def __init__(self, target: str, end: End, stacks: str) -> None:
        """Say what was imported, how the process ended, and where."""
        self.target, self.end, self.stacks = target, end, stacks
        super().__init__(f"importing {target}: the process {end}")


class ImportHung(RunnerFailed):
    """Importing a connector did not end."""

    def __init__(self, target: str, deadline: float, stacks: str) -> None:
        """Say what was imported, how long it was given, and where it was."""
        self.target, self.deadline, self.stacks = target, deadline, stacks
        super().__init__(f"importing {target} did not end within {deadline:g} s")


@dataclass
class Forks:
    """The fork servers of a run whose buffers are on `device`. A dead one is replaced at the next call."""

    device: str = "cpu"
    _servers: dict[tuple[str, str], ForkServer] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def runner(self, connector: Connector) -> Runner:
        """Fork a runner for this connector; raises what `ForkServer.runner` does."""
        return self._server(connector).runner(connector.adapter)

    def alive(self, connector: Connector) -> bool:
        """Whether the fork server of this connector's runners still lives, so that a dead runner died by itself."""
        with self._lock:
            found = self._servers.get(self._key(connector))
            return found is not None and found.alive

    @staticmethod
    def _key(connector: Connector) -> tuple[str, str]:
        return (str(connector.environment or ""), connector.distribution)

    def _server(self, connector: Connector) -> ForkServer:
        key = self._key(connector)
        with self._lock:
            found = self._servers.get(key)
            if found is None or not found.alive:
                if found is not None:
                    found.close()
                found = self._servers[key] = ForkServer(connector.environment, modules=_MODULES[self.device])
            return found

    def close(self) -> None:
        """End them all, with every runner."""
        with self._lock:
            for server in self._servers.values():
                server.close()
            self._servers.clear()

    def __enter__(self) -> Forks:
        """Return the fork servers themselves."""
        return self

    def __exit__(self, *_: object) -> None:
        """End them all."""
        self.close()
