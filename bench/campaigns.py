"""Campaigns: cases a second and a CPU-second, and in how many cases a deep bug is found, guided and not.

    python -m bench.campaigns [SEEDS]

Absolute figures are of this machine; what compares are the ratios, guided to unguided in one run.
"""

from __future__ import annotations

import os
import statistics
import sys
import time

from kvproof.campaigns.worker import Task, Worker

MOST = 1500
"""Cases after which a search is given up, and counts as so many."""
SPEED = 20.0
"""Seconds for which cases are counted."""


def speed() -> tuple[float, float]:
    """Return cases a second, and a CPU-second of everything they take, on the reference."""
    worker = Worker(Task(("reference",), 0, 1, at_once=12))
    try:
        _played(worker, 1)
        begun, before = time.monotonic(), _cpu()
        cases = _played(worker, None, SPEED)
        return cases / (time.monotonic() - begun), cases / (_cpu() - before)
    finally:
        worker.stop()


def until_found(seed: int, guided: bool) -> int:
    """Return after how many cases the deep bug was found."""
    worker = Worker(Task(("bench.deep:Deep",), seed, 1, at_once=12, guided=guided))
    try:
        return _played(worker, MOST, found="no-stale-hit")
    finally:
        worker.stop()


def _played(worker: Worker, most: int | None, seconds: float = 600.0, found: str = "") -> int:
    """Play until so many cases are done, the time is over or such a rule is found to be broken; return how many."""
    cases, acknowledged = 0, []
    until = time.monotonic() + seconds
    while time.monotonic() < until and (most is None or cases < most):
        reports = worker.exchange(acknowledged)
        acknowledged = [report["number"] for report in reports if "number" in report]
        for report in reports:
            if report["report"] == "failed":
                raise SystemExit(report["says"])
            if report["report"] == "played":
                cases += report["counts"].get("cases", 0)
            if found and report["report"] == "found" and report["rule"] == found:
                return cases
        time.sleep(0.02)
    return cases


def _cpu() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def main() -> None:
    """Print the figures."""
    a_second, a_cpu_second = speed()
    print(f"reference: {a_second:.1f} cases a second, {a_cpu_second:.1f} a CPU-second of all processes that have ended")
    found: dict[bool, list[int]] = {True: [], False: []}
    for seed in range(int(sys.argv[1]) if len(sys.argv) > 1 else 5):
        for guided in (True, False):
            found[guided].append(until_found(seed, guided))
            print(f"seed {seed}, {'guided' if guided else 'unguided'}: {found[guided][-1]} cases", flush=True)
    guided, unguided = (statistics.median(found[each]) for each in (True, False))
    print(f"median of cases until the deep bug is found: guided {guided:g}, unguided {unguided:g}, "
          f"ratio {guided / unguided:.2f} (below 1 wanted)")


if __name__ == "__main__":
    main()
