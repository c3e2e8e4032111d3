"""What a replay works on: one connector, one server, and for each case a fresh proxy and a fresh runner."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvproof.connectors import Connector
from kvproof.connectors.adapter import Place
from kvproof.faults.servers import Server
from kvproof.rig import Ground, Unsupported, described
from kvproof.runner.forks import Forks

TIMEOUT = 2.0
"""Seconds that a connector is told to wait for an answer: long for a server on this machine, even under load."""


@dataclass(frozen=True, slots=True)
class Case:
    """One case of a replay: what was done, its verdict, and the evidence in words and data."""

    name: str
    verdict: str
    explain: str
    evidence: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Replay:
    """A historic bug: its name, what it is in one sentence, and how it is replayed.

    plan: prepares whatever all cases share and returns them, each ready to be run, in any order and all at once.
    """

    bug: str
    summary: str
    plan: Callable[[Stage], Sequence[Callable[[], Case]]]


@dataclass(kw_only=True)
class Stage(Ground):
    """The ground of one replay."""

    replay: Replay

    @property
    def masked(self) -> str:
        """The connector's known bug that is kept from striking: never the one that is being replayed."""
        return self.described.masks if self.described.masks != self.replay.bug else ""

    def place(self, case: str, **fields: Any) -> Place:
        """Return a place on the server itself, under a model name that no other case has."""
        return self.at(f"{self.replay.bug} {self.connector.name} {case}", **{"timeout": TIMEOUT, **fields})


def stage_for(
    replay: Replay,
    connector: Connector,
    server: Server,
    forks: Forks,
    device: str = "cpu",
    stopped: threading.Event | None = None,
) -> Stage:
    """Ask the connector's adapter what it declares, and return the stage.

    Raises what `rig.described` does, and Unsupported when the connector asks nothing of a server.
    """
    found = described(connector, forks, device)
    if found.truth == "directory":
        raise Unsupported("it keeps its chunks in a directory, and every case here stands on the wire to a server")
    return Stage(connector, found, server, forks, device, stopped or threading.Event(), replay=replay)
