"""What a world of ranks did in one step, as data: every rule over a world is a function of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvproof.connectors.rank_adapter import Load
from kvproof.ranks.collectives import Entered
from kvproof.ranks.disturbances import Disturbance


@dataclass(frozen=True, slots=True)
class RankEnd:
    """How one rank's load ended.

    how: "returned", "aborted" (the rank says that it gave the step up), "raised", "hang" or "crash". uses: with how
    many leading chunks it computes. holds, exact: for each chunk whose bytes its buffer has, and whether all of them.
    asked: the chunks it was told to load. seconds: None when it did not return. words: how it ended, for a sentence.
    stack: where it was, innermost first, when it did not return.
    """

    rank: int
    how: str
    asked: Sequence[str] = ()
    uses: int = 0
    holds: Sequence[str] = ()
    exact: Sequence[bool] = ()
    seconds: float | None = None
    words: str = ""
    stack: Sequence[str] = ()

    @property
    def finished(self) -> bool:
        """Whether the rank takes itself to be through the step, and goes on to compute."""
        return self.how == "returned"

    @property
    def ended(self) -> bool:
        """Whether the call came back at all, or its process was ended by the disturbance."""
        return self.how != "hang"


@dataclass(frozen=True, slots=True)
class Step:
    """One lookup and load by all ranks: what each promised, what the engine was told, and how each load ended.

    unanswered: the ranks whose lookup did not come back, in words.
    """

    reports: Mapping[int, int]
    found: int
    ends: Sequence[RankEnd]
    entered: Entered
    unanswered: Sequence[str] = ()

    @property
    def finished(self) -> list[RankEnd]:
        """The ranks that take themselves to be through."""
        return [end for end in self.ends if end.finished]

    @property
    def unfinished(self) -> list[RankEnd]:
        """The ranks that gave up, died, raised or hang."""
        return [end for end in self.ends if not end.finished]


@dataclass(frozen=True, slots=True)
class Evidence:
    """One step under one disturbance of one rank, and what came after it.

    prompt: the stored chunks, in order. prefix: how many of them could really be had when the ranks looked them up.
    owners: the rank that stores each. stores, gets: how many chunks each rank stored, and asked its instance for in the
    step. after: one more load of the same group, where somebody had not finished the step. again: the last of `tries`
    steps once nothing is disturbed, of a group that was rebuilt where it had to be. log: what is wrong with the ranks'
    own log, "" when it is a behaviour of the spec, None when they write none. following: of the lookup of another
    prompt, right after the disturbance, how many chunks it promised and how many were there.
    """

    world_size: int
    load: Load
    disturbance: Disturbance
    victim: int
    prompt: Sequence[str]
    version: int
    owners: Sequence[int]
    prefix: int
    step: Step
    after: Step | None
    again: Step | None
    stores: Mapping[int, int]
    gets: Mapping[int, int]
    deadline: float
    log: str | None = None
    exchanges: bool = True
    tries: int = 1
    following: tuple[int, int] | None = None
    trouble: Mapping[str, Any] = field(default_factory=dict)

    def own(self, chunk: int) -> str:
        """Return what a buffer has to hold for a chunk of the prompt."""
        return f"{self.prompt[chunk]} version {self.version}"
