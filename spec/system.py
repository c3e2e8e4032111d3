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

from kvproof.spec.evaluate import BeyondSize, Interpretation, compiled
from kvproof.spec.theory import Formula, Int, Rank, State, Symbol, Theory, View, as_formula


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
    @functools.cache
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


@dataclass(frozen=True)
class _Put:
    """A function that gets another value at one key, both computed from the state and the picks."""

    key: tuple[Callable[..., Any], ...]
    value: Callable[..., Any]


@dataclass(frozen=True)
class _Change:
    """What becomes of a symbol: it is computed whole, or, where `puts` is there, at a few keys in turn."""

    name: str
    symbol: Symbol
    whole: Callable[..., Any]
    puts: tuple[_Put, ...] | None


@functools.cache
def _computed(kind: type[System], name: str, bounded: bool) -> tuple[Callable[..., bool], list[_Change]]:
    """Return an action's guard, and what it makes of each symbol that it changes, as Python."""
    system = kind()
    [act] = [each for each in system.actions() if each.name == name]
    picks, view, changes = act.constants(), system.view(), []
    step = act.step(system, view, picks)
    computing = functools.partial(compiled, arguments=picks, bounded=bounded)
    for changed, meaning in step.changes.items():
        symbol = system.symbols(State)[changed]
        arguments = [z3.Const(f"{changed}.{index}", sort) for index, sort in enumerate(symbol.arguments)]
        term = as_formula(meaning(*arguments) if arguments else meaning)
        puts = _puts(term, arguments, getattr(view, changed)(*arguments)) if arguments and z3.is_expr(term) else None
        written = None if puts is None else tuple(
            _Put(tuple(computing(part) for part in key), computing(value)) for key, value in puts)
        changes.append(_Change(changed, symbol, compiled(term, [*picks, *arguments], bounded=bounded), written))
    return computing(step.guard), changes


def _puts(
    term: z3.ExprRef, arguments: list[z3.ExprRef], itself: z3.ExprRef
) -> list[tuple[list[z3.ExprRef], z3.ExprRef]] | None:
    """Return the keys at which a function differs from what it was and its values there, the last one to count last.

    None for a function that is not written as `put` writes it.
    """
    found: list[tuple[list[z3.ExprRef], z3.ExprRef]] = []
    while not term.eq(itself):
        if not z3.is_app_of(term, z3.Z3_OP_ITE):
            return None
        where, value, term = term.children()
        key = _key(where, arguments)
        if key is None:
            return None
        found.append((key, z3.substitute(value, *zip(arguments, key, strict=True))))
    return found[::-1]


def _key(where: z3.ExprRef, arguments: list[z3.ExprRef]) -> list[z3.ExprRef] | None:
    """Return what each argument is said to be, when that is all that is said; else None."""
    parts = where.children() if z3.is_and(where) else [where]
    if len(parts) != len(arguments):
        return None
    for part, argument in zip(parts, arguments, strict=True):
        if not (z3.is_eq(part) and part.arg(0).eq(argument)):
            return None
    key = [part.arg(1) for part in parts]
    return None if any(_speaks(part, arguments) for part in key) else key


def _speaks(term: z3.ExprRef, arguments: list[z3.ExprRef]) -> bool:
    """Whether a term speaks of an argument (or holds a quantifier, of which that is not looked at)."""
    if z3.is_quantifier(term) or any(term.eq(argument) for argument in arguments):
        return True
    return any(_speaks(child, arguments) for child in term.children())


def _beginning(kind: type[System]) -> list[Formula]:
    """Return the axioms and what holds in the first state."""
    system = kind()
    view = system.view()
    return [as_formula(formula) for formula in (*system.axioms(view), *system.init(view))]


@functools.cache
def _begins(kind: type[System], bounded: bool) -> list[Callable[..., bool]]:
    """Return `_beginning` as Python: once for all runs of a system, and without keeping a formula.

    What is kept changes how z3 numbers what comes, and so what the prover finds.
    """
    return [compiled(formula, bounded=bounded) for formula in _beginning(kind)]


@functools.cache
def _domain(kind: type[System], ranks: int, size: int) -> dict[str, list[tuple[Any, ...]]]:
    """Return every argument tuple of every symbol in a world."""
    return {name: list(product(*[_values(sort, ranks, size) for sort in symbol.arguments]))
            for name, symbol in kind.symbols().items()}


def _values(sort: z3.SortRef, ranks: int, size: int) -> list[Any]:
    if sort == Rank:
        return list(range(ranks))
    if sort == Int:
        return list(range(size + 1))
    if sort == z3.BoolSort():
        return [False, True]
    if sort.kind() == z3.Z3_DATATYPE_SORT:
        return [str(sort.constructor(index).name()) for index in range(sort.num_constructors())]
    raise TypeError(f"the sort {sort} has no finite domain")


@dataclass
class Concrete:
    """A system for `ranks` ranks and integers up to `size`, computed in Python from the formulas that are proved.

    Functions, picks and quantifiers over integers go up to `size`, so nothing can be said of a run that goes beyond:
    `holds`, `enabled`, `after` and `allows` raise BeyondSize when a function is asked for, or given, a value there,
    when an integer variable or pick is compared with more than that. A number that is only kept may be any. Below 0
    there is nothing: a variable is never negative. bounded: whether all of this is looked at; a run that a solver found
    among these very integers may leave it unlooked at, and then raises only where a function is asked for a value.
    kept: whether also a number that is only kept is looked at where something is said of all integers, or of some.
    """

    system: System
    ranks: int
    size: int
    bounded: bool = True
    kept: bool = False

    def __post_init__(self) -> None:
        """Find the arguments of every symbol."""
        kind: Any = type(self.system)
        self._kind = kind
        self._keys = _domain(kind, self.ranks, self.size)
        self._domains = {"#Rank": range(self.ranks), "#Int": range(self.size + 1)}

    @property
    def domains(self) -> dict[str, range]:
        """The finite domain of each sort that is quantified over."""
        return dict(self._domains)

    def interpretation(self, rigid: Point, state: Point) -> Interpretation:
        """Return what formulas are evaluated in."""
        beyond = functools.partial(self._beyond, state)
        return {**self._domains, "#Beyond": beyond, **rigid, **state}

    def _beyond(self, state: Point, variable: str) -> bool:
        """Return True when no integer of a state lies beyond this world; raises BeyondSize, for what `variable` is."""
        for name, symbol in self.system.symbols(State).items() if self.kept else ():
            if symbol.result != Int or name not in state:
                continue
            value = state[name]
            most = max(value.values(), default=0) if isinstance(value, dict) else value
            if most > self.size:
                raise BeyondSize(f"{variable} may be any integer, and {name} is {most}", self.size)
        return True

    def holds(self, formula: Formula, rigid: Point, state: Point) -> bool:
        """Evaluate a formula over this system's unprimed view."""
        return self._true(compiled(as_formula(formula), bounded=self.bounded), rigid, state)

    def no_beginning(self, rigid: Point, state: Point) -> Formula | None:
        """Return the first axiom or formula of `init` that is false in a state; None when it is a first state."""
        for place, true in enumerate(_begins(self._kind, self.bounded)):
            if not self._true(true, rigid, state):
                return _beginning(self._kind)[place]
        return None

    def _true(self, computed: Callable[..., Any], rigid: Point, state: Point) -> bool:
        try:
            return bool(computed(self.interpretation(rigid, state)))
        except KeyError as error:
            self._left("a formula", error)
            raise

    def enabled(self, name: str, picks: tuple[Any, ...], rigid: Point, state: Point) -> bool:
        """Whether the action may happen with these picks."""
        guard, _ = _computed(self._kind, name, self.bounded)
        try:
            return bool(guard(self.interpretation(rigid, state), *picks))
        except KeyError as error:
            self._left(f"the guard of {name}", error)
            raise

    def after(self, name: str, picks: tuple[Any, ...], rigid: Point, state: Point) -> Point:
        """Return the state after the action, whose guard is not looked at."""
        here = self.interpretation(rigid, state)
        changed = dict(state)
        _, changes = _computed(self._kind, name, self.bounded)
        try:
            for change in changes:
                whole = change.whole
                if change.puts is not None:
                    changed[change.name] = self._put(name, change, change.puts, here, picks)
                elif change.symbol.arguments:
                    changed[change.name] = {key: whole(here, *picks, *key) for key in self._keys[change.name]}
                else:
                    changed[change.name] = whole(here, *picks)
        except KeyError as error:
            self._left(name, error)
            raise
        return changed

    def _put(
        self, name: str, change: _Change, puts: tuple[_Put, ...], here: Interpretation, picks: tuple[Any, ...]
    ) -> dict[Any, Any]:
        table = dict(here[change.name])
        for put in puts:
            key = tuple([part(here, *picks) for part in put.key])
            if key in table:
                table[key] = put.value(here, *picks)
            elif self.bounded:
                raise BeyondSize(f"{name} gives {change.name} a value at {_told(key)}", self.size, below=_below(key))
        return table

    def _left(self, what: str, error: KeyError) -> None:
        """Raise BeyondSize when it was an integer beyond this world of which a function was asked."""
        key = error.args[0]
        if isinstance(key, tuple) and any(type(part) is int and not 0 <= part <= self.size for part in key):
            asks = f"{what} asks what a function is at {_told(key)}"
            raise BeyondSize(asks, self.size, below=_below(key)) from error

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
        return _values(sort, self.ranks, self.size)


def _below(key: tuple[Any, ...]) -> bool:
    return any(type(part) is int and part < 0 for part in key)


def _told(key: tuple[Any, ...]) -> str:
    return ", ".join(map(str, key))
