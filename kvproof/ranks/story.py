"""What a stall was, in a sentence: who waited in which collective, who never came, and where that one was instead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvproof.ranks.collectives import Collective, Entered
from kvproof.rig import blocked_at


def standing(how: str, briefly: str, stack: Sequence[str]) -> str:
    """Say how a rank's call ended, or where it still was."""
    if how == "hang":
        return f"was still in {blocked_at(stack)} ({briefly})"
    return briefly


def stall(entered: Entered, standings: Mapping[int, str]) -> str:
    """Return the sentence; "" when no rank waited for another in vain.

    standings: of each rank, how its call ended, or where it was.
    """
    stuck = {rank: each for rank in standings if (each := _stuck(entered.of(rank))) is not None}
    if not stuck:
        return ""
    number = min(each.number for each in stuck.values())
    inside = {rank: each for rank, each in stuck.items() if each.number == number}
    first = next(iter(inside.values()))
    peers = set(first.group) if first.group is not None else set(standings)
    absent = sorted(rank for rank in standings if rank in peers and len(entered.of(rank)) < number)
    waited = f"{_ranks(list(inside))} waited in {first.words}"
    if absent:
        instead = "; ".join(f"rank {rank} {standings[rank]}" for rank in absent)
        return f"{waited}, which {_ranks(absent)} never entered: {instead}"
    others = {rank: entered.of(rank)[number - 1] for rank in sorted(standings)
              if rank not in inside and len(entered.of(rank)) >= number}
    differing = [rank for rank, each in others.items() if (each.call, each.root, each.group) != (
        first.call, first.root, first.group)]
    if differing:
        told = "; ".join(f"rank {rank} was in {others[rank].call} in {others[rank].place}, and {standings[rank]}"
                         for rank in differing)
        return f"{waited}, and the others were in another one: {told}"
    gone = "; ".join(f"rank {rank} {standings[rank]}" for rank in sorted(standings) if rank not in inside)
    return f"{waited}, which all had entered{f': {gone}' if gone else ''}"


def _stuck(mine: Sequence[Collective]) -> Collective | None:
    """Return the collective that a rank waited in, in vain or still."""
    return next((each for each in mine if each.waits or each.error), None)


def _ranks(ranks: Sequence[int]) -> str:
    """Return ranks in words."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"
