"""A full factorial: every combination of levels, several times, and which factor, or which two together, matter."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from kvproof.errors import UsageError

_PLACE = re.compile(r"(?<!\$)\{(\w+)\}")
"""Where a factor's level goes; ${NAME} is the shell's, which has it from the environment."""

Levels = Mapping[str, str]
"""One combination: a level for each factor."""


def read(text: str) -> tuple[str, tuple[str, ...]]:
    """Read NAME=a,b; raises UsageError."""
    name, _, levels = text.partition("=")
    found = tuple(levels.split(","))
    if not name.isidentifier() or len(found) < 2 or len(set(found)) < len(found):
        raise UsageError(f"--factor {text}: expected NAME=a,b with two different levels or more")
    return name, found


def combinations(factors: Mapping[str, Sequence[str]]) -> list[Levels]:
    """Return every combination, the last factor changing first."""
    return [dict(zip(factors, levels, strict=True)) for levels in itertools.product(*factors.values())]


def placed(command: Sequence[str], levels: Levels) -> list[str]:
    """Return the command with {NAME} replaced by each factor's level."""
    return [_PLACE.sub(lambda found: levels.get(found[1], found[0]), word) for word in command]


def unknown(command: Sequence[str], factors: Collection[str]) -> list[str]:
    """Return what looks like the place of a factor and is none's."""
    return sorted({found[0] for word in command for found in _PLACE.finditer(word) if found[1] not in factors})


@dataclass(frozen=True, slots=True)
class Effect:
    """What one factor, or several together, do: by how much the share of failures differs at most between levels.

    rates: the share of failures at each level, or at each combination of levels.
    """

    factors: tuple[str, ...]
    size: float
    rates: Mapping[tuple[str, ...], float]


def effects(factors: Mapping[str, Sequence[str]], outcomes: Sequence[tuple[Levels, bool]]) -> list[Effect]:
    """Return the effect of each factor and of each two together, the largest first; outcomes: whether each run failed.

    Of two together it is by how much the effect of the one depends on the level of the other.
    """
    found = []
    for name, levels in factors.items():
        rates: dict[tuple[str, ...], float] = {(level,): _rate(outcomes, {name: level}) for level in levels}
        found.append(Effect((name,), max(rates.values()) - min(rates.values()), rates))
    for one, other in itertools.combinations(factors, 2):
        rates = {(a, b): _rate(outcomes, {one: a, other: b}) for a in factors[one] for b in factors[other]}
        size = max((abs(rates[a, c] - rates[a, d] - rates[b, c] + rates[b, d])
                    for a, b in itertools.combinations(factors[one], 2)
                    for c, d in itertools.combinations(factors[other], 2)), default=0.0)
        found.append(Effect((one, other), size, rates))
    # Of equals the one with more factors: what two do together also moves the mean of each.
    return sorted(found, key=lambda effect: (-round(effect.size, 9), -len(effect.factors)))


def _rate(outcomes: Sequence[tuple[Levels, bool]], levels: Levels) -> float:
    those = [failed for at, failed in outcomes if all(at[name] == level for name, level in levels.items())]
    return sum(those) / len(those) if those else 0.0
