"""When to load a cached prefix and when to recompute it, what a wrong choice costs, and the queue of loads (facts: 1).

All figures are exact rationals: tokens, bytes, seconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Cost:
    """What loading and recomputing take.

    size: bytes of a token's KV. rate: tokens recomputed a second. bandwidth: bytes loaded a second. fixed: seconds that
    every load takes besides.
    """

    size: Fraction
    rate: Fraction
    bandwidth: Fraction
    fixed: Fraction = Fraction(0)

    def recompute_time(self, tokens: Fraction) -> Fraction:
        """Return the seconds in which so many tokens are recomputed."""
        return tokens / self.rate

    def load_time(self, tokens: Fraction) -> Fraction:
        """Return the seconds in which so many tokens are loaded."""
        return self.fixed + tokens * self.size / self.bandwidth

    def break_even(self, tokens: Fraction) -> Fraction:
        """Return B*, the bandwidth above which a hit may pay: the same for any number of tokens."""
        return self.size * self.rate

    def fast(self, tokens: Fraction) -> bool:
        """Whether the tier is faster than the break-even bandwidth."""
        return self.bandwidth > self.break_even(tokens)

    def least_tokens(self) -> Fraction:
        """Return n*, the tokens above which a hit pays on a tier that is fast enough; 0 without a fixed cost."""
        if self.fixed == 0:
            return Fraction(0)
        return self.fixed / (1 / self.rate - self.size / self.bandwidth)

    def floor(self, tokens: Fraction) -> Fraction:
        """Return what n* cannot fall below at any bandwidth: the tokens recomputed in the fixed time."""
        return self.fixed * self.rate

    def loads(self, tokens: Fraction) -> bool:
        """Whether a hit of so many tokens is loaded, told by B* and n* alone."""
        return self.fast(tokens) and tokens > self.least_tokens()


def wrong_choice(cost: Cost, tokens: Fraction) -> str:
    """Say that a hit is loaded or recomputed although the other way takes less time; "" when not."""
    load, recompute = cost.load_time(tokens), cost.recompute_time(tokens)
    if cost.loads(tokens) == (load < recompute):
        return ""
    way = "loaded" if cost.loads(tokens) else "recomputed"
    return f"a hit of {tokens} tokens is {way}: loading takes {load} s, recomputing {recompute} s"


def below_floor(cost: Cost, tokens: Fraction) -> str:
    """Say that a tier taken for fast has a least number of tokens not above its floor; "" when not."""
    if not cost.fast(tokens):
        return ""
    least, floor = cost.least_tokens(), cost.floor(tokens)
    if least > floor or (cost.fixed == 0 and least == floor):
        return ""
    return f"a hit pays from {least} tokens on, and the floor is {floor}"


@dataclass(frozen=True, slots=True)
class Choice:
    """Estimated times of both ways, and by how much each may be off; in seconds."""

    load: Fraction
    recompute: Fraction
    load_error: Fraction
    recompute_error: Fraction

    def loads(self) -> bool:
        """Whether it is loaded: its estimate is not the greater."""
        return self.load <= self.recompute

    def regret(self, load: Fraction, recompute: Fraction) -> Fraction:
        """Return by how much the chosen way takes longer than the other, given the true times."""
        return load - recompute if self.loads() else recompute - load

    def regret_bound(self) -> Fraction:
        """Return the most that a choice can cost: both estimates may be off, in opposite directions."""
        return self.load_error + self.recompute_error


def regrets(choice: Choice, load: Fraction, recompute: Fraction) -> str:
    """Say that a choice costs more than its bound; "" when it does not, or the true times are beyond the errors."""
    within = (abs(load - choice.load) <= choice.load_error
              and abs(recompute - choice.recompute) <= choice.recompute_error)
    regret, bound = choice.regret(load, recompute), choice.regret_bound()
    if not within or regret <= bound:
        return ""
    return f"the choice costs {regret} s more than the better way, and at most {bound} s were promised"


class Arrival(NamedTuple):
    """The next load arrives."""

    name: str = "arrive"


@dataclass(frozen=True, slots=True)
class Backlog:
    """The queue of synchronous loads: one of `service` seconds arrives every `between` seconds.

    start: the work waiting at first, work: now, in seconds. arrivals: how many there have been.
    """

    between: Fraction
    service: Fraction
    start: Fraction
    work: Fraction
    arrivals: int = 0

    @classmethod
    def begin(cls, between: Fraction, service: Fraction, start: Fraction) -> Backlog:
        """Return the queue before the first arrival."""
        return cls(between, service, start, start)

    @property
    def stable(self) -> bool:
        """Whether the backlog is bounded: no load takes longer than the time to the next."""
        return self.service <= self.between

    def left(self) -> Fraction:
        """Return the work that waits when the next load arrives: idle time is lost."""
        return max(Fraction(0), self.work + self.service - self.between)

    def events(self) -> Iterator[Arrival]:
        """Return the next arrival; there always is one."""
        yield Arrival()

    def after(self, event: Arrival) -> Backlog:
        """Return the queue after an arrival."""
        return replace(self, work=self.left(), arrivals=self.arrivals + 1)


def runaway(queue: Backlog) -> str:
    """Say that a backlog is not as claimed, never above its start or growing at every arrival; "" when it is."""
    if queue.work < 0:
        return f"after {queue.arrivals} arrivals {queue.work} s of work are left"
    grown = queue.start + queue.arrivals * (queue.service - queue.between)
    if queue.stable and queue.work > queue.start:
        return f"a stable backlog grew from {queue.start} s to {queue.work} s"
    if not queue.stable and (queue.work < grown or (queue.arrivals and queue.work <= queue.start)):
        return f"after {queue.arrivals} arrivals an unstable backlog of {queue.start} s is {queue.work} s"
    return ""


@dataclass(frozen=True, slots=True)
class Split:
    """Requests a second, bytes each, over so many instances of that bandwidth each."""

    requests: Fraction
    bytes: Fraction
    bandwidth: Fraction
    instances: int

    def part(self) -> Fraction:
        """Return the bytes of a request that one instance is asked for."""
        return self.bytes / self.instances

    def link(self) -> Fraction:
        """Return the bandwidth that one instance has."""
        return self.bandwidth

    def utilisation(self) -> Fraction:
        """Return how busy each instance is: 1 is all the time."""
        return self.requests * self.part() / self.link()


def badly_split(split: Split) -> str:
    """Say that an instance is not as busy as its share of what one alone would be; "" when it is."""
    alone = split.requests * split.bytes / split.bandwidth
    each = split.utilisation()
    return "" if each * split.instances == alone else (
        f"one instance would be busy {alone} of the time, and each of {split.instances} is busy {each}")
