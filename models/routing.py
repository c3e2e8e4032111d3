"""Which replica serves a request: policies over N replicas with caches of their own, on a trace, and what comes of it.

Two measures are kept apart (facts: 2). The prefix hit rate is the share of blocks that the chosen replica had. Route
consistency is the share of requests that went where the last one with the same beginning went, which a router can count
without asking any replica; with few beginnings every replica soon has them all, and the two part.

A replica prefills one request after the other, as long as the tokens take that it does not have. The router knows what
it has sent, and when that will be done.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import repeat, takewhile

from kvproof.models.requests import BLOCK_TOKENS, Request


@dataclass
class Fleet:
    """Replicas as a router sees them.

    ready: when each has prefilled all that was sent to it. queues: when each of the requests ends that were sent to it,
    in their order. index: the blocks that the router takes each to have; what replicas evict is told. now: seconds.
    """

    size: int
    now: float = 0.0
    ready: list[float] = field(default_factory=list)
    queues: list[deque[float]] = field(default_factory=list)
    index: list[Collection[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Begin with nothing sent."""
        self.ready, self.queues = [0.0] * self.size, [deque() for _ in range(self.size)]

    @property
    def waiting(self) -> list[int]:
        """How many requests each has that are not done."""
        for queue in self.queues:
            while queue and queue[0] <= self.now:
                queue.popleft()
        return list(map(len, self.queues))

    def load(self, replica: int) -> float:
        """Return the seconds of work that a replica still has."""
        return max(0.0, self.ready[replica] - self.now)

    def longest(self, blocks: Sequence[int]) -> tuple[list[int], int]:
        """Return the replicas that have most of the leading blocks, and how many those are."""
        index, count = self.index, 0
        held = list(range(self.size))
        for block in blocks:
            if len(held) == 1:
                break
            more = [replica for replica in held if block in index[replica]]
            if not more:
                return held, count
            held, count = more, count + 1
        only = index[held[0]] if len(held) == 1 else ()
        return held, count + len(list(takewhile(only.__contains__, blocks[count:])))

    def restarted(self, replica: int) -> None:
        """Take note that a replica has lost what it had."""
        self.index[replica] = ()


class Policy:
    """Chooses replicas."""

    name = ""

    def __init__(self, size: int) -> None:
        """Begin with so many replicas."""
        self.size = size

    def choose(self, request: Request, fleet: Fleet) -> int:
        """Return the replica for a request."""
        raise NotImplementedError


class RoundRobin(Policy):
    """One after the other, whatever comes."""

    name = "round robin"
    _next = -1

    def choose(self, request: Request, fleet: Fleet) -> int:
        """See `Policy`."""
        self._next = (self._next + 1) % self.size
        return self._next


class LeastLoaded(Policy):
    """The one that will be done first; of equals the one that was chosen longest ago, so that a tie is no herd."""

    name = "least loaded"

    def __init__(self, size: int) -> None:
        """See `Policy`."""
        super().__init__(size)
        self._chosen = list(range(-size, 0))
        self._count = 0

    def choose(self, request: Request, fleet: Fleet) -> int:
        """See `Policy`."""
        return self.took(self.least(fleet, range(self.size)))

    def least(self, fleet: Fleet, among: Sequence[int]) -> int:
        """Return the least loaded of some."""
        if len(among) == 1:
            return among[0]
        ready, now, chosen = fleet.ready, fleet.now, self._chosen
        soonest = min(ready) if len(among) == self.size else min([ready[replica] for replica in among])
        bound = soonest if soonest > now else now
        equal = [replica for replica in among if ready[replica] <= bound]
        return equal[0] if len(equal) == 1 else min(equal, key=chosen.__getitem__)

    def took(self, replica: int) -> int:
        """Take note that a replica was chosen, and return it."""
        self._count += 1
        self._chosen[replica] = self._count
        return replica


class BoundedHash(Policy):
    """Consistent hashing with bounded loads: clockwise from the prompt's beginning to the first that is not full.

    beginning: how many leading blocks make the key. points: of each replica on the ring. slack: a replica is full from
    ceil((1 + slack) average) requests on, the new one counted.
    """

    name = "bounded hash"

    def __init__(self, size: int, *, beginning: int = 2, points: int = 100, slack: float = 0.25) -> None:
        """See `Policy`."""
        super().__init__(size)
        self.beginning, self.points, self.slack = beginning, points, slack
        ring = sorted((_hash(f"replica {replica} {point}"), replica) for replica in range(size) for point in
                      range(points))
        self._places, self._replicas = [place for place, _ in ring], [replica for _, replica in ring]
        self._orders: dict[int, tuple[int, ...]] = {}
        self._preferred: dict[tuple[int, ...], tuple[int, ...]] = {}

    def preferred(self, key: tuple[int, ...]) -> tuple[int, ...]:
        """Return the replicas in the order in which they are asked to take a key."""
        found = self._preferred.get(key)
        if found is None:
            at = bisect_right(self._places, _hash(f"key {key}"))
            if at not in self._orders:
                self._orders[at] = tuple(dict.fromkeys(self._replicas[at:] + self._replicas[:at]))
            found = self._preferred[key] = self._orders[at]
        return found

    def bound(self, waiting: Sequence[int]) -> int:
        """Return how many requests a replica may have, the new one counted."""
        return math.ceil((1 + self.slack) * (sum(waiting) + 1) / self.size)

    def choose(self, request: Request, fleet: Fleet) -> int:
        """See `Policy`."""
        waiting = fleet.waiting
        most = self.bound(waiting)
        for replica in self.preferred(request.blocks[: self.beginning]):
            if waiting[replica] < most:
                return replica
        raise AssertionError(f"all replicas are full, with {waiting} requests and {most} at most")


class PrefixAware(LeastLoaded):
    """The least loaded of those that have most of the prompt, unless it is so busy that another one is done sooner.

    Going elsewhere costs recomputing what it has: it is left when it would begin later than the least loaded by more
    than that takes. rate: tokens that a replica prefills in a second.
    """

    name = "prefix aware"

    def __init__(self, size: int, *, rate: float) -> None:
        """See `Policy`."""
        super().__init__(size)
        self.rate = rate

    def choose(self, request: Request, fleet: Fleet) -> int:
        """See `Policy`."""
        held, count = fleet.longest(request.blocks)
        if not count:
            return super().choose(request, fleet)
        best = self.least(fleet, held)
        sooner = fleet.load(best) - max(0.0, min(fleet.ready) - fleet.now)
        if sooner > count * BLOCK_TOKENS / self.rate:
            return super().choose(request, fleet)
        return self.took(best)


def _hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


def policies(size: int, rate: float) -> list[Policy]:
    """Return one of each."""
    return [RoundRobin(size), LeastLoaded(size), BoundedHash(size), PrefixAware(size, rate=rate)]


@dataclass(frozen=True, slots=True)
class Routed:
    """What a policy made of a trace.

    hit_rate: of blocks, as the replicas had them. consistency: of requests whose beginning was seen before. ttft: of
    each request in seconds, its wait and its prefill. busy: seconds that each replica has prefilled. counts: requests
    of each. misled: how many requests went to a replica that had fewer leading blocks than the router took it to have.
    """

    policy: str
    hit_rate: float
    consistency: float
    ttft: Sequence[float]
    busy: Sequence[float]
    counts: Sequence[int]
    misled: int = 0

    def percentile(self, share: float) -> float:
        """Return the time within which this share of the requests had its first token."""
        ordered = sorted(self.ttft)
        return ordered[max(0, math.ceil(share * len(ordered)) - 1)]

    @property
    def imbalance(self) -> float:
        """How much busier the busiest replica was than the mean one: 1 where all were equally busy."""
        mean = sum(self.busy) / len(self.busy)
        return max(self.busy) / mean if mean else 1.0


def route(requests: Iterable[Request], policy: Policy, *, capacity: int, rate: float, beginning: int = 2,
          restarts: Sequence[tuple[float, int]] = (), fleet: Fleet | None = None) -> Routed:
    """Send a trace, in the order of its arrivals, to replicas of `capacity` blocks that prefill `rate` tokens a second.

    beginning: how many leading blocks are the beginning whose route is to be consistent. restarts: (seconds, replica):
    then that replica loses what it has, and the router is told. fleet: as the router sees it, in the beginning.
    """
    size = policy.size
    fleet = fleet or Fleet(size)
    ready, queues = fleet.ready, fleet.queues
    caches: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(size)]
    fleet.index = list(caches)
    busy, counts, ttft = [0.0] * size, [0] * size, []
    hits = looked = same = seen = misled = 0
    last: dict[tuple[int, ...], int] = {}
    left = sorted(restarts, reverse=True)
    for request in requests:
        fleet.now = now = request.arrival
        while left and left[-1][0] <= now:
            _, gone = left.pop()
            fleet.restarted(gone)
            caches[gone] = OrderedDict()
            if not fleet.index[gone]:
                fleet.index[gone] = caches[gone]
        chosen = policy.choose(request, fleet)
        blocks, cache = request.blocks, caches[chosen]
        hit = len(list(takewhile(cache.__contains__, blocks)))
        misled += hit < len(blocks) and blocks[hit] in fleet.index[chosen]
        hits += hit
        looked += len(blocks)
        key = blocks[:beginning]
        if key in last:
            seen += 1
            same += last[key] == chosen
        last[key] = chosen
        _touch(cache, blocks, hit)
        _all(map(cache.popitem, repeat(False, len(cache) - capacity)))
        takes = max(0, request.input_tokens - hit * BLOCK_TOKENS) / rate
        ready[chosen] = done = (ready[chosen] if ready[chosen] > now else now) + takes
        busy[chosen] += takes
        counts[chosen] += 1
        queues[chosen].append(done)
        ttft.append(done - now)
    rates = (hits / looked if looked else 0.0, same / seen if seen else 0.0)
    return Routed(policy.name, *rates, ttft, busy, counts, misled)


def _touch(cache: OrderedDict[int, None], blocks: tuple[int, ...], hit: int) -> None:
    """Touch blocks from the last to the first, so that no block outlives the one before it; the first `hit` are there.

    Then the later ones are not, since each is evicted before the one before it.
    """
    _all(map(cache.setdefault, blocks[hit:][::-1]))
    _all(map(cache.move_to_end, blocks[:hit][::-1]))


def _all(calls: Iterator[object]) -> None:
    """Make calls one after the other, without a step of the interpreter for each, of which most of a study would be."""
    deque(calls, maxlen=0)


def moved(policy: Callable[[int], BoundedHash], size: int, keys: Sequence[tuple[int, ...]]) -> float:
    """Return the share of keys that another replica is first asked for once there is one replica more."""
    before, after = policy(size), policy(size + 1)
    return sum(before.preferred(key)[0] != after.preferred(key)[0] for key in keys) / len(keys)
