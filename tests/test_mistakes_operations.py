"""Every named mistake about lifecycles, ledgers and leases, made in a model, is killed by what the model promises."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

from kvproof.models import lease, ledger, lifecycle
from kvproof.models.lifecycle import Blocks, Fetch, Fetches
from kvproof.spec import lease as lease_spec
from kvproof.spec import ledger as ledger_spec
from kvproof.spec import lifecycle as lifecycle_spec
from tests.mistakes import lease as leases
from tests.mistakes import ledger as ledgers
from tests.mistakes import lifecycle as lifecycles
from tests.runs import endless
from tests.store_properties import Property, explored

MISTAKES = {**lifecycles.MISTAKES, **ledgers.MISTAKES, **leases.MISTAKES}
SUBJECTS = (lifecycle_spec, ledger_spec, lease_spec)
Starts = Callable[[Any], list[Any]]


def fetches(kind: type[Fetches]) -> list[Fetches]:
    """Return pairs of operations that fetch nothing, all that they want and less, from one peer or two."""
    each = [(wanted, local) for wanted in range(3) for local in range(3)]
    return [kind((Fetch(*first, 0), Fetch(*second, peer)), peer + 1)
            for first, second, peer in product(each, each, (0, 1))]


def blocks(kind: type[Blocks]) -> list[Blocks]:
    """Return two transfers of one request, and one of each of two."""
    return [kind.begin(2, of, 2) for of in ((0, 0), (0, 1))]


def callers(kind: type[ledger.World]) -> list[ledger.World]:
    """Return one caller and three keys, two and two, three and one."""
    return [kind.begin(sizes, count) for sizes, count in (((1, 2, 3), 1), ((1, 2), 2), ((1,), 3))]


def requests(kind: type[lease.World], *, storing: bool = True) -> list[lease.World]:
    """Return requests for one chunk and for two, which are there or not, intact or not."""
    return [kind.begin(wants, present, intact, storing=storing) for wants, count in (((0, 0), 1), ((0, 1), 2))
            for present in product((True, False), repeat=count) for intact in product((True, False), repeat=count)]


def ending(starts: Starts) -> Callable[[Any], str]:
    """Return what a definition says when a run from one of these states can go on for ever."""
    return lambda kind: next((why for start in starts(kind) if (why := endless(start))), "")


PROPERTIES = {
    "lifecycle.one-report": Property(Fetches, explored(fetches, lifecycle.reported_wrong)),
    "lifecycle.true-report": Property(Fetches, explored(fetches, lifecycle.reported_wrong)),
    "lifecycle.no-deadlock": Property(Fetches, explored(fetches, lifecycle.waits_for_ever)),
    "lifecycle.progress": Property(Fetches, ending(fetches)),
    "lifecycle.one-owner": Property(Blocks, explored(blocks, lifecycle.shared)),
    "lifecycle.last-writer": Property(Blocks, explored(blocks, lifecycle.overwritten)),
    "lifecycle.freed-once": Property(Blocks, explored(blocks, lifecycle.freed_twice)),
    "lifecycle.no-leak": Property(Blocks, explored(blocks, lifecycle.leaked)),
    "ledger.restored": Property(ledger.World, explored(callers, ledger.not_restored)),
    "ledger.never-negative": Property(ledger.World, explored(callers, ledger.negative)),
    "ledger.exclusive": Property(ledger.World, explored(callers, ledger.held_twice)),
    "ledger.no-deadlock": Property(ledger.World, explored(callers, ledger.stuck)),
    "ledger.progress": Property(ledger.World, ending(callers)),
    "lease.holds": Property(lease.World, explored(requests, lease.lost)),
    "lease.withdrawn": Property(lease.World, explored(requests, lease.not_withdrawn)),
    "lease.no-deadlock": Property(lease.World, explored(requests, lease.stuck)),
    "lease.progress": Property(lease.World, ending(lambda kind: requests(kind, storing=False))),
}
"""What each obligation promises."""

_UNREPORTED = r"operation \d has all of its \d blocks, and has not reported"
_WAITS = r"operation \d waits, and nothing will come for it"
_REUSED = r"transfer \d writes block \d, which is free"
_FOR_EVER = "go on for ever"

KILLED: dict[str, str] = {
    "lifecycle.one-report:empty-waits": "has all of its 0 blocks, and has not reported",
    "lifecycle.one-report:full-hit-waits": _UNREPORTED,
    "lifecycle.one-report:reports-twice": "has reported its end 2 times: done, failed",
    "lifecycle.true-report:failed-is-done": r"operation \d is done with \d of \d blocks",
    "lifecycle.no-deadlock:empty-waits": _WAITS,
    "lifecycle.no-deadlock:full-hit-waits": _WAITS,
    "lifecycle.no-deadlock:dead-peer": _WAITS,
    "lifecycle.progress:tries-again": _FOR_EVER,
    "lifecycle.one-owner:freed-by-both": "block 0 is request 0's and request 1's",
    "lifecycle.last-writer:abort-frees": _REUSED,
    "lifecycle.last-writer:first-deletes": _REUSED,
    "lifecycle.freed-once:freed-by-both": "block 0 is 2 times on the free list",
    "lifecycle.no-leak:abort-leaks": r"nothing is in flight for it, and it has the blocks \[0\]",
    "ledger.restored:return-in-loop": "has returned, and holds the lock of key 0",
    "ledger.restored:loses-pins": r"has returned, and its pins are \[1, 0, 0\]",
    "ledger.restored:undone-twice": r"has returned, and its pins are \[-1, 0, 0\]",
    "ledger.never-negative:undone-twice": "has -1 pins on key 0",
    "ledger.exclusive:no-lock": "callers 0 and 1 hold the lock of key 0",
    "ledger.exclusive:unlocks-always": r"callers \d and \d hold the lock of key 0",
    "ledger.no-deadlock:return-in-loop": r"callers \[\d\] have not returned, and nobody can go on",
    "ledger.progress:asks-again": _FOR_EVER,
    "lease.holds:unpinned": "was promised chunk 0, which is not there",
    "lease.holds:still-present": "was promised chunk 0, which is not there",
    "lease.withdrawn:still-present": "chunk 0 has failed to load, and lookups say that it is present",
    "lease.no-deadlock:nobody-fails": "request 0 is promised, and can do nothing",
    "lease.progress:still-present": _FOR_EVER,
}


def test_every_named_mistake_is_made_in_a_model() -> None:
    claims = [each for subject in SUBJECTS for each in subject.OBLIGATIONS]
    named = {f"{each.id}:{mutant.id}" for each in claims for mutant in each.mutants}
    assert named == set(MISTAKES) == set(KILLED)
    assert set(PROPERTIES) == {each.id for each in claims}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_killed_by_its_property(mistake: str) -> None:
    claim = PROPERTIES[mistake.partition(":")[0]]
    assert re.search(KILLED[mistake], claim.broken(MISTAKES[mistake]))


@pytest.mark.parametrize("claim", PROPERTIES)
def test_the_right_model_keeps_every_property(claim: str) -> None:
    assert PROPERTIES[claim].broken(PROPERTIES[claim].right) == ""
