"""The simulated engine against closed forms, the measured runs, and figures of the sources from their inputs."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import pytest

from kvproof.economics import facts
from kvproof.economics.facts import ROWS, told
from kvproof.models.cost import Cost, Split
from kvproof.models.queueing import Asked, Engine, poisson, simulate
from kvproof.models.tiers import Budget, Rent, Tier, token_bytes

LOAD = 0.7
"""Utilisation of the queues that are compared with closed forms."""


def waits(draw: Callable[[random.Random], float], *, sharing: bool = False) -> list[float]:
    """Return the mean wait of several long runs; sharing: the mean time in loading, which share one bandwidth."""
    found = []
    for seed in range(12):
        choose, now, asked = random.Random(seed), 0.0, []
        for number in range(12_000):
            now += choose.expovariate(LOAD)
            size = draw(choose)
            asked.append(Asked(now, size, size if sharing else 0.0, number))
        engine = Engine(1e15, 1.0, 1.0, asynchronous=True) if sharing else Engine(1.0, 1.0, 1.0)
        served = simulate(engine, asked).served
        found.append(statistics.mean(each.ttft if sharing else each.waited for each in served))
    return found


@pytest.mark.parametrize(("draw", "sharing", "expected"), [
    (lambda choose: 1.0, False, LOAD / (2 * (1 - LOAD))),
    (lambda choose: choose.expovariate(1.0), False, LOAD / (1 - LOAD)),
    (lambda choose: choose.expovariate(1.0), True, 1 / (1 - LOAD)),
    (lambda choose: 1.0, True, 1 / (1 - LOAD)),
], ids=["M/D/1", "M/M/1", "M/M/1 shared", "M/D/1 shared"])
def test_means_are_those_of_the_closed_forms(
    draw: Callable[[random.Random], float], sharing: bool, expected: float
) -> None:
    found = waits(draw, sharing=sharing)
    error = statistics.stdev(found) / math.sqrt(len(found))
    assert abs(statistics.mean(found) - expected) < 3.5 * error
    assert error < 0.05 * expected, "the runs are too short to tell"


def test_a_synchronous_load_keeps_the_engine_and_an_asynchronous_one_does_not() -> None:
    engine = Engine(rate=100.0, size=10.0, bandwidth=1000.0, fixed=0.5)
    # A hit of 100 tokens takes 0.5 + 1 s; another request, without a hit, comes at once and takes 1 s.
    asked = [Asked(0.0, 100.0, 100.0, 0), Asked(0.0, 100.0, 0.0, 1)]
    blocked = simulate(engine, asked).served
    assert [each.ttft for each in blocked] == pytest.approx([1.5, 2.5])
    assert [each.how for each in blocked] == ["loaded", "recomputed"]
    apart = simulate(replace(engine, asynchronous=True), asked).served
    assert [each.ttft for each in apart] == pytest.approx([1.5, 1.0])
    free = simulate(replace(engine, blocking=False), asked).served
    assert [each.ttft for each in free] == pytest.approx([1.5, 2.0])


def test_loads_share_the_bandwidth_and_late_ones_are_recomputed() -> None:
    engine = Engine(rate=1000.0, size=10.0, bandwidth=500.0, instances=2, asynchronous=True, deadline=1.5)
    both = [Asked(0.0, 100.0, 100.0, 0), Asked(0.5, 50.0, 50.0, 1)]
    # 500 bytes alone, then both at half the speed: the second is done after 1 s, the first after what is left.
    assert [each.ttft for each in simulate(engine, both).served] == pytest.approx([1.5, 1.0])
    many = [Asked(0.0, 100.0, 100.0, number) for number in range(3)]
    late = simulate(engine, many)
    assert [each.how for each in late.served] == ["late"] * 3
    assert [each.ttft for each in late.served] == pytest.approx([1.6, 1.7, 1.8])
    assert late.queued == 2


@pytest.mark.parametrize("engine", [
    Engine(100.0, 10.0, 1000.0), Engine(100.0, 10.0, 1000.0, fixed=0.4), Engine(100.0, 10.0, 500.0, asynchronous=True),
    Engine(10.0, 10.0, 500.0, asynchronous=True, fixed=0.4), Engine(100.0, 10.0, 1.0, loads=False),
    Engine(100.0, 10.0, 1000.0, instances=4, fixed=0.4, blocking=False)])
def test_below_the_rate_that_an_engine_keeps_up_with_nobody_waits_longer_and_longer(engine: Engine) -> None:
    for times, grows in ((0.9, False), (1.1, True)):
        rate = times * engine.keeps_up(100.0, 80.0)
        served = simulate(engine, [Asked(number / rate, 100.0, 80.0, number) for number in range(2000)]).served
        assert (served[-1].ttft > 2 * served[200].ttft) == grows, (times, served[200], served[-1])


def test_memory_has_what_was_served_until_there_is_no_room() -> None:
    engine = Engine(rate=100.0, size=1.0, bandwidth=100.0, memory=250.0)
    asked = [Asked(float(10 * number), 100.0, 100.0, prompt) for number, prompt in enumerate([0, 1, 0, 2, 1])]
    assert [each.how for each in simulate(engine, asked).served] == ["loaded", "loaded", "memory", "loaded", "loaded"]


def test_nothing_is_loaded_where_nothing_should_be() -> None:
    asked = poisson(1.0, 50, 0, [100.0])
    for engine in (Engine(1000.0, 1.0, 1.0, loads=False), Engine(1000.0, 1.0, 1.0, loads=False, asynchronous=True)):
        found = simulate(engine, asked)
        assert found.share("recomputed") == 1
        assert found.percentile(0.5) == pytest.approx(0.1)
    assert simulate(Engine(1.0, 1.0, 1.0), []).served == []
    assert poisson(1.0, 50, 0, [100.0]) == asked != poisson(1.0, 50, 1, [100.0])


@pytest.mark.parametrize("name", sorted(ROWS))
def test_a_row_follows_from_its_inputs(name: str) -> None:
    row, few = ROWS[name], 4
    before = {each.name: each.simulated for each in told(row, few)}
    moved = [replace(row.engine, rate=row.engine.rate / 2), replace(row.engine, size=row.engine.size * 1.2),
             replace(row.engine, fixed=row.engine.fixed + 0.2)]
    for engine in moved:
        assert {each.name: each.simulated for each in told(replace(row, engine=engine), few)} != before
    slower: tuple[float, float, float] = tuple(each / 1.5 for each in row.bandwidths)  # type: ignore[assignment]  # three
    assert {each.name: each.simulated for each in told(replace(row, bandwidths=slower), few)} != before
    # What was measured in a run is no input to it.
    other = told(replace(row, measured=dict.fromkeys(row.measured, 123.0)), few)
    assert {each.name: each.simulated for each in other} == before
    assert row.assumed


def test_the_rows_are_near_what_was_measured() -> None:
    found = {(name, each.name): each for name, row in ROWS.items() for each in told(row)}
    assert abs(found["h2b", "median"].deviation) < 0.1
    assert abs(found["h3", "median"].deviation) < 0.05
    assert abs(found["h5b", "median"].deviation) < 0.1
    # With one instance and synchronous loading there is no steady state: the least bandwidth has the measured tail.
    assert found["h1b", "p99"].low < 83 < found["h1b", "p99"].high
    assert found["h1b", "median"].simulated > 20 * found["h3", "median"].simulated


def test_figures_of_the_sources_follow_from_others() -> None:
    size, rate, fixed = Fraction("48400"), Fraction("52200"), Fraction("0.33")
    eight = Cost(size, rate, Fraction("10.76e9"), fixed)
    assert float(eight.break_even(Fraction(1))) == pytest.approx(2.53e9, rel=0.002)
    assert float(eight.floor(Fraction(1))) == pytest.approx(17_000, rel=0.02)
    assert float(eight.least_tokens()) == pytest.approx(22_500, rel=0.01)
    assert not Cost(size, rate, Fraction("1.71e9")).loads(Fraction(10**9)), "every hit lost"
    prompt = Fraction("16390") * size
    assert float(prompt) == pytest.approx(0.79e9, rel=0.005)
    assert float(prompt / Fraction("10.76e9")) == pytest.approx(0.074, abs=0.0005)
    assert round(0.40 - 0.79 / 10.76, 2) == float(fixed)
    one = Split(Fraction("1.21"), Fraction("0.79e9"), Fraction("0.85e9"), 1)
    assert float(one.utilisation()) == pytest.approx(1.13, abs=0.01)
    for bandwidth, busy in (("0.89e9", 1.08), ("0.78e9", 1.23)):
        assert float(replace(one, bandwidth=Fraction(bandwidth)).utilisation()) == pytest.approx(busy, abs=0.01)
    eight_of = Split(Fraction("1.21"), Fraction("0.79e9"), Fraction("10.76e9") / 8, 8)
    assert float(eight_of.utilisation()) == pytest.approx(0.09, abs=0.002)
    assert float(256 * size) == pytest.approx(12.4e6, rel=0.002)
    assert token_bytes(32, 8, 128, 2) == 131_072
    assert token_bytes(32, 8, 128, 2) * 8192 == 2**30
    assert round(1e9 / 131_072, -3) == 8000
    for figure, told_as in ((0.333 / 0.21e-3, 1600), (1 / 8, 0.125), (124 * 0.67, 83), (10.76 / 1.71, 6.3)):
        assert figure == pytest.approx(told_as, rel=0.01)
    assert facts.ROWS["h5b"].engine.fixed == pytest.approx(0.33, abs=0.01)


TIERS = (Tier("HBM", 1e9 / 0.21e-3), Tier("host", 50e9), Tier("NVMe", 1e9 / 0.333))


def test_more_transfer_takes_tiers_off_the_critical_path_slowest_first() -> None:
    budget = Budget(0.5, 0.05, 0.1)
    left = [[tier.name for tier in budget.critical(TIERS, 1e9, transfer)] for transfer in (0.0, 0.01, 0.1, 0.34, 0.36)]
    assert left == [["HBM", "host", "NVMe"], ["HBM", "host", "NVMe"], ["HBM", "host"], ["HBM"], []]


@pytest.mark.parametrize("beta", [0.2, 0.5, 0.8])
def test_c_star_is_the_best_capacity(beta: float) -> None:
    rent = Rent(requests=5.0, saved=1e-4, rent=1e-15, k=1e-6, beta=beta)
    best = rent.best()
    assert rent.gain(best) > max(rent.gain(best * 0.9), rent.gain(best * 1.1), rent.gain(best * 10))
    assert (rent.k * rent.full() ** beta) == pytest.approx(1)


def test_c_star_explodes_as_beta_nears_one() -> None:
    best = [Rent(5.0, 1e-4, 1e-15, 1e-6, beta).best() for beta in (0.5, 0.8, 0.9, 0.95, 0.999, 1.0)]
    assert best == sorted(best)
    assert best[-1] == best[-2] == math.inf
