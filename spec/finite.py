"""A system of one size with all that following its runs needs: built once, however many steps and events there are."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import z3

from kvproof.spec.system import Action, Concrete, Point, System
from kvproof.spec.theory import Formula, Rank, State, View, as_formula
from kvproof.spec.words import Words

SOMEONE = z3.Const("follow.rank", Rank)
"""The rank that a term speaks of."""
MOST_RANKS = 1024
"""Ranks of a world that is followed."""
MOST_VALUES = 1 << 18
"""Values that a state and what is rigid may have together: each event copies some of them."""


class NotFollowed(Exception):
    """A world has no rank, or more ranks or values than are followed; the text says which."""


class Finite:
    """A system for `ranks` ranks and integers up to `size`: its actions, its domains, and its formulas as Python."""

    def __init__(self, kind: type[System], ranks: int, size: int) -> None:
        """Build it; `finite` does so once for each size."""
        self.system, self.ranks, self.size = kind(), ranks, size
        self.concrete = Concrete(self.system, ranks, size, kept=True)
        self.words = Words(self.concrete)
        self.actions: dict[str, Action] = {act.name: act for act in self.system.actions()}
        self.states = self.system.symbols(State)
        sorts = {sort for act in self.actions.values() for sort in act.picks.values()}
        self.values = {sort: self.concrete.values(sort) for sort in sorts}
        self.among = {sort: frozenset(values) for sort, values in self.values.items()}
        self._terms: dict[str, Formula] = {}

    @functools.cached_property
    def plain(self) -> Point:
        """The state in which every symbol has the first value of its sort."""
        point: Point = {}
        for name, symbol in self.states.items():
            value = self.concrete.values(symbol.result)[0]
            point[name] = dict.fromkeys(self.concrete.keys(symbol), value) if symbol.arguments else value
        return point

    def no_beginning(self, rigid: Point, state: Point) -> str:
        """Return in words which axiom or formula of `init` is false in a state; "" when a run may begin there."""
        formula = self.concrete.no_beginning(rigid, state)
        return "" if formula is None else self.words.fails(formula, self.concrete.interpretation(rigid, state))

    def term(self, name: str, says: Callable[[View, Any], Any]) -> Formula:
        """Return a term of this system about `SOMEONE`, made by `says` when nothing is called `name` yet."""
        if name not in self._terms:
            self._terms[name] = as_formula(says(self.system.view(), SOMEONE))
        return self._terms[name]


def check_size(kind: type[System], ranks: int, size: int) -> None:
    """Raise NotFollowed for a world of nobody, or one that is too large to be followed."""
    if ranks < 1:
        raise NotFollowed("there are 0 ranks; expected one at least")
    if ranks > MOST_RANKS:
        raise NotFollowed(f"{ranks} ranks are too many to be followed; there may be {MOST_RANKS}")
    if size > MOST_VALUES:
        raise NotFollowed(f"integers up to {size} are too many to be followed; they may go up to {MOST_VALUES}")
    count = 0
    for symbol in kind.symbols().values():
        values = 1
        for sort in symbol.arguments:
            values *= ranks if sort == Rank else size + 1
        count += values
    if count > MOST_VALUES:
        raise NotFollowed(f"{ranks} ranks and integers up to {size} make {count} values of a state, which are too many "
                          f"to be followed; there may be {MOST_VALUES}")


def finite(kind: type[System], ranks: int, size: int) -> Finite:
    """Return the system in a world of that size; raises NotFollowed."""
    check_size(kind, ranks, size)
    return _built(_hashed(kind), ranks, size)


def _hashed(kind: type[System]) -> Any:
    """Return a system as what a cache takes."""
    return kind


@functools.lru_cache(maxsize=32)
def _built(kind: type[System], ranks: int, size: int) -> Finite:
    return Finite(kind, ranks, size)
