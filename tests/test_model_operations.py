"""The models of lifecycle, ledger and lease: the steps of their specs, no more and no fewer, and their claims hold."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import z3
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from kvproof.models import lease, ledger, lifecycle
from kvproof.models.explore import explore
from kvproof.models.lifecycle import Blocks, Fetch, Fetches
from kvproof.spec import lease as lease_spec
from kvproof.spec import ledger as ledger_spec
from kvproof.spec import lifecycle as lifecycle_spec
from kvproof.spec.refine import Arrow
from kvproof.spec.refine_operations import BlockRefinement, FetchRefinement, LeaseRefinement, LedgerRefinement
from kvproof.spec.system import Point, Step, action
from kvproof.spec.theory import Int, Rank, View, put
from tests.mistakes import lease as leases
from tests.mistakes import ledger as ledgers
from tests.mistakes import lifecycle as lifecycles
from tests.refining import machine, one_step

FETCHING = {"begin", "move", "fail", "die"}
OWNING = {"allocate", "begin", "end", "complete"}
LOOPING = {"begin", "lock", "take", "finish", "fail", "undo", "leave"}
LEASING = {"ask", "load", "fail", "evict", "spoil", "store"}
FETCHES = {0: 2, 1: 36, 2: 1952}
"""How many states all worlds of so many operations have together: 0 to 2 blocks, 0 or 1 there, 1 peer or 2."""
BLOCKS = {(0,): 16, (0, 0): 1531, (0, 1): 1259}
"""How many states there are where the transfers are of these requests, as many requests and blocks as transfers."""
LEDGERS = {(1, 0): 4, (1, 1): 7, (1, 2): 10, (1, 3): 13, (2, 0): 16, (2, 1): 68, (2, 2): 215, (3, 0): 64, (3, 1): 572}
"""How many states so many callers with so many keys have."""
LEASES = {
    ((), 1, True): 4, ((0,), 1, True): 16, ((0,), 2, True): 64, ((0, 0), 1, True): 58, ((0, 1), 2, True): 256,
    ((0, 0), 2, True): 232, ((0, 0, 0), 1, True): 208, ((0,), 1, False): 14, ((0, 1), 2, False): 196,
    ((0, 0), 2, False): 176,
}
"""How many states there are where requests ask for these of so many chunks, and chunks are stored or not."""
MISTAKES = {**lifecycles.MISTAKES, **ledgers.MISTAKES, **leases.MISTAKES}
COMPLAINTS: dict[type, tuple[Callable[[Any], str], ...]] = {
    Fetches: (lifecycle.reported_wrong, lifecycle.waits_for_ever),
    Blocks: (lifecycle.shared, lifecycle.overwritten, lifecycle.freed_twice, lifecycle.leaked),
    ledger.World: (ledger.not_restored, ledger.negative, ledger.held_twice, ledger.stuck),
    lease.World: (lease.lost, lease.not_withdrawn, lease.stuck),
}
"""What each model promises."""


def fetch_arrow(world: Fetches) -> Arrow[Fetches]:
    return Arrow(FetchRefinement(), world)


def block_arrow(world: Blocks) -> Arrow[Blocks]:
    return Arrow(BlockRefinement(), world)


def ledger_arrow(world: ledger.World) -> Arrow[ledger.World]:
    return Arrow(LedgerRefinement(), world)


def lease_arrow(world: lease.World) -> Arrow[lease.World]:
    return Arrow(LeaseRefinement(), world)


def fetches(count: int, kind: type[Fetches] = Fetches) -> list[Fetches]:
    each = [(wanted, local) for wanted in range(3) for local in range(2)]
    return [kind(tuple(Fetch(*about, o % peers) for o, about in enumerate(plan)), peers)
            for plan in product(each, repeat=count) for peers in range(1, max(count, 1) + 1)]


def blocks(of: tuple[int, ...], kind: type[Blocks] = Blocks) -> Blocks:
    return kind.begin(len(of), of, len(of))


def requests(wants: tuple[int, ...], count: int, storing: bool, kind: type[lease.World] = lease.World) -> Any:
    tiers = list(product((False, True), repeat=count))
    return [kind.begin(wants, present, intact, storing=storing) for present, intact in product(tiers, tiers)]


def same_steps(arrow: Arrow[Any], *first: Any) -> tuple[int, set[str]]:
    """Return how many states there are, and what happens, where each step is the spec's and each claim is true."""
    assert all(arrow.__class__(arrow.refinement, each).begins() for each in first)
    found = explore(*first)
    for state in found.came:
        assert not one_step(arrow, state), state
        assert not arrow.falsehoods(state), state
        assert not [said for complaint in COMPLAINTS[type(state)] if (said := complaint(state))], state
    return len(found.came), set(found.fired)


@pytest.mark.parametrize("count", FETCHES)
def test_fetches_have_the_same_steps_in_model_and_spec(count: int) -> None:
    each = [same_steps(fetch_arrow(first), first) for first in fetches(count)]
    assert sum(states for states, _ in each) == FETCHES[count]
    assert set[str]().union(*(fired for _, fired in each)) == (FETCHING if count else {"die"})


@pytest.mark.parametrize("of", BLOCKS, ids=str)
def test_blocks_have_the_same_steps_in_model_and_spec(of: tuple[int, ...]) -> None:
    assert same_steps(block_arrow(blocks(of)), blocks(of)) == (BLOCKS[of], OWNING)


@pytest.mark.parametrize("bounds", LEDGERS, ids=str)
def test_callers_have_the_same_steps_in_model_and_spec(bounds: tuple[int, int]) -> None:
    callers, keys = bounds
    first = ledger.World.begin(tuple(range(1, keys + 1)), callers)
    assert same_steps(ledger_arrow(first), first) == (
        LEDGERS[bounds], LOOPING if keys else LOOPING - {"lock", "take", "undo"})


@pytest.mark.parametrize("bounds", LEASES, ids=str)
def test_leases_have_the_same_steps_in_model_and_spec(bounds: tuple[tuple[int, ...], int, bool]) -> None:
    first = requests(*bounds)
    kinds = LEASING - (set() if bounds[2] else {"store"}) - (set() if bounds[0] else {"ask", "load", "fail"})
    assert same_steps(lease_arrow(first[0]), *first) == (LEASES[bounds], kinds)


def test_what_has_come_to_its_end_has_left_nothing() -> None:
    """Where nothing can happen any more, all have reported or returned, and blocks and locks are free."""
    for state in (state for first in fetches(2) for state in explore(first).last):
        assert [len(fetch.reports) for fetch in state.fetches] == [1, 1]
    for freed in explore(blocks((0, 1))).last:
        assert freed.free == (0, 1)
        assert freed.requests == (lifecycle.Request(frozenset(), True),) * 2
    for returned in explore(ledger.World.begin((1, 2), 2)).last:
        assert [(caller.phase, caller.used) for caller in returned.callers] == [(ledger.OVER, 0)] * 2
        assert not any(lock.held for lock in returned.locks)
    for served in explore(*requests((0, 1), 2, False)).last:
        assert set(served.phases) <= {lease.USED, lease.COMPUTING}


def schedules(arrow: Any, worlds: st.SearchStrategy[Any], kinds: set[str], *rare: str) -> None:
    driven = machine(arrow, worlds, rare=frozenset(rare))
    run_state_machine_as_test(driven, settings=settings(stateful_step_count=16))
    assert driven.fired.keys() == kinds, f"some kind of event never happened: {driven.fired}"


def test_every_step_of_random_fetches_is_a_step_of_the_spec() -> None:
    each = st.builds(Fetch, st.integers(0, 8), st.integers(0, 8), st.integers(0, 2))
    schedules(fetch_arrow, st.builds(Fetches, st.lists(each, max_size=8).map(tuple), st.just(3)), FETCHING, "die")


def test_every_step_of_random_transfers_is_a_step_of_the_spec() -> None:
    of = st.integers(1, 4).flatmap(lambda size: st.lists(st.integers(0, size - 1), min_size=size, max_size=size))
    schedules(block_arrow, of.map(lambda drawn: blocks(tuple(drawn))), OWNING, "end")


def test_every_step_of_random_callers_is_a_step_of_the_spec() -> None:
    sizes = st.lists(st.integers(0, 9), max_size=6).map(tuple)
    schedules(ledger_arrow, st.builds(ledger.World.begin, sizes, st.integers(1, 5)), LOOPING, "fail")


@st.composite
def lookups(draw: st.DrawFn) -> lease.World:
    """Up to 8 requests for up to 4 chunks."""
    count = draw(st.integers(1, 4))
    tier = st.lists(st.booleans(), min_size=count, max_size=count).map(tuple)
    wants = draw(st.lists(st.integers(0, count - 1), max_size=8).map(tuple))
    return lease.World.begin(wants, draw(tier), draw(tier), storing=draw(st.booleans()))


def test_every_step_of_random_lookups_is_a_step_of_the_spec() -> None:
    schedules(lease_arrow, lookups(), LEASING, "evict", "spoil")


class FromTheDead(lifecycle_spec.Reports):
    """One conjunct of a guard is gone: a block comes from a dead peer."""

    @action(o=Int)
    def move(self, s: View, o: Any) -> Step:
        ready = z3.And(self.running(s, o), s.moved(o) < self.needed(s, o))
        return Step(ready, **super().move(s, o).changes)


class AfterTheEnd(lifecycle_spec.Blocks):
    """One conjunct of a guard is gone: a transfer begins for a request that has ended."""

    @action(t=Int)
    def begin(self, s: View, t: Any) -> Step:
        return Step(z3.Not(s.begun(t)), **super().begin(s, t).changes)


class Unreserved(ledger_spec.Ledger):
    """One effect is gone: nothing of the budget is given back."""

    @action(c=Rank)
    def undo(self, s: View, c: Any) -> Step:
        step = super().undo(s, c)
        return Step(step.guard, **{**step.changes, "usage": put(s.usage, c, s.usage(c))})


class UndoneRefinement(LedgerRefinement):
    """With what `UndoneTwice` remembers besides."""

    ghosts = frozenset({"again"})

    def state(self, world: ledger.World) -> Point:
        return {**super().state(world), "again": {(c,): False for c in range(len(world.callers))}}


FETCH, BLOCK = fetches(2), [blocks(of) for of in BLOCKS]
CALLERS = [ledger.World.begin((1, 2), 2)]
LOOKUPS = {storing: requests((0, 1), 2, storing) for storing in (True, False)}
FLIPPED: list[tuple[Any, list[Any]]] = [
    *((FetchRefinement(kind), FETCH) for kind in (
        lifecycle_spec.EmptyWaits, lifecycle_spec.FullHitWaits, lifecycle_spec.DeathUnnoticed,
        lifecycle_spec.ReportsTwice, lifecycle_spec.FailedIsDone, lifecycle_spec.TriesAgain, FromTheDead)),
    *((BlockRefinement(kind), BLOCK) for kind in (
        lifecycle_spec.AbortFrees, lifecycle_spec.FirstDeletes, lifecycle_spec.AbortLeaks, lifecycle_spec.FreedByBoth,
        AfterTheEnd)),
    *((LedgerRefinement(kind), CALLERS) for kind in (
        ledger_spec.ReturnsInLoop, ledger_spec.LosesPins, ledger_spec.NoLock, ledger_spec.UnlocksAlways,
        ledger_spec.AsksAgain, Unreserved)),
    (UndoneRefinement(ledger_spec.UndoneTwice), CALLERS),
    *((LeaseRefinement(kind), LOOKUPS[True]) for kind in (lease_spec.StillPresent, lease_spec.Unpinned)),
    *((LeaseRefinement(quiet=kind), LOOKUPS[False]) for kind in (
        lease_spec.StillPresentQuiet, lease_spec.NobodyFails)),
]


def differs(refinement: Any, first: Any) -> bool:
    """Whether some step is not the same."""
    arrow: Arrow[Any] = Arrow(refinement, first)
    return explore(first, wrong=lambda state: ", ".join(one_step(arrow, state))).why != ""


@pytest.mark.parametrize(("flipped", "starts"), FLIPPED)
def test_a_mistake_in_the_spec_is_seen(flipped: Any, starts: list[Any]) -> None:
    assert any(differs(flipped, first) for first in starts)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_a_model_is_seen(mistake: str) -> None:
    kind = MISTAKES[mistake]
    refinement: Any
    starts: list[Any]
    if issubclass(kind, Fetches):
        refinement, starts = FetchRefinement(), fetches(2, kind)
    elif issubclass(kind, Blocks):
        refinement, starts = BlockRefinement(), [blocks(of, kind) for of in BLOCKS]
    elif issubclass(kind, ledger.World):
        refinement, starts = LedgerRefinement(), [kind.begin((1, 2), 2)]
    else:
        refinement, starts = LeaseRefinement(), requests((0, 1), 2, False, kind)
    assert any(differs(refinement, first) for first in starts)


def test_complaints_are_in_plain_words() -> None:
    early = Fetches((Fetch(2, 1, begun=True, reports=(lifecycle.DONE,)),))
    false = Fetches((Fetch(1, begun=True, reports=(lifecycle.FAILED,)),))
    assert [lifecycle.reported_wrong(world) for world in (early, false)] == [
        "operation 0 is done with 1 of 2 blocks", "operation 0 has failed, and its peer is alive"]
    writing = Blocks((lifecycle.Request(), lifecycle.Request(frozenset({0}))),
                     (lifecycle.Transfer(0, lifecycle.ACTIVE, frozenset({0})),), (), (1, 1))
    assert lifecycle.overwritten(writing) == "transfer 0 writes block 0, which is request 1's"
    assert lifecycle.leaked(writing) == "block 1 is neither free nor anybody's"


def test_complaints_are_about_whoever_has_returned_or_was_promised() -> None:
    working = ledger.Caller((0,), ledger.HOLDING)
    pinned, using, clean = (ledger.Caller((pins,), ledger.OVER, 0, used) for pins, used in ((1, 0), (0, 3), (0, 0)))
    worlds = [ledger.World((3,), (working, each), (ledger.Lock(True, last),)) for each, last in (
        (pinned, 0), (using, 0), (clean, 1), (clean, 0))]
    assert [ledger.not_restored(world) for world in worlds] == [
        "caller 1 has returned, and its pins are [1]", "caller 1 has returned, and uses 3 bytes",
        "caller 1 has returned, and holds the lock of key 0", ""]
    failed = lease.World((0, 0), (lease.Chunk(True, True, False, True),), (lease.ASKING, lease.PROMISED))
    assert lease.not_withdrawn(failed) == "chunk 0 has failed to load, and requests [1] are promised it"


@pytest.mark.parametrize(("first", "event"), [
    (fetches(1)[0], lifecycle.Event), (blocks((0,)), lifecycle.Event), (ledger.World.begin((1,), 1), ledger.Event),
    (requests((0,), 1, True)[0], lease.Event)])
def test_an_event_that_there_is_not_is_said(first: Any, event: Any) -> None:
    with pytest.raises(ValueError, match="no event 'sleep'"):
        first.after(event("sleep", 0))
