"""The models as a campaign's target: long walks through worlds beyond the explorer's bounds.

Each step is asked of the spec: it has to be one that the spec allows, and what the spec claims of every reachable state
has to hold after it. Where nothing can happen any more, the spec has no step either.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from kvproof.campaigns.own.part import Part, said
from kvproof.errors import UsageError
from kvproof.runner.child import Session

MODELS = ("load", "completions", "exchanges", "lending", "store", "replicated", "fetches", "blocks", "ledger", "lease")
"""The models by name; `_worlds` knows them."""
MOST = 400
"""Steps of a walk at most."""


@dataclass(frozen=True, slots=True)
class Case:
    """A walk: the model, a number that its first state is drawn from, and for each step a number that chooses it."""

    model: str
    first: int
    choices: tuple[int, ...]

    @property
    def faults(self) -> int:
        """A walk has none."""
        return 0

    @property
    def size(self) -> tuple[int, ...]:
        """See `target.Case`."""
        return (0, len(self.choices), sum(self.choices))

    def document(self) -> dict[str, Any]:
        """See `target.Case`."""
        return {"model": self.model, "first": self.first, "choices": list(self.choices)}

    def lines(self) -> list[str]:
        """See `target.Case`."""
        return [f"{self.model}, first state {self.first}, {len(self.choices)} steps"]


def read(given: Any) -> Case:
    """Read a case; raises UsageError that says what is wrong with it."""
    if (isinstance(given, dict) and given.get("model") in MODELS and type(given.get("first")) is int
            and isinstance(given.get("choices"), list) and len(given["choices"]) <= MOST
            and all(type(choice) is int and choice >= 0 for choice in given["choices"])):
        return Case(given["model"], given["first"], tuple(given["choices"]))
    raise UsageError(f"a case of the models: got {str(given)[:80]}; expected a model ({', '.join(MODELS)}), a "
                     f"first state by number and at most {MOST} choices")


def fresh(choose: random.Random) -> Case:
    """Return a walk of some model."""
    return Case(choose.choice(MODELS), choose.randrange(10**6), _choices(choose, choose.choice((20, 60, 150))))


def changed(case: Case, choose: random.Random, other: Case) -> Case:
    """Return a walk that goes on, or turns off somewhere."""
    what, choices = choose.random(), case.choices
    if what < 0.4:
        choices += _choices(choose, 30)
    elif what < 0.8:
        choices = choices[: choose.randint(0, len(choices))] + _choices(choose, 40)
    elif other.model == case.model:
        choices = choices[: choose.randint(0, len(choices))] + other.choices[choose.randint(0, len(other.choices)):]
    else:
        return replace(case, first=choose.randrange(10**6))
    return replace(case, choices=choices[:MOST])


def _choices(choose: random.Random, count: int) -> tuple[int, ...]:
    return tuple(choose.randrange(1000) for _ in range(count))


def simpler(case: Case) -> Iterator[Case]:
    """Return shorter walks."""
    part = len(case.choices) // 2
    while part:
        for at in reversed(range(0, len(case.choices), part)):
            yield replace(case, choices=case.choices[:at] + case.choices[at + part:])
        part //= 2


# In the runner

def inside(session: Session, document: Any) -> Any:
    """Walk, and ask the spec of each step; return what `part.said` does."""
    case = read(document)
    draw, arrow_of, limits = _worlds()[case.model]
    world = draw(random.Random(f"{case.model} {case.first}"))
    arrow, steps, last = arrow_of(world), [f"{world}"[:300]], "begin"
    behaviour: set[str] = set()
    if not arrow.begins():
        return said(behaviour, f"{case.model}: the first state is none of the spec", tuple(steps))
    for choice in case.choices:
        events = sorted(world.events(), key=str)
        if not events:
            behaviour.add(f"{case.model}: {last}>end")
            more = sorted({step[0] for step in arrow.by_the_spec(world)})
            if more:
                return said(behaviour, f"{case.model}: nothing can happen, and the spec allows {', '.join(more)}",
                            tuple(steps))
            break
        # Kinds first, or the many events of one kind are nearly all that happens.
        kinds = sorted({event.name for event in events})
        kind = kinds[choice % len(kinds)]
        these = [event for event in events if event.name == kind]
        event = these[choice // len(kinds) % len(these)]
        steps.append(str(event))
        if not arrow.allows(world, event):
            return said(behaviour, f"{case.model}: the spec does not allow {event.name}", tuple(steps))
        world = world.after(event)
        behaviour.add(f"{case.model}: {last}>{event.name} of {len(kinds)}")
        last = event.name
        false = sorted(set(arrow.falsehoods(world)) - limits)
        if false:
            wrong = f"{case.model}: after {event.name} it is false that {', '.join(false)}"
            return said(behaviour, wrong, tuple(steps))
    return said(behaviour, steps=tuple(steps))


Draw = Callable[[random.Random], Any]


def _worlds() -> dict[str, tuple[Draw, Callable[[Any], Any], frozenset[str]]]:
    """Return for each model what draws a first state, what asks the spec, and claims that are known to be false."""
    from kvproof.models import completions, exchanges, lease, ledger, store
    from kvproof.models.chunks import replicated
    from kvproof.models.lending import Lent
    from kvproof.models.lifecycle import Blocks, Fetch, Fetches
    from kvproof.spec.refine import Arrow
    from kvproof.spec.refine_client import CompletionRefinement, LendingArrow, OwnershipRefinement
    from kvproof.spec.refine_load import LoadRefinement
    from kvproof.spec.refine_operations import BlockRefinement, FetchRefinement, LeaseRefinement, LedgerRefinement
    from kvproof.spec.refine_store import StoreRefinement
    from kvproof.spec.store import Replicated

    def times(choose: random.Random, most: int, what: Callable[[], Any], least: int = 0) -> tuple[Any, ...]:
        return tuple(what() for _ in range(choose.randint(least, most)))

    def errors(choose: random.Random) -> tuple[bool, ...]:
        return times(choose, 10, lambda: choose.random() < 0.4, 1)

    def lent(choose: random.Random) -> Any:
        failing = errors(choose)
        return Lent(failing, got=(-1,) * len(failing), depth=choose.randint(1, 5))

    def stored(choose: random.Random) -> Any:
        ranks = choose.randint(1, 8)
        return store.World.begin(times(choose, 64, lambda: choose.randrange(ranks)), ranks)

    def fetches(choose: random.Random) -> Any:
        return Fetches(times(choose, 10, lambda: Fetch(
            choose.randrange(9), choose.randrange(9), choose.randrange(3))), 3)

    def blocks(choose: random.Random) -> Any:
        size = choose.randint(1, 6)
        return Blocks.begin(size, tuple(choose.randrange(size) for _ in range(size)), size)

    def leased(choose: random.Random) -> Any:
        count = choose.randint(1, 5)
        tier = tuple(choose.random() < 0.5 for _ in range(count))
        return lease.World.begin(times(choose, 8, lambda: choose.randrange(count)), tier, tier,
                                 storing=choose.random() < 0.5)

    none: frozenset[str] = frozenset()
    return {
        "load": (_loading, lambda world: Arrow(LoadRefinement(), world), frozenset({"all-or-none"})),
        "completions": (lambda choose: completions.World.begin(choose.randint(1, 8), choose.randint(1, 4)),
                        lambda world: Arrow(CompletionRefinement(), world), none),
        "exchanges": (lambda choose: exchanges.World.begin(errors(choose)),
                      lambda world: Arrow(OwnershipRefinement(), world), none),
        "lending": (lent, lambda world: LendingArrow(OwnershipRefinement(), world), none),
        "store": (stored, lambda world: Arrow(StoreRefinement(), world), none),
        "replicated": (lambda choose: store.World.begin(replicated(choose.randint(0, 64)), choose.randint(1, 8)),
                       lambda world: Arrow(StoreRefinement(Replicated), world), none),
        "fetches": (fetches, lambda world: Arrow(FetchRefinement(), world), none),
        "blocks": (blocks, lambda world: Arrow(BlockRefinement(), world), none),
        "ledger": (lambda choose: ledger.World.begin(
            times(choose, 6, lambda: choose.randrange(10)), choose.randint(1, 6)),
            lambda world: Arrow(LedgerRefinement(), world), none),
        "lease": (leased, lambda world: Arrow(LeaseRefinement(), world), none),
    }


def _loading(choose: random.Random) -> Any:
    """Return a load step of up to 8 ranks and 32 chunks, any owners; now and then with lists that differ."""
    from kvproof.models.load import Plan, World

    ranks, chunks = choose.randint(1, 8), choose.choice((0, 1, 2, 3, 6, 32))
    plans = [Plan(chunks)] * ranks
    if choose.random() < 0.25:
        plans[choose.randrange(ranks)] = Plan(choose.randint(0, chunks), 1, choose.randint(0, 1))
    owners = tuple(choose.randrange(ranks) for _ in range(chunks))
    return World.begin(tuple(plans), owners, failing=choose.random() < 0.5)


PART = Part("as-the-spec-says", f"{__name__}:inside", 60.0, fresh, changed, simpler, read)
