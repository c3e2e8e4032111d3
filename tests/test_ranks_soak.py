"""A soak of ranks: shared prefixes, evictions and faults, for ten minutes at night."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from kvproof import connectors, faults
from kvproof.faults.supervisor import supervisor
from kvproof.ranks import check
from kvproof.ranks.soak import soak


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize(("seconds", "least"), [(10, 20), pytest.param(600, 1000, marks=pytest.mark.nightly)])
def test_nothing_hangs_differs_or_is_left_behind(seconds: int, least: int) -> None:
    # The process in which all proxies live, and the supervisor, stay for the next ones.
    with faults.proxy(("127.0.0.1", 1)):
        supervisor()
    before = descriptors(), threading.active_count()
    with check.grounds(4, "cpu") as make:
        ground = make(connectors.find("sharded-reference"), threading.Event())
        found = soak(ground, seconds, seed=0)
    print(found)
    assert found.wrong == []
    assert found.counts["requests"] >= least, found
    assert found.counts["hits"] > found.counts["requests"] / 2, found
    assert found.counts["struck"] > 0
    assert found.counts["needles"] > found.counts["hits"], "each rank's chunks are looked at"
    assert threading.active_count() <= before[1] + 1
    assert descriptors() <= before[0] + 2
