"""The protocols that a log can be held against, by name, and a system of somebody's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvproof.spec import library
from kvproof.spec.events import BEGIN, Event
from kvproof.spec.follow import Condition, Follower
from kvproof.spec.load import Load
from kvproof.spec.protocol import Begun, NoSuchWorld, Protocol, alike, first, natural, table
from kvproof.spec.protocol_client import Completion, Ownership
from kvproof.spec.protocol_load import LoadSteps
from kvproof.spec.system import Concrete, Point, System
from kvproof.spec.theory import Int, Rank, Rigid, State


class Own(Protocol):
    """A system of somebody's own: `begin` gives every rigid symbol, and an event is an action of it."""

    def __init__(self, kind: type[System]) -> None:
        """Take the system."""
        self._kind, system = kind, kind()
        states = tuple(name for name, one in system.symbols(State).items() if list(one.arguments) in ([], [Rank]))
        sorts = {sort for symbol in system.symbols().values() for sort in (*symbol.arguments, symbol.result)}
        sorts |= {sort for act in kind.actions() for sort in act.picks.values()}
        indices = {sort for symbol in system.symbols().values() for sort in symbol.arguments}
        indices |= {sort for act in kind.actions() for sort in act.picks.values()}
        needs = tuple(["ranks"] * (Rank in sorts) + ["size"] * (Int in indices) + list(system.symbols(Rigid)))
        may = tuple(name for name in ("ranks", "size", *system.symbols(State)) if name not in needs)
        self.events = {BEGIN: Event("the world", needs, may)} | {
            act.name: Event((getattr(kind, act.method).__doc__ or "").strip(), (), (*act.picks, *states))
            for act in kind.actions()}
        self._ends = kind.finished is not System.finished
        if not self._ends:
            self.silent = f"{kind.__name__} does not say when it is `finished`"

    def begin(self, begun: Begun, ranks: set[int], recorded: set[str]) -> None:
        """Make the world that `begin` gives: a number for a constant, a list (of lists) for a function."""
        needs = self.events[BEGIN].needs
        if not begun and needs:
            raise NoSuchWorld(f"there is no `begin` event; expected one that says {', '.join(needs)}")
        alike(begun, (*needs, *self.events[BEGIN].may))
        said = {name: value for each in reversed(begun) for name, value in each.items()}
        number, size = natural(said, "ranks", max(ranks) + 1), natural(said, "size", 8)
        if max(ranks) >= number:
            raise NoSuchWorld(f"rank {max(ranks)} has recorded events in a world of {number} ranks")
        system = self._kind()
        concrete = Concrete(system, number, size)
        rigid: Point = {name: table(concrete, symbol, said[name]) for name, symbol in system.symbols(Rigid).items()}
        state = first(system, number, size)
        for name, symbol in system.symbols(State).items():
            if name in said:
                state[name] = table(concrete, symbol, said[name])
        hidden = [act.name for act in system.actions() if act.name not in recorded]
        self.follower = Follower(system, number, size, rigid, state, hidden)

    def unfinished(self) -> list[str]:
        """Return what of `finished` is false when the log ends."""
        if not self._ends:
            return []
        condition = Condition.of(self.follower.system, lambda s, r: self._kind().finished(s), 0)
        return [] if self.follower.stands(condition) else [f"it is not finished: {self.follower.fails(condition)}"]


PROTOCOLS: dict[str, Callable[[], Protocol]] = {
    "load": LoadSteps, "completion": Completion, "ownership": Ownership}


def of_system(path: Path) -> Callable[[], Protocol]:
    """Return the protocol of the first system that a file's obligations are about; raises UsageError, NoSuchWorld."""
    theories: list[Any] = [each.theory for each in library.of_file(path) if issubclass(each.theory, System)]
    if not theories:
        raise NoSuchWorld(f"{path} has obligations about no system, and so no events")
    kind = theories[0]
    return (lambda: LoadSteps(kind)) if issubclass(kind, Load) else (lambda: Own(kind))
