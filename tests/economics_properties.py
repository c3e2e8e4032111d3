"""What routing and tiers promise: one property for each obligation, asked of any definition of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from hypothesis import strategies as st

from kvproof.models.requests import Request
from kvproof.models.routing import BoundedHash, Fleet, Policy, route
from kvproof.models.tiers import Budget, Rent, Tier
from tests.store_properties import Property, searched

STAYS, SOON = (10**12, 10**12, 10**12), (10, 1000, 100_000)
"""Tokens of requests that are never done, and of those that are, sooner or later."""
FAR = "far"
"""How the names of other servers' tiers begin."""
_RATE, _POINTS = 1000.0, 20
_BEGINNING = 2
Look = Callable[[Request, Fleet, int], str]


class Router(NamedTuple):
    """A policy, and how many tokens the requests have that it routes, by their ending."""

    policy: type[BoundedHash]
    tokens: Sequence[int]


def watched(policy: Policy, trace: Sequence[Request], look: Look, *, rate: float = _RATE) -> str:
    """Return the first that `look` says of a request, the fleet before it is sent, and the replica that was chosen."""
    said: list[str] = []

    class Watched(Policy):
        name = policy.name

        def choose(self, request: Request, fleet: Fleet) -> int:
            chosen = policy.choose(request, fleet)
            said.append(look(request, fleet, chosen))
            return chosen

    route(trace, Watched(policy.size), capacity=10_000, rate=rate)
    return next(filter(None, said), "")


def _overfull(router: Router, asked: tuple[int, Sequence[tuple[int, int, float]]]) -> str:
    size, draws = asked
    policy = router.policy(size, beginning=_BEGINNING, points=_POINTS)

    def look(request: Request, fleet: Fleet, chosen: int) -> str:
        has = fleet.waiting
        has[chosen] += 1
        most = math.ceil((1 + policy.slack) * sum(has) / size)
        return next((f"replica {replica} has {count} requests, and {most} are allowed"
                     for replica, count in enumerate(has) if count > most), "")

    return watched(policy, _asked(draws, router.tokens), look)


def _asked(draws: Sequence[tuple[int, int, float]], tokens: Sequence[int]) -> list[Request]:
    """Return requests: of one of a few prefixes, then one of a few endings, so many seconds after the one before."""
    now, found = 0.0, []
    for prefix, ending, gap in draws:
        now += gap
        found.append(Request(now, tokens[ending], 1, (10 * prefix, 10 * prefix + 1, 1000 + 10 * prefix + ending)))
    return found


def _strayed(kind: type[BoundedHash], asked: tuple[int, Sequence[tuple[int, int, float]]]) -> str:
    size, draws = asked
    right = BoundedHash(size, beginning=_BEGINNING, points=_POINTS)

    def look(request: Request, fleet: Fleet, chosen: int) -> str:
        waiting = fleet.waiting
        most, home = right.bound(waiting), right.preferred(request.blocks[:_BEGINNING])[0]
        if waiting[chosen] + 1 > most:
            return f"replica {chosen} is full with {waiting[chosen]} requests, and is given one more"
        if chosen != home and waiting[home] + 1 <= most:
            return f"a request goes to replica {chosen}, and its home, replica {home}, has room"
        return ""

    return watched(kind(size, beginning=_BEGINNING, points=_POINTS), _asked(draws, SOON), look)


def _moves(kind: type[BoundedHash], size: int) -> str:
    before, after = kind(size, points=_POINTS), kind(size + 1, points=_POINTS)
    for key in range(40):
        old, new = before.preferred((key,))[0], after.preferred((key,))[0]
        if new not in (old, size):
            return f"key {key} moves from replica {old} to {new} when {size} is added"
    return ""


def _out_of_order(kind: type[Budget], asked: tuple[tuple[int, int, int], dict[int, bool], int, int]) -> str:
    figures, fetches, transfer, more = asked
    tiers = [Tier(f"{FAR if far else 'near'} {fetch}", math.inf, fetch) for fetch, far in fetches.items()]
    before, after = (kind(*figures).critical(tiers, 1.0, seconds) for seconds in (transfer, transfer + more))
    for tier in after:
        if tier not in before:
            return f"a longer transfer brings tier {tier.name} back"
    for tier in before:
        slower = next((other for other in after if tier not in after and other.fixed > tier.fixed), None)
        if slower is not None:
            return f"tier {tier.name} is off the critical path, and {slower.name}, which is slower, is on it"
    return ""


def _no_maximum(kind: type[Rent], figures: tuple[float, float, float, float, float]) -> str:
    rent = kind(*figures)
    best = rent.best()
    if math.isinf(best):
        return "" if rent.beta >= 1 else f"beta is {rent.beta:g}, and C* without bounds"
    gained = rent.gain(best)
    for other in (0.0, best / 8, best / 2, 2 * best, 8 * best):
        if rent.gain(other) >= gained - 1e-9 * abs(gained):
            return f"{other:g} bytes gain {rent.gain(other):g} a second, and C* = {best:g} bytes {gained:g}"
    return ""


_draws = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.sampled_from((0.0, 0.1, 1.0))), max_size=24)
_sizes = st.integers(2, 5)
_seconds = st.integers(0, 4)
_figures = st.sampled_from((0.5, 1.0, 2.0, 3.0, 8.0))

PROPERTIES: dict[str, Property] = {
    "routing.one-replica": Property(BoundedHash, searched(st.tuples(_sizes, _draws), _strayed)),
    "routing.bounded": Property(Router(BoundedHash, STAYS), searched(st.tuples(_sizes, _draws), _overfull)),
    "routing.ring": Property(BoundedHash, searched(st.integers(1, 12), _moves)),
    "tiering.slowest-first": Property(Budget, searched(
        st.tuples(st.tuples(st.integers(0, 12), _seconds, _seconds),
                  st.dictionaries(_seconds, st.booleans(), max_size=4), _seconds, _seconds), _out_of_order)),
    "tiering.maximum": Property(Rent, searched(
        st.tuples(_figures, _figures, _figures, _figures, st.sampled_from((0.25, 0.5, 2 / 3, 0.75, 1.0))),
        _no_maximum)),
}
