"""LMCache's engines as a world of ranks: what holds where nothing is disturbed, and what is known not to hold."""

from __future__ import annotations

import pytest

from kvproof import connectors
from kvproof.errors import NotInstalled
from kvproof.known.cells import load
from kvproof.results import CellRow
from tests.worlds import tried, wrong

NAME = "lmcache-ranks"


def rows(*, faults: list[str], reads: list[str]) -> list[CellRow]:
    """Return the rows of some cells on two ranks, or skip the test where LMCache is not installed."""
    try:
        connectors.find(NAME)
    except NotInstalled as error:
        pytest.skip(str(error))
    return tried(NAME, 2, faults=faults, reads=reads)


def known(row: CellRow) -> bool:
    """Whether the known file lists the row."""
    return any(entry.covers(row) for entry in load())


def test_engines_load_what_they_stored_and_tell_whose_part_it_is() -> None:
    found = rows(faults=["none", "lookup-late"], reads=["redis-load", "redis-mla-load"])
    assert wrong(found) == {}
    counted = {(row.fault, row.read): row.rule for row in found}
    assert {fault for fault, _ in counted} == {"none", "lookup-late@first", "lookup-late@last"}
    assert ("no-skip", "none", "redis-mla-load") in {(row.rule, row.fault, row.read) for row in found}
    assert ("lookup-late@last", "redis-mla-load") not in counted, "only the first rank has a lookup server then"


def test_a_chunk_that_is_missing_shifts_the_later_ones_to_its_place() -> None:
    [row] = [row for row in rows(faults=["nil@first"], reads=["redis-async-load"]) if row.rule == "no-stale-hit"]
    assert row.verdict == "fail"
    assert "rank 0 computes with chunk 0, and its buffer has the value of" in row.explain
    assert known(row)


def test_every_rank_for_itself_is_promised_nothing_when_loading_asynchronously_with_mla() -> None:
    found = rows(faults=["none"], reads=["redis-mla-each-async-load"])
    [row] = [row for row in found if row.rule == "same-prefix"]
    assert row.verdict == "fail"
    assert "4 chunks are there, and the engine is promised 0" in row.explain
    assert known(row)
