"""One connection and the pool that lends it: every step is one of ownership's, and what that allows beyond them."""

from __future__ import annotations

from typing import Any

import pytest
import z3
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from kvproof.models.client import Connection as ClientConnection
from kvproof.models.exchanges import Event, World
from kvproof.models.explore import explore
from kvproof.models.lending import Lent
from kvproof.spec.ownership import Connection
from kvproof.spec.refine import NOTHING, Arrow
from kvproof.spec.refine_client import LendingArrow, OwnershipRefinement
from kvproof.spec.system import Step, action
from kvproof.spec.theory import Int, View, put, within
from tests.mistakes.ownership import PushIsReply, ReturnedEarly, StopsAtError
from tests.refining import machine

KINDS = {"send", "push", "receive", "read", "read_push", "give_up", "drop"}
STATES = {(True,): 120, (False,): 120, (True, False): 404, (False, True): 404, (False, False, True): 1116}
"""How many states a connection has whose requests are answered so (true: with an error)."""
LENT = {(1, 1): 68, (2, 1): 200, (3, 1): 494, (2, 2): 232, (3, 2): 789}
"""How many states there are with so many requests, and so many at once on the connection that the pool lends."""
NEVER = {
    "push": "a server ends the frame that it has begun before it sends a push; the spec knows no pieces",
    "send": "a connection that owes a reply to nobody takes no request, and the pool drops it; in the spec it may",
}
"""What the spec allows and the connection never does, and why."""
DONE_AT_ONCE = {
    (), ("drop",), ("push",), ("send",), ("read",), ("read_push",), ("give_up",), ("give_up", "drop"), ("read", "drop"),
    ("read", "give_back"), ("read", "send"), ("read", "give_back", "send"),
}
"""All that one call on the pool is to its connection."""


def arrow_of(world: World, kind: type[Connection] = Connection) -> Arrow[World]:
    return Arrow(OwnershipRefinement(kind), world)


def lent_arrow(world: Lent, kind: type[Connection] = Connection) -> LendingArrow:
    return LendingArrow(OwnershipRefinement(kind), world)


def lent(requests: int, depth: int, errors: tuple[bool, ...] = ()) -> Lent:
    failing = errors or tuple(k == 0 for k in range(requests))
    return Lent(failing, got=(-1,) * requests, depth=depth)


def excused(world: World, name: str) -> bool:
    """Whether the spec's step is one of those that `NEVER` names."""
    return name in NEVER and (world.arrived > 0 if name == "push" else not world.room)


def differences(arrow: Arrow[World], world: World) -> list[Any]:
    model, spec = arrow.by_the_model(world), arrow.by_the_spec(world)
    return [*(model - spec), *(step for step in spec - model if not excused(world, step[0]))]


@pytest.mark.parametrize("errors", STATES, ids=str)
def test_at_small_bounds_model_and_spec_have_the_same_steps_everywhere(errors: tuple[bool, ...]) -> None:
    first = World.begin(errors)
    arrow, found = arrow_of(first), explore(first)
    assert arrow.begins()
    assert len(found.came) == STATES[errors]
    assert found.fired.keys() == KINDS | {"give_back"}
    used: set[str] = set()
    for world in found.came:
        assert not differences(arrow, world), world.history
        assert not arrow.falsehoods(world), world.history
        quiet = [event for event in world.events() if arrow.refinement.step(world, event) == NOTHING]
        assert all(arrow.allows(world, event) for event in quiet), world.history
        used |= {step[0] for step in arrow.by_the_spec(world) - arrow.by_the_model(world)}
    assert used == (set(NEVER) if len(errors) > 1 else {"push"}), "what is said never to happen does"


@pytest.mark.parametrize("bounds", LENT, ids=str)
def test_all_that_a_pool_does_to_its_connection_is_allowed(bounds: tuple[int, int]) -> None:
    first = lent(*bounds)
    arrow, found, done = lent_arrow(first), explore(first), set()
    assert arrow.begins()
    assert len(found.came) == LENT[bounds]
    assert found.fired.keys() == KINDS
    for world in found.came:
        assert not arrow.falsehoods(world), world.history
        for event in world.events():
            assert arrow.allows(world, event), f"{event} after {world.history}"
            done.add(tuple(did.name for did in world.after(event).did))
    assert done <= DONE_AT_ONCE
    assert (("give_up",) in done) == (bounds[1] > 1), "alone on it, a request that is given up takes it along"


SETTINGS = settings(
    stateful_step_count=30, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
ERRORS = st.lists(st.booleans(), min_size=1, max_size=7).map(tuple)


def test_every_step_of_a_random_schedule_is_a_step_of_the_spec() -> None:
    schedules = machine(arrow_of, ERRORS.map(World.begin), rare=frozenset({"drop"}))
    run_state_machine_as_test(schedules, settings=SETTINGS)
    assert schedules.fired.keys() == KINDS | {"give_back"}, f"some kind of event never happened: {schedules.fired}"


def test_every_step_of_a_random_schedule_of_a_pool_is_allowed() -> None:
    worlds = st.builds(lambda errors, depth: lent(len(errors), depth, errors), ERRORS, st.integers(1, 4))
    schedules = machine(lent_arrow, worlds, rare=frozenset({"drop", "give_up"}))
    run_state_machine_as_test(schedules, settings=SETTINGS)
    assert schedules.fired.keys() == KINDS, f"some kind of event never happened: {schedules.fired}"


class ReadsPastPush(Connection):
    """One conjunct of a guard is gone: a reply is read before the push that came first."""

    @action()
    def read(self, s: View) -> Step:
        return Step(z3.And(s.open, s.lent, s.taken < s.sent, s.turn < s.sent), **super().read(s).changes)


class GivesToAll(Connection):
    """One word of an effect is changed: who has given up is given the reply."""

    @action()
    def read(self, s: View) -> Step:
        step = super().read(s)
        return Step(step.guard, **{**step.changes, "got": put(s.got, s.turn, s.taken)})


class GivesUpTwice(Connection):
    """One conjunct of a guard is gone: who has given up gives up again."""

    @action(fair=False, k=Int)
    def give_up(self, s: View, k: Any) -> Step:
        return Step(within(0, k, s.sent), **super().give_up(s, k).changes)


class GivesBackEarly(Connection):
    """One conjunct of a guard is gone: a connection is given back with a reply outstanding."""

    def clean(self, s: View) -> Any:
        return z3.BoolVal(True)


class KeepsWaiting(Connection):
    """One word of an effect is changed: whoever waits when the connection is dropped, waits on."""

    @action(fair=False)
    def drop(self, s: View) -> Step:
        changes = {**super().drop(s).changes}
        del changes["wanted"]
        return Step(s.open, **changes)


@pytest.mark.parametrize("flipped", [ReadsPastPush, GivesToAll, GivesUpTwice, GivesBackEarly, KeepsWaiting])
def test_flipping_one_conjunct_of_the_spec_is_seen(flipped: type[Connection]) -> None:
    first = World.begin((False, False))
    arrow = arrow_of(first, flipped)
    assert any(differences(arrow, world) for world in explore(first).came)


class LendsOnce(Connection):
    """One conjunct more in a guard: a connection that was given back is not lent again."""

    @action()
    def send(self, s: View) -> Step:
        step = super().send(s)
        return Step(z3.And(step.guard, z3.Or(s.lent, s.sent == 0)), **step.changes)


class NoPipelines(Connection):
    """One conjunct more in a guard: a request is written only when no reply is outstanding."""

    @action()
    def send(self, s: View) -> Step:
        step = super().send(s)
        return Step(z3.And(step.guard, s.turn == s.sent), **step.changes)


class DropsUnwanted(Connection):
    """One conjunct more in a guard: a connection is dropped only when nobody waits."""

    @action(fair=False)
    def drop(self, s: View) -> Step:
        step = super().drop(s)
        return Step(z3.And(step.guard, s.turn == s.sent), **step.changes)


@pytest.mark.parametrize("flipped", [LendsOnce, NoPipelines, DropsUnwanted, KeepsWaiting])
def test_what_a_pool_does_and_a_stricter_spec_does_not_allow_is_seen(flipped: type[Connection]) -> None:
    first = lent(2, 2)
    arrow = lent_arrow(first, flipped)
    assert any(not arrow.allows(world, event) for world in explore(first).came for event in world.events())


@pytest.mark.parametrize("kind", [ReturnedEarly, StopsAtError, PushIsReply])
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_a_wrong_connection_is_seen(kind: type[ClientConnection], depth: int) -> None:
    """By itself (depth 0), and as one that a pool lends; alone on it, an error stops nobody else."""
    errors = (True, False, False)
    first: World = Lent(errors, got=(-1, -1, -1), kind=kind, depth=depth) if depth else World.begin(errors, kind)
    arrow: Any = lent_arrow(first) if isinstance(first, Lent) else arrow_of(first)

    def not_allowed(world: World) -> str:
        return ", ".join(str(event) for event in world.events() if not arrow.allows(world, event))

    assert bool(explore(first, wrong=not_allowed).why) != (kind is StopsAtError and depth == 1)


def test_an_event_that_there_is_not_is_said() -> None:
    with pytest.raises(ValueError, match="no event 'sleep'"):
        World.begin((False,)).after(Event("sleep"))
