"""The contract over a world of ranks: each rule is a function of what a world did in one scenario."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kvproof.ranks.disturbances import Disturbance
from kvproof.ranks.evidence import Evidence, RankEnd, Step
from kvproof.ranks.story import stall
from kvproof.rig import Unsupported
from kvproof.rules.rule import Broken


@dataclass(frozen=True, slots=True)
class WorldRule:
    """A clause of the contract over a world.

    id: stable. check: raises Broken when the clause does not hold, and Unsupported when what happened gave it nothing
    to judge. applies: whether it says anything under a
    disturbance, of ranks that exchange (True) or not.
    """

    id: str
    check: Callable[[Evidence], None]
    applies: Callable[[Disturbance, bool, bool], bool] = lambda disturbance, exchanges, replicated: True

    @property
    def claim(self) -> str:
        """What the rule says, in one line."""
        return (self.check.__doc__ or "").strip().splitlines()[0]


_UNDISTURBED = ("none", "short-prompt", "long-chunks", "blocks", "in-memory", "absent")
"""Under these what is promised is all that is there, and all of it is loaded."""


def same_prefix(evidence: Evidence) -> None:
    """Promise the engine the longest cached prefix, and compute with the same one on all ranks that finish."""
    step = evidence.step
    told = ", ".join(f"rank {rank} promises {count}" for rank, count in sorted(step.reports.items()))
    if step.found > evidence.prefix:
        raise Broken(f"the engine is promised {step.found} chunks, and {evidence.prefix} are there ({told})")
    if evidence.disturbance.id in _UNDISTURBED:
        if step.found < evidence.prefix:
            raise Broken(f"nothing is disturbed, {evidence.prefix} chunks are there, and the engine is promised "
                         f"{step.found} ({told})")
        for end in step.ends:
            if end.uses != step.found:
                raise Broken(f"nothing is disturbed, {step.found} chunks were promised, and rank {end.rank} "
                             f"{end.words}")
    _same(step)
    if evidence.following is not None and evidence.following[0] > evidence.following[1]:
        raise Broken(f"the next lookup, of a prompt of which {evidence.following[1]} chunks are there, promises "
                     f"{evidence.following[0]}")


def _same(step: Step) -> None:
    for other in step.finished:
        first = step.finished[0]
        if other.uses != first.uses:
            raise Broken(f"rank {first.rank} computes with {first.uses} chunks, and rank {other.rank} with "
                         f"{other.uses}")


def no_skip(evidence: Evidence) -> None:
    """Leave no peer waiting in a collective while alive, unless the step is given up for the whole group."""
    if evidence.world_size == 1 and evidence.log is None:
        raise Unsupported("one rank has no peers that could wait, and it writes no log")
    if not evidence.step.ends and (evidence.again is None or not evidence.again.ends):
        raise Unsupported("nothing was promised, so that no rank loaded anything")
    _no_skip(evidence.step, "")
    if evidence.again is not None:
        _no_skip(evidence.again, "in the next step, ")
    if evidence.log:
        raise Broken(f"the ranks' own log is no behaviour of the protocol: {evidence.log}")


def _no_skip(step: Step, when: str) -> None:
    told = stall(step.entered, {end.rank: end.words for end in step.ends})
    for end in step.ends:
        if end.how not in ("returned", "raised"):
            continue
        mine = step.entered.of(end.rank)
        left_in = next((each for each in mine if each.waits or each.error), None)
        if end.finished and left_in is not None:
            raise Broken(f"{when}rank {end.rank} {end.words}, although it never left {left_in.words}: {told}")
        for other in step.ends:
            stuck = next((each for each in step.entered.of(other.rank) if each.waits or each.error), None)
            if stuck is not None and stuck.number > len(mine):
                raise Broken(f"{when}{told}")
    for end in step.finished:
        first = step.finished[0].rank
        theirs, mine = step.entered.of(first), step.entered.of(end.rank)
        for one, another in zip(theirs, mine, strict=False):
            if (one.call, one.root) != (another.call, another.root):
                raise Broken(f"{when}rank {first} was in {one.words}, and rank {end.rank} in {another.words}")
        if len(theirs) != len(mine):
            raise Broken(f"{when}rank {first} went through {len(theirs)} collectives, and rank {end.rank} through "
                         f"{len(mine)}")


def bounded_step(evidence: Evidence) -> None:
    """End every rank's load within what it was told to wait, whatever happens to a peer."""
    steps = {"": evidence.step, "loading again, ": evidence.after, "in the next step, ": evidence.again}
    for when, step in steps.items():
        if step is None:
            continue
        if step.unanswered:
            raise Broken(f"{when}the lookup did not come back: {'; '.join(step.unanswered)}", "hang")
        for end in step.ends:
            if not end.ended:
                told = stall(step.entered, {each.rank: each.words for each in step.ends})
                raise Broken(f"{when}rank {end.rank} did not come back within {evidence.deadline:g} s: "
                             f"{told or end.words}", "hang")
            if end.how == "crash" and not (evidence.disturbance.kills and end.rank == evidence.victim):
                raise Broken(f"{when}rank {end.rank} died: {end.words}", "crash")


def all_or_nothing(evidence: Evidence) -> None:
    """Have on every rank that finished, byte for byte, what any uses; after an abort begin no step of that group."""
    if not evidence.step.ends:
        raise Unsupported("nothing was promised, so that no rank loaded anything")
    if evidence.world_size == 1 and evidence.after is None:
        raise Unsupported("one rank has no peers that could have less")
    most = max((end.uses for end in evidence.step.finished), default=0)
    for end in evidence.step.finished:
        # What it uses itself is for no-stale-hit to look at.
        for chunk in range(end.uses, most):
            if chunk < len(end.holds) and (end.holds[chunk], end.exact[chunk]) != (evidence.own(chunk), True):
                users = [each.rank for each in evidence.step.finished if each.uses > chunk]
                raise Broken(f"rank {users[0]} computes with chunk {chunk}, and rank {end.rank} has "
                             f"{_instead(end, chunk)} in its place")
            if chunk >= len(end.holds):
                raise Broken(f"a rank computes with chunk {chunk}, and rank {end.rank} was told of {len(end.holds)}")
    if evidence.after is not None:
        for end in evidence.after.finished:
            gone = ", ".join(f"rank {each.rank} {each.words}" for each in evidence.step.unfinished)
            raise Broken(f"{gone}; the group was not rebuilt, and in the next step rank {end.rank} {end.words}")


def no_stale_hit(evidence: Evidence) -> None:
    """Compute only with chunks that were asked for, with every byte as it was stored."""
    if not any(end.uses for step in (evidence.step, evidence.again) if step is not None for end in step.finished):
        raise Unsupported("no rank computed with any chunk")
    for when, step in (("", evidence.step), ("in the next step, ", evidence.again)):
        if step is None:
            continue
        for end in step.finished:
            for chunk in range(end.uses):
                if (end.holds[chunk], end.exact[chunk]) != (f"{end.asked[chunk]} version {evidence.version}", True):
                    raise Broken(f"{when}rank {end.rank} computes with chunk {chunk}, and its buffer has "
                                 f"{_instead(end, chunk)}")


def recovers(evidence: Evidence) -> None:
    """Load everything again once the disturbance is gone, with a new group where somebody gave the step up."""
    again = evidence.again
    how = "the group was rebuilt, and" if evidence.step.unfinished else "the same group"
    if again is None or not again.ends:
        raise Broken(f"{how} was promised nothing in {evidence.tries} tries, although all chunks are there")
    for end in again.ends:
        if not end.finished or end.uses != len(evidence.prompt):
            told = stall(again.entered, {each.rank: each.words for each in again.ends})
            raise Broken(f"{how} was promised {again.found} of {len(evidence.prompt)} chunks in try {evidence.tries}: "
                         f"rank {end.rank} {end.words}{f'; {told}' if told else ''}")


def symmetric_work(evidence: Evidence) -> None:
    """Store, and get, as many chunks as every other rank, but for one at most, where nothing is disturbed."""
    for what, counted in (("stored", evidence.stores), ("got", evidence.gets)):
        if max(counted.values()) - min(counted.values()) > 1:
            told = ", ".join(f"rank {rank} {count}" for rank, count in sorted(counted.items()))
            raise Broken(f"of {len(evidence.prompt)} chunks the ranks {what} differently: {told}")


def _instead(end: RankEnd, chunk: int) -> str:
    holds = end.holds[chunk]
    if holds == "poison":
        return "a buffer that was never written"
    return f"the value of {holds}" if end.exact[chunk] else f"bytes that are not its own ({holds})"


def _disturbed(disturbance: Disturbance, exchanges: bool, replicated: bool) -> bool:
    return disturbance.id not in _UNDISTURBED and disturbance.told != "layout"


def _dealt(disturbance: Disturbance, exchanges: bool, replicated: bool) -> bool:
    return disturbance.id in ("none", "short-prompt", "long-chunks") and not replicated


RULES: dict[str, WorldRule] = {rule.id: rule for rule in (
    WorldRule("same-prefix", same_prefix),
    WorldRule("no-skip", no_skip, lambda disturbance, exchanges, replicated: exchanges),
    WorldRule("bounded-step", bounded_step),
    WorldRule("all-or-nothing", all_or_nothing),
    WorldRule("no-stale-hit", no_stale_hit),
    WorldRule("recovers", recovers, _disturbed),
    WorldRule("symmetric-work", symmetric_work, _dealt),
)}
"""Every rule over a world by its id."""
