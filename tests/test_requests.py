"""Traces of requests: what is read, what is refused, hit rates of every capacity against a cache that is played."""

from __future__ import annotations

import json
import math
import os
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproof.economics.trace import read
from kvproof.errors import UsageError
from kvproof.models import requests, reuse, workloads
from kvproof.models.requests import Request

HEAD = Path(__file__).parent / "traces" / "mooncake_conversation_head.jsonl"
TRACE = Path(os.environ.get("KVPROOF_TRACE", HEAD))
LINE = {"timestamp": 5, "input_length": 600, "output_length": 1, "hash_ids": [0, 1]}


def test_the_head_of_a_real_trace_has_its_known_figures() -> None:
    head = read(HEAD)
    found = requests.summary(head)
    assert (found.requests, found.seconds, found.accesses, found.distinct_blocks) == (300, 102.0, 8490, 7814)
    assert found.mean_input == pytest.approx(14233.24, abs=0.01)
    assert reuse.curve(head).most == 676 / 8490
    assert list(requests.prefixes_differ(head)) == []


@pytest.mark.skipif("KVPROOF_TRACE" not in os.environ, reason="not run: KVPROOF_TRACE names no whole trace")
def test_the_whole_trace_has_its_known_figures() -> None:
    whole = read(TRACE)
    found = requests.summary(whole)
    assert (found.requests, found.seconds, found.distinct_blocks) == (12_031, 3536.999, 182_790)
    assert found.mean_input == pytest.approx(12_035.06, abs=0.005)
    assert reuse.curve(whole).most == pytest.approx(0.3664, abs=0.00005)


@pytest.mark.parametrize(("lines", "says"), [
    ("", "it has no request"), ("\n\n", "it has no request"), ("{", "line 1: got b'{'; expected a JSON object"),
    ("[]", "expected a JSON object with timestamp"), (json.dumps({**LINE, "timestamp": "x"}), "timestamp 'x'"),
    (json.dumps({**LINE, "timestamp": -1}), "timestamp -1"), (json.dumps({**LINE, "input_length": 1.5}), "1.5"),
    (json.dumps({**LINE, "hash_ids": ["a"]}), "hash_ids"), (json.dumps({**LINE, "hash_ids": 3}), "hash_ids 3"),
    (json.dumps(LINE) + "\n{}", "line 2"), (json.dumps({**LINE, "timestamp": math.nan}), "timestamp nan"),
])
def test_what_is_no_trace_is_said_in_a_line(lines: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(lines)
    with pytest.raises(UsageError, match=says) as error:
        read(path)
    assert "\n" not in str(error.value)
    assert str(path) in str(error.value)


def test_a_trace_that_is_not_there_is_said() -> None:
    with pytest.raises(UsageError, match="cannot read /nowhere: No such file"):
        read(Path("/nowhere"))


def test_requests_are_in_the_order_of_their_arrival_and_blocks_that_are_no_prefixes_are_told(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps({**LINE, "timestamp": at, "hash_ids": blocks}) + "\n"
                            for at, blocks in ((2000, [3, 1]), (1000, [0, 1]))))
    found = read(path)
    assert [request.arrival for request in found] == [1.0, 2.0]
    assert list(requests.prefixes_differ(found)) == ["request 1: block 1 comes after 3, and came after 0 before"]


def played(trace: list[Request], capacity: int) -> float:
    """Return the hit rate of a cache that is really kept."""
    cache: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for request in trace:
        for block in request.blocks:
            if block not in cache:
                break
            hits += 1
        for block in reversed(request.blocks):
            cache.pop(block, None)
            cache[block] = None
        while len(cache) > capacity:
            cache.popitem(last=False)
    return hits / sum(len(request.blocks) for request in trace)


TREES = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=40)
"""Prompts as paths in a tree, so that equal blocks are equal prefixes."""


def of_paths(paths: list[list[int]]) -> list[Request]:
    names: dict[tuple[int, ...], int] = {}
    return [Request(float(number), 512 * len(path), 1, tuple(
        names.setdefault(tuple(path[:count]), len(names)) for count in range(1, len(path) + 1)))
        for number, path in enumerate(paths)]


@settings(max_examples=150, deadline=None)
@given(TREES)
def test_stack_distances_are_the_hits_of_every_capacity(paths: list[list[int]]) -> None:
    trace = of_paths(paths)
    curve = reuse.curve(trace)
    for capacity in (1, 2, 3, 5, 8, 13, 100):
        assert curve.rate(capacity) == pytest.approx(played(trace, capacity)), capacity
    assert curve.rate(0) == 0
    assert curve.most == curve.rate(10**6)


@pytest.mark.parametrize("capacity", [3, 40, 500, 5000])
def test_on_a_real_trace_they_are_too(capacity: int) -> None:
    trace = read(TRACE)[:3000]
    assert reuse.curve(trace).rate(capacity) == pytest.approx(played(trace, capacity))


def test_places_of_old_touches_are_given_back() -> None:
    trace = [Request(float(number), 512, 1, (number % 7,)) for number in range(20_000)]
    assert [each for found in reuse.distances(trace) for each in found][7:] == [7] * (20_000 - 7)


def power(beta: float, k: float, blocks: int = 4000) -> list[Request]:
    """Return requests whose hit-rate curve is k C^beta up to so many blocks: each asks for one at a drawn distance."""
    import random

    choose, stack, found = random.Random(3), list(range(-blocks, 0)), []
    new = 0
    for number in range(60_000):
        share = choose.random() / k
        depth = math.ceil(share ** (1 / beta)) if share < blocks**beta else 0
        if depth and depth <= len(stack):
            block = stack.pop(-depth)
        else:
            block, new = new, new + 1
            stack.pop(0)
        stack.append(block)
        found.append(Request(float(number), 512, 1, (block,)))
    return found


@pytest.mark.parametrize("beta", [0.3, 0.6])
def test_a_power_law_is_found_with_its_exponent(beta: float) -> None:
    found = reuse.fit(power(beta, 0.5 / 4000**beta), 20, 2000)
    assert found is not None
    assert found.holds, found
    assert found.beta == pytest.approx(beta, abs=0.05)
    assert found.low - 0.03 < beta < found.high + 0.03
    assert found.high - found.low < 0.2


def test_it_is_said_where_a_power_law_does_not_hold() -> None:
    # All blocks are asked for in turn: nothing hits below their number, and everything above it.
    turn = [Request(float(number), 512, 1, (block,)) for number, block in enumerate([*range(500)] * 8)]
    mixed = [*turn, *workloads.shared(3, 2000, own=0)]
    found = reuse.fit(mixed, 1, 600)
    assert found is not None
    assert not found.holds
    assert reuse.fit([Request(0.0, 512, 1, (0,))]) is None
    assert reuse.fit(turn, 600, 6000) is None, "a flat curve is no power law"


def test_rates_of_a_fit_are_those_of_its_law() -> None:
    made: Any = reuse.Fit(0.1, 0.5, 0.4, 0.6, (0.5, 0.5), 1.0, 1, 100)
    assert made.rate(4) == pytest.approx(0.2)
    assert made.holds
