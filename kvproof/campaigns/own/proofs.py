"""The obligations and the explorer as a campaign's target: other seeds of the solver, and larger bounds.

An obligation that is proved with one seed is proved with every other, or nobody knows; a world that the explorer walks
through whole has no state of which anything is wrong.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from kvproof.campaigns.own.part import Part, said
from kvproof.errors import UsageError
from kvproof.runner.child import Session

EXPLORED = "explore"
"""What is explored in place of an obligation that is proved."""
WORLDS = tuple((ranks, chunks) for ranks in range(1, 7) for chunks in range(13) if ranks * chunks <= 16)
"""Worlds of the load protocol, as ranks and chunks, that may be explored."""
_STATES = 300_000
"""States after which exploring a world is given up."""


@dataclass(frozen=True, slots=True)
class Case:
    """An obligation by its id, and a seed of the solver; or `EXPLORED`, and the number of a world."""

    obligation: str
    seed: int

    @property
    def faults(self) -> int:
        """A proof has none."""
        return 0

    @property
    def size(self) -> tuple[int, ...]:
        """See `target.Case`."""
        return (0, self.seed)

    def document(self) -> dict[str, Any]:
        """See `target.Case`."""
        return {"obligation": self.obligation, "seed": self.seed}

    def lines(self) -> list[str]:
        """See `target.Case`."""
        return [f"{self.obligation}, seed {self.seed}"]


def read(given: Any) -> Case:
    """Read a case; raises UsageError that says what is wrong with it."""
    if isinstance(given, dict) and isinstance(given.get("obligation"), str) and type(given.get("seed")) is int and (
            0 <= given["seed"] < 2**31):
        return Case(given["obligation"], given["seed"])
    raise UsageError(f"a case of the obligations: got {str(given)[:80]}; expected an object of an obligation's id and "
                     "a seed")


def fresh(choose: random.Random) -> Case:
    """Return some obligation with some seed, or some world."""
    from kvproof.spec import library

    if choose.random() < 0.2:
        return Case(EXPLORED, choose.randrange(len(WORLDS)))
    return Case(choose.choice([each.id for each in library.obligations()]), choose.randrange(2**31))


def changed(case: Case, choose: random.Random, other: Case) -> Case:
    """Nothing is near an obligation: return another one."""
    return fresh(choose)


def simpler(case: Case) -> Iterator[Case]:
    """Return the same with smaller seeds."""
    seed = case.seed
    while seed:
        seed //= 1024
        yield replace(case, seed=seed)


# In the runner

def inside(session: Session, document: Any) -> Any:
    """Prove, or explore; return what `part.said` does."""
    case = read(document)
    return _explored(case) if case.obligation == EXPLORED else _proved(case)


def _explored(case: Case) -> Any:
    from kvproof.explore import world
    from kvproof.models.explore import TooMany, explore
    from kvproof.models.load import complaint

    ranks, chunks = WORLDS[case.seed % len(WORLDS)]
    try:
        found = explore(world(ranks, chunks), wrong=complaint, most=_STATES)
    except TooMany:
        # It was looked at as far as it was, and nothing was wrong there.
        return said({f"explore {ranks} {chunks}: more than {_STATES} states"})
    wrong = f"{ranks} ranks and {chunks} chunks: {found.why}" if found.why else ""
    return said({f"explore {ranks} {chunks}: {len(found.came)} states"}, wrong,
                tuple(str(event) for event, _ in found.way(found.bad)) if found.bad is not None else ())


def _proved(case: Case) -> Any:
    from kvproof.spec import library
    from kvproof.spec.prover import Effort, prove

    obligation = next((each for each in library.obligations() if each.id == case.obligation), None)
    if obligation is None:
        raise UsageError(f"no obligation is called {case.obligation!r}; `kvproof prove --list` lists them")
    result = prove(obligation, Effort(seed=case.seed))
    shown = {f"{case.obligation}: {result.verdict}"}
    if result.passes:
        return said(shown)
    explain = f"{case.obligation} is {result.verdict}: {result.explain}"
    return said(shown, unknown=explain) if result.verdict == "unknown" else said(shown, explain)


PART = Part("proved-with-every-seed", f"{__name__}:inside", 300.0, fresh, changed, simpler, read)
