"""The sharded reference holds to every rule over a world, under every disturbance, whatever the number of ranks."""

from __future__ import annotations

from collections import Counter

import pytest

from kvproof.ranks.rules import RULES
from tests.worlds import tried, wrong


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_the_sharded_reference_passes_every_cell(ranks: int) -> None:
    rows = tried("sharded-reference", ranks)
    assert wrong(rows) == {}
    counted = Counter(row.rule for row in rows)
    assert counted.keys() == RULES.keys()
    assert len({row.read for row in rows}) == 4
    assert len(rows) > (400 if ranks == 1 else 800), "fewer cells than there were"
    assert {(row.where.ranks, row.world) for row in rows} == {(ranks, True)}
