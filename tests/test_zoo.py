"""The zoo: each wrong connector is caught by its own rule, and by no rule that it does not break."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from kvproof import check, connectors
from kvproof.connectors import Connector
from kvproof.results import CellRow, is_finding
from kvproof.rules import RULES
from tests.zoo import unusual
from tests.zoo.honest import Honest
from tests.zoo.members import MEMBERS
from tests.zoo.wrong import Wrong

STRIDE = 24
"""Cells that are tried at once, until one of them has caught it."""


def connector(member: type[Honest]) -> Connector:
    """Return the connector that a class of the zoo is."""
    return connectors.find(f"{member.__module__}:{member.__name__}")


def first_finding(member: type[Wrong]) -> tuple[CellRow | None, list[CellRow]]:
    """Try the cells of the member's own rule until one catches it; return that, and all that were tried."""
    asked, tried = check.Asked(rules=(member.rule,), again=0), []
    with check.grounds(None, "cpu") as make, ThreadPoolExecutor(STRIDE) as pool:
        ground = make(connector(member), threading.Event())
        cells = check.plan(ground, pool, asked)
        for begin in range(0, len(cells), STRIDE):
            rows = list(pool.map(lambda cell: check.attempt(ground, cell, asked), cells[begin : begin + STRIDE]))
            tried += rows
            for row in rows:
                if is_finding(row.verdict):
                    return row, tried
    return None, tried


def test_every_rule_has_two_wrong_connectors_or_more() -> None:
    counts = Counter(member.rule for member in MEMBERS)
    few = {rule: counts[rule] for rule in RULES if counts[rule] < 2}
    assert not few, f"rules with fewer than two wrong connectors: {few}"
    assert len(MEMBERS) >= 40, f"expected 40 wrong connectors or more, got {len(MEMBERS)}"
    assert set(counts) <= set(RULES)


@pytest.mark.parametrize("member", MEMBERS, ids=lambda member: member.__name__)
def test_a_wrong_connector_is_caught_by_its_own_rule(member: type[Wrong]) -> None:
    caught, tried = first_finding(member)
    verdicts = Counter(row.verdict for row in tried)
    assert caught is not None, f"{member.__name__}: no cell of {member.rule} caught it: {verdicts}"


def test_the_honest_connector_passes_everything() -> None:
    rows = check.run([connector(Honest)], check.Asked())
    wrong = [f"{row.id}: {row.verdict}: {row.explain}" for row in rows if row.verdict != "pass"]
    assert not wrong, "\n".join(wrong[:20])
    assert {row.rule for row in rows} == set(RULES)


UNUSUAL: dict[type[Honest], tuple[str, ...]] = {
    unusual.Raises: ("leak-free", "cancel-safe", "sync-from-any-thread", "linearizable"),
    unusual.TriesAgain: ("honest-error",),
    unusual.InHalves: ("no-stale-hit", "lookup-coherent"),
    unusual.Compressed: ("no-stale-hit", "lookup-coherent"),
    unusual.Hashed: ("no-stale-hit", "lookup-coherent"),
    unusual.ClosesSlowly: ("close-resolves",),
}
"""Connectors that are right in a way that is seldom seen, with the rules that could take it for wrong."""


@pytest.mark.parametrize("member", UNUSUAL, ids=lambda member: member.__name__)
def test_a_connector_that_is_right_in_an_unusual_way_passes(member: type[Honest]) -> None:
    rows = check.run([connector(member)], check.Asked(rules=UNUSUAL[member], reads=("get", "put", "async_get")))
    wrong = [f"{row.id}: {row.verdict}: {row.explain}" for row in rows if row.verdict not in ("pass", "unsupported")]
    assert not wrong, "\n".join(wrong[:20])
    untried = [row for row in rows if row.verdict == "unsupported"]
    assert bool(untried) == (member is unusual.Hashed), f"unsupported: {[row.id for row in untried]}"


def test_what_cannot_be_tried_on_the_wire_is_told() -> None:
    asked = check.Asked(rules=("no-stale-hit",), faults=("wire",), reads=("get",))
    [row] = check.run([connector(unusual.Hashed)], asked)
    assert (row.verdict, "no disturbance of the wire was tried" in row.explain) == ("unsupported", True), row.explain


@pytest.mark.nightly
@pytest.mark.parametrize("member", MEMBERS, ids=lambda member: member.__name__)
def test_a_wrong_connector_is_caught_by_no_rule_that_it_does_not_break(member: type[Wrong]) -> None:
    rows = check.run([connector(member)], check.Asked(again=0))
    # A call that never comes back, or takes the process along, does so under every rule.
    anywhere = ("hang", "crash") if "bounded-time" in member.breaks else ()
    wrong = [f"{row.id}: {row.verdict}: {row.explain}" for row in rows
             if is_finding(row.verdict) and row.rule not in member.breaks and row.verdict not in anywhere]
    said = f"{member.__name__} breaks {sorted(member.breaks)} only, and was caught by"
    assert not wrong, "\n".join([said, *wrong[:10]])
    assert any(is_finding(row.verdict) and row.rule == member.rule for row in rows)
