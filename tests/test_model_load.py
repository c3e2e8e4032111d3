"""The loading model: the same steps as the spec, no more and no fewer, and as many states as TLC counts."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from dataclasses import FrozenInstanceError, fields, replace
from typing import Any

import pytest
import z3
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from kvproof import explore as exploring
from kvproof import tlc
from kvproof.errors import NotInstalled
from kvproof.models.explore import TooMany, explore
from kvproof.models.load import Event, Plan, Rank, World, alike, complaint, round_robin
from kvproof.spec.load import Load
from kvproof.spec.load_failures import FailingLoad
from kvproof.spec.refine import Arrow
from kvproof.spec.refine_load import LoadRefinement
from kvproof.spec.system import Step
from kvproof.spec.theory import View
from tests.refining import machine, one_step

LIMITS = frozenset({"all-or-none"})
STATES = {
    (1, 0): 3, (1, 1): 11, (1, 2): 29, (1, 3): 67, (1, 4): 145,
    (2, 0): 7, (2, 1): 37, (2, 2): 125, (2, 3): 345, (2, 4): 853,
    (3, 0): 15, (3, 1): 117, (3, 2): 489, (3, 3): 1605, (3, 4): 4599,
}
"""How many states a world of W ranks and n chunks has, gets coming at any time or never."""
FAILING = {(1, 0): 14, (1, 1): 48, (2, 0): 140, (2, 1): 576, (2, 2): 1856}
"""The same where ranks die, waits expire and a later step follows."""


def load_arrow(world: World) -> Arrow[World]:
    return Arrow(LoadRefinement(), world)


def world(world_size: int, chunks: int, *, failing: bool = False) -> World:
    return World.begin((Plan(chunks),) * world_size, round_robin(chunks, world_size), failing=failing)


@pytest.mark.parametrize(("bounds", "failing"), [
    *((bounds, False) for bounds in STATES), *((bounds, True) for bounds in FAILING)], ids=str)
def test_at_small_bounds_model_and_spec_have_the_same_steps_everywhere(bounds: tuple[int, int], failing: bool) -> None:
    first = world(*bounds, failing=failing)
    arrow = load_arrow(first)
    assert arrow.begins()
    found = explore(first, wrong=complaint)
    assert found.why == ""
    assert len(found.came) == (FAILING if failing else STATES)[bounds]
    for state in found.came:
        assert not one_step(arrow, state), state
        assert set(arrow.falsehoods(state)) <= LIMITS
    assert all(state.finished for state in found.last)


@pytest.mark.parametrize("plans", [
    (Plan(1, 1), Plan(2, 2)), (Plan(2, 2), Plan(1, 1)), (Plan(1, 1, 0), Plan(1, 1, 1)), (Plan(1, 1, 1), Plan(1, 1, 0)),
    (Plan(0, 1), Plan(2, 2)), (Plan(1, 1), Plan(1, 2), Plan(0, 3))], ids=str)
def test_lists_that_differ_have_the_same_steps_too_and_give_no_prefix(plans: tuple[Plan, ...]) -> None:
    longest = max(plan.length for plan in plans)
    first = World.begin(plans, round_robin(longest, len(plans)))
    arrow = load_arrow(first)
    found = explore(first, wrong=complaint)
    assert found.why == ""
    assert not [difference for state in found.came for difference in one_step(arrow, state)]
    assert {rank.agreed for state in found.came for rank in state.ranks} == {0}


def test_every_kind_of_event_happens() -> None:
    assert explore(world(2, 2)).fired.keys() == {
        "arrive", "look", "enter_exchange", "leave_exchange", "enter_broadcast", "leave_broadcast"}
    assert explore(world(2, 1, failing=True)).fired.keys() - explore(world(2, 2)).fired.keys() == {
        "die", "expire", "call", "answer"}


@st.composite
def worlds(draw: Any) -> World:
    """Up to 8 ranks and 64 chunks, any owners; now and then lists that differ."""
    ranks = draw(st.one_of(st.integers(1, 2), st.integers(1, 8)))
    chunks = draw(st.one_of(st.integers(0, 2), st.integers(0, 6), st.integers(0, 64)))
    owners = draw(st.one_of(
        st.just(round_robin(chunks, ranks)),
        st.lists(st.integers(0, ranks - 1), min_size=chunks, max_size=chunks).map(tuple)))
    plans = [Plan(chunks)] * ranks
    if draw(st.integers(0, 3)) == 0:
        plans[draw(st.integers(0, ranks - 1))] = Plan(draw(st.integers(0, chunks)), 1, draw(st.integers(0, 1)))
    return World.begin(tuple(plans), owners, failing=draw(st.booleans()))


def test_every_step_of_a_random_schedule_is_a_step_of_the_spec() -> None:
    schedules = machine(load_arrow, worlds(), LIMITS, frozenset({"die", "expire"}))
    run_state_machine_as_test(schedules, settings=settings(
        stateful_step_count=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]))
    assert schedules.fired.keys() == {
        "arrive", "look", "enter_exchange", "leave_exchange", "enter_broadcast", "leave_broadcast", "die", "expire",
        "call", "answer"}, f"some kind of event never happened: {schedules.fired}"


def test_random_schedules_reach_every_state_that_the_explorer_finds() -> None:
    missing = set(explore(world(2, 2)).came)
    choose, walks = random.Random(0), 0
    while missing and walks < 10_000:
        state, walks = world(2, 2), walks + 1
        missing.discard(state)
        while events := list(state.events()):
            state = state.after(choose.choice(events))
            missing.discard(state)
    assert not missing, f"{len(missing)} states were not reached by {walks} walks"


class LeavesAlone(Load):
    """One conjunct of a guard is gone: a broadcast is left before its owner is in it."""

    def leave_broadcast(self, s: View, r: Any) -> Step:
        step = super().leave_broadcast(s, r)
        return Step(z3.And(s.left(r) >= 1, s.entered(r) == s.left(r) + 1), **step.changes)


class EntersOften(Load):
    """One conjunct of a guard is gone: broadcasts are entered past the agreed prefix."""

    def enter_broadcast(self, s: View, r: Any) -> Step:
        step = super().enter_broadcast(s, r)
        return Step(z3.And(s.left(r) >= 1, self.outside(s, r)), **step.changes)


class LooksPast(Load):
    """One conjunct of a guard is gone: a rank goes past a chunk that it misses."""

    def look(self, s: View, r: Any) -> Step:
        step = super().look(s, r)
        return Step(z3.And(s.entered(r) == 0, s.failure(r) < s.length(r)), **step.changes)


class HoldsAll(Load):
    """One word of an effect is changed: a broadcast brings a chunk that its owner does not have."""

    def leave_broadcast(self, s: View, r: Any) -> Step:
        step = super().leave_broadcast(s, r)
        return Step(step.guard, **{**step.changes, "failure": lambda q: s.failure(q) + 1})


@pytest.mark.parametrize("flipped", [LeavesAlone, EntersOften, LooksPast, HoldsAll])
def test_flipping_one_conjunct_of_the_spec_is_seen(flipped: type[Load]) -> None:
    for name in ("leave_broadcast", "enter_broadcast", "look"):
        if name in vars(flipped):
            getattr(flipped, name).kvproof_action = getattr(Load, name).kvproof_action
    first = world(2, 1)
    arrow: Arrow[World] = Arrow(LoadRefinement(flipped, FailingLoad), first)
    assert any(one_step(arrow, state) for state in explore(first).came)


def test_ranks_that_own_nothing_are_alike() -> None:
    plain, folded = explore(world(4, 1)), explore(world(4, 1), alike=alike)
    assert (len(plain.came), len(folded.came)) == (373, 133)
    assert {alike(state) for state in plain.came} == set(folded.came)
    assert len(explore(world(3, 3), alike=alike).came) == STATES[3, 3], "every rank owns something here"
    same = World.begin(tuple(Plan(1) for _ in range(4)), round_robin(1, 4))
    assert len(explore(same, alike=alike).came) == 133, "plans that are equal are the same plan"


def test_a_way_is_a_shortest_way_and_can_be_walked() -> None:
    found = explore(world(2, 1))
    last = found.last[-1]
    way, state = found.way(last), world(2, 1)
    for event, after in way:
        state = state.after(event)
        assert state == after
    assert state == last
    assert max(len(found.way(state)) for state in found.came) == found.depth


def test_a_rank_computes_with_the_agreed_prefix_when_it_is_through_and_has_not_given_up() -> None:
    for state in explore(world(2, 1, failing=True)).came:
        for r, rank in enumerate(state.ranks):
            through = rank.done and not rank.aborted
            assert list(state.uses(r)) == (list(range(rank.agreed)) if through else [])


def through(chunks: int) -> Rank:
    everything = frozenset(range(chunks))
    return Rank(everything, chunks, entered=1 + chunks, left=1 + chunks, agreed=chunks, held=everything)


WRONG: dict[str, tuple[tuple[Rank, ...], str]] = {
    "two prefixes": (
        (replace(through(2), held=frozenset()), replace(through(3), left=3)),
        "rank 0 knows an agreed prefix of 2, and rank 1 one of 3"),
    "two prefixes of three ranks": (
        (Rank(), through(1), replace(through(0), entered=2)),
        "rank 1 knows an agreed prefix of 1, and rank 2 one of 0"),
    "waits for one who is through, in the next collective": (
        (through(0), Rank(entered=2, left=1)), "rank 0 is through, and rank 1 waits for it in collective 1"),
    "waits for one who is through, in a later collective": (
        (Rank(entered=3, left=2), through(0)), "rank 1 is through, and rank 0 waits for it in collective 2"),
    "holds what was not agreed on": (
        (replace(through(1), held=frozenset({0, 1, 2})), through(1)),
        "rank 0 holds chunk 2, past the agreed prefix of 1"),
    "holds too little": (
        (through(3), replace(through(3), held=frozenset({0, 2}))),
        "rank 1 is through, and has [0, 2] of an agreed prefix of 3"),
    "went on alone": (
        (replace(through(1), called=True, answered=True), replace(through(1), entered=2, left=1, held=frozenset())),
        "rank 0 went through a later step, and not all are through this one"),
}
"""States that are wrong, each in one way, and what is said of them."""


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_with_a_state_is_said_in_whole_sentences(name: str) -> None:
    ranks, words = WRONG[name]
    assert complaint(replace(world(len(ranks), 3, failing=True), ranks=ranks)) == words


@pytest.mark.parametrize("chunk", range(5))
def test_an_owner_that_never_entered_the_broadcast_of_a_chunk_is_seen(chunk: int) -> None:
    first = replace(World.begin((Plan(5),) * 2, (0,) * chunk + (1,) + (0,) * (4 - chunk)), failing=True)
    for entered in range(7):
        owner = replace(through(5), entered=entered, left=entered, held=frozenset(range(entered - 1)))
        said = complaint(replace(first, ranks=(through(5), owner)))
        never = f"rank 0 computes with chunk {chunk}, whose owner never entered its broadcast"
        assert said == (never if entered < chunk + 2 else ""), f"the owner of chunk {chunk} has entered {entered}"


def test_numbers_past_the_smallest_ones_are_compared_like_those() -> None:
    """One object stands for each of the smallest integers in CPython: 300 chunks and 300 ranks are past them."""
    state = world(1, 300)
    while not state.ranks[0].done:
        state = state.after(next(state.events()))
        assert complaint(state) == ""
    assert state.uses(0) == range(300)
    many = world(300, 300)
    assert [many.misses(r, 299) for r in range(300)] == [False] * 299 + [True]
    agreed = [replace(through(300), agreed=int(text)) for text in ("300", "300")]
    assert complaint(replace(world(2, 300), ranks=tuple(agreed))) == ""


PLAIN: tuple[Any, ...] = (Plan(1), Rank(), world(1, 1))


@pytest.mark.parametrize("value", PLAIN, ids=lambda value: type(value).__name__)
def test_a_state_can_be_compared_and_hashed_and_not_changed(value: Any) -> None:
    assert replace(value) == value
    assert hash(replace(value)) == hash(value)
    assert not hasattr(value, "__dict__")
    with pytest.raises(FrozenInstanceError):
        setattr(value, fields(value)[0].name, None)


def test_an_event_about_no_chunk_says_minus_one() -> None:
    assert {event.chunk for event in world(2, 0).events()} == {-1}
    assert Event("look", 0) == ("look", 0, -1)


def test_failures_are_asked_for_by_name() -> None:
    plans, owners = (Plan(1),), (0,)
    assert not World.begin(plans, owners).failing
    assert World(plans, owners, (Rank(),)) == World.begin(plans, owners)
    with pytest.raises(TypeError, match="positional"):
        World.begin(plans, owners, True)  # type: ignore[misc]  # wrong on purpose


def test_too_many_states_are_said_and_not_explored() -> None:
    with pytest.raises(TooMany, match="more than 100 states"):
        explore(world(3, 3), most=100)


def test_an_event_that_there_is_not_is_said() -> None:
    with pytest.raises(ValueError, match="no event 'sleep'"):
        world(1, 1).after(Event("sleep", 0))


@pytest.fixture(scope="module")
def peer() -> None:
    try:
        tlc.command()
    except NotInstalled as error:
        pytest.skip(f"not run: {error}")


def check(bounds: tuple[int, int], specification: str = "Fair", *properties: str) -> tlc.Checked:
    return tlc.check(exploring.PEER, {"W": bounds[0], "N": bounds[1]}, specification=specification,
                     invariants=exploring.INVARIANTS, properties=properties)


@pytest.mark.usefixtures("peer")
@pytest.mark.parametrize("bounds", [(1, 0), (1, 4), (2, 2), (2, 4), (3, 3), (3, 4)], ids=str)
def test_tlc_counts_the_same_states_from_other_words(bounds: tuple[int, int]) -> None:
    assert check(bounds) == tlc.Checked(STATES[bounds], "")


@pytest.mark.nightly
@pytest.mark.usefixtures("peer")
@pytest.mark.parametrize("bounds", [(4, 4), (3, 6), (2, 8)], ids=str)
def test_tlc_counts_the_same_states_in_larger_worlds(bounds: tuple[int, int]) -> None:
    found = explore(world(*bounds), wrong=complaint)
    assert found.why == ""
    assert check(bounds) == tlc.Checked(len(found.came), "")


@pytest.mark.usefixtures("peer")
def test_every_rank_ends_under_weak_fairness_and_without_it_not() -> None:
    assert check((2, 1), "Fair", "Ends").violated == ""
    assert "violated" in check((2, 1), "Unfair", "Ends").violated


def test_the_table_of_counts_is_printed_and_a_missing_java_is_said() -> None:
    command = [sys.executable, "-m", "kvproof.cli", "explore", "-W", "2", "-n", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env={"PATH": "/nonexistent"})
    assert done.returncode == 3, done.stdout + done.stderr
    assert "there is no java" in done.stdout
    assert Counter(done.stdout.split())["not-run"] == 4
