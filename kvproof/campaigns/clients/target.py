"""A connector's clients as a campaign's target."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from typing import Any

from kvproof import check
from kvproof.campaigns.clients import case as cases
from kvproof.campaigns.clients.case import Case
from kvproof.campaigns.clients.generate import SIZES, Generator, spots_of
from kvproof.campaigns.clients.play import Playground, play
from kvproof.campaigns.clients.simpler import simpler
from kvproof.campaigns.target import Played, Violation
from kvproof.connectors import Connector
from kvproof.rig import Ground, NotOpened
from kvproof.rules.cell import TIMEOUT
from kvproof.rules.plan import CHUNK_BYTES
from kvproof.runner import Returned
from kvproof.runner.host import Turns

_LANES = 4
"""Cases that have begun for each that works: most of one that hangs is waiting."""


class Clients:
    """The clients of one connector; see `Target`."""

    def __init__(self, ground: Playground, lanes: int, pool: ThreadPoolExecutor | None = None) -> None:
        """Look at what it does undisturbed, in threads of `pool`; raises NotOpened where it does not work then.

        Without a pool cases can only be played, and none are made.
        """
        self._ground, self.lanes, self.ranks = ground, lanes, 1
        self.version, self.server = ground.version, ground.server.description
        self._generator = _generator(ground, pool) if pool is not None else None
        self._closes = True

    def fresh(self, choose: random.Random) -> Case:
        """See `Target`."""
        assert self._generator is not None
        return self._generator.fresh(choose)

    def changed(self, case: Case, choose: random.Random, other: Case) -> Case:
        """See `Target`."""
        assert self._generator is not None
        return self._generator.changed(case, choose, other)

    def simpler(self, case: Case) -> Iterator[Case]:
        """See `Target`."""
        return simpler(case)

    def read(self, document: Any) -> Case:
        """See `Target`."""
        return cases.read(document)

    def play(self, case: Case, name: str) -> Played:
        """See `Target`."""
        return play(self._ground, case, name, closes=self._closes)

    def learn(self, case: Case, violation: Violation, always: bool) -> None:
        """Close no more cases where closing is known to hang, whatever was done before."""
        if always and not case.steps and (violation.rule, violation.verdict) == ("close-resolves", "hang"):
            self._closes = False


def opened(connector: Connector, make: Callable[[Connector, threading.Event], Ground], at_once: int,
           stopped: threading.Event, pool: ThreadPoolExecutor | None = None) -> Clients:
    """Return the clients of a connector on the ground that `make` makes, of which so many cases work at once."""
    made = make(connector, stopped)
    ground = Playground(**{each.name: getattr(made, each.name) for each in fields(made)} | {"turns": Turns(at_once)})
    return Clients(ground, _LANES * at_once, pool)


def _generator(ground: Ground, pool: ThreadPoolExecutor) -> Generator:
    """Return what makes cases for a connector; raises NotOpened where it does not work undisturbed."""
    described = ground.described
    recordings = list(check.recorded(ground, pool).values())
    gaps, loops = _inside(ground)
    return Generator(
        described.reads, spots_of(recordings, CHUNK_BYTES), gaps,
        tuple(size for size in SIZES if described.holds(size)), TIMEOUT,
        any(recording.resp3 for recording in recordings), "integrity" in described.capabilities,
        bool(described.masks), loops)


def _inside(ground: Ground) -> tuple[tuple[int, ...], bool]:
    """Return those of the adapter's gaps that are there in this version, and whether it makes asyncio loops."""
    with ground.rig(ground.at("gaps"), before={"kvproof.runner.signals:shuffle": {"seed": 1}}) as rig:
        gaps = rig.run("kvproof.runner.gaps:named")
        loops = rig.run("kvproof.runner.signals:loops") if isinstance(gaps, Returned) else None
    if not isinstance(gaps, Returned) or not isinstance(loops, Returned):
        raise NotOpened("asking for its gaps: it did not say")
    return tuple(number for number, gap in enumerate(gaps.value) if "gone" not in gap), loops.value > 0
