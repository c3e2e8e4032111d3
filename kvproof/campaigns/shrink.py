"""Shrinking: the smallest case that still shows what a case has shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from kvproof.campaigns.target import Case

Shown = TypeVar("Shown")
Which = TypeVar("Which", bound=Case)


def shrink(
    case: Which, shown: Shown, simpler: Callable[[Which], Iterator[Which]],
    shows: Callable[[Sequence[tuple[int, Which]]], Sequence[Shown | None]], tries: int = 60, together: int = 4,
) -> tuple[Which, Shown]:
    """Return a smaller case that still shows what `case` has shown, if there is one, and what came of it.

    simpler: returns what is left of a case in each way in which there is less of it. shows: plays several cases, each
    with its number, and returns what came of each, None for one that does not show it. Each round leaves something out
    or makes it simpler, the largest parts first, and goes on from the first of them that still shows it; it ends after
    so many tries.
    """
    asked: set[str] = set()
    while True:
        candidates = [each for each in simpler(case) if repr(each.document()) not in asked]
        for begin in range(0, len(candidates), together):
            these = candidates[begin: begin + together]
            if len(asked) + len(these) > tries:
                return case, shown
            numbered = list(enumerate(these, len(asked)))
            asked |= {repr(each.document()) for each in these}
            found = next(((each, came) for each, came in zip(these, shows(numbered), strict=True) if came is not None),
                         None)
            if found is not None:
                case, shown = found
                break
        else:
            return case, shown
