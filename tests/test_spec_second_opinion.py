"""A second solver is asked the same queries: it never contradicts, and answers nearly all."""

from __future__ import annotations

from collections import Counter

import pytest
import z3

from kvproof.spec import library, load
from kvproof.spec.obligation import Obligation
from kvproof.spec.second_opinion import ask, available


def opinions(obligations: list[Obligation]) -> tuple[Counter[str], list[str]]:
    counts: Counter[str] = Counter()
    unknown = []
    seen = set()
    for obligation in obligations:
        for query in obligation.queries(obligation.theory()):
            if query.shared and (obligation.theory, query.name) in seen:
                continue
            seen.add((obligation.theory, query.name))
            opinion = ask(query.name, query.formulas)
            counts[opinion.verdict] += 1
            if opinion.verdict != "not-contradicted" and not obligation.limit:
                unknown.append(f"{obligation.id}: {query.name}: {opinion.verdict}")
    return counts, unknown


def test_cvc5_finds_a_model_of_what_is_satisfiable_and_none_of_what_is_not() -> None:
    x = z3.Int("x")
    assert ask("sat", [x > 1]).verdict == "contradicted"
    assert ask("unsat", [x > 1, x < 1]).verdict == "not-contradicted"
    assert available()


def test_cvc5_agrees_with_the_loading_protocol() -> None:
    counts, unknown = opinions(list(load.OBLIGATIONS))
    assert counts["contradicted"] == 0, unknown
    assert counts["not-contradicted"] >= 0.9 * counts.total(), unknown


@pytest.mark.nightly
def test_cvc5_answers_nine_of_ten_of_all_queries() -> None:
    counts, unknown = opinions([each for each in library.obligations() if not each.limit])
    print(f"cvc5 {available()}: {dict(counts)}; unknown: {unknown}", flush=True)
    assert counts["contradicted"] == 0, unknown
    assert counts["not-contradicted"] >= 0.9 * counts.total(), unknown
