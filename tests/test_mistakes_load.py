"""Every named mistake of the loading protocol, made in the model, is killed by what the model promises in words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from kvproof.models.explore import explore
from kvproof.models.load import Plan, Rank, World, complaint
from kvproof.spec import load, load_failures
from tests.mistakes.load import MISTAKES, Leaving, returned, world
from tests.runs import endless

Property = Callable[[World], str]


def states(first: World) -> str:
    """What is wrong with some reachable state; "" when nothing is."""
    return explore(first, wrong=returned if isinstance(first, Leaving) else complaint).why


def leaves(first: World) -> str:
    """Whether a rank that has given up does anything more in the step, or waits all the same."""
    for state in explore(first).came:
        for event in state.events():
            before, after = state.ranks[event.rank], state.after(event).ranks[event.rank]
            if before.aborted and (before.entered, before.left) != (after.entered, after.left):
                return f"rank {event.rank} has given up, and goes on: {event.name}"
            if event.name == "expire" and after.waits:
                return f"rank {event.rank} has given up, and waits all the same"
    return ""


KILLED: dict[str, tuple[Property, str]] = {
    "own-failure": (states, "knows an agreed prefix of"),
    "subgroup": (states, "knows an agreed prefix of"),
    "early-return": (states, "has returned, and rank"),
    "empty-list": (states, "has returned, and rank"),
    "buffer-full": (states, "has returned, and rank"),
    "exception": (states, "has returned, and rank"),
    "lonely-timeout": (states, "has returned, and rank"),
    "lookups": (states, "is through, and has [] of an agreed prefix of 1"),
    "own-extras": (states, "past the agreed prefix"),
    "not-compared": (states, "were told different lists"),
    "waits-for-all": (states, "nobody can do anything"),
    "starts-over": (endless, "go on for ever"),
    "exchange-without-timeout": (states, "waits, and cannot give up"),
    "expiry-ignored": (leaves, "waits all the same"),
    "goes-on": (leaves, "goes on: leave_exchange"),
    "uses-what-it-has": (states, "which no broadcast has brought it"),
    "dead-owner": (states, "whose owner never entered its broadcast"),
    "live-ones-will-do": (states, "went through a later step"),
}


def test_every_named_mistake_is_made_in_the_model() -> None:
    named = {mutant.id for subject in (load, load_failures) for each in subject.OBLIGATIONS for mutant in each.mutants}
    assert named == set(MISTAKES) == set(KILLED)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_killed_by_its_property(mistake: str) -> None:
    check, words = KILLED[mistake]
    assert words in check(MISTAKES[mistake])


@pytest.mark.parametrize("check", [states, endless, leaves])
@pytest.mark.parametrize("plans", [
    (Plan(1), Plan(1)), (Plan(2), Plan(2)), (Plan(0, 1), Plan(1, 2)), (Plan(1, 1), Plan(2, 2))], ids=str)
@pytest.mark.parametrize("failing", [False, True])
def test_the_right_model_keeps_every_property(check: Property, plans: tuple[Plan, ...], failing: bool) -> None:
    assert check(world(World, plans, failing=failing)) == ""


@pytest.mark.parametrize("agreed", [(0, 1), (1, 0)])
def test_a_differing_prefix_is_seen_whoever_has_the_longer_one(agreed: tuple[int, int]) -> None:
    ranks = tuple(Rank(entered=1, left=1, agreed=each, failure=1) for each in agreed)
    assert "knows an agreed prefix of" in complaint(replace(world(World), ranks=ranks))
