"""Every kind of fault has something that stands against it, or a reason why not, and the page says the same."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from kvproof import coverage
from kvproof.replays import REPLAYS
from kvproof.rules import RULES
from kvproof.spec import library

ROOT = Path(__file__).parents[1]
FEWEST = 51
"""How many kinds the public reports show; a kind that is lost from the list fails here."""


def test_every_kind_has_a_row_that_names_what_exists() -> None:
    found = coverage.kinds()
    assert len(found) >= FEWEST, f"{len(found)} kinds"
    assert len({kind.name for kind in found}) == len(found)
    assert coverage.complaints(found, [each.id for each in library.obligations()], list(REPLAYS), list(RULES)) == []


def test_a_kind_without_anything_and_a_name_that_does_not_exist_are_noticed() -> None:
    bare, wrong = coverage.Kind("g", "bare"), coverage.Kind("g", "wrong", ("nothing.*",), ("no-replay",), ("no-rule",))
    assert len(coverage.complaints([bare, wrong], ["load.agree"], list(REPLAYS), list(RULES))) == 4


def test_the_page_is_drawn_from_the_kinds() -> None:
    page = coverage.page(coverage.kinds(), coverage.made_by(), library.obligations())
    assert coverage.PAGE.read_text() == page, "run python -m kvproof.coverage"


def test_what_is_said_to_make_a_mistake_is_a_test_of_ours() -> None:
    subjects = {each.id.partition(".")[0] for each in library.obligations()}
    assert set(coverage.made_by()) == subjects
    assert {test for test in coverage.made_by().values() if not (ROOT / test.partition("::")[0]).is_file()} == set()


def test_each_named_mistake_has_the_id_of_a_test_that_there_is() -> None:
    shown = re.findall(r"`(tests/test_mistakes_[^`]*)` \|$", coverage.PAGE.read_text(), re.MULTILINE)
    assert len(shown) > 100
    files = sorted({test.partition("::")[0] for test in shown})
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", *files]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert set(shown) - set(done.stdout.splitlines()) == set()
