"""What the models compute is what the definitions of spec.prefix, spec.keys and spec.cost say it is."""

from __future__ import annotations

import functools
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
import z3
from hypothesis import given
from hypothesis import strategies as st

from kvproof.models import chunks
from kvproof.models.cost import Choice, Cost, Split
from kvproof.models.placement import Placement
from kvproof.models.store import L1, L2, Rank, World, reach
from kvproof.models.tokens import Hit
from kvproof.spec import cost, keys, prefix
from kvproof.spec.evaluate import compiled
from kvproof.spec.keys import READ, Worker
from kvproof.spec.obligation import Fact
from kvproof.spec.theory import Int, as_formula
from kvproof.spec.theory import Rank as RankSort
from tests.store_properties import changes, contents, costs, estimates, figures, hits, placements, subsets

FACTS = {each.id: each for subject in (prefix, keys, cost) for each in subject.OBLIGATIONS if isinstance(each, Fact)}


@functools.cache
def parts(name: str) -> list[tuple[str, Callable[..., Any]]]:
    """The axioms, hypotheses and goal of a fact, as Python."""
    fact, theory = FACTS[name], FACTS[name].theory()
    view = theory.view()
    written = [(f"axiom {i}", part) for i, part in enumerate(theory.axioms(view))]
    written += [(f"hypothesis {i}", part) for i, part in enumerate(fact.hypotheses(theory, view))]
    written.append(("goal", fact.goal(theory, view)))
    return [(which, compiled(as_formula(part))) for which, part in written]


def false_parts(name: str, ranks: int, size: int, meaning: dict[str, Any]) -> list[str]:
    """Which parts of a fact are false where its symbols mean this; integers go from 0 to the size."""
    here = {"#Rank": range(ranks), "#Int": range(size + 1), **meaning}
    return [which for which, part in parts(name) if not part(here)]


def holds(name: str, ranks: int, size: int, meaning: dict[str, Any]) -> None:
    false = false_parts(name, ranks, size, meaning)
    assert not false, f"{name}: {false} false where {meaning}"


def longest(world: World) -> int:
    return World.prefix(World((0,) * world.chunks, (Rank(),), frozenset(
        chunk for chunk, owner in enumerate(world.owners) if world.found(owner, chunk))))


def seen(world: World) -> dict[str, Any]:
    """A world as `Prefix` and `TwoTiers` see it; what is past the end of the list is rank 0's, and cached nowhere."""
    owners, ranks = (*world.owners, 0), range(len(world.ranks))
    places = list(enumerate(owners))
    return {
        "n": world.chunks, "owner": {(c,): owner for c, owner in places},
        "hit": {(c,): world.found(owner, c) for c, owner in places},
        "l1": {(r, c): c in world.ranks[r].memory for r in ranks for c, _ in places},
        "l2": {(c,): c in world.remote for c, _ in places},
        "report": {(r,): world.report(r) for r in ranks},
        "minimum": world.prefix(), "longest": longest(world),
    }


@given(contents())
def test_reports_and_their_minimum_are_as_defined(drawn: Any) -> None:
    world = World(*drawn)
    for name in ("prefix.minimum", "prefix.two-tiers"):
        holds(name, len(world.ranks), world.chunks, seen(world))


@given(changes())
def test_reports_before_and_after_a_change_are_as_defined(change: Any) -> None:
    begun, r, chunk, tiers = change
    before = World(*begun)
    for name, after in (("prefix.adding", before.put(before.owners[chunk], chunk, tiers)),
                        ("prefix.evicting", before.evict(r, chunk, tiers).evict(-1, chunk, (L2,)))):
        later = seen(after)
        holds(name, len(before.ranks), before.chunks, {
            **seen(before), "later": later["hit"], "later_report": later["report"],
            "later_minimum": later["minimum"]})


@given(st.integers(0, 16).flatmap(lambda n: st.tuples(st.just(n), subsets(n))), st.integers(1, 8), st.data())
def test_the_reach_of_hits_in_a_row_is_as_defined(drawn: Any, ranks: int, data: st.DataObject) -> None:
    (n, remote), r = drawn, data.draw(st.integers(0, ranks - 1))
    world = World(chunks.round_robin(n, ranks), (Rank(),) * ranks, remote)
    own = list(range(r, n, ranks))
    k = next((k for k, chunk in enumerate(own) if chunk not in remote), len(own))
    report = world.report(r)
    holds("prefix.round-robin", ranks, n, {
        "W": ranks, "n": n, "r": r, "k": k, "report": report, "at": report // ranks,
        "own": {(j,): j * ranks + r for j in range(n + 1)}, "hit": {(c,): c in remote for c in range(n)}})
    assert reach(k, r, ranks, n) == report


@given(hits())
def test_the_tokens_given_are_as_defined(drawn: tuple[int, int, int, int]) -> None:
    hit = Hit(*drawn)
    whole, rest = divmod(hit.given(), hit.block)
    holds("prefix.tokens", 1, 0, {
        "prompt": hit.prompt, "block": hit.block, "local_blocks": hit.local_blocks, "cached": hit.cached,
        "blocks": hit.usable() // hit.block, "given_blocks": whole, "given_rest": rest})


@functools.cache
def placing(read: str) -> dict[str, Callable[..., Any]]:
    """What `Worker` says of a rank and a chunk, as Python."""
    theory, view = Worker(), Worker().view()
    r, c = z3.Const("some.rank", RankSort), z3.Const("some.chunk", Int)
    said = {
        "writes": theory.writes(view, r, c), "named": theory.named(view, r), "placed": theory.placed(view, r),
        "asks": theory.asks(view, READ[read], r, c), "instance": theory.instance(view, READ[read], r, c)}
    return {name: compiled(as_formula(term), [r, c]) for name, term in said.items()}


@given(placements(), st.sampled_from(sorted(READ)), st.data())
def test_who_writes_and_what_is_asked_is_as_defined(drawn: Any, read: str, data: st.DataObject) -> None:
    world = Placement(*drawn)
    owners = [*world.owners, 0]
    meaning = {"mode": world.mode, "zero": 0, "owner": {(c,): owner for c, owner in enumerate(owners)},
               "host": {(r,): host for r, host in enumerate(world.hosts)}}
    for name in ("keys.read-is-written", "keys.instance"):
        holds(name, len(world.hosts), len(owners) - 1, meaning)
    padded = Placement(world.mode, tuple(owners), world.hosts)
    r, c = data.draw(st.sampled_from(world.ranks)), data.draw(st.integers(0, len(owners) - 1))
    assert {name: said(meaning, r, c) for name, said in placing(read).items()} == {
        "writes": padded.writes(r, c), "named": padded.named(r), "placed": padded.placed(r),
        "asks": padded.asks(read, r, c), "instance": padded.instance(read, r, c)}


@given(st.integers(0, 1000), st.integers(1, 64))
def test_owners_are_as_defined(chunk: int, world_size: int) -> None:
    index = chunks.owner(chunk, world_size)
    quotient = (chunk - index) // world_size
    holds("keys.same-owner", 1, 0, {
        "chunk": chunk, "world": world_size, "other": world_size, "quotient": quotient, "index": index,
        "other_quotient": quotient, "other_index": index})


@pytest.mark.parametrize("name", ["cost.break-even", "cost.least-tokens", "cost.floor"])
@given(costs(figures(0)))
def test_times_and_thresholds_are_as_defined(name: str, drawn: Any) -> None:
    model, n = Cost(*drawn[0]), drawn[1]
    if name == "cost.break-even":
        model = Cost(model.size, model.rate, model.bandwidth)
    elif not model.fast(n):
        model = Cost(model.size, model.rate, 2 * model.break_even(n), model.fixed)
    holds(name, 1, 0, {
        "n": n, "s": model.size, "R": model.rate, "B": model.bandwidth, "T0": model.fixed,
        "recompute": model.recompute_time(n), "load": model.load_time(n),
        "least": model.least_tokens() if model.fast(n) else None})
    theory = cost.FixedCost()
    view, here = theory.view(), {"s": model.size, "R": model.rate, "T0": model.fixed}
    assert compiled(theory.threshold(view))(here) == model.break_even(n)
    assert compiled(theory.floor(view))(here) == model.floor(n)


@given(estimates())
def test_what_a_choice_costs_is_as_defined(drawn: Any) -> None:
    choice, load, recompute = Choice(*drawn[0]), *drawn[1:]
    meaning = {"true_load": load, "true_recompute": recompute, "load": choice.load, "recompute": choice.recompute,
               "load_error": choice.load_error, "recompute_error": choice.recompute_error}
    if choice.load >= 0 and choice.recompute >= 0:
        holds("cost.regret", 1, 0, meaning)
    theory = cost.Choice()
    assert compiled(theory.regret(theory.view()))(meaning) == choice.regret(load, recompute)
    assert compiled(theory.bound(theory.view()))(meaning) == choice.regret_bound()


@given(figures(), figures(), figures(), st.integers(1, 64))
def test_how_busy_an_instance_is_is_as_defined(requests: Fraction, size: Fraction, bandwidth: Fraction, w: int) -> None:
    split = Split(requests, size, bandwidth, w)
    holds("cost.split", 1, 0, {"rate": requests, "bytes": size, "B": bandwidth, "W": w,
                               "rho": requests * size / bandwidth, "each": split.utilisation()})


def test_a_report_that_is_not_as_defined_is_seen() -> None:
    world = World((0, 1, 0), (Rank(memory=frozenset({0})), Rank()))
    assert false_parts("prefix.minimum", 2, 3, seen(world)) == []
    wrong = {**seen(world), "report": {(0,): 3, (1,): 1}}
    assert false_parts("prefix.minimum", 2, 3, wrong) == ["hypothesis 0"]
    assert false_parts("prefix.minimum", 2, 3, {**seen(world), "minimum": 2}) == ["hypothesis 1", "goal"]
    assert world.put(1, 1, (L1,)).prefix() == 2
