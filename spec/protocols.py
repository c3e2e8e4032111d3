"""The protocols that a log can be held against, by name, and a system of somebody's own."""

from __future__ import annotations

import json
from collections.abc import Callable, Set
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from kvproof.spec import library
from kvproof.spec.events import BEGIN, Event, Events
from kvproof.spec.finite import Finite
from kvproof.spec.follow import Follower, taken_by
from kvproof.spec.load import Load
from kvproof.spec.protocol import (
    Begin,
    Begun,
    NoSuchWorld,
    Protocol,
    alike,
    begins,
    form,
    natural,
    sized,
    table,
    unloggable,
)
from kvproof.spec.protocol_client import Completion, Ownership
from kvproof.spec.protocol_load import LoadSteps
from kvproof.spec.system import Point, System
from kvproof.spec.theory import Int, Rank, Rigid, State


@cache
def _events(kind: Any) -> Events:
    """Return the events of a system: its actions, and a `begin` that gives its world; raises NoSuchWorld."""
    wrong = unloggable(kind)
    if wrong:
        raise NoSuchWorld(f"{kind.__name__}: {wrong}")
    symbols = kind.symbols()
    states = {name: form(one.result) for name, one in kind.symbols(State).items()
              if list(one.arguments) in ([], [Rank])}
    picks = {act.name: {name: form(sort) for name, sort in act.picks.items()} for act in kind.actions()}
    indices = {sort for symbol in symbols.values() for sort in symbol.arguments}
    indices |= {sort for act in kind.actions() for sort in act.picks.values()}
    needs = tuple(["ranks"] * _ranked(kind) + ["size"] * (Int in indices) + list(kind.symbols(Rigid)))
    may = tuple(name for name in ("ranks", "size", *kind.symbols(State)) if name not in needs)
    return {BEGIN: Event("the world", needs, may)} | {
        act.name: Event((getattr(kind, act.method).__doc__ or "").strip(), (), (*act.picks, *states),
                        {**picks[act.name], **states}, taken_by(act) or "")
        for act in kind.actions()}


@cache
def _ranked(kind: type[System]) -> bool:
    """Return whether a system speaks of ranks."""
    sorts = {sort for symbol in kind.symbols().values() for sort in (*symbol.arguments, symbol.result)}
    return Rank in sorts | {sort for act in kind.actions() for sort in act.picks.values()}


@lru_cache(maxsize=64)
def _begun(kind: type[System], ranks: int, size: int, said: str) -> tuple[Finite, Point, Point]:
    """Return a system, and the state in which it begins; `said` is what `begin` said of its symbols, as JSON."""
    made, more = sized(kind, ranks, size), json.loads(said)
    rigid: Point = {name: table(made.concrete, symbol, more[name])
                    for name, symbol in made.system.symbols(Rigid).items()}
    state = dict(made.plain) | {
        name: table(made.concrete, symbol, more[name]) for name, symbol in made.states.items() if name in more}
    begins(made, rigid, state)
    return made, rigid, state


class Own(Protocol):
    """A system of somebody's own: `begin` gives every rigid symbol, and an event is an action of it."""

    def __init__(self, kind: Any) -> None:
        """Take the system; raises NoSuchWorld for one that no log can be held against."""
        self._kind: Any = kind
        self.events = _events(self._kind)
        self._ends = kind.finished is not System.finished
        if not self._ends:
            self.silent = f"{kind.__name__} does not say when it is `finished`"

    def begin(self, begun: Begun, ranks: Set[int], recorded: Set[str]) -> None:
        """Make the world that `begin` gives: a number for a constant, a list (of lists) for a function."""
        needs = self.events[BEGIN].needs
        if not begun and needs:
            raise NoSuchWorld(f"there is no `begin` event; expected one that says {', '.join(needs)}")
        said = alike(begun, (*needs, *self.events[BEGIN].may))
        world = Begin(begun[0].rank if begun else 0, said)
        number, size = natural(world, "ranks", 1), natural(world, "size", 8)
        if _ranked(self._kind) and max(ranks) >= number:
            raise NoSuchWorld(f"rank {max(ranks)} has recorded events in a world of {number} ranks")
        made, rigid, state = _begun(self._kind, number, size, json.dumps(said))
        self.follower = Follower(made, rigid, state, [name for name in made.actions if name not in recorded])

    def has(self, rank: int) -> bool:
        """Return whether that rank is of the world; where there are no ranks, anybody may record."""
        return super().has(rank) or not _ranked(self._kind)

    def unfinished(self) -> list[str]:
        """Return what of `finished` is false when the log ends."""
        if not self._ends:
            return []
        condition = self.follower.about("finished", lambda s, r: self.follower.system.finished(s), 0)
        return [] if self.follower.stands(condition) else [f"it is not finished: {self.follower.fails(condition)}"]


PROTOCOLS: dict[str, Callable[[], Protocol]] = {
    "load": LoadSteps, "completion": Completion, "ownership": Ownership}


def of_system(path: Path) -> Callable[[], Protocol]:
    """Return the protocol of the system that a file's obligations are about; raises UsageError for several, and none."""
    kind = library.system_of(path)
    return (lambda: LoadSteps(kind)) if issubclass(kind, Load) else (lambda: Own(kind))
