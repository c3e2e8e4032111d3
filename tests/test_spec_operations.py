"""Completion, ownership, lifecycle, ledger and lease: each claim proved, each mutant refuted, smallest first."""

from __future__ import annotations

from functools import cache

import pytest

from kvproof.spec import completion, lease, ledger, lifecycle, ownership
from kvproof.spec.obligation import Obligation
from kvproof.spec.prover import MutantResult, Result, prove
from kvproof.spec.search import Run

SUBJECTS = (completion, ownership, lifecycle, ledger, lease)
ALL: dict[str, Obligation] = {each.id: each for subject in SUBJECTS for each in subject.OBLIGATIONS}
RUNS = {
    # mutant: (ranks, size), the actions of a shortest run in some order (a/b: either), a word of what is said of it
    "completion.register-first-once:submit-first":
        ((1, 0), "submit complete drain_unknown register", "dropped"),
    "completion.register-first-resolved:flight-only": ((1, 0), "register close", "closed"),
    "completion.register-first-resolved:queue-forgotten":
        ((1, 0), "register submit complete die reap", "went with the worker"),
    "completion.register-first-ids:cancel-frees-id":
        ((1, 1), "register submit cancel register submit", "one id"),
    "completion.one-lock-once:drain-without-lock":
        ((1, 0), "submit complete drain_unknown register", "dropped"),
    "completion.one-lock-resolved:close-without-lock": ((1, 0), "submit close register", "between"),
    "completion.one-lock-resolved:queue-forgotten":
        ((1, 0), "submit register complete die reap", "went with the worker"),
    "completion.one-lock-ids:cancel-frees-id": ((1, 1), "submit register cancel submit", "one id"),
    "completion.kept-once:drops-unknown": ((1, 0), "submit complete drain_unknown register", "dropped"),
    "completion.kept-resolved:ignores-close": ((1, 0), "submit close register", "closed"),
    "completion.kept-ids:table-frees-id": ((1, 1), "submit submit", "one id"),
    "ownership.own-reply:returned-early": ((1, 1), "send give_up give_back send read", "given up"),
    "ownership.own-reply:stops-at-error": ((1, 2), "send send read send read", "pipeline"),
    "ownership.own-reply:push-is-reply": ((1, 0), "send push read_push", "push frame"),
    "ownership.clean-return:returned-early": ((1, 0), "send give_up give_back", "outstanding"),
    "lifecycle.one-report:empty-waits": ((1, 0), "begin", "no completion"),
    "lifecycle.one-report:full-hit-waits": ((1, 1), "begin", "no completion"),
    "lifecycle.true-report:failed-is-done": ((1, 1), "begin die fail", "never came"),
    "lifecycle.no-deadlock:dead-peer": ((1, 1), "begin die", "no completion"),
    "lifecycle.last-writer:abort-frees": ((1, 0), "allocate begin end", "writes into a block"),
    "lifecycle.last-writer:first-deletes": ((1, 1), "allocate begin begin end complete", "writes into a block"),
    "ledger.restored:return-in-loop": ((1, 1), "begin lock fail", "lock is held"),
    "ledger.restored:loses-pins": ((1, 1), "begin lock take fail", "pinned"),
    "ledger.never-negative:undone-twice": ((1, 1), "begin lock take fail/finish undo undo", "negative"),
    "ledger.no-deadlock:return-in-loop": ((2, 1), "begin begin lock fail", "blocks for ever"),
    "lease.holds:unpinned": ((1, 0), "ask evict", "evicted"),
    "lease.withdrawn:still-present": ((1, 0), "ask fail", "cannot be loaded"),
    "lease.progress:still-present": ((1, 0), "ask fail ask", "again and again"),
}


@cache
def proved(name: str) -> Result:
    return prove(ALL[name])


def mutant(name: str) -> MutantResult:
    obligation, _, wanted = name.partition(":")
    return next(each for each in proved(obligation).mutants if each.id == wanted)


@pytest.mark.parametrize("name", ALL)
def test_each_claim_is_proved_and_each_of_its_mutants_refuted(name: str) -> None:
    result = proved(name)
    assert result.verdict == "proved", f"{name}: {result.verdict}, {result.explain}"
    assert result.mutants, f"{name} has no mutant"
    assert [each.id for each in result.mutants if each.verdict != "refuted"] == []


@pytest.mark.parametrize("name", RUNS)
def test_a_mutants_run_is_a_smallest_one(name: str) -> None:
    (ranks, size), actions, word = RUNS[name]
    found = mutant(name)
    assert isinstance(found.trace, Run)
    assert (found.trace.ranks, found.trace.size) == (ranks, size), f"{name}: {found.trace.describe()}"
    taken = [action for action, _ in found.trace.actions]
    expected = [next((one for one in each.split("/") if one in taken), each) for each in actions.split()]
    assert sorted(taken) == sorted(expected), f"{name}: {found.trace.describe()}"
    assert word in found.explain, f"{name}: {found.explain}"


def test_every_mutant_that_protocols_are_known_for_is_there() -> None:
    said = {each.says for obligation in ALL.values() for each in obligation.mutants}
    for mistake in (
        "submit then register", "close does not take the lock", "drain drops what it does not know",
        "a cancelled id is returned early", "a dead worker's queue is forgotten",
        "the connection is returned with a reply outstanding", "reading stops at a pipeline's first error",
        "a push frame is taken for a reply", "abort frees at once", "the first of two completions deletes",
        "return inside the loop", "undone twice", 'the cached verdict "present" survives a failed load',
    ):
        assert any(each.startswith(mistake) for each in said), f"no mutant says {mistake!r}"


def test_a_lost_completion_ends_with_a_future_that_nothing_resolves() -> None:
    """The bug of facts 1: the completion comes between submit and register, and is dropped."""
    run = mutant("completion.register-first-once:submit-first").trace
    assert isinstance(run, Run)
    last = run.states[-1]
    at_the_end = {name: last[name][0,] for name in ("promised", "registered", "delivered", "place")}
    assert at_the_end == {"promised": True, "registered": True, "delivered": 0, "place": "gone"}


def test_a_cancelled_requests_reply_reaches_the_next_borrower() -> None:
    run = mutant("ownership.own-reply:returned-early").trace
    assert isinstance(run, Run)
    assert run.states[-1]["got"] == {(0,): -1, (1,): 0}, "request 1 must have been given reply 0"
