"""What formulas are made of: sorts, symbols, quantifiers, and a theory that declares them.

A theory's symbols are class attributes: `Rigid` ones keep their meaning, `State` ones (of a transition system) change.
Formulas are written against a *view*, which answers for each symbol by name, so the same line of text is read in one
state, in the next, or in the mutant in which one definition was replaced.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import product
from typing import Any, Protocol, TypeAlias

import z3

Bool = z3.BoolSort()
Int = z3.IntSort()
Real = z3.RealSort()
Rank = z3.DeclareSort("Rank")
"""The ranks of one world: any finite number of them, so a claim over this sort is one for every W."""

Formula: TypeAlias = Any
"""A z3 formula. z3 is not typed, so this is a word for the reader."""
Term: TypeAlias = Any
"""A z3 expression, or a Python number or truth value that becomes one."""


def enum(name: str, *values: str) -> tuple[z3.SortRef, ...]:
    """Return a sort with these values, then the values."""
    sort, constants = z3.EnumSort(name, values)
    return (sort, *constants)


class Universe(Protocol):
    """Finitely many elements of each sort, among which quantifiers can be written out."""

    def values(self, sort: z3.SortRef) -> list[Any]:
        """Return the elements of a sort as terms, none for a sort that is not finite."""


_depth: ContextVar[int] = ContextVar("depth", default=0)
_universe: ContextVar[Universe | None] = ContextVar("universe", default=None)


@contextmanager
def within_universe(universe: Universe) -> Iterator[None]:
    """Let every `forall`, `exists` and `some` that is written meanwhile speak of these elements, one by one."""
    token = _universe.set(universe)
    try:
        yield
    finally:
        _universe.reset(token)


def forall(*sorts_then_body: Any) -> Formula:
    """Return the formula that holds for all values: ``forall(Rank, Int, lambda r, c: ...)``.

    The variables are named after the parameters, so that formulas read the same in every run.
    """
    *sorts, body = sorts_then_body
    instances = _instances(sorts, body)
    return z3.And(*instances) if instances is not None else z3.ForAll(*_bound(sorts, body))


def exists(*sorts_then_body: Any) -> Formula:
    """Return the formula that holds for some value: ``exists(Rank, lambda r: ...)``."""
    *sorts, body = sorts_then_body
    instances = _instances(sorts, body)
    return z3.Or(*instances) if instances is not None else z3.Exists(*_bound(sorts, body))


def some(constants: Sequence[z3.ExprRef], formula: Formula) -> Formula:
    """Return the formula that holds for some value of these constants."""
    if not constants:
        return formula
    def chosen(*values: Any) -> Formula:
        return z3.substitute(formula, *zip(constants, values, strict=True))

    instances = _instances([constant.sort() for constant in constants], chosen)
    return z3.Or(*instances) if instances is not None else z3.Exists(list(constants), formula)


def _instances(sorts: Sequence[z3.SortRef], body: Callable[..., Term]) -> list[Formula] | None:
    universe = _universe.get()
    if universe is None:
        return None
    domains = [universe.values(sort) for sort in sorts]
    return [as_formula(body(*values)) for values in product(*domains)] if all(domains) else None


def _bound(sorts: Sequence[z3.SortRef], body: Callable[..., Term]) -> tuple[list[z3.ExprRef], Formula]:
    names = list(inspect.signature(body).parameters)
    if len(names) != len(sorts):
        raise TypeError(f"{len(sorts)} sorts for the variables {', '.join(names)}")
    depth = _depth.get()
    # A name of its own at each depth, or a helper that uses the same letter would capture the variable of its caller.
    variables = [z3.Const(f"{name}!{depth}", sort) for name, sort in zip(names, sorts, strict=True)]
    token = _depth.set(depth + 1)
    try:
        return variables, as_formula(body(*variables))
    finally:
        _depth.reset(token)


def as_formula(value: Term) -> Formula:
    """Return a truth value as a formula."""
    return z3.BoolVal(value) if isinstance(value, bool) else value


def all_of(*parts: Term) -> Formula:
    """Return the conjunction; true when there is nothing to say."""
    return z3.And(*[as_formula(part) for part in parts]) if parts else z3.BoolVal(True)


def within(low: Term, value: Term, high: Term) -> Formula:
    """Return ``low <= value < high``."""
    return z3.And(low <= value, value < high)


class Symbol:
    """A function from argument sorts to a result sort (a constant when there are no arguments)."""

    def __init__(self, *sorts: z3.SortRef) -> None:
        """Declare it by its argument sorts and, last, its result sort."""
        *arguments, result = sorts
        self.arguments: tuple[z3.SortRef, ...] = tuple(arguments)
        self.result = result
        self.name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        """Take the attribute's name."""
        self.name = name

    def declare(self, suffix: str = "") -> Any:
        """Return the z3 function, or the constant when there are no arguments."""
        if not self.arguments:
            return z3.Const(self.name + suffix, self.result)
        return z3.Function(self.name + suffix, *self.arguments, self.result)


class Rigid(Symbol):
    """A symbol that has one meaning throughout: an owner map, a number of chunks."""


class State(Symbol):
    """A symbol whose meaning changes from state to state."""


class View:
    """Answers for each symbol of a theory by attribute: a constant, or something to be called."""

    def __init__(self, meaning: Mapping[str, Any]) -> None:
        """Answer with `meaning`."""
        self._meaning = dict(meaning)

    def __getattr__(self, name: str) -> Any:
        """Return what the symbol means here."""
        try:
            return self._meaning[name]
        except KeyError:
            known = ", ".join(sorted(self._meaning))
            raise UnknownSymbol(f"there is no state or symbol {name!r}; there are {known}") from None

    def but(self, changes: Mapping[str, Any]) -> View:
        """Return this view with other meanings for some symbols."""
        for name in changes:
            getattr(self, name)
        return View({**self._meaning, **changes})


class UnknownSymbol(AttributeError):
    """A formula mentions a symbol that its theory does not declare."""


def put(function: Callable[..., Any], key: Any, value: Term) -> Callable[..., Term]:
    """Return `function` with another value at one key (a tuple for several arguments)."""
    keys = key if isinstance(key, tuple) else (key,)

    def changed(*arguments: Any) -> Term:
        here = all_of(*(argument == at for argument, at in zip(arguments, keys, strict=True)))
        return z3.If(here, value, function(*arguments))

    return changed


class Theory:
    """Declares symbols; subclasses state definitions as methods, which a mutant's subclass may override."""

    @classmethod
    @functools.cache
    def symbols(cls, kind: type[Symbol] = Symbol) -> dict[str, Symbol]:
        """Return the declared symbols of that kind, by name, in the order of their declaration."""
        found: dict[str, Symbol] = {}
        for base in reversed(cls.__mro__):
            found.update({name: value for name, value in vars(base).items() if isinstance(value, kind)})
        return found

    def view(self, suffix: str = "") -> View:
        """Return the view in which every state symbol is a fresh function with this suffix."""
        return View({
            name: symbol.declare(suffix if isinstance(symbol, State) else "")
            for name, symbol in self.symbols().items()
        })

    def rigid_view(self) -> View:
        """Return the view that knows no state: what is assumed must not speak of one."""
        return View({name: symbol.declare() for name, symbol in self.symbols(Rigid).items()})

    def axioms(self, s: View) -> list[Formula]:
        """Return what is assumed about the rigid symbols; printed with every claim."""
        return []

    def sized(self, s: View, size: int) -> list[Formula]:
        """Return what makes an instance one of this size, so that 0..size holds every integer quantified over."""
        return []
