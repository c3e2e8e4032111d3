"""Every named mistake of a client, made in its models, is killed by what is claimed of the right one in Python."""

from __future__ import annotations

import itertools
import random
from functools import cache

import pytest

from kvproof.models.client import Connection
from kvproof.models.completions import RETURN, Event
from kvproof.models.completions import World as Completions
from kvproof.models.exchanges import World
from kvproof.models.explore import explore
from kvproof.models.frames import FrameScanner
from kvproof.spec import completion, framing, ownership
from tests.mistakes import completion as of_completion
from tests.mistakes import framing as of_framing
from tests.mistakes import ownership as of_ownership

NO_COUNTERPART: dict[str, str] = {}
"""Mutants of the spec that have no sensible counterpart in a model, and why."""


def named(*subjects: object) -> set[str]:
    return {f"{each.id}:{mutant.id}" for subject in subjects for each in vars(subject)["OBLIGATIONS"]
            for mutant in each.mutants}


def test_every_named_mistake_is_made_in_a_model() -> None:
    made = [*of_completion.MISTAKES, *of_ownership.MISTAKES, *of_framing.MISTAKES, *NO_COUNTERPART]
    assert set(made) == named(completion, ownership, framing)
    assert len(made) == len(set(made))
    assert not NO_COUNTERPART, "every mutant has a counterpart so far"


@cache
def schedules() -> list[tuple[Event, ...]]:
    """Walks of two operations and a worker, to the end; calls return anywhere, and death and close are rare in some."""
    found = []
    for seed in range(400):
        choose, world = random.Random(seed), Completions.begin(2, 1)
        while events := list(world.events()):
            going_on = [event for event in events if event.name not in ("die", "close")]
            world = world.after(choose.choice(going_on * (seed % 5) + events))
        returns = [(event, *[Event(RETURN)] * choose.choice((0, 0, 1))) for event in world.history]
        found.append(tuple(itertools.chain.from_iterable(returns)))
    return found


def wrong_of(name: str, made: of_completion.Made) -> str:
    """What a kind of claim says of some part of some schedule; "" when of none."""
    claim = of_completion.PROPERTIES[name]
    for history in schedules():
        for length in range(1, len(history) + 1):
            said = claim(made.run(history[:length]))
            if said:
                return f"{said}: {history[:length]}"
    return ""


@pytest.mark.parametrize("design", of_completion.DESIGNS)
@pytest.mark.parametrize("claim", of_completion.PROPERTIES)
def test_the_three_designs_of_completion_are_right(design: str, claim: str) -> None:
    assert wrong_of(claim, of_completion.DESIGNS[design]) == ""


@pytest.mark.parametrize("mistake", of_completion.MISTAKES)
def test_a_mistake_of_completion_is_killed(mistake: str) -> None:
    obligation = mistake.partition(":")[0]
    claim = next(claim for claim in of_completion.PROPERTIES if obligation.endswith(claim))
    assert wrong_of(claim, of_completion.MISTAKES[mistake])


ERRORS = (True, False, False)


@pytest.mark.parametrize("claim", of_ownership.PROPERTIES)
def test_the_connection_is_right(claim: str) -> None:
    found = explore(World.begin(ERRORS, Connection), wrong=of_ownership.PROPERTIES[claim])
    assert found.why == ""


@pytest.mark.parametrize("mistake", of_ownership.MISTAKES)
def test_a_mistake_of_ownership_is_killed(mistake: str) -> None:
    claim = mistake.partition(":")[0].removeprefix("ownership.")
    kind = of_ownership.MISTAKES[mistake]
    found = explore(World.begin(ERRORS, kind), wrong=of_ownership.PROPERTIES[claim])
    assert found.why


@pytest.mark.parametrize("claim", of_framing.PROPERTIES)
def test_the_scanner_is_right(claim: str) -> None:
    assert of_framing.PROPERTIES[claim](FrameScanner) == ""


@pytest.mark.parametrize("mistake", of_framing.MISTAKES)
def test_a_mistake_of_framing_is_killed(mistake: str) -> None:
    claim = mistake.partition(":")[0].removeprefix("framing.")
    assert of_framing.PROPERTIES[claim](of_framing.MISTAKES[mistake])
