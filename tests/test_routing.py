"""Routing: what each policy has to keep, and the mistakes of the field, each caught by one of those."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

import pytest

from kvproof.economics.trace import read
from kvproof.models import requests, routing, workloads
from kvproof.models.requests import Request
from kvproof.models.routing import BoundedHash, Fleet, LeastLoaded, Policy, PrefixAware, RoundRobin, route
from tests.economics_properties import watched
from tests.mistakes import routing as mistakes
from tests.test_requests import TRACE

RATE = 10_000.0
SIZE = 8
HOT = workloads.shared(1, 400, blocks=8, own=6, rate=20.0)
"""One hot prefix, and more work than one replica can do."""
MIXED = workloads.shared(40, 800, blocks=8, own=4, rate=10.0, skew=1.2)


def aware(kind: type[PrefixAware] = PrefixAware) -> PrefixAware:
    return kind(SIZE, rate=RATE)


def crowded(policy: Policy, trace: list[Request]) -> str:
    """Say that a request waits longer than for another replica by more than recomputing all of it takes."""
    def look(request: Request, fleet: Fleet, chosen: int) -> str:
        loads = [fleet.load(replica) for replica in range(SIZE)]
        most = loads[chosen] - min(loads)
        if most <= len(request.blocks) * requests.BLOCK_TOKENS / RATE:
            return ""
        return f"at {fleet.now:.2f} s replica {chosen} has {most:.2f} s more to do than another one"

    return watched(policy, trace, look, rate=RATE)


def overfull(policy: BoundedHash, trace: list[Request]) -> str:
    """Say that a request goes to a replica that has as many as the bound allows."""
    def look(request: Request, fleet: Fleet, chosen: int) -> str:
        has = fleet.waiting
        most = math.ceil((1 + policy.slack) * (sum(has) + 1) / SIZE)
        return f"replica {chosen} has {has[chosen]} requests, and {most} are allowed" if has[chosen] >= most else ""

    return watched(policy, trace, look, rate=RATE)


def herd(policy: Policy) -> str:
    """Say that a burst of as many requests as there are replicas, at idle ones, does not go to each."""
    counts = route(workloads.burst(SIZE), policy, capacity=1000, rate=RATE).counts
    return "" if set(counts) == {1} else f"a burst of {SIZE} went to {counts}"


def uneven(kind: type[BoundedHash]) -> str:
    """Say that a ring of 200 points a replica deals keys out more unevenly than such rings do."""
    policy = kind(SIZE, points=200)
    counts = Counter(policy.preferred((key,))[0] for key in range(4000))
    most = max(counts.values()) * SIZE / 4000
    return "" if most <= 1.35 and len(counts) == SIZE else f"one replica has {most:.2f} times its share of the keys"


def restless(kind: type[BoundedHash]) -> str:
    """Say that more keys move to a new replica than are its share."""
    share = routing.moved(kind, SIZE, [(key,) for key in range(2000)])
    return "" if share <= 1.6 / (SIZE + 1) else f"{share:.0%} of the keys move when a replica is added"


def misled(fleet: Fleet) -> str:
    """Say that a router counts on blocks that a restarted replica has lost."""
    trace = workloads.shared(4, 300, blocks=8, own=1, rate=8.0)
    restarts = [(trace[100].arrival, replica) for replica in range(SIZE)]
    found = route(trace, aware(), capacity=10_000, rate=RATE, restarts=restarts, fleet=fleet).misled
    return f"{found} requests went where the router took blocks to be that were lost" if found else ""


def test_right_policies_keep_everything() -> None:
    for policy in (LeastLoaded, aware):
        for trace in (HOT, MIXED):
            made = policy() if policy is aware else LeastLoaded(SIZE)
            assert crowded(made, trace) == ""
    assert herd(LeastLoaded(SIZE)) == herd(aware()) == herd(RoundRobin(SIZE)) == ""
    assert overfull(BoundedHash(SIZE), HOT) == overfull(BoundedHash(SIZE), MIXED) == ""
    assert uneven(BoundedHash) == restless(BoundedHash) == ""
    assert misled(Fleet(SIZE)) == ""


@pytest.mark.parametrize(("caught", "says"), [
    (lambda: crowded(mistakes.NeverCounts(SIZE), MIXED), "s more to do than another one"),
    (lambda: herd(mistakes.NeverCounts(SIZE)), "a burst of 8 went to [8, 0"),
    (lambda: crowded(aware(mistakes.SmallestTree), _heavy_and_small()), "s more to do than another one"),
    (lambda: crowded(aware(mistakes.StaysAtHome), HOT), "s more to do than another one"),
    (lambda: misled(mistakes.KeepsIndex(SIZE)), "requests went where the router took blocks to be that were lost"),
    (lambda: uneven(mistakes.IgnoresPoints), "times its share of the keys"),
    (lambda: restless(mistakes.ModuloSize), "of the keys move when a replica is added"),
    (lambda: overfull(mistakes.NoBound(SIZE), HOT), "are allowed"),
    (lambda: herd(mistakes.StaleLoads(SIZE)), "a burst of 8 went to [8, 0"),
])
def test_every_mistake_is_caught(caught: Callable[[], str], says: str) -> None:
    assert says in caught()


def _heavy_and_small() -> list[Request]:
    """Return few long prompts of few blocks, and then many others: the trees of those who work stay small."""
    long = [Request(0.0, 60_000, 1, (number,)) for number in range(4)]
    short = [Request(0.1 + number / 100, 20_000, 1, tuple(range(100 + 30 * number, 130 + 30 * number)))
             for number in range(60)]
    return [*long, *short]


def test_two_runs_are_the_same() -> None:
    for first, second in zip(routing.policies(SIZE, RATE), routing.policies(SIZE, RATE), strict=True):
        assert route(MIXED, first, capacity=500, rate=RATE) == route(MIXED, second, capacity=500, rate=RATE)


def test_route_consistency_is_no_hit_rate() -> None:
    # Few prefixes: round robin is consistent one time in eight, and every replica soon has all of them.
    few = workloads.shared(60, 20_000, blocks=8, own=0, rate=8.0)
    robin = route(few, RoundRobin(SIZE), capacity=10_000, rate=RATE)
    assert robin.consistency == pytest.approx(1 / SIZE, abs=0.02)
    assert robin.hit_rate > 0.97
    sure = route(few, aware(), capacity=10_000, rate=RATE)
    assert (sure.consistency > 0.9, sure.hit_rate > 0.99) == (True, True)
    # Many prefixes and little room: only who is sent the same again has it.
    many = workloads.shared(400, 4000, blocks=8, own=0, rate=8.0)
    small = {policy.name: route(many, policy, capacity=480, rate=RATE) for policy in routing.policies(SIZE, RATE)}
    assert small["round robin"].hit_rate < 0.2
    assert small["prefix aware"].hit_rate > 0.8
    assert small["bounded hash"].hit_rate > 0.6


def test_times_are_waits_and_prefills() -> None:
    trace = [Request(0.0, 1024, 1, (0, 1)), Request(0.0, 1024, 1, (0, 1)), Request(0.05, 1024, 1, (0, 2))]
    found = route(trace, RoundRobin(1), capacity=10, rate=10_240.0)
    assert found.ttft == pytest.approx([0.1, 0.1, 0.1])
    assert (found.hit_rate, found.consistency, found.imbalance) == (3 / 6, 1.0, 1.0)
    assert found.busy == pytest.approx([0.15])
    assert (found.percentile(0.5), found.percentile(1.0)) == (pytest.approx(0.1), pytest.approx(0.1))


def test_a_block_never_outlives_the_one_before_it_in_a_full_cache() -> None:
    trace = [Request(float(number), 2048, 1, blocks) for number, blocks in enumerate(
        [(0, 1, 2, 3), (4, 5, 6, 7), (0, 1, 2, 3)])]
    assert route(trace, RoundRobin(1), capacity=6, rate=RATE).hit_rate == 2 / 12


def test_policies_on_a_real_trace() -> None:
    trace = read(TRACE)
    found = {policy.name: route(trace, policy, capacity=4000, rate=RATE) for policy in routing.policies(SIZE, RATE)}
    assert set(found) == {"round robin", "least loaded", "bounded hash", "prefix aware"}
    assert found["prefix aware"].hit_rate > found["round robin"].hit_rate
    assert found["prefix aware"].percentile(0.5) <= found["round robin"].percentile(0.5)
    for each in found.values():
        assert sum(each.counts) == len(trace)
        assert each.misled == 0
        assert 1 <= each.imbalance < 2


def test_workloads_are_the_same_for_the_same_seed_and_of_their_kind() -> None:
    assert workloads.shared(5, 50, seed=1) == workloads.shared(5, 50, seed=1) != workloads.shared(5, 50, seed=2)
    skewed = Counter(request.blocks[0] for request in workloads.shared(10, 2000, skew=1.5))
    assert skewed[0] > 5 * skewed[64]
    talks = workloads.conversations(6, 5)
    assert Counter(len(request.blocks) for request in talks) == {4 * turn: 6 for turn in range(1, 6)}
    assert list(requests.prefixes_differ(talks)) == []
    assert len({request.blocks for request in workloads.burst(5, same=True)}) == 1
    assert [request.arrival for request in talks] == sorted(request.arrival for request in talks)
