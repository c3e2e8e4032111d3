"""Every named mistake about prefixes, stores, keys and costs, made in a model, is killed by what the model promises."""

from __future__ import annotations

import re

import pytest

from kvproof.spec import cost, keys, prefix, store
from kvproof.spec.key_text import FIELDS
from tests.mistakes import cost as costs
from tests.mistakes import keys as keyed
from tests.mistakes import prefix as prefixes
from tests.mistakes import store as stores
from tests.store_properties import PROPERTIES

MISTAKES = {**prefixes.MISTAKES, **stores.MISTAKES, **keyed.MISTAKES, **costs.MISTAKES}
SUBJECTS = (prefix, store, keys, cost)


_CACHED = r"a prefix of \d+ is promised, and \d+ chunks of it are cached"
_OTHERS = r"stored chunk \d+, which is rank 0's"
_UNEVEN = r"was dealt \d+ of \d+ chunks among \d+ ranks"
_ALIKE = "are both written"
_CHOSEN = r"a hit of \S+ tokens is (loaded|recomputed): loading takes \S+ s, recomputing \S+ s"
_REGRET = r"the choice costs \S+ s more than the better way, and at most \S+ s were promised"
_BUSY = r"one instance would be busy (\S+) of the time, and each of \d+ is busy \1"

KILLED: dict[str, str] = {
    "prefix.minimum:maximum": _CACHED,
    "prefix.minimum:count": _CACHED,
    "prefix.minimum:owns-nothing": "a prefix of 0 is promised",
    "prefix.minimum:past-the-hole": _CACHED,
    "prefix.round-robin:forgets-rank": r"which is taken for \d+, not \d+",
    "prefix.round-robin:no-cap": r"of (\d+) chunks, which is taken for \d+, not \1",
    "prefix.adding:displaces": r"adding chunk \d+ shortens the prefix",
    "prefix.evicting:no-hits-is-all": r"evicting chunk \d+ lengthens the prefix",
    "prefix.two-tiers:first-tier-only": _CACHED,
    "prefix.two-tiers:second-tier-only": _CACHED,
    "prefix.tokens:whole-prompt": "has none left to compute",
    "prefix.tokens:local-above": r"the engine is given -\d+ tokens",
    "prefix.tokens:late-minus-one": "which is no multiple of the block",
    "prefix.tokens:minus-one-aligned": r"the engine is given -\d+ tokens",
    "store.once:every-rank": _OTHERS,
    "store.once:resumes": "rank 0 stored chunk 0 2 times",
    "store.once:skips": "is past its chunk 0, and has not stored it",
    "store.replicated:every-worker": _OTHERS,
    "store.replicated:local-rank": f"rank 2 {_OTHERS}",
    "store.even:starts-again": _UNEVEN,
    "store.even:pairs": _UNEVEN,
    "store.slice:keeps-all": "keeps 2 of 2 chunks, and its slice is 1",
    "store.slice:rounds-down": "keeps 1 of 1 chunks, and its slice is 0",
    "keys.read-is-written:not-rewritten": "asynchronous-get of .* which nobody stores",
    "keys.read-is-written:exists-own-rank": "sharded: exists of .* which nobody stores",
    "keys.read-is-written:all-as-zero": "per-worker: .* may get what another rank has of it",
    "keys.instance:readers-rank": "asks instance .* which is not there",
    "keys.instance:not-rewritten": "asynchronous-get of .* which is not there",
    "keys.instance:written-to-first": "asks instance .* which is not there",
    "keys.same-owner:from-one": r"is rank \d+'s for one, \d+'s for another",
    "keys.distinct:sixteen-bits": _ALIKE,
    **{f"keys.distinct:no-{name}": _ALIKE for name in FIELDS},
    "keys.parse:untagged": "which is read as",
    "keys.parse:separator-in-name": "the text of a key is not read|which is read as",
    "keys.escaped:as-it-is": "with the separator in it",
    "keys.escaped:keeps-separator": "with the separator in it",
    "keys.unescaped:escape-itself": "which is read as|which is not read",
    "cost.break-even:inverted": _CHOSEN,
    "cost.break-even:with-length": _CHOSEN,
    "cost.break-even:bits": r"is recomputed: loading takes \S+ s",
    "cost.least-tokens:no-bandwidth": "is loaded",
    "cost.least-tokens:any-bandwidth": "is loaded",
    "cost.floor:any-bandwidth": r"a hit pays from -\S+ tokens on, and the floor is",
    "cost.floor:transfer-too": r"a hit pays from \S+ tokens on, and the floor is",
    "cost.regret:greater-error": _REGRET,
    "cost.regret:always-load": _REGRET,
    "cost.backlog:strictly": "an unstable backlog of",
    "cost.backlog:idle-credit": r"arrivals -\S+ s of work are left",
    "cost.split:all-from-each": _BUSY,
    "cost.split:one-link": _BUSY,
}


def test_every_named_mistake_is_made_in_a_model() -> None:
    claims = [each for subject in SUBJECTS for each in subject.OBLIGATIONS]
    named = {f"{each.id}:{mutant.id}" for each in claims for mutant in each.mutants}
    assert named == set(MISTAKES) == set(KILLED)
    assert set(PROPERTIES) == {each.id for each in claims if not each.limit}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_killed_by_its_property(mistake: str) -> None:
    claim = PROPERTIES[mistake.partition(":")[0]]
    assert re.search(KILLED[mistake], claim.broken(MISTAKES[mistake]))


@pytest.mark.parametrize("claim", PROPERTIES)
def test_the_right_model_keeps_every_property(claim: str) -> None:
    assert PROPERTIES[claim].broken(PROPERTIES[claim].right) == ""
