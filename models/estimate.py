"""What a load costs, estimated from loads that were measured: T0 and B of T0 + bytes / B, with intervals."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Estimate:
    """T0 in seconds and B in bytes a second, each with its interval of 95 %.

    worst: the largest share by which a measured median is off the line. points: how many sizes were measured.
    """

    fixed: float
    fixed_interval: tuple[float, float]
    bandwidth: float
    bandwidth_interval: tuple[float, float]
    worst: float
    points: int

    def load_time(self, size: float) -> float:
        """Return the seconds in which so many bytes are loaded."""
        return self.fixed + size / self.bandwidth


def estimate(measured: Sequence[tuple[float, Sequence[float]]], *, samples: int = 400, seed: int = 0) -> Estimate:
    """Fit a line through the times (seconds) of several sizes (bytes); raises ValueError with fewer than two sizes.

    The line is that of Theil and Sen through the medians, which a few slow loads do not move. The intervals are of a
    bootstrap: each size's times are drawn again, with replacement.
    """
    if len({size for size, _ in measured}) < 2 or any(not times for _, times in measured):
        raise ValueError("a line needs loads of two sizes at least")
    fixed, slope = _line([(size, _median(times)) for size, times in measured])
    choose, lines = random.Random(seed), []
    for _ in range(samples):
        lines.append(_line([(size, _median(choose.choices(times, k=len(times)))) for size, times in measured]))
    fixes, slopes = sorted(each for each, _ in lines), sorted(each for _, each in lines)
    low, high = int(samples * 0.025), int(samples * 0.975)
    worst = max(abs(fixed + slope * size - _median(times)) / _median(times) for size, times in measured)
    return Estimate(fixed, (fixes[low], fixes[high]), _inverse(slope), (_inverse(slopes[high]), _inverse(slopes[low])),
                    worst, len(measured))


def _inverse(slope: float) -> float:
    return 1 / slope if slope > 0 else math.inf


def _line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for number, a in enumerate(points) for b in points[number + 1:]
              if a[0] != b[0]]
    slope = _median(slopes)
    return _median([time - slope * size for size, time in points]), slope


def _median(values: Sequence[float]) -> float:
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
