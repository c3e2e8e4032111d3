"""How many states the loading protocol has: counted by the Python model, and beside it by TLC from other words."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kvproof import models, tlc
from kvproof.errors import NotInstalled
from kvproof.models.explore import TooMany, explore
from kvproof.models.load import Plan, World, complaint, round_robin

PEER = Path(models.__path__[0], "peers", "load.tla")
"""The protocol in TLA+, written by hand and from its words alone."""
INVARIANTS = ("Agree", "NoSkip", "Whole", "Stuck")
MOST = 10**6
"""States of one world at most."""


@dataclass(frozen=True, slots=True)
class Counted:
    """One world: W ranks, n chunks dealt out in turn, gets that come at any time or never.

    states, steps, depth: of the Python model, without symmetry. rate: states a second. wrong: what the model's
    properties said of some state, "" when nothing. tlc: distinct states by TLC, None when it was not run; why: the
    reason, or what TLC said was violated.
    """

    world_size: int
    chunks: int
    states: int
    steps: int
    depth: int
    rate: float
    wrong: str
    tlc: int | None
    why: str

    @property
    def verdict(self) -> str:
        """Return "agree", "differ", "wrong" or "not-run"."""
        if self.wrong or (self.tlc is not None and self.why):
            return "wrong"
        if self.tlc is None:
            return "not-run"
        return "agree" if self.tlc == self.states else "differ"

    def document(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {**asdict(self), "verdict": self.verdict}


def world(world_size: int, chunks: int) -> World:
    """Return the first state of a world in which all ranks were told the same."""
    return World.begin((Plan(chunks),) * world_size, round_robin(chunks, world_size))


def counted(worlds: list[tuple[int, int]], *, peer: bool = True) -> Iterator[Counted]:
    """Count the states of each world, as (W, n); stop asking TLC once it is found not to be installed."""
    missing = "" if peer else "it was not asked"
    for world_size, chunks in worlds:
        begun = time.monotonic()
        try:
            found = explore(world(world_size, chunks), wrong=complaint, most=MOST)
        except TooMany as error:
            yield Counted(world_size, chunks, MOST, 0, 0, 0.0, "", None, str(error))
            continue
        rate = len(found.came) / (time.monotonic() - begun)
        states, why = None, missing
        if not missing:
            try:
                answer = tlc.check(PEER, {"W": world_size, "N": chunks}, specification="Fair",
                                   invariants=INVARIANTS, properties=("Ends",), deadline=600.0)
                states, why = answer.states, answer.violated
            except NotInstalled as error:
                missing = why = str(error)
            except tlc.TlcFailed as error:
                why = str(error)
        yield Counted(world_size, chunks, len(found.came), found.steps, found.depth, rate, found.why, states, why)
