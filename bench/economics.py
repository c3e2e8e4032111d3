"""The routing study and stack distances: requests a second, and how their time grows with the length of a trace.

    python -m bench.economics [TRACE]

Without a trace, conversations are made up. Absolute figures are of this machine; growth is a ratio within one run.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path

from kvproof.economics.trace import read
from kvproof.models import requests, reuse, routing, workloads

_RATE = 10_000.0
_SIZES = (1, 2, 4, 8)


def best(what: Callable[[], object], times: int = 3) -> float:
    """Return the CPU seconds of the fastest of some runs, all of which is in this one thread."""
    found = []
    for _ in range(times):
        begun = time.process_time()
        what()
        found.append(time.process_time() - begun)
    return min(found)


def main() -> int:
    """Print the figures; return 1 when the growth is not linear."""
    if len(sys.argv) > 1:
        trace = read(Path(sys.argv[1]))
        print(f"{sys.argv[1]}: {requests.summary(trace)}")
    else:
        trace = workloads.conversations(400, 30, blocks=2)
    blocks = sum(len(request.blocks) for request in trace) / len(trace)
    for policy in (routing.RoundRobin, routing.LeastLoaded, routing.BoundedHash, _aware):
        seconds = best(lambda policy=policy: routing.route(trace, policy(8), capacity=4000, rate=_RATE))
        print(f"{policy(8).name}: {len(trace) / seconds:,.0f} requests a second of {blocks:.0f} blocks each")
    ok = True
    for name, what in (("routing", lambda some: routing.route(some, _aware(8), capacity=4000, rate=_RATE)),
                       ("stack distances", reuse.curve)):
        each = {}
        for size in _SIZES:
            some = workloads.conversations(150 * size, 20, blocks=1)
            each[size] = best(lambda some=some, what=what: what(some)) / size
        growth = each[_SIZES[-1]] / each[_SIZES[0]]
        ok &= growth < 2
        print(f"{name}: {_SIZES[-1]} times the requests take {growth:.2f} times as long a request (below 2 wanted)")
    print(f"most memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")
    return 0 if ok else 1


def _aware(size: int) -> routing.PrefixAware:
    return routing.PrefixAware(size, rate=_RATE)


if __name__ == "__main__":
    sys.exit(main())
