"""Requests that are made up: hot prefixes, bursts, conversations; the same for the same seed."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

from kvproof.models.requests import BLOCK_TOKENS, Request


def shared(prefixes: int, requests: int, *, blocks: int = 8, own: int = 1, rate: float = 8.0, seed: int = 0,
           skew: float = 0.0) -> list[Request]:
    """Return requests that each begin with one of so many prefixes of `blocks` blocks, and have `own` blocks after it.

    rate: requests a second, at random. skew: prefix number k is drawn as often as k^-skew says: 0 is all alike.
    """
    choose, number = random.Random(seed), itertools.count(prefixes * blocks)
    weights = [1 / (k + 1) ** skew for k in range(prefixes)]
    drawn = choose.choices(range(prefixes), weights, k=requests)
    arrivals = _arrivals(choose, rate)
    return [_request(next(arrivals), (*range(which * blocks, (which + 1) * blocks), *itertools.islice(number, own)))
            for which in drawn]


def burst(requests: int, *, blocks: int = 8, at: float = 0.0, same: bool = False) -> list[Request]:
    """Return requests that all come at once; same: with one prompt, else with none in common."""
    return [_request(at, tuple(range(blocks)) if same else tuple(range(number * blocks, (number + 1) * blocks)))
            for number in range(requests)]


def conversations(talks: int, turns: int, *, blocks: int = 4, rate: float = 4.0, seed: int = 0) -> list[Request]:
    """Return talks of so many turns, mixed at random; each turn has all that was said before, and `blocks` more."""
    choose, number, said = random.Random(seed), itertools.count(), [tuple[int, ...]()] * talks
    order = [talk for talk in range(talks) for _ in range(turns)]
    choose.shuffle(order)
    arrivals, found = _arrivals(choose, rate), []
    for talk in order:
        said[talk] += tuple(itertools.islice(number, blocks))
        found.append(_request(next(arrivals), said[talk]))
    return found


def _arrivals(choose: random.Random, rate: float) -> Iterator[float]:
    now = 0.0
    while True:
        now += choose.expovariate(rate)
        yield now


def _request(arrival: float, blocks: tuple[int, ...]) -> Request:
    return Request(arrival, len(blocks) * BLOCK_TOKENS, 1, blocks)
