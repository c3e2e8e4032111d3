"""How often a prefix cache of some size would have hit on a trace: exact stack distances of LRU, in one pass.

A request looks up its blocks from the first on and hits as long as they are there, all at the time it comes; then it
has them all. It touches them from the last to the first, as engines free them, so that a block never outlives the one
before it. LRU keeps the blocks touched last, so a block is there in a cache of C blocks if and only if fewer than C
others were touched since: one pass gives the hits for every C at once.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvproof.models.requests import Request

FIRST = 0
"""The distance of a block that was never touched: no cache has it."""


def distances(requests: Iterable[Request]) -> list[list[int]]:
    """Return for each request the stack distance of each of its blocks when it comes; `FIRST` where it is new.

    A cache of C blocks hits those of a distance of 1 to C. It takes O(n log n) for n blocks of all requests together.
    """
    recency = _Recency()
    found = []
    for request in requests:
        found.append([recency.distance(block) for block in request.blocks])
        for block in reversed(request.blocks):
            recency.touch(block)
    return found


class _Recency:
    """Blocks in the order in which they were touched last, and how many were touched since each: a Fenwick tree.

    Places of old touches are given back by beginning anew with the blocks alone whenever there are too many of them.
    """

    def __init__(self) -> None:
        self._place: dict[int, int] = {}
        self._tree: list[int] = [0]
        self._size = 0

    def distance(self, block: int) -> int:
        place = self._place.get(block)
        if place is None:
            return FIRST
        after, tree = len(self._place), self._tree
        place -= 1
        while place > 0:
            after -= tree[place]
            place &= place - 1
        return after

    def touch(self, block: int) -> None:
        old = self._place.get(block)
        if old is not None:
            self._add(old, -1)
        if self._size + 1 == len(self._tree):
            if old is not None:
                del self._place[block]
            self._anew()
        self._size += 1
        self._place[block] = self._size
        self._add(self._size, 1)

    def _add(self, place: int, change: int) -> None:
        tree, size = self._tree, len(self._tree)
        while place < size:
            tree[place] += change
            place += place & -place

    def _anew(self) -> None:
        order = sorted(self._place, key=self._place.__getitem__)
        self._place = {block: place for place, block in enumerate(order, 1)}
        self._size = len(order)
        size = 2 * self._size + 1024
        # Every place that is taken counts once; what a node sums up follows from that at once.
        self._tree = [min(max(self._size - (place - (place & -place)), 0), place & -place) for place in range(size)]


@dataclass(frozen=True, slots=True)
class Curve:
    """The hit rate of every capacity. accesses: all blocks that were looked up. reused: each distance, ascending."""

    accesses: int
    reused: Sequence[int]

    def rate(self, blocks: float) -> float:
        """Return the share of blocks that hit with room for so many; of `math.inf` that of a cache without bounds."""
        return bisect.bisect_right(self.reused, blocks) / self.accesses if self.accesses else 0.0

    @property
    def most(self) -> float:
        """The hit rate that no capacity exceeds."""
        return self.rate(math.inf)

    def capacities(self, points: int = 40) -> list[int]:
        """Return capacities from 1 to the largest that makes a difference, evenly spread in their logarithm."""
        most = self.reused[-1] if self.reused else 1
        steps = max(1, points - 1)
        return sorted({round(math.exp(math.log(most) * step / steps)) for step in range(points)})


def curve(requests: Sequence[Request]) -> Curve:
    """Return the curve of a trace."""
    return _curve(distances(requests))


def _curve(found: Iterable[Sequence[int]]) -> Curve:
    flat = list(itertools.chain.from_iterable(found))
    return Curve(len(flat), sorted(each for each in flat if each != FIRST))


@dataclass(frozen=True, slots=True)
class Fit:
    """h(C) = k C^beta over the capacities from `least` to `most` blocks, fitted to the logarithms.

    low, high: the interval of 95 % of beta, over requests resampled in pieces of the trace. slopes: beta of the first
    and of the second half of those capacities alone, which are the same where a power law holds. worst: the largest
    factor by which the fit misses the curve.
    """

    k: float
    beta: float
    low: float
    high: float
    slopes: tuple[float, float]
    worst: float
    least: int
    most: int

    @property
    def holds(self) -> bool:
        """Whether a power law describes the curve: it misses by less than a tenth, and both halves have its slope."""
        return self.worst <= 1.1 and abs(self.slopes[0] - self.slopes[1]) <= 0.1

    def rate(self, blocks: float) -> float:
        """Return the hit rate that the fit gives."""
        return float(self.k * blocks**self.beta)


def fit(requests: Sequence[Request], least: int = 0, most: int = 0, *, pieces: int = 20, samples: int = 200,
        seed: int = 0) -> Fit | None:
    """Fit a power law to the hit-rate curve between two capacities; None with fewer than three points, or a flat one.

    Without bounds, from the capacity that has a tenth of all hits to the one that has nine tenths: below and above the
    curve is flat whatever the trace is. The interval is of a block bootstrap: the distances of `pieces` stretches of
    the trace, drawn with replacement, `samples` times.
    """
    import random

    found = distances(requests)
    whole = _curve(found)
    if len(whole.reused) < 10:
        return None
    least = least or whole.reused[len(whole.reused) // 10]
    most = most or whole.reused[len(whole.reused) * 9 // 10]
    capacities = [each for each in _spread(least, most, 24) if whole.rate(each) > 0]
    if len(capacities) < 3 or whole.rate(capacities[0]) == whole.rate(capacities[-1]):
        return None
    k, beta = _line(whole, capacities)
    half = len(capacities) // 2
    slopes = (_line(whole, capacities[: half + 1])[1], _line(whole, capacities[half:])[1])
    worst = max(max(whole.rate(each) / (k * each**beta), k * each**beta / whole.rate(each)) for each in capacities)
    # Of each stretch only how many hits each capacity has is needed.
    size = math.ceil(len(found) / pieces)
    counts = []
    for begin in range(0, len(found), size):
        part = _curve(found[begin: begin + size])
        counts.append(([bisect.bisect_right(part.reused, each) for each in capacities], part.accesses))
    choose, betas = random.Random(seed), []
    for _ in range(samples):
        drawn = [choose.choice(counts) for _ in counts]
        hits = [sum(each[0][number] for each in drawn) for number in range(len(capacities))]
        if all(hits):
            betas.append(_slope([math.log(each) for each in capacities], [math.log(each) for each in hits])[1])
    betas.sort()
    low, high = (betas[int(len(betas) * 0.025)], betas[int(len(betas) * 0.975)]) if betas else (math.nan, math.nan)
    return Fit(k, beta, low, high, slopes, worst, least, most)


def _spread(least: int, most: int, points: int) -> list[int]:
    if least < 1 or most <= least:
        return [least] if least >= 1 else []
    return sorted({round(least * (most / least) ** (step / (points - 1))) for step in range(points)})


def _line(curve: Curve, capacities: Sequence[int]) -> tuple[float, float]:
    """Return k and beta of the least squares in logarithms."""
    at, slope = _slope([math.log(each) for each in capacities], [math.log(curve.rate(each)) for each in capacities])
    return math.exp(at), slope


def _slope(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """Return where the line of least squares begins, and its slope; a slope of 0 where all x are one."""
    middle_x, middle_y = sum(x) / len(x), sum(y) / len(y)
    spread = sum((each - middle_x) ** 2 for each in x)
    slope = sum((a - middle_x) * (b - middle_y) for a, b in zip(x, y, strict=True)) / spread if spread else 0.0
    return middle_y - slope * middle_x, slope
