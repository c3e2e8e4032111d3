"""The sharded reference holds to every rule over a world, under every disturbance, whatever the number of ranks."""

from __future__ import annotations

from collections import Counter

import pytest

from kvproof.ranks.rules import RULES
from tests.worlds import tried, unjudged, wrong

UNPROMISED = {"absent", "close", "error", "exception", "lookup-error", "lookup-silence", "nil", "no-memory", "reset",
              "short", "silence"}
"""After these at the first chunk, in the lookup, nothing is promised, so that there is no load to judge."""


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_the_sharded_reference_passes_every_cell(ranks: int) -> None:
    rows = tried("sharded-reference", ranks)
    assert wrong(rows) == {}
    counted = Counter(row.rule for row in rows)
    assert counted.keys() == RULES.keys()
    assert len({row.read for row in rows}) == 4
    assert sum(row.verdict == "pass" for row in rows) >= (359 if ranks == 1 else 840), "fewer cells than there were"
    without = unjudged(rows)
    alone = without.pop("all-or-nothing: one rank has no peers that could have less", set())
    silent = without.pop("no-skip: one rank has no peers that could wait, and it writes no log", set())
    assert bool(alone) == bool(silent) == (ranks == 1)
    # Ranks that have different layouts for ever never compute with anything; one rank always agrees with itself.
    apart = {"no-stale-hit: no rank computed with any chunk": {"other-layout"}} if ranks > 1 else {}
    assert without == {
        "all-or-nothing: nothing was promised, so that no rank loaded anything": UNPROMISED, **apart}
    assert {(row.where.ranks, row.world) for row in rows} == {(ranks, True)}
