"""The model of the store: the same steps as the spec, no more and no fewer, and what it says of each state is so."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from kvproof.models import cost
from kvproof.models.chunks import replicated, round_robin
from kvproof.models.explore import explore
from kvproof.models.store import L1, L2, Deal, Event, World, complaint, overfull, uneven_shares
from kvproof.spec.refine import Arrow
from kvproof.spec.refine_store import BacklogRefinement, DealRefinement, StoreRefinement
from kvproof.spec.store import (
    EveryRank,
    EveryWorker,
    KeepsAll,
    LocalRank,
    Replicated,
    Resumes,
    SkipsTheRest,
    StartsAgain,
    Store,
)
from tests.refining import machine, one_step
from tests.store_properties import changes, contents, figures, owner_maps

STATES = {
    (1, 0): 1, (1, 1): 5, (1, 2): 21, (1, 3): 85, (1, 4): 341,
    (2, 0): 1, (2, 1): 10, (2, 2): 54, (2, 3): 250, (2, 4): 1066,
    (3, 0): 1, (3, 1): 20, (3, 2): 162, (3, 3): 910, (3, 4): 4466,
}
"""How many states a store of W ranks and n chunks has, each chunk in either tier, both or, once evicted, neither."""
REPLICATED = {(1, 2): 21, (2, 0): 1, (2, 1): 10, (2, 2): 63, (2, 3): 340, (3, 1): 20, (3, 2): 189, (3, 3): 1360}
"""The same where worker 0 stores everything, and the others only walk."""


def store_arrow(world: World) -> Arrow[World]:
    return Arrow(StoreRefinement(), world)


def replicated_arrow(world: World) -> Arrow[World]:
    return Arrow(StoreRefinement(Replicated), world)


def deal_arrow(deal: Deal) -> Arrow[Deal]:
    return Arrow(DealRefinement(), deal)


def same_steps(first: World, arrow: Arrow[World], states: int) -> None:
    assert arrow.begins()
    found = explore(first, wrong=complaint)
    assert found.why == ""
    assert len(found.came) == states
    for state in found.came:
        assert not one_step(arrow, state), state
        assert not arrow.falsehoods(state), state
    assert all(state.finished for state in found.last)


@pytest.mark.parametrize("bounds", STATES, ids=str)
def test_at_small_bounds_model_and_spec_have_the_same_steps_everywhere(bounds: tuple[int, int]) -> None:
    ranks, length = bounds
    first = World.begin(round_robin(length, ranks), ranks, dealt=True)
    same_steps(first, store_arrow(first), STATES[bounds])


@pytest.mark.parametrize("bounds", REPLICATED, ids=str)
def test_where_worker_0_stores_everything_the_steps_are_the_same_too(bounds: tuple[int, int]) -> None:
    first = World.begin(replicated(bounds[1]), bounds[0])
    same_steps(first, replicated_arrow(first), REPLICATED[bounds])


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_a_deal_has_the_steps_of_the_spec_which_counts_rounds_where_the_model_divides(ranks: int) -> None:
    deal = Deal.begin(64, ranks)
    arrow = deal_arrow(deal)
    assert arrow.begins()
    for dealt in range(64):
        assert deal.dealt == dealt
        assert not one_step(arrow, deal)
        assert not arrow.falsehoods(deal)
        assert uneven_shares(deal) == overfull(deal) == ""
        [event] = deal.events()
        deal = deal.after(event)
    assert not list(deal.events())
    assert [chunk for share in deal.shares for chunk in share] == [
        chunk for r in range(ranks) for chunk in range(r, 64, ranks)]


def schedules(arrow: Any, worlds: st.SearchStrategy[Any], kinds: set[str]) -> None:
    driven = machine(arrow, worlds)
    run_state_machine_as_test(driven, settings=settings(
        stateful_step_count=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]))
    assert driven.fired.keys() == kinds, f"some kind of event never happened: {driven.fired}"


def test_every_step_of_a_random_schedule_is_a_step_of_the_spec() -> None:
    worlds = owner_maps().map(lambda drawn: World.begin(*drawn))
    schedules(store_arrow, worlds, {"store", "pass_by", "evict"})


def test_every_step_of_a_replicated_schedule_is_a_step_of_the_spec() -> None:
    worlds = st.builds(lambda length, ranks: World.begin(replicated(length), ranks),
                       st.integers(0, 64), st.integers(1, 8))
    schedules(replicated_arrow, worlds, {"store", "pass_by", "evict"})


def test_every_arrival_at_a_queue_of_loads_is_a_step_of_the_spec() -> None:
    queues = st.builds(cost.Backlog.begin, figures(), figures(), figures(0))
    schedules(lambda queue: Arrow(BacklogRefinement(), queue), queues, {"arrive"})


@pytest.mark.parametrize("flipped", [EveryRank, Resumes, SkipsTheRest])
def test_a_mistake_in_the_spec_is_seen(flipped: type[Store]) -> None:
    first = World.begin(round_robin(2, 2), 2)
    arrow = Arrow(StoreRefinement(flipped), first)
    assert any(one_step(arrow, state) for state in explore(first).came)


@pytest.mark.parametrize("flipped", [EveryWorker, LocalRank])
def test_a_mistake_in_the_replicated_spec_is_seen(flipped: type[Replicated], monkeypatch: pytest.MonkeyPatch) -> None:
    first = World.begin(replicated(2), 3)
    refinement = StoreRefinement(flipped)
    rigid = refinement.rigid(first) | {"local": {(r,): r % 2 for r in range(3)}}
    monkeypatch.setattr(refinement, "rigid", lambda world: rigid)
    arrow = Arrow(refinement, first)
    assert arrow.begins()
    assert any(one_step(arrow, state) for state in explore(first).came)


@pytest.mark.parametrize("flipped", [StartsAgain, KeepsAll])
def test_a_mistake_in_the_spec_of_a_deal_is_seen(flipped: Any) -> None:
    first = Deal.begin(3, 2)
    arrow: Arrow[Deal] = Arrow(DealRefinement(flipped), first)
    assert any(one_step(arrow, state) for state in explore(first).came if state.dealt < 3)


class Forgets(World):
    """An eviction takes the rank back to the chunk."""

    def evict(self, r: int, chunk: int, tiers: tuple[str, ...]) -> World:
        after = World.evict(self, r, chunk, tiers)
        return after._but(r, next=chunk) if r >= 0 else after


def test_an_eviction_that_is_more_than_one_is_seen() -> None:
    stored = Forgets.begin((0,), 1).after(Event("store", 0, 0, (L1, L2)))
    arrow = store_arrow(stored)
    assert {event.tiers: arrow.allows(stored, event) for event in stored.events()} == {(L1,): False, (L2,): True}


def test_complaints_are_in_plain_words() -> None:
    first = World.begin(round_robin(3, 2), 2, dealt=True)
    twice = first._but(0, next=1, stored=(0, 0))
    others = first._but(0, next=2, stored=(0, 1))
    skipped = first._but(1, next=2)
    full = first.put(0, 0, (L1,)).put(0, 1, (L1,)).put(0, 2, (L1,))
    assert [complaint(world) for world in (first, twice, others, skipped, full)] == [
        "", "rank 0 stored chunk 0 2 times", "rank 0 stored chunk 1, which is rank 1's",
        "rank 1 is past its chunk 1, and has not stored it", "rank 0 holds 3 chunks in L1, and its slice is 2 of 3"]
    lopsided = World.begin((0, 0), 2, dealt=True)._but(0, next=2, stored=(0, 1))._but(1, next=2)
    assert complaint(lopsided) == "the shares [2, 0] differ by more than one chunk"
    deal = Deal(5, 2, ((0, 1, 2), (3,), (4,)), (frozenset({0, 1, 2}), frozenset({3}), frozenset({4})))
    assert uneven_shares(deal) == "rank 0 was dealt 3 of 5 chunks among 3 ranks"
    assert overfull(deal) == "rank 0 keeps 3 of 5 chunks, and its slice is 2"


@given(changes())
def test_putting_and_evicting_change_the_tiers_that_were_named_and_nothing_else(change: Any) -> None:
    begun, r, chunk, tiers = change
    world = World(*begun)
    for after, there in ((world.put(r, chunk, tiers), True), (world.evict(r, chunk, tiers), False)):
        assert (chunk in after.ranks[r].memory) == (there if L1 in tiers else chunk in world.ranks[r].memory)
        assert (chunk in after.remote) == (there if L2 in tiers else chunk in world.remote)
        assert after.remote ^ world.remote <= {chunk}
        assert after.ranks[r].memory ^ world.ranks[r].memory <= {chunk}
        assert after.ranks[:r] + after.ranks[r + 1 :] == world.ranks[:r] + world.ranks[r + 1 :]


@given(contents())
def test_the_prefix_is_the_number_of_chunks_before_the_first_that_is_cached_nowhere(drawn: Any) -> None:
    owners, ranks, remote = drawn
    cached = [chunk in remote | ranks[owner].memory for chunk, owner in enumerate(owners)]
    assert World(*drawn).prefix() == [*cached, False].index(False)


@given(contents(), st.data())
def test_every_chunk_of_the_prefix_can_be_loaded_and_the_next_one_not(drawn: Any, data: st.DataObject) -> None:
    world = World(*drawn)
    promised = world.prefix()
    for chunk, owner in enumerate(world.owners[: promised + 1]):
        assert world.found(owner, chunk) == (chunk < promised), f"chunk {chunk} of a prefix of {promised}"


def test_the_facts_of_one_host_with_8_ranks_come_out() -> None:
    measured = cost.Cost(Fraction(48_400), Fraction(52_200), Fraction(1_710_000_000))
    assert measured.break_even(Fraction(1)) == 2_526_480_000
    assert not measured.loads(Fraction(200_000))
    split = cost.Split(Fraction(1), Fraction(8), Fraction(4), 8)
    assert split.utilisation() == Fraction(1, 4)


def test_at_the_least_tokens_both_ways_take_the_same_time_and_one_token_more_is_loaded() -> None:
    model = cost.Cost(Fraction(1), Fraction(1), Fraction(2), Fraction(1))
    least = model.least_tokens()
    assert (least, model.load_time(least), model.recompute_time(least)) == (2, 2, 2)
    assert (model.loads(least), model.loads(least + 1)) == (False, True)
    assert cost.wrong_choice(model, least) == cost.wrong_choice(model, least + 1) == ""


def test_an_event_that_there_is_not_is_said() -> None:
    with pytest.raises(ValueError, match="no event 'sleep'"):
        World.begin((0,), 1).after(Event("sleep", 0, 0))
    with pytest.raises(ValueError, match="no event 'sleep'"):
        Deal.begin(1, 1).after(Event("sleep", 0, 0))
