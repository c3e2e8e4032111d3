"""Each wrong protocol, run by real processes, is caught by its rule and told in the right sentence."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from kvproof import connectors
from kvproof.connectors.sharded_mistakes import MISTAKES, Mistaken
from kvproof.results import CellRow
from kvproof.spec import library
from kvproof.spec.prover import prove
from kvproof.spec.search import Run
from tests.worlds import worlds

NEVER = r"waited in collective {}, {} in {} \(rank_group\.py:\d+\), which rank {} never entered: rank {} {}"


def never(number: int, call: str, place: str, rank: str, instead: str) -> str:
    """Return the sentence about a rank that peers waited for in vain."""
    return NEVER.format(number, call, place, rank, rank, instead)


CAUGHT: dict[str, tuple[str, str, str]] = {
    "early-return": ("nil@last", "no-skip",
                     never(1, "all_gather", "exchange", "{last}", "returned and computes with 0")),
    "empty-list": ("empty-list@last", "no-skip",
                   never(1, "all_gather", "exchange", "{last}", "returned and computes with 0")),
    "buffer-full": ("none", "no-skip", never(3, "broadcast", "broadcast", "{last}", "returned and computes with")),
    "exception": ("exception@first", "no-skip",
                  never(1, "all_gather", "exchange", "0", "raised RuntimeError: kvproof: an exception at get")),
    "lonely-timeout": ("exception-at-collective@first", "no-skip",
                       never(1, "all_gather", "exchange", "0", "returned and computes with 0")),
    "own-failure": ("nil@first", "no-skip", never(2, "broadcast", "broadcast", "0", "returned and computes with 0")),
    "subgroup": ("nil@first", "no-skip", never(2, "broadcast", "broadcast", "0", "returned and computes with 0")),
    "waits-for-all": ("evicted@first", "bounded-step",
                      never(1, "all_gather", "exchange", "0", r"was still in \S+ \(\w+\.py:\d+\)")),
    "lookups": ("evicted@last", "no-stale-hit", "computes with chunk .*, and its buffer has a buffer that was never"),
    "not-compared": ("other-list@first", "no-stale-hit",
                     "rank 0 computes with chunk 1, and its buffer has the value of"),
    "own-extras": ("other-layout@last", "same-prefix", r"rank 0 computes with \d chunks, and rank 1 with \d"),
    "uses-what-it-has": ("killed-at-broadcast@last", "no-stale-hit", "its buffer has a buffer that was never written"),
    "maximum": ("absent@first", "same-prefix",
                r"promised \d chunks, and 0 are there \(rank 0 promises 0, rank 1 promises"),
    "count": ("none", "same-prefix", "nothing is disturbed, .* chunks are there, and the engine is promised"),
    "owns-nothing": ("short-prompt", "same-prefix", "1 chunks are there, and the engine is promised 0"),
    "past-the-hole": ("absent@first", "same-prefix", r"promised \d chunks, and 0 are there"),
    "own-key": ("none", "same-prefix", "chunks are there, and the engine is promised 0"),
}
"""For each mistake a disturbance under which it shows, the rule that is broken, and what is said of it."""


Caught = Callable[[str], CellRow]


@pytest.fixture(scope="module", params=[2, 3])
def ranks(request: pytest.FixtureRequest) -> int:
    count: int = request.param
    return count


@pytest.fixture(scope="module")
def caught(ranks: int) -> Iterator[Caught]:
    """Return what gives the row in which a mistake shows; stalls only wait, so that all are tried at once."""
    with worlds(ranks) as tried, ThreadPoolExecutor(6) as pool:

        def row(mistake: str) -> CellRow:
            fault, rule, _ = CAUGHT[mistake]
            read = "replicated-load" if mistake == "own-key" else "load"
            rows = tried(f"sharded-reference+{mistake}", faults=[fault], reads=[read])
            [found] = [row for row in rows if row.rule == rule]
            return found

        rows = {mistake: pool.submit(row, mistake) for mistake in CAUGHT}
        yield lambda mistake: rows[mistake].result()


def test_every_mistake_is_here_and_has_its_name() -> None:
    assert tuple(MISTAKES) == connectors.MISTAKES
    assert set(CAUGHT) == set(MISTAKES)


@pytest.mark.parametrize("mistake", CAUGHT)
def test_a_wrong_protocol_is_caught_and_told(mistake: str, ranks: int, caught: Caught) -> None:
    row = caught(mistake)
    assert row.verdict == ("hang" if mistake == "waits-for-all" else "fail"), row.explain
    says = CAUGHT[mistake][2].replace("{last}", str(ranks - 1))
    assert re.search(says, row.explain), row.explain


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_that_the_proofs_refute(mistake: str) -> None:
    mistaken: type[Mistaken] = MISTAKES[mistake]
    obligation, _, name = mistaken.mutant.partition(":")
    [there] = [each for each in library.obligations() if each.id == obligation]
    mutant = next((each for each in there.mutants if each.id == name), None)
    assert mutant is not None, f"{obligation} has no mutant {name}"


@pytest.mark.parametrize(("mistake", "collective"), [
    ("early-return", 0), ("empty-list", 0), ("exception", 0), ("buffer-full", 1), ("own-failure", 1)])
def test_the_counterexample_and_the_processes_tell_the_same_story(
    mistake: str, collective: int, caught: Caught
) -> None:
    # In the proof's counterexample one rank is through, and its peer waits in a collective that it has not entered.
    obligation, _, name = MISTAKES[mistake].mutant.partition(":")
    [there] = [each for each in library.obligations() if each.id == obligation]
    [mutant] = [each for each in prove(there).mutants if each.id == name]
    assert isinstance(mutant.trace, Run)
    last = mutant.trace.states[-1]
    waiting = [rank for rank in range(2) if last["entered"][rank,] > last["left"][rank,]]
    assert len(waiting) == 1
    inside = last["left"][waiting[0],]
    assert last["entered"][1 - waiting[0],] <= inside
    assert min(inside, 1) == collective, "the exchange is the first collective, all others are broadcasts"
    # Of the processes the same is told, with the collectives counted from 1.
    row = caught(mistake)
    found = re.search(r"ranks? [\d, and]+ waited in collective (\d)", row.explain)
    assert found is not None, row.explain
    assert min(int(found[1]) - 1, 1) == collective
