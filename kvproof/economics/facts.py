"""The measured runs of the rank-sharded cache (facts: 1), and the same simulated from what their source states.

No measured figure of a run is an input to its own row: the fixed cost, which the source fits to H5b alone, is for H5b
that which H3's median leaves.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kvproof.models.queueing import Asked, Engine, Simulated, simulate

TOKEN_BYTES = 48_400.0
"""Bytes of a token's KV, s (facts: 1)."""
PREFILL = 52_200.0
"""Tokens prefilled a second, R (facts: 1)."""
ARRIVALS = 1.21
"""Requests a second, lambda (facts: 1)."""
REQUESTS = 450
TOKENS = (14_715.0, 16_390.0, 17_889.0)
"""Of the hit-heavy subset: the shortest prompt, the median and the longest (facts: 1)."""
CACHED = 0.985
"""The share of prompt tokens that L2 served (facts: 1)."""
ONE_INSTANCE = (0.78e9, 0.85e9, 0.89e9)
"""Bytes a second of one instance as measured: the least, the figure of the source's own rho, the most (facts: 1)."""
EIGHT_INSTANCES = 10.76e9
"""Bytes a second of eight instances together (facts: 1)."""
DEADLINE = 3.0
"""Seconds that an asynchronous lookup may take (facts: 1)."""
FIXED = 0.33
"""Seconds that every load takes besides, T0: H5b's median less its transfer (facts: 1)."""
_MEDIAN_H3 = 0.41


@dataclass(frozen=True, slots=True)
class Row:
    """One measured run, and the engine that its source states.

    measured: figures by name, as the source has them: "median" and "p99" (seconds), "late" (share). assumed: inputs
    that the source does not give, and what was taken. bandwidths: of an instance, the least, the one that is taken, the
    most.
    """

    id: str
    says: str
    engine: Engine
    measured: Mapping[str, float]
    bandwidths: tuple[float, float, float]
    assumed: Sequence[str]


_ARRIVING = "when requests came: at random (Poisson), 1.21 a second; the median of 20 seeds"
_LENGTHS = "the lengths of prompts: half of them evenly between 14,715 and 16,390 tokens, half up to 17,889"
_BLOCKING = ("whether the fixed cost of a synchronous load keeps the engine: no, as in the source's own utilisation "
             "lambda n s / B")
_ALONE = "how bandwidth falls when few loads are under way: not at all"
_ONE = Engine(PREFILL, TOKEN_BYTES, ONE_INSTANCE[1], fixed=FIXED, blocking=False)
_EIGHT = replace(_ONE, bandwidth=EIGHT_INSTANCES / 8, instances=8)
_EACH = EIGHT_INSTANCES / 8

ROWS = {row.id: row for row in (
    Row("h1b", "one instance, synchronous loading", _ONE, {"median": 52.30, "p99": 83.0}, ONE_INSTANCE,
        (_ARRIVING, _LENGTHS, _BLOCKING, _ALONE)),
    Row("h2b", "one instance, asynchronous loading with a deadline of 3 s", replace(
        _ONE, asynchronous=True, deadline=DEADLINE), {"median": 3.5, "late": 0.49}, ONE_INSTANCE,
        (_ARRIVING, _LENGTHS, "the median: the middle of its range, 3.2 to 3.8 s",
         "whether a load whose deadline has come goes on to take bandwidth: no", _ALONE)),
    Row("h3", "eight instances", _EIGHT, {"median": _MEDIAN_H3, "p99": 0.80}, (_EACH, _EACH, _EACH),
        (_ARRIVING, _LENGTHS, _BLOCKING, "how it loads: synchronously", _ALONE)),
    Row("h5b", "eight instances, all fixes, asynchronous loading", replace(
        _EIGHT, asynchronous=True, deadline=DEADLINE,
        fixed=_MEDIAN_H3 - TOKENS[1] * CACHED * TOKEN_BYTES / EIGHT_INSTANCES),
        {"median": 0.40, "p99": 0.67}, (_EACH, _EACH, _EACH),
        (_ARRIVING, _LENGTHS, "the fixed cost: what H3's median leaves, since the source fits it to this run", _ALONE)),
)}
"""The rows of the table, by the name of the run."""


@dataclass(frozen=True, slots=True)
class Told:
    """One figure of a row: measured, simulated, and simulated with the least and the most bandwidth measured."""

    name: str
    measured: float
    simulated: float
    low: float
    high: float

    @property
    def deviation(self) -> float:
        """By which share of the measured figure the simulated one is off."""
        return self.simulated / self.measured - 1


def told(row: Row, seeds: int = 20) -> list[Told]:
    """Simulate a row; return each figure that was measured, beside what the simulator has."""
    least, taken, most = (_figures(replace(row.engine, bandwidth=each), row.measured, seeds) for each in row.bandwidths)
    return [Told(name, row.measured[name], taken[name], min(least[name], most[name]), max(least[name], most[name]))
            for name in row.measured]


def _figures(engine: Engine, names: Mapping[str, float], seeds: int) -> dict[str, float]:
    runs = [simulate(engine, arrivals(seed)) for seed in range(seeds)]
    return {name: statistics.median(_figure(run, name) for run in runs) for name in names}


def _figure(run: Simulated, name: str) -> float:
    return run.share(name) if name == "late" else run.percentile(0.5 if name == "median" else 0.99)


def arrivals(seed: int, rate: float = ARRIVALS, count: int = REQUESTS) -> list[Asked]:
    """Return the hit-heavy subset, as far as the source describes it."""
    choose, now, found = random.Random(seed), 0.0, []
    for number in range(count):
        now += choose.expovariate(rate)
        half = choose.randrange(2)
        tokens = choose.uniform(TOKENS[half], TOKENS[half + 1])
        found.append(Asked(now, tokens, tokens * CACHED, number))
    return found
