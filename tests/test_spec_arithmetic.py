"""The obligations of prefix, store, cost, routing and tiering: each proved, each mutant refuted, smallest first."""

from __future__ import annotations

import math
from functools import cache

import pytest

from kvproof.spec import cost, prefix, routing, store, tiering
from kvproof.spec.obligation import Obligation
from kvproof.spec.prover import MutantResult, Result, prove
from kvproof.spec.search import Model, Run

SUBJECTS = (prefix, store, cost, routing, tiering)
ALL: dict[str, Obligation] = {each.id: each for subject in SUBJECTS for each in subject.OBLIGATIONS}

TRACES = {
    # mutant: (ranks, size, steps), and what its mistake or consequence must mention
    "prefix.minimum:maximum": ((2, 1, 0), "maximum"),
    "prefix.minimum:count": ((2, 2, 0), "how many"),
    "prefix.minimum:owns-nothing": ((2, 1, 0), "owns nothing"),
    "prefix.minimum:past-the-hole": ((1, 2, 0), "hole"),
    "prefix.round-robin:forgets-rank": ((1, 1, 0), "kW"),
    "prefix.round-robin:no-cap": ((1, 1, 0), "cut off"),
    "prefix.adding:displaces": ((1, 1, 0), "displaces"),
    "prefix.evicting:no-hits-is-all": ((1, 2, 0), "no hit"),
    "prefix.two-tiers:first-tier-only": ((1, 1, 0), "memory only"),
    "prefix.two-tiers:second-tier-only": ((1, 2, 0), "store alone"),
    "prefix.tokens:whole-prompt": ((1, 1, 0), "whole prompt"),
    "prefix.tokens:local-above": ((1, 2, 0), "negative"),
    "prefix.tokens:late-minus-one": ((1, 2, 0), "multiple of the block"),
    "prefix.tokens:minus-one-aligned": ((1, 1, 0), "minus one block"),
    "store.once:every-rank": ((2, 1, 1), "copies"),
    "store.once:resumes": ((1, 1, 3), "twice"),
    "store.once:skips": ((1, 1, 1), "nowhere"),
    "store.replicated:every-worker": ((2, 1, 1), "two workers"),
    "store.replicated:local-rank": ((2, 1, 1), "node"),
    "store.even:starts-again": ((1, 1, 3), "two chunks more"),
    "store.even:pairs": ((1, 1, 2), "two chunks"),
    "store.slice:keeps-all": ((1, 1, 2), "whole prompt"),
    "store.slice:rounds-down": ((1, 1, 1), "room"),
    "cost.break-even:inverted": ((1, 1, 0), "s / R"),
    "cost.break-even:with-length": ((1, 1, 0), "length"),
    "cost.break-even:bits": ((1, 1, 0), "bits"),
    "cost.least-tokens:no-bandwidth": ((1, 1, 0), "T0 R"),
    "cost.least-tokens:any-bandwidth": ((1, 1, 0), "negative"),
    "cost.floor:any-bandwidth": ((1, 1, 0), "negative"),
    "cost.floor:transfer-too": ((1, 1, 0), "transfer"),
    "cost.regret:greater-error": ((1, 1, 0), "sum of the errors"),
    "cost.regret:always-load": ((1, 1, 0), "any amount"),
    "cost.backlog:strictly": ((1, 1, 1), "S = A"),
    "cost.backlog:idle-credit": ((1, 1, 1), "negative"),
    "cost.split:all-from-each": ((1, 1, 0), "as busy"),
    "cost.split:one-link": ((1, 1, 0), "one link"),
    "routing.one-replica:moves-home": ((2, 0, 4), "home"),
    "routing.one-replica:diverts-early": ((2, 0, 2), "home had it"),
    "routing.one-replica:overfills": ((2, 0, 2), "at its bound"),
    "routing.one-replica:least-loaded": ((2, 0, 2), "any replica"),
    "routing.one-replica:whole-prompt": ((2, 1, 2), "whole prompt"),
    "routing.bounded:off-by-one": ((2, 2, 3), "above the bound"),
    "routing.bounded:next-unasked": ((2, 2, 3), "not asked"),
    "routing.bounded:leaves": ((3, 2, 4), "average has fallen"),
    "routing.ring:respaced": ((3, 1, 0), "moved"),
    "routing.ring:modulo": ((3, 3, 0), "mod"),
    "tiering.slowest-first:far-tiers-pay": ((1, 1, 0), "slower"),
    "tiering.slowest-first:transfer-hides": ((1, 1, 0), "brings a tier back"),
    "tiering.maximum:forgets-beta": ((1, 1, 1), "gains more"),
    "tiering.maximum:beta-one": ((1, 1, 0), "unique"),
}


@cache
def proved(obligation: str) -> Result:
    return prove(ALL[obligation])


def mutant(name: str) -> MutantResult:
    obligation, wanted = name.split(":")
    return next(each for each in proved(obligation).mutants if each.id == wanted)


def numbers(trace: Model | Run | None) -> dict[str, object]:
    """What the rigid symbols of a counterexample are."""
    assert trace is not None
    return trace.meaning if isinstance(trace, Model) else trace.rigid


@pytest.mark.parametrize("obligation", sorted(ALL))
def test_proved_with_a_witness(obligation: str) -> None:
    result = proved(obligation)
    expected = "refuted" if ALL[obligation].limit else "proved"
    assert (result.verdict, result.passes) == (expected, True), result.explain
    assert result.witness is not None


def test_every_mutant_is_listed_here() -> None:
    assert {f"{id}:{each.id}" for id, obligation in ALL.items() for each in obligation.mutants} == set(TRACES)


@pytest.mark.parametrize("name", sorted(TRACES))
def test_mutant_has_a_smallest_trace_of_its_own(name: str) -> None:
    result = mutant(name)
    trace = result.trace
    assert result.verdict == "refuted", result.explain
    assert trace is not None
    steps = len(trace.actions) if isinstance(trace, Run) else 0
    extent, word = TRACES[name]
    assert (trace.ranks, trace.size, steps) == extent, "\n".join(trace.describe())
    assert word in f"{result.says}; {result.explain}"


def test_every_obligation_has_mutants_or_is_a_limit() -> None:
    assert [each.id for each in ALL.values() if not each.mutants and not each.limit] == []
    assert [each.id for each in ALL.values() if each.limit] == ["routing.ring-bounded"]


def test_past_the_hole_shows_the_hole() -> None:
    found = numbers(mutant("prefix.minimum:past-the-hole").trace)
    hit = found["hit"]
    assert isinstance(hit, dict)
    assert (hit[0,], hit[1,]) == (False, True)
    assert (found["n"], found["minimum"], found["longest"]) == (2, 2, 0)


def test_rounding_up_is_needed_for_two_ranks_and_one_chunk() -> None:
    trace = mutant("store.slice:rounds-down").trace
    assert isinstance(trace, Run)
    assert trace.rigid["W"] == 2
    assert (trace.states[-1]["n"], trace.states[-1]["kept"][(0,)]) == (1, 1)


def test_backlog_of_equal_rates_is_the_counterexample() -> None:
    found = numbers(mutant("cost.backlog:strictly").trace)
    assert found["S"] == found["A"]


def test_bounded_ring_moves_a_key_between_old_replicas() -> None:
    found = numbers(proved("routing.ring-bounded").trace)
    moves = {(found["a"], found["later_a"]), (found["b"], found["later_b"])}
    assert any(now not in (was, found["new"]) for was, now in moves), found
    assert (found["bound"], found["later_bound"]) == (2, 1), "it is the bound that falls which pushes a key out"


@pytest.mark.parametrize("beta", [1 / math.sqrt(2), math.pi / 4, 1 / math.e, math.sqrt(2) - 1])
def test_best_capacity_for_irrational_beta(beta: float) -> None:
    """What is proved for rational beta, tested for some that are not."""
    hits, saved, rate, rent = 0.1, 3.0, 2.0, 0.5
    best = (rate * saved * hits * beta / rent) ** (1 / (1 - beta))

    def gain(capacity: float) -> float:
        return rate * saved * hits * math.pow(capacity, beta) - rent * capacity

    for factor in (0.0, 0.01, 0.5, 0.9, 0.99, 1.01, 1.1, 2.0, 100.0):
        assert gain(best * factor) < gain(best), f"beta {beta}: {factor} C* gains more than C*"
