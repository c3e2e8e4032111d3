"""Every named mistake about routing and tiers, made in a model, is killed by what the model promises."""

from __future__ import annotations

import re

import pytest

from kvproof.spec import routing, tiering
from tests.economics_properties import PROPERTIES
from tests.mistakes import routing as routed
from tests.mistakes import tiering as tiered

MISTAKES = {**routed.MISTAKES, **tiered.MISTAKES}
_ROOM = r"a request goes to replica (\d+), and its home, replica (?!\1)\d+, has room"
_ABOVE = r"replica \d+ has \d+ requests, and \d+ are allowed"
_MOVES = r"key \d+ moves from replica (\d+) to (?!\1)\d+ when \d+ is added"
_GAINS = r"bytes gain \S+ a second, and C\* = "

KILLED: dict[str, str] = {
    "routing.one-replica:moves-home": _ROOM,
    "routing.one-replica:diverts-early": _ROOM,
    "routing.one-replica:overfills": r"replica \d+ is full with \d+ requests, and is given one more",
    "routing.one-replica:least-loaded": _ROOM,
    "routing.one-replica:whole-prompt": _ROOM,
    "routing.bounded:off-by-one": _ABOVE,
    "routing.bounded:next-unasked": _ABOVE,
    "routing.bounded:leaves": _ABOVE,
    "routing.ring:respaced": _MOVES,
    "routing.ring:modulo": _MOVES,
    "tiering.slowest-first:far-tiers-pay": r"tier far \d+ is off the critical path, and near \d+, which is slower",
    "tiering.slowest-first:transfer-hides": r"a longer transfer brings tier \S+ \d+ back",
    "tiering.maximum:forgets-beta": _GAINS,
    "tiering.maximum:beta-one": _GAINS,
}


def test_every_named_mistake_is_made_in_a_model() -> None:
    claims = [*routing.OBLIGATIONS, *tiering.OBLIGATIONS]
    assert {f"{each.id}:{mutant.id}" for each in claims for mutant in each.mutants} == set(MISTAKES) == set(KILLED)
    assert set(PROPERTIES) == {each.id for each in claims if not each.limit}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_killed_by_its_property(mistake: str) -> None:
    claim = PROPERTIES[mistake.partition(":")[0]]
    assert re.search(KILLED[mistake], claim.broken(MISTAKES[mistake]))


@pytest.mark.parametrize("claim", PROPERTIES)
def test_the_right_model_keeps_every_property(claim: str) -> None:
    assert PROPERTIES[claim].broken(PROPERTIES[claim].right) == ""
