"""Every kind of fault has something that stands against it, or a reason why not, and the page says the same."""

from __future__ import annotations

from kvproof import coverage
from kvproof.replays import REPLAYS
from kvproof.spec import library

FEWEST = 51
"""How many kinds the public reports show; a kind that is lost from the list fails here."""


def test_every_kind_has_a_row_that_names_what_exists() -> None:
    found = coverage.kinds()
    assert len(found) >= FEWEST, f"{len(found)} kinds"
    assert len({kind.name for kind in found}) == len(found)
    assert coverage.complaints(found, [each.id for each in library.obligations()], list(REPLAYS)) == []


def test_a_kind_without_anything_and_a_name_that_does_not_exist_are_noticed() -> None:
    bare, wrong = coverage.Kind("g", "bare"), coverage.Kind("g", "wrong", ("nothing.*",), ("no-replay",))
    assert len(coverage.complaints([bare, wrong], ["load.agree"], list(REPLAYS))) == 3


def test_the_page_is_drawn_from_the_kinds() -> None:
    assert coverage.PAGE.read_text() == coverage.page(coverage.kinds()), "run python -m kvproof.coverage"
