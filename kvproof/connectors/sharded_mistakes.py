"""The sharded reference with one mistake each: the mutants of the proofs, as ranks that run.

``sharded-reference+early-return`` is the connector with that mistake. Each does something wrong that somebody would
write, and is otherwise the reference; what the proof's counterexample says of it happens to real processes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from kvproof.connectors.rank_adapter import StepAborted
from kvproof.connectors.rank_group import Group
from kvproof.connectors.sharded_reference import FAILURE, Chunks, Said, ShardedReference, uniform
from kvproof.models import client as model


class Mistaken(ShardedReference):
    """A sharded reference with a mistake; mutant: the one of the proofs that makes the same, as obligation:mutant."""

    mutant: ClassVar[str]


class EarlyReturn(Mistaken):
    """Return on the rank's own miss."""

    mutant = "load.no-skip:early-return"

    def _together(self, chunks: Chunks, mine: Mapping[int, Any], step: int, failure: int) -> int:
        return 0 if failure < len(chunks) else super()._together(chunks, mine, step, failure)


class EmptyList(Mistaken):
    """Skip the exchange when the rank's list is empty."""

    mutant = "load.no-skip:empty-list"

    def _together(self, chunks: Chunks, mine: Mapping[int, Any], step: int, failure: int) -> int:
        return super()._together(chunks, mine, step, failure) if chunks else 0


class BufferFull(Mistaken):
    """Leave the loop of broadcasts when the rank's own buffer is full; the last rank's holds one chunk."""

    mutant = "load.no-skip:buffer-full"

    def _bring(self, buffer: Any, chunk: int, host: Any, step: int) -> None:
        if self._rank < self._world_size - 1 or chunk < 1:
            super()._bring(buffer, chunk, host, step)


class Raises(Mistaken):
    """Let an exception of the own work leave the step."""

    mutant = "load.no-skip:exception"

    def _fetched(self, names: Sequence[str]) -> dict[str, Any]:
        hosts = [(name, self._allocate(self._size)) for name in names]
        outcomes = self._get(hosts) if hosts else []
        return {name: host for (name, host), outcome in zip(hosts, outcomes, strict=True)
                if isinstance(outcome, model.Found)}


class _Patient(Group):
    """A group that is not left when a collective has failed."""

    def leave(self, why: str) -> None:
        if why.startswith("it is "):
            super().leave(why)


class LonelyTimeout(Mistaken):
    """Leave the step alone after a timeout, as if it had taken place, and tell nobody."""

    mutant = "load.no-skip:lonely-timeout"
    group_class = _Patient

    def load(self, chunks: Chunks) -> int:
        """Load, and take a step that was given up for one with nothing in it."""
        try:
            return super().load(chunks)
        except StepAborted:
            return 0


class OwnFailure(Mistaken):
    """Take the rank's own first failure for the agreed prefix."""

    mutant = "load.no-skip:own-failure"

    def _agreed(self, said: Said, failure: int) -> int:
        return failure if uniform(said) else 0


class Lookups(Mistaken):
    """Agree on what lookups have said, not on what was loaded."""

    mutant = "load.whole:lookups"

    def load(self, chunks: Chunks) -> int:
        """Load what was promised."""
        self._promised = len(chunks)
        return super().load(chunks)

    def _exchange(self, chunks: Chunks, step: int, failure: int) -> Said:
        return super()._exchange(chunks, step, self._promised)


class _Apart(Group):
    """A group in which the first rank exchanges by itself, and all others with each other."""

    def __init__(self, rendezvous: str, rank: int, world_size: int, backend: str, device: str, timeout: float) -> None:
        super().__init__(rendezvous, rank, world_size, backend, device, timeout)
        parts = [part for part in ([0], list(range(1, world_size))) if part]
        # Every rank has to make every group, also those that it is not in.
        made = [(part, self._distributed.new_group(part, timeout=self._timeout)) for part in parts]
        [self._exchanging] = [group for part, group in made if rank in part]


class Subgroup(Mistaken):
    """Exchange over a subgroup: the first rank by itself, and all others."""

    mutant = "load.agree:subgroup"
    group_class = _Apart


class NotCompared(Mistaken):
    """Exchange fingerprints, and compare none."""

    mutant = "load.differing:not-compared"

    def _agreed(self, said: Said, failure: int) -> int:
        return min(each[FAILURE] for each in said)


class OwnExtras(Mistaken):
    """Use also what the rank has itself loaded past the agreed prefix."""

    mutant = "load.nothing-past:own-extras"

    def _together(self, chunks: Chunks, mine: Mapping[int, Any], step: int, failure: int) -> int:
        agreed = super()._together(chunks, mine, step, failure)
        while agreed in mine and agreed < len(chunks):
            self._deliver(mine[agreed], chunks[agreed][1])
            agreed += 1
        return agreed


class WaitsForAll(Mistaken):
    """Ask for a chunk that failed until it comes."""

    mutant = "load.no-deadlock:waits-for-all"

    def _own(self, names: Sequence[str]) -> dict[int, Any]:
        wanted = [c for c in range(len(names)) if self._reads(c)]
        mine = super()._own(names)
        while len(mine) < len(wanted):
            mine |= super()._own(names)
        return mine


class UsesWhatItHas(Mistaken):
    """Use the agreed prefix also after a step was given up."""

    mutant = "load.uses-completed:uses-what-it-has"
    _known = 0

    def _agreed(self, said: Said, failure: int) -> int:
        self._known = super()._agreed(said, failure)
        return self._known

    def load(self, chunks: Chunks) -> int:
        """Load, and use what was agreed on whatever has happened."""
        self._known = 0
        try:
            return super().load(chunks)
        except StepAborted:
            if not self._known:
                raise
            return self._known


class Maximum(Mistaken):
    """Promise the maximum of what the ranks report."""

    mutant = "prefix.minimum:maximum"

    def scheduler(self, reports: Sequence[int]) -> int:
        """Return the most that any rank reports."""
        return max(reports)


class Count(Mistaken):
    """Report how many own chunks were hit, not where they end."""

    mutant = "prefix.minimum:count"

    def _report(self, there: Sequence[bool], mine: Sequence[int], length: int) -> int:
        return next((hits for hits, present in enumerate(there) if not present), len(there))


class OwnsNothing(Mistaken):
    """Report 0 where the rank owns nothing of the prompt."""

    mutant = "prefix.minimum:owns-nothing"

    def _report(self, there: Sequence[bool], mine: Sequence[int], length: int) -> int:
        return super()._report(there, mine, length) if mine else 0


class PastTheHole(Mistaken):
    """Count hits past a hole: `continue` on a miss, not `break`."""

    mutant = "prefix.minimum:past-the-hole"

    def _report(self, there: Sequence[bool], mine: Sequence[int], length: int) -> int:
        hits = [c for c, present in zip(mine, there, strict=True) if present]
        return length if len(hits) == len(mine) or (hits and hits[-1] == mine[-1]) else (hits or [-1])[-1] + 1


class OwnKey(Mistaken):
    """Ask by the rank's own key although only worker 0 stores."""

    mutant = "keys.read-is-written:not-rewritten"

    def _key(self, chunk: str) -> str:
        return self.place.place.key(chunk).format()


MISTAKES: dict[str, type[Mistaken]] = {
    "early-return": EarlyReturn, "empty-list": EmptyList, "buffer-full": BufferFull, "exception": Raises,
    "lonely-timeout": LonelyTimeout, "own-failure": OwnFailure, "lookups": Lookups, "subgroup": Subgroup,
    "not-compared": NotCompared, "own-extras": OwnExtras, "waits-for-all": WaitsForAll,
    "uses-what-it-has": UsesWhatItHas, "maximum": Maximum, "count": Count, "owns-nothing": OwnsNothing,
    "past-the-hole": PastTheHole, "own-key": OwnKey,
}
"""Every mistake by its name."""


def mistaken(name: str) -> type[Mistaken]:
    """Return the connector with that mistake; raises KeyError when there is none."""
    return MISTAKES[name]
