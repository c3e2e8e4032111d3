"""Driving a model through schedules that Hypothesis chooses, while every step is asked of the spec."""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from kvproof.spec.refine import Arrow


def machine(arrow: Any, worlds: st.SearchStrategy[Any], limits: frozenset[str] = frozenset(),
            rare: frozenset[str] = frozenset()) -> Any:
    """Return a state machine over a model: any event that can happen, of a kind that Hypothesis chooses.

    arrow: makes an `Arrow` for a first state. limits: claims of the spec that are known to be false. rare: kinds of
    events that end more than they begin. The class counts in `fired` how often each kind has happened.
    """

    class Schedules(RuleBasedStateMachine):
        fired: ClassVar[Counter[str]] = Counter()

        @initialize(world=worlds)
        def begin(self, world: Any) -> None:
            self.world, self.arrow = world, arrow(world)
            assert self.arrow.begins(), f"no initial state of the spec: {world}"

        @rule(data=st.data())
        def happen(self, data: st.DataObject) -> None:
            events = list(self.world.events())
            if not events:
                return
            kinds = sorted({event.name for event in events})
            often = [kind for kind in kinds if kind not in rare] or kinds
            kind = data.draw(st.sampled_from(often * 5 + kinds), "kind")
            event = data.draw(st.sampled_from([event for event in events if event.name == kind]), "event")
            assert self.arrow.allows(self.world, event), f"the spec does not allow {event}"
            self.world = self.world.after(event)
            type(self).fired[event.name] += 1
            false = set(self.arrow.falsehoods(self.world)) - limits
            assert not false, f"after {event} the spec's claims {sorted(false)} are false"

    return Schedules


def one_step(arrow: Arrow[Any], world: Any) -> list[str]:
    """Return how the steps from a state differ between the model and the spec; nothing when they are the same."""
    model, spec = arrow.by_the_model(world), arrow.by_the_spec(world)
    return [f"{who} only: {step[:2]}" for who, steps in (("the model", model - spec), ("the spec", spec - model))
            for step in steps]
