"""Worlds of four and eight ranks, on two cores or more."""

from __future__ import annotations

import pytest

from tests.worlds import tried, wrong


@pytest.mark.parametrize(("ranks", "reads"), [
    (4, ["load"]), (8, ["load"]),
    *(pytest.param(ranks, [], marks=pytest.mark.nightly) for ranks in (4, 8)),
], ids=str)
def test_the_sharded_reference_passes_every_cell_in_larger_worlds(ranks: int, reads: list[str]) -> None:
    rows = tried("sharded-reference", ranks, reads=reads)
    assert wrong(rows) == {}
    assert len(rows) > (200 if reads else 800)
