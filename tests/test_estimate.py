"""Estimates of a load's cost from measurements: the right line, and intervals that cover it."""

from __future__ import annotations

import random

import pytest

from kvproof.models.estimate import estimate

SIZES = (1e5, 1e6, 5e6, 2e7, 8e7)


def measured(seed: int, fixed: float, bandwidth: float, noise: float) -> list[tuple[float, list[float]]]:
    choose = random.Random(seed)
    return [(size, [(fixed + size / bandwidth) * (1 + choose.expovariate(1 / noise)) for _ in range(15)])
            for size in SIZES]


def test_an_exact_line_is_found() -> None:
    found = estimate([(size, [0.25 + size / 4e8]) for size in SIZES])
    assert found.fixed == pytest.approx(0.25)
    assert found.bandwidth == pytest.approx(4e8)
    assert found.worst == pytest.approx(0, abs=1e-9)
    assert found.load_time(4e8) == pytest.approx(1.25)
    assert found.points == 5


def test_intervals_cover_what_is_true_of_noisy_loads() -> None:
    covered = 0
    for seed in range(40):
        found = estimate(measured(seed, 0.02, 2e9, 0.02), samples=200)
        # The noise only ever adds, by a median of 1.4 %.
        covered += found.fixed_interval[0] <= 0.02 * 1.0139 <= found.fixed_interval[1]
        assert found.bandwidth == pytest.approx(2e9, rel=0.08)
        assert found.bandwidth_interval[0] <= found.bandwidth <= found.bandwidth_interval[1]
    assert covered >= 34


def test_a_few_slow_loads_do_not_move_it() -> None:
    points = measured(1, 0.02, 2e9, 0.001)
    points[2][1][0] = points[4][1][3] = 5.0
    found = estimate(points)
    assert found.fixed == pytest.approx(0.02, rel=0.05)
    assert found.bandwidth == pytest.approx(2e9, rel=0.05)


@pytest.mark.parametrize("points", [[], [(1.0, [0.1])], [(1.0, [0.1]), (1.0, [0.2])], [(1.0, [0.1]), (2.0, [])]])
def test_a_line_needs_two_sizes(points: list[tuple[float, list[float]]]) -> None:
    with pytest.raises(ValueError, match="two sizes"):
        estimate(points)
