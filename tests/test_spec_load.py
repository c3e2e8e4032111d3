"""The loading protocol: proved for any number of ranks under every seed, and every named mistake refuted."""

from __future__ import annotations

import pytest
import z3

from kvproof.spec import load, load_failures
from kvproof.spec.diagram import diagram
from kvproof.spec.obligation import Obligation
from kvproof.spec.prover import Effort, prove
from kvproof.spec.search import Run, solver

ALL = [*load.OBLIGATIONS, *load_failures.OBLIGATIONS]
BY_ID = {obligation.id: obligation for obligation in ALL}


@pytest.mark.parametrize("obligation", ALL, ids=lambda each: each.id)
def test_every_claim_is_proved_and_every_mutant_refuted(obligation: Obligation) -> None:
    result = prove(obligation)
    assert result.passes, f"{obligation.id}: {result.verdict}: {result.explain}"
    assert [mutant.id for mutant in result.mutants if mutant.verdict != "refuted"] == []
    if obligation.limit:
        assert result.trace is not None, "a limit is kept with its trace"


def test_the_named_mistakes_are_all_there() -> None:
    says = {mutant.says for obligation in ALL for mutant in obligation.mutants}
    for mistake in (
        "return on the rank's own miss", "each rank uses its own first failure",
        "the exchange is skipped when the rank's list is empty", "the loop is left when the rank's own buffer is full",
        "an exception between the local work and the collective", "agreement on lookups instead of loads",
        "a timeout leaves the step alone", "the exchange synchronises over a subgroup",
    ):
        assert mistake in says, mistake


@pytest.mark.parametrize(
    ("claim", "mutant", "ranks", "steps", "last"),
    [
        ("load.no-skip", "early-return", 2, 2, None),
        ("load.no-skip", "empty-list", 2, 2, None),
        ("load.no-skip", "buffer-full", 2, 9, None),
        ("load.agree", "own-failure", 2, 5, "leave_exchange"),
        ("load.whole", "lookups", 1, 5, "leave_broadcast"),
        ("load.no-deadlock", "waits-for-all", 1, 0, None),
    ],
)
def test_a_mistake_has_the_shortest_trace_on_the_fewest_ranks(
    claim: str, mutant: str, ranks: int, steps: int, last: str | None
) -> None:
    [found] = [each for each in prove(BY_ID[claim]).mutants if each.id == mutant]
    assert isinstance(found.trace, Run)
    assert (found.trace.ranks, len(found.trace.actions)) == (ranks, steps), "\n".join(diagram(found.trace))
    if last is not None:
        assert found.trace.actions[-1][0] == last, "\n".join(diagram(found.trace))


def test_the_limit_shows_one_rank_finishing_as_another_gives_up() -> None:
    trace = prove(BY_ID["load.all-or-none"]).trace
    assert isinstance(trace, Run)
    assert "expire" in [name for name, _ in trace.actions], "\n".join(diagram(trace))
    assert trace.states[-1]["aborted"] in ({(0,): True, (1,): False}, {(0,): False, (1,): True})


@pytest.mark.parametrize("seed", range(10))
def test_the_proofs_hold_under_every_seed(seed: int) -> None:
    for obligation in ALL:
        for query in obligation.queries(obligation.theory()):
            if query.shared and obligation.id not in ("load.agree", "load.expires"):
                continue
            if obligation.limit and not query.shared:
                continue
            search = solver(Effort().rlimit, seed)
            search.add(*query.formulas)
            assert search.check() == z3.unsat, f"{obligation.id}: {query.name} under seed {seed}"
