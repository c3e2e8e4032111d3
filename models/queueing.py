"""One engine with a remote cache, as a queue: what loading costs its requests, synchronous and asynchronous (facts: 1).

Events in the order of their time, no randomness of its own: what is random is in the requests that it is given.

Synchronous loading blocks the engine: a request is loaded and then prefilled, and the next one waits for both.
Asynchronous loading begins when a request comes, beside whatever the engine does; the loads that are under way share
the bandwidth of the instances evenly; a request joins the prefill queue when its load is done, or when its lookup's
deadline has come, and then all of it is recomputed. What was loaded stays in memory (L1), the least recently used goes
first.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Engine:
    """What an engine and its cache tier are.

    rate: tokens prefilled a second. size: bytes of a token's KV. bandwidth: bytes a second that one instance gives.
    instances: over which each prompt's bytes are spread evenly. fixed: seconds that every load takes besides.
    asynchronous: how it loads; deadline: seconds that a load may take then. memory: bytes of L1. loads: whether hits
    are loaded at all.
    """

    rate: float
    size: float
    bandwidth: float
    instances: int = 1
    fixed: float = 0.0
    asynchronous: bool = False
    deadline: float = math.inf
    memory: float = 0.0
    loads: bool = True
    blocking: bool = True

    @property
    def total_bandwidth(self) -> float:
        """Bytes a second of all instances."""
        return self.bandwidth * self.instances

    def load_time(self, tokens: float) -> float:
        """Return the seconds that a load takes alone."""
        return self.fixed + tokens * self.size / self.total_bandwidth

    def keeps_up(self, tokens: float, cached: float) -> float:
        """Return how many requests a second it keeps up with, of so many tokens of which L2 has so many.

        A load whose deadline has come counts in full.
        """
        hit = cached if self.loads else 0.0
        load, prefill = hit * self.size / self.total_bandwidth, (tokens - hit) / self.rate
        if self.asynchronous:
            return 1 / max(load, prefill)
        return 1 / (load + prefill + (self.fixed if self.blocking and hit else 0.0))


@dataclass(frozen=True, slots=True)
class Asked:
    """A request: when it comes (seconds), its tokens, how many leading ones L2 has, and of which prompt they are."""

    arrival: float
    tokens: float
    cached: float = 0.0
    prompt: int = -1


@dataclass(slots=True)
class Served:
    """What became of a request: seconds to its first token, and of them those it waited to be prefilled or loaded.

    how: "loaded", "recomputed" (nothing was to be loaded, or it was not worth it), "late" (the deadline came) or
    "memory".
    """

    ttft: float = 0.0
    waited: float = 0.0
    how: str = "recomputed"


@dataclass
class Simulated:
    """All requests of a run, in the order of their arrival.

    queued: the most that waited at once. busy: the share of the time in which the engine prefilled.
    """

    served: list[Served]
    queued: int
    busy: float

    def percentile(self, share: float) -> float:
        """Return the time within which this share of the requests had its first token."""
        ordered = sorted(each.ttft for each in self.served)
        return ordered[max(0, math.ceil(share * len(ordered)) - 1)]

    def share(self, how: str) -> float:
        """Return the share of the requests that were served so."""
        return sum(each.how == how for each in self.served) / len(self.served)


def simulate(engine: Engine, requests: Sequence[Asked]) -> Simulated:
    """Serve requests, which are in the order of their arrival."""
    return (_Asynchronous if engine.asynchronous else _Synchronous)(engine, requests).run()


class _Memory:
    """L1: how many tokens of which prompts it has."""

    def __init__(self, engine: Engine) -> None:
        self._size, self._room = engine.size, engine.memory
        self._held: OrderedDict[int, float] = OrderedDict()
        self._used = 0.0

    def has(self, request: Asked) -> bool:
        if self._held.get(request.prompt, 0.0) >= request.cached > 0:
            self._held.move_to_end(request.prompt)
            return True
        return False

    def put(self, request: Asked) -> None:
        if request.prompt < 0 or request.tokens * self._size > self._room:
            return
        self._used += (request.tokens - self._held.pop(request.prompt, 0.0)) * self._size
        self._held[request.prompt] = request.tokens
        while self._used > self._room:
            _, tokens = self._held.popitem(last=False)
            self._used -= tokens * self._size


class _Synchronous:
    """One request after the other: it is loaded, then prefilled."""

    def __init__(self, engine: Engine, requests: Sequence[Asked]) -> None:
        self._engine, self._requests, self._memory = engine, requests, _Memory(engine)

    def run(self) -> Simulated:
        engine, queue = self._engine, _Prefill()
        served = []
        for request in self._requests:
            one, load, missing = Served(), 0.0, request.tokens - request.cached
            if self._memory.has(request):
                one.how = "memory"
            elif engine.loads and request.cached:
                one.how, load = "loaded", engine.load_time(request.cached)
                if not engine.blocking:
                    load -= engine.fixed
            else:
                missing = request.tokens
            self._memory.put(request)
            queue.take(one, request.arrival, request.arrival, missing / engine.rate, load)
            if one.how == "loaded" and not engine.blocking:
                one.ttft += engine.fixed
            served.append(one)
        return queue.all(served, self._requests)


class _Prefill:
    """The engine's own queue: first come, first served."""

    def __init__(self) -> None:
        self.free = self.busy = 0.0
        self.most = 0
        self._begins: deque[float] = deque()

    def take(self, one: Served, arrival: float, now: float, prefill: float, load: float = 0.0) -> None:
        """Queue a request that came at `arrival` and is ready now: so many seconds of prefill, and of load before."""
        start = max(now, self.free)
        while self._begins and self._begins[0] <= now:
            self._begins.popleft()
        if start > now:
            self._begins.append(start)
        self.most = max(self.most, len(self._begins))
        self.free = start + load + prefill
        self.busy += prefill
        one.ttft, one.waited = self.free - arrival, start - arrival

    def all(self, served: list[Served], requests: Sequence[Asked]) -> Simulated:
        """Return what became of them all."""
        span = self.free - requests[0].arrival if requests else 0.0
        return Simulated(served, self.most, self.busy / span if span else 0.0)


_READY, _LATE, _BEGIN, _COME = 0, 2, 3, 4
"""What happens at one moment happens in this order; that a load ends comes second."""
_ENDS = 1


class _Asynchronous:
    """Loads that are under way share the bandwidth: in any time each gets as many bytes as any other.

    `_given` is how many one that has been under way from the beginning would have got by now.
    """

    def __init__(self, engine: Engine, requests: Sequence[Asked]) -> None:
        self._engine, self._requests, self._memory = engine, requests, _Memory(engine)
        self._served = [Served() for _ in requests]
        self._queue = _Prefill()
        self._events = [(request.arrival, _COME, number) for number, request in enumerate(requests)]
        heapq.heapify(self._events)
        self._loads: list[tuple[float, int]] = []
        """When each load ends, in bytes given, and whose it is; of those that were given up, too."""
        self._under_way: set[int] = set()
        self._given = self._now = 0.0

    def run(self) -> Simulated:
        while True:
            while self._loads and self._loads[0][1] not in self._under_way:
                heapq.heappop(self._loads)
            ends = math.inf
            if self._loads:
                left = self._loads[0][0] - self._given
                ends = self._now + left * len(self._under_way) / self._engine.total_bandwidth
            if self._events and (self._events[0][0], self._events[0][1]) < (ends, _ENDS):
                now, what, which = heapq.heappop(self._events)
            elif self._loads:
                now, what, which = ends, _ENDS, self._loads[0][1]
            else:
                return self._queue.all(self._served, self._requests)
            if self._under_way:
                self._given += (now - self._now) * self._engine.total_bandwidth / len(self._under_way)
            self._now = now
            self._happen(what, which)

    def _happen(self, what: int, which: int) -> None:
        request, one = self._requests[which], self._served[which]
        if what == _COME:
            self._come(which, request, one)
        elif what == _READY:
            there = request.cached if one.how in ("loaded", "memory") else 0.0
            self._queue.take(one, request.arrival, self._now, (request.tokens - there) / self._engine.rate)
            self._memory.put(request)
        elif one.how == "waiting":
            if what == _BEGIN:
                self._under_way.add(which)
                heapq.heappush(self._loads, (self._given + request.cached * self._engine.size, which))
                return
            one.how = "loaded" if what == _ENDS else "late"
            self._under_way.discard(which)
            heapq.heappush(self._events, (self._now, _READY, which))

    def _come(self, which: int, request: Asked, one: Served) -> None:
        if self._memory.has(request):
            one.how = "memory"
        elif self._engine.loads and request.cached:
            one.how = "waiting"
            heapq.heappush(self._events, (self._now + self._engine.fixed, _BEGIN, which))
            if self._engine.deadline < math.inf:
                heapq.heappush(self._events, (self._now + self._engine.deadline, _LATE, which))
            return
        heapq.heappush(self._events, (self._now, _READY, which))


def poisson(rate: float, count: int, seed: int, tokens: Sequence[float], cached: float = 1.0) -> list[Asked]:
    """Return requests that come at random, `rate` a second; tokens: drawn from these, of which L2 has that share."""
    return list(_poisson(rate, count, random.Random(seed), tokens, cached))


def _poisson(rate: float, count: int, choose: random.Random, tokens: Sequence[float], cached: float) -> Iterator[Asked]:
    now = 0.0
    for number in range(count):
        now += choose.expovariate(rate)
        size = choose.choice(tokens)
        yield Asked(now, size, size * cached, number)
