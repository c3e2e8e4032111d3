"""A world of ranks as a campaign's target."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from kvproof.campaigns.target import Played, Violation
from kvproof.campaigns.worlds import case as cases
from kvproof.campaigns.worlds.case import Case
from kvproof.campaigns.worlds.generate import Generator, simpler
from kvproof.campaigns.worlds.play import play
from kvproof.ranks import scenario
from kvproof.ranks.world import Ground

_RANKS = 8
"""Ranks that may be at work at once, of however many worlds."""


class Worlds:
    """Worlds of one connector's ranks; see `Target`."""

    def __init__(self, ground: Ground, *, plays: bool = False) -> None:
        """Look at what ranks do undisturbed; raises NotOpened where they do not work then.

        plays: cases are only played, and none are made.
        """
        self._ground, self.ranks = ground, ground.world_size
        self.lanes = max(1, _RANKS // ground.world_size)
        self.version, self.server = ground.described.version or "", ground.servers[0].description
        self._generator = None if plays else Generator(
            ground.world_size,
            {load.name: scenario.observe(ground, load) for load in ground.described.loads},
            {load.name: ground.described.exchanges and load.exchanges for load in ground.described.loads},
            ground.described.memory)

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
        return play(self._ground, case, name)

    def learn(self, case: Case, violation: Violation, always: bool) -> None:
        """Nothing changes what is played."""
