"""Fork servers by connector: one for each environment and distribution, started when it is first needed."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

from kvproof.connectors import Connector
from kvproof.runner.host import ForkServer, Runner

_MODULES: Mapping[str, tuple[str, ...]] = {"cpu": (), "cuda": ("torch",)}
"""What the buffers of a device need, by device."""


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
