"""Every target there is, by name: connectors, one client or a world of ranks, and kvproof's own parts."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, Protocol

from kvproof import check, connectors
from kvproof.campaigns.clients import case as clients_case
from kvproof.campaigns.clients import target as clients
from kvproof.campaigns.own import decoder, proofs, walks
from kvproof.campaigns.own.part import Part
from kvproof.campaigns.target import Case, Target
from kvproof.campaigns.worlds import case as worlds_case
from kvproof.campaigns.worlds import target as worlds
from kvproof.connectors import Connector
from kvproof.errors import UsageError
from kvproof.ranks import check as worlds_check

OWN: dict[str, Part] = {"decoder": decoder.PART, "models": walks.PART, "obligations": proofs.PART}
"""The parts of kvproof that are targets."""


class Asking(Protocol):
    """How targets are to be opened: `worker.Task` says it."""

    @property
    def targets(self) -> tuple[str, ...]:
        """All of them."""

    @property
    def at_once(self) -> int:
        """Cases that work at once, of all of them."""

    @property
    def server(self) -> str | None:
        """As for `kvproof check`."""

    @property
    def device(self) -> str:
        """As for `kvproof check`."""

    @property
    def ranks(self) -> int:
        """In the worlds of connectors that have ranks."""


class Opener:
    """Opens targets, on servers and fork servers that they share. Use it as a context manager."""

    def __init__(self, asked: Asking, stopped: threading.Event, *, plays: bool = False) -> None:
        """Open nothing yet; plays: cases are only played, and none are made."""
        self._asked, self._stopped, self._plays = asked, stopped, plays
        self._stack = ExitStack()
        self._clients: Any = None
        self._worlds: Any = None

    def __enter__(self) -> Opener:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close everything."""
        self._stack.close()

    def __call__(self, name: str) -> Target:
        """Open a target; raises KvproofError, ImportHung and ImportCrashed where it cannot be."""
        if name in OWN:
            return OWN[name].opened(self._stack, self._stopped)
        connector = connectors.find(connectors.for_device(name, self._asked.device))
        if connector.ranks:
            return self._world(connector)
        if self._clients is None:
            self._clients = self._stack.enter_context(check.grounds(self._asked.server, self._asked.device))
        share = max(1, self._asked.at_once // len(self._asked.targets))
        if self._plays:
            return clients.opened(connector, self._clients, share, self._stopped)
        with ThreadPoolExecutor(self._asked.at_once, "looking") as pool:
            return clients.opened(connector, self._clients, share, self._stopped, pool)

    def _world(self, connector: Connector) -> Target:
        if self._asked.server is not None:
            raise UsageError(f"{connector.name} has ranks, each with an instance of its own; leave --server out")
        if self._worlds is None:
            self._worlds = self._stack.enter_context(worlds_check.grounds(self._asked.ranks, self._asked.device))
        return worlds.Worlds(self._worlds(connector, self._stopped), plays=self._plays)


def read(name: str, document: Any) -> Case:
    """Read a case of a target, which need not be here; raises UsageError that says what is wrong with it."""
    if name in OWN:
        own: Case = OWN[name].read(document)
        return own
    if isinstance(document, dict) and "ranks" in document:
        return worlds_case.read(document)
    return clients_case.read(document)
