"""The registry at work: every step is one of `RegisterFirst`, and what that allows and the registry never does."""

from __future__ import annotations

from typing import Any

import pytest
import z3
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from kvproof.models.completions import Answers, World
from kvproof.models.explore import explore
from kvproof.models.registry import Registry, Ticket
from kvproof.spec.completion_designs import GONE, NEW, QUEUE, WORKER, RegisterFirst
from kvproof.spec.refine import Arrow
from kvproof.spec.refine_client import CompletionRefinement
from kvproof.spec.system import Step, action
from kvproof.spec.theory import Int, Rank, View, put
from tests.refining import machine

KINDS = {"register", "submit", "complete", "drain", "cancel", "die", "reap", "close"}
STATES = {(1, 1): 56, (1, 2): 318, (2, 1): 926, (2, 2): 10666}
"""How many states a registry has with so many operations and workers."""
NEVER = {"register": "ids are dealt in order, and none is ever used again; the spec takes any that is free"}
"""What the spec allows and the registry never does, and why."""


def arrow_of(world: World, kind: type[RegisterFirst] = RegisterFirst) -> Arrow[World]:
    return Arrow(CompletionRefinement(kind), world)


def step_only_in_the_spec(world: World, step: Any) -> bool:
    """Whether the step is one that `NEVER` names: it takes an id that is not the next one."""
    name, operation, after = step
    dealt = sum(each is not None for each in world.operations)
    return name in NEVER and dict(dict(after)["id"])[operation,] != dealt


@pytest.mark.parametrize("bounds", STATES, ids=str)
def test_at_small_bounds_model_and_spec_have_the_same_steps_everywhere(bounds: tuple[int, int]) -> None:
    first = World.begin(*bounds)
    arrow, found = arrow_of(first), explore(first)
    assert arrow.begins()
    assert len(found.came) == STATES[bounds]
    assert found.fired.keys() == KINDS
    unused = set(NEVER) if bounds[0] > 1 else set()
    for world in found.came:
        model, spec = arrow.by_the_model(world), arrow.by_the_spec(world)
        assert model <= spec, f"the model only: {model - spec} after {world.history}"
        others = [step for step in spec - model if not step_only_in_the_spec(world, step)]
        assert not others, f"the spec only: {others} after {world.history}"
        unused -= {step[0] for step in spec - model}
        assert not arrow.falsehoods(world), world.history
    assert not unused, f"the model does what is said never to happen: {unused}"


def test_every_step_of_a_random_schedule_is_a_step_of_the_spec() -> None:
    worlds = st.builds(World.begin, st.integers(1, 5), st.integers(1, 3))
    schedules = machine(arrow_of, worlds, rare=frozenset({"die", "reap", "close"}))
    run_state_machine_as_test(schedules, settings=settings(
        stateful_step_count=30, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]))
    assert schedules.fired.keys() == KINDS, f"some kind of event never happened: {schedules.fired}"


class DrainsCancelled(RegisterFirst):
    """One conjunct of an effect is gone: a cancelled future is resolved again."""

    def resolved(self, s: View, o: Any, when: Any) -> Any:
        return s.delivered(o) + z3.If(when, 1, 0)


class SubmitsAny(RegisterFirst):
    """One conjunct of a guard is gone: what is not registered is submitted, too."""

    @action(o=Int)
    def submit(self, s: View, o: Any) -> Step:
        return Step(s.place(o) == NEW, place=super().submit(s, o).changes["place"])


class CompletesWhenDead(RegisterFirst):
    """One conjunct of a guard is gone: a dead worker completes."""

    @action(o=Int)
    def complete(self, s: View, o: Any) -> Step:
        return Step(s.place(o) == WORKER, place=put(s.place, o, QUEUE))


class CancelsDelivered(RegisterFirst):
    """One conjunct of a guard is gone: what has been delivered is cancelled."""

    @action(fair=False, o=Int)
    def cancel(self, s: View, o: Any) -> Step:
        return Step(s.promised(o), **super().cancel(s, o).changes)


class ReapsQueueOnly(RegisterFirst):
    """One word of an effect is changed: what a dead worker holds stays there."""

    @action(w=Rank)
    def reap(self, s: View, w: Any) -> Step:
        step = super().reap(s, w)
        drained = {"place": lambda o: z3.If(z3.And(s.at(o) == w, s.place(o) == QUEUE), GONE, s.place(o))}
        return Step(step.guard, **{**step.changes, **drained})


class CloseGivesBack(RegisterFirst):
    """One word of an effect is changed: close gives ids back."""

    @action(fair=False)
    def close(self, s: View) -> Step:
        step = super().close(s)
        return Step(step.guard, **step.changes, busy=lambda o: z3.And(s.busy(o), z3.Not(s.registered(o))))


class DropsKnown(RegisterFirst):
    """One conjunct of a guard is gone: a completion of what is registered is dropped."""

    @action(o=Int)
    def drain_unknown(self, s: View, o: Any) -> Step:
        return Step(s.place(o) == QUEUE, place=put(s.place, o, GONE))


FLIPPED = (DrainsCancelled, SubmitsAny, CompletesWhenDead, CancelsDelivered, ReapsQueueOnly, CloseGivesBack,
           DropsKnown)


def differs(arrow: Arrow[World], world: World) -> bool:
    model, spec = arrow.by_the_model(world), arrow.by_the_spec(world)
    return bool(model - spec) or any(not step_only_in_the_spec(world, step) for step in spec - model)


@pytest.mark.parametrize("flipped", FLIPPED)
def test_flipping_one_conjunct_of_the_spec_is_seen(flipped: type[RegisterFirst]) -> None:
    first = World.begin(1, 1)
    arrow = arrow_of(first, flipped)
    assert any(differs(arrow, world) for world in explore(first).came)


class SubmitsFirst(Registry[Answers]):
    """A registry that hands an operation over before it registers it."""

    def submit(self, hand_over: Any, keys: int = 1) -> Ticket[Answers]:
        identity = self.reserve()
        hand_over(identity)
        return Ticket(identity, self.register(identity, keys))


class ForgetsToClose(Registry[Answers]):
    """A registry that resolves nothing when it is closed."""

    def close(self, reason: str) -> None:
        self._closed = reason


@pytest.mark.parametrize("kind", [SubmitsFirst, ForgetsToClose])
def test_a_wrong_registry_is_seen(kind: type[Registry[Answers]]) -> None:
    first = World.begin(1, 1, kind)
    arrow = arrow_of(first)
    assert any(not arrow.allows(world, event) for world in explore(first).came for event in world.events())
