"""The arrow from a model to its spec: which state of the spec a model's state is, and which action an event is.

History that only the spec keeps is computed from the model's state where that is possible, and left out of comparisons.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from kvproof.spec.evaluate import compiled
from kvproof.spec.system import Concrete, Point, System
from kvproof.spec.theory import as_formula

Step = tuple[str, tuple[Any, ...]]
"""An action of the spec by name, and its picks."""
NOTHING: Step = ("", ())
"""What an event is that the spec does not see: it leaves the spec's state as it is."""


class Model(Protocol):
    """A model whose states are values."""

    def events(self) -> Iterator[Any]:
        """Return everything that can happen now."""

    def after(self, event: Any) -> Any:
        """Return the state after one of the events."""


M = TypeVar("M", bound=Model)
C = TypeVar("C", bound=Model, contravariant=True)


class Refinement(Protocol[C]):
    """How one model is seen as a system of the spec."""

    ghosts: frozenset[str]
    """State symbols that are history: nothing that the protocol does depends on them."""

    def system(self, world: C) -> System:
        """Return the system."""

    def size(self, world: C) -> tuple[int, int]:
        """Return how many ranks and which integers, from 0 to what, there are in a concrete state."""

    def rigid(self, world: C) -> Point:
        """Return what does not change."""

    def state(self, world: C) -> Point:
        """Return the state of the spec."""

    def step(self, world: C, event: Any) -> Step:
        """Return the action and the picks that the event is, `NOTHING` where the spec does not see it."""


@functools.cache
def _claims(kind: type[System]) -> dict[str, Callable[..., bool]]:
    system = kind()
    view = system.view()
    return {name: compiled(as_formula(claim)) for name, claim in (system.safety(view) | system.invariant(view)).items()}


@dataclass
class Arrow(Generic[M]):
    """One run of a model, asked of the spec step by step."""

    refinement: Refinement[M]
    first: M

    def __post_init__(self) -> None:
        """Compile the system for the size of this world."""
        self.concrete = Concrete(self.refinement.system(self.first), *self.refinement.size(self.first))
        self.rigid = self.refinement.rigid(self.first)
        kind: Any = type(self.concrete.system)
        self._claims = _claims(kind)

    def begins(self) -> bool:
        """Whether the model's first state is an initial one of the spec, and keeps its axioms."""
        return self.concrete.no_beginning(self.rigid, self.refinement.state(self.first)) is None

    def allows(self, world: M, event: Any) -> bool:
        """Whether the spec allows what the model makes of an event."""
        before, after = self.refinement.state(world), self.refinement.state(world.after(event))
        step = self.refinement.step(world, event)
        return before == after if step == NOTHING else self.concrete.allows(*step, self.rigid, before, after)

    def falsehoods(self, world: M) -> list[str]:
        """Return the names of what the spec claims of every reachable state, and which is false in this one."""
        here = self.concrete.interpretation(self.rigid, self.refinement.state(world))
        return [name for name, claim in self._claims.items() if not claim(here)]

    def by_the_model(self, world: M) -> set[Any]:
        """Return every step of the model from here that the spec sees, without history."""
        steps = ((self.refinement.step(world, event), event) for event in world.events())
        return {self._plain(step, self.refinement.state(world.after(event))) for step, event in steps
                if step != NOTHING}

    def by_the_spec(self, world: M) -> set[Any]:
        """Return every step of the spec from here, without history."""
        return {self._plain((name, picks), after)
                for name, picks, after in self.concrete.steps(self.rigid, self.refinement.state(world))}

    def _plain(self, step: Step, after: Point) -> Any:
        name, picks = step
        kept = [(symbol, tuple(sorted(value.items())) if isinstance(value, dict) else value)
                for symbol, value in after.items() if symbol not in self.refinement.ghosts]
        return (name, picks[0] if picks else None, tuple(kept))
