"""Breadth-first exploration of a model: every state that can be reached, and the shortest way to each."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar


class Stepwise(Hashable, Protocol):
    """A model whose states are values."""

    def events(self) -> Iterator[Any]:
        """Return everything that can happen now."""

    def after(self, event: Any) -> Any:
        """Return the state after one of the events."""


S = TypeVar("S", bound=Stepwise)


class TooMany(Exception):
    """There are more states than were asked for."""


@dataclass
class Explored(Generic[S]):
    """What was found: states in the order of their distance, and how each was first reached.

    steps: how many steps there are between the states. last: states in which nothing can happen. fired: how often each
    event's name occurs. bad: the first state in which `wrong` said something, None when there is none; why: what it
    said.
    """

    came: dict[S, tuple[S, Any] | None] = field(default_factory=dict)
    depth: int = 0
    steps: int = 0
    last: list[S] = field(default_factory=list)
    fired: dict[str, int] = field(default_factory=dict)
    bad: S | None = None
    why: str = ""

    def way(self, state: S) -> list[tuple[Any, S]]:
        """Return a shortest way to a state: event and state, from the first step on."""
        steps: list[tuple[Any, S]] = []
        while (before := self.came[state]) is not None:
            steps.append((before[1], state))
            state = before[0]
        return steps[::-1]


def explore(
    *first: S,
    wrong: Callable[[S], str] = lambda state: "",
    alike: Callable[[S], S] = lambda state: state,
    most: int = 10**6,
) -> Explored[S]:
    """Visit every state that can be reached from the first ones; stop at the first that is `wrong`.

    wrong: what is wrong with a state, "" when nothing is. alike: one state for all that are the same but for symmetry.
    Raises TooMany when there are more than `most` states.
    """
    found: Explored[S] = Explored()
    todo: deque[tuple[S, int]] = deque()

    def visit(state: S, came: tuple[S, Any] | None, depth: int) -> bool:
        if state in found.came:
            return False
        if len(found.came) >= most:
            raise TooMany(f"more than {most} states")
        found.came[state] = came
        found.depth = max(found.depth, depth)
        todo.append((state, depth))
        why = wrong(state)
        if why:
            found.bad, found.why = state, why
        return bool(why)

    for state in first:
        if visit(alike(state), None, 0):
            return found
    while todo:
        state, depth = todo.popleft()
        moved = False
        for event in state.events():
            moved = True
            found.steps += 1
            name = event[0]
            found.fired[name] = found.fired.get(name, 0) + 1
            if visit(alike(state.after(event)), (state, event), depth + 1):
                return found
        if not moved:
            found.last.append(state)
    return found
