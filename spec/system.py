"""Transition systems: states, named actions with picks, an invariant, and what is claimed of every run.

An action gives a guard and, for each state symbol that it changes, the new meaning; everything else stays as it is. So
the next state is computed, and the only freedom is in the picks. From this one declaration come the proofs, the
search for runs, and `Concrete`, which takes the same formulas as a Python function for a finite number of ranks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import z3

from kvproof.spec.evaluate import Interpretation, compiled
from kvproof.spec.theory import Formula, Rank, State, Symbol, Theory, View, as_formula


@dataclass(frozen=True)
class Step:
    """What an action does: when it may (`guard`), and what it changes (functions by the state symbol's name)."""

    guard: Formula
    changes: Mapping[str, Any]

    def __init__(self, guard: Formula, **changes: Any) -> None:
        """Give the guard, then the new meaning of each symbol that changes."""
        object.__setattr__(self, "guard", as_formula(guard))
        object.__setattr__(self, "changes", changes)


@dataclass(frozen=True)
class Action:
    """A named action: its picks (name to sort) and the method that gives its step.

    fair: whether a run may postpone it for ever once it can happen; the environment's actions are not fair.
    """

    name: str
    picks: Mapping[str, z3.SortRef]
    method: str
    fair: bool

    def constants(self, suffix: str = "") -> list[z3.ExprRef]:
        """Return a constant for each pick."""
        return [z3.Const(f"{self.name}.{pick}{suffix}", sort) for pick, sort in self.picks.items()]

    def step(self, system: System, s: View, picks: list[z3.ExprRef]) -> Step:
        """Return the step in the state that `s` shows."""
        found: Step = getattr(system, self.method)(s, *picks)
        return found


def action(*, fair: bool = True, **picks: z3.SortRef) -> Callable[[Callable[..., Step]], Callable[..., Step]]:
    """Mark a method ``(self, s, **picks) -> Step`` as an action; the picks' sorts are given by name."""

    def mark(method: Callable[..., Step]) -> Callable[..., Step]:
        method.kvproof_action = (picks, fair)  # type: ignore[attr-defined]  # a mark on a function
        return method

    return mark


class System(Theory):
    """A transition system. Subclasses declare symbols and actions, and override what follows."""

    def init(self, s: View) -> list[Formula]:
        """Return what holds in the first state."""
        raise NotImplementedError

    def invariant(self, s: View) -> dict[str, Formula]:
        """Return the conjuncts of the inductive invariant, by name."""
        raise NotImplementedError

    def safety(self, s: View) -> dict[str, Formula]:
        """Return what is claimed of every reachable state, by claim."""
        return {}

    def finite(self, s: View) -> list[Formula]:
        """Return what is true because there are finitely many ranks, and which no first-order formula can derive."""
        return []

    def finished(self, s: View) -> Formula:
        """Return whether a state may be the last one; a state in which nothing can happen otherwise is a deadlock."""
        return z3.BoolVal(False)

    def measure(self, s: View) -> dict[str, tuple[Any, ...]]:
        """Return families of measures: the sorts of each index, and the lexicographic tuple of naturals for it.

        A family over integers has a third part, a bound that speaks of no state and of no integer index: outside of 0
        to that bound its measures are 0. So each family has finitely many that can fall.
        """
        return {}

    @classmethod
    def actions(cls) -> list[Action]:
        """Return the actions, in the order of their declaration."""
        found: dict[str, Action] = {}
        for base in reversed(cls.__mro__):
            for name, value in vars(base).items():
                if hasattr(value, "kvproof_action"):
                    picks, fair = value.kvproof_action
                    found[name] = Action(name, picks, name, fair)
                elif name in found and value is None:
                    del found[name]
        return list(found.values())


Point = dict[str, Any]
"""A concrete state: a value for each constant, a dictionary from argument tuples for each function."""


@functools.cache
def _computed(kind: type[System], name: str) -> tuple[Callable[..., bool], dict[str, Callable[..., Any]]]:
    """Return an action's guard, and what it makes of each symbol that it changes, as Python."""
    system = kind()
    [act] = [each for each in system.actions() if each.name == name]
    picks, changes = act.constants(), {}
    step = act.step(system, system.view(), picks)
    for changed, meaning in step.changes.items():
        symbol = system.symbols(State)[changed]
        arguments = [z3.Const(f"{changed}.{index}", sort) for index, sort in enumerate(symbol.arguments)]
        term = meaning(*arguments) if arguments else meaning
        changes[changed] = compiled(as_formula(term), [*picks, *arguments])
    return compiled(step.guard, picks), changes


@dataclass
class Concrete:
    """A system for `ranks` ranks and integers up to `size`, computed in Python from the formulas that are proved."""

    system: System
    ranks: int
    size: int

    def __post_init__(self) -> None:
        """Find the arguments of every symbol."""
        self._kind: Any = type(self.system)
        self._keys = {name: list(product(*[self.values(sort) for sort in symbol.arguments]))
                      for name, symbol in self.system.symbols().items()}

    @property
    def domains(self) -> dict[str, range]:
        """The finite domain of each sort that is quantified over."""
        return {"#Rank": range(self.ranks), "#Int": range(self.size + 1)}

    def interpretation(self, rigid: Point, state: Point) -> Interpretation:
        """Return what formulas are evaluated in."""
        return {**self.domains, **rigid, **state}

    def holds(self, formula: Formula, rigid: Point, state: Point) -> bool:
        """Evaluate a formula over this system's unprimed view."""
        return bool(compiled(formula)(self.interpretation(rigid, state)))

    def enabled(self, name: str, picks: tuple[Any, ...], rigid: Point, state: Point) -> bool:
        """Whether the action may happen with these picks."""
        guard, _ = _computed(self._kind, name)
        return bool(guard(self.interpretation(rigid, state), *picks))

    def after(self, name: str, picks: tuple[Any, ...], rigid: Point, state: Point) -> Point:
        """Return the state after the action, whose guard is not looked at."""
        here = self.interpretation(rigid, state)
        changed: Point = {}
        _, changes = _computed(self._kind, name)
        for symbol_name, change in changes.items():
            symbol = self.system.symbols(State)[symbol_name]
            if symbol.arguments:
                changed[symbol_name] = {key: change(here, *picks, *key) for key in self.keys(symbol)}
            else:
                changed[symbol_name] = change(here, *picks)
        return {**state, **changed}

    def allows(self, name: str, picks: tuple[Any, ...], rigid: Point, before: Point, after: Point) -> bool:
        """Whether `after` is what the action with these picks makes of `before`, and it may happen there."""
        return self.enabled(name, picks, rigid, before) and self.after(name, picks, rigid, before) == after

    def choices(self, act: Action) -> Iterator[tuple[Any, ...]]:
        """Return every combination of picks."""
        return product(*[self.values(sort) for sort in act.picks.values()])

    def steps(self, rigid: Point, state: Point) -> Iterator[tuple[str, tuple[Any, ...], Point]]:
        """Return every step that may happen: action, picks, next state."""
        for act in self.system.actions():
            for picks in self.choices(act):
                if self.enabled(act.name, picks, rigid, state):
                    yield act.name, picks, self.after(act.name, picks, rigid, state)

    def keys(self, symbol: Symbol) -> list[tuple[Any, ...]]:
        """Return every argument tuple of a function within the finite domains."""
        return self._keys[symbol.name]

    def values(self, sort: z3.SortRef) -> list[Any]:
        """Return the finite domain of a sort."""
        if sort == Rank:
            return list(range(self.ranks))
        if sort == z3.IntSort():
            return list(range(self.size + 1))
        if sort == z3.BoolSort():
            return [False, True]
        if sort.kind() == z3.Z3_DATATYPE_SORT:
            return [str(sort.constructor(index).name()) for index in range(sort.num_constructors())]
        raise TypeError(f"the sort {sort} has no finite domain")
