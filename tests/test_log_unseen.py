"""What nobody recorded is filled in only where an event needs it, and then whatever a right run may have done."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from kvproof.models.load import Event, Plan, World
from kvproof.spec.events import ENDS, LOAD
from tests.logs import Lines, begins, everybody, judged, line, numbered

B = begins(2, 1)
TOGETHER = everybody([0, 1], "enter_exchange")
THREE = begins(3, 1) + everybody([0, 1, 2], "enter_exchange")
LATE = everybody([0, 1], "enter_broadcast") + everybody([0, 1], "leave_broadcast") + everybody([0, 1], "call")
GOOD = B + TOGETHER + everybody([0, 1], "leave_exchange", agreed=1) + LATE + everybody([0, 1], "answer")
KINDS = sorted(LOAD.keys() - {"begin"})


def agreed(*ranks: int, chunks: int = 1, step: int = 0) -> Lines:
    return [line(rank, "leave_exchange", step, agreed=chunks) for rank in ranks]


@pytest.mark.parametrize(("lines", "stands"), [
    (B + TOGETHER + agreed(0) + [line(0, "enter_broadcast"), line(0, "expire")],
     "step 0: rank 0 has given up; rank 1 waits in the exchange"),
    (B + TOGETHER + agreed(0) + [line(0, "die")], "step 0: rank 0 is dead; rank 1 waits in the exchange"),
    (THREE + agreed(0, 1) + everybody([0, 1], "enter_broadcast") + everybody([0, 1], "expire"),
     "step 0: ranks 0, 1 have given up; rank 2 waits in the exchange"),
    (GOOD + [{**each, "step": 1} for each in B + TOGETHER + agreed(0)],
     "step 1: rank 0 has left the exchange and entered none of 1 broadcasts; rank 1 waits in the exchange"),
    (begins(8, 8) + everybody(range(8), "enter_exchange") + agreed(0, chunks=8)
     + [line(0, "enter_broadcast"), line(0, "expire")],
     "step 0: rank 0 has given up; ranks 1, 2, 3, 4, 5, 6, 7 wait in the exchange"),
])
def test_a_rank_that_hangs_is_not_taken_to_have_died_or_given_up(lines: Lines, stands: str, tmp_path: Path) -> None:
    found = judged(tmp_path / "log", numbered(lines), complete=True)
    assert (found.verdict, found.unfinished) == ("inconclusive", (stands,))
    assert not set(found.filled) & ENDS


@pytest.mark.parametrize("lines", [
    B + everybody([0, 1], "enter_broadcast") + everybody([0, 1], "answer"),
    begins(2, 0) + TOGETHER + everybody([0, 1], "answer"),
    [*B, line(1, "die"), line(0, "leave_broadcast")],
    [*B, line(1, "expire"), line(0, "leave_broadcast")],
    [*B, *everybody([0, 1], "enter_broadcast"), line(1, "die"), line(0, "leave_broadcast")],
    [*B, *TOGETHER, line(1, "die"), line(0, "answer")],
])
def test_what_a_rank_did_before_it_was_gone_is_filled_in(lines: Lines, tmp_path: Path) -> None:
    assert judged(tmp_path / "log", numbered(lines), complete=True).verdict == "accepted"


def test_any_rank_may_enter_the_exchange_to_give_it_up(tmp_path: Path) -> None:
    def begun(rank: int, step: int) -> Lines:
        return [line(rank, "begin", step, world_size=2, length=1, owners=[1])]

    lines = [*begun(1, 0), *begun(0, 0), *begun(1, 1), line(1, "look", 1), line(0, "die", 0)]
    found = judged(tmp_path / "log", numbered(lines))
    assert (found.verdict, found.filled) == ("accepted so far", ("arrive", "enter_exchange", "expire"))


FILE = """
from kvproof.spec.load_failures import {0}
from kvproof.spec.obligation import Always
OBLIGATIONS = (Always(id="own.safe", claim="c", scope="s", theory={0}, fragment="f", sometimes=None,
                      safety="agree", mutants=()),)
"""


@pytest.mark.parametrize("kind", ["FailingLoad", "LeavesDeadOwner", "LiveOnesWillDo"])
def test_a_system_in_which_a_death_lets_others_go_on_has_no_more_deaths_than_that(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    path.write_text(FILE.format(kind))
    begun = [line(rank, "begin", world_size=3, length=1, owners=[2]) for rank in range(3)]
    lines = begun + everybody([0, 1, 2], "enter_exchange") + agreed(0, 1) + everybody([0, 1], "enter_broadcast")
    through = [*lines, line(0, "leave_broadcast"), line(1, "expire")]
    found = judged(tmp_path / "log", numbered(through), str(path), complete=True)
    assert found.verdict == ("accepted" if kind == "LeavesDeadOwner" else "rejected")
    lines = [*begins(3, 1), *everybody([0, 1, 2], "enter_exchange"), *agreed(0), line(0, "enter_broadcast")]
    found = judged(tmp_path / "log", numbered([*lines, line(0, "expire")]), str(path), complete=True)
    assert (found.verdict, found.filled) == ("inconclusive", ("arrive", "look"))


def told(event: Event, world: World) -> dict[str, int]:
    """Return what may be recorded of an event that has led to this world."""
    rank = world.ranks[event.rank]
    return {"arrive": {"chunk": event.chunk}, "enter_exchange": {"failure": rank.failure},
            "leave_exchange": {"agreed": rank.agreed}, "leave_broadcast": {"chunk": rank.left - 2},
            "enter_broadcast": {"chunk": rank.entered - 2}}.get(event.name, {})


def over(world: World) -> bool:
    """Return whether nobody waits for anything."""
    return all(not rank.present or (rank.done and rank.called == rank.answered) for rank in world.ranks)


def a_run(choose: random.Random) -> tuple[Lines, list[World]]:
    """Return a random run of steps of which some kinds of events were not recorded, and where it ended."""
    ranks, chunks, steps = choose.choice([1, 2, 2, 3, 3]), choose.randint(0, 2), choose.choice([1, 1, 2])
    owners = tuple(choose.randrange(ranks) for _ in range(chunks))
    plans = [Plan(chunks)] * ranks
    if choose.random() < 0.15:
        plans[choose.randrange(ranks)] = Plan(chunks, 1)
    failing = choose.random() < 0.75
    worlds = [World.begin(tuple(plans), owners, failing=failing) for _ in range(steps)]
    begun = [[line(rank, "begin", step, world_size=ranks, length=chunks, owners=owners, fingerprint=plan.fingerprint)
              for rank, plan in enumerate(plans)] for step in range(steps)]
    hidden = {kind for kind in KINDS if choose.random() < choose.choice([0.1, 0.4, 0.7])}
    rate, place, says, lines = choose.choice([0.02, 0.1, 0.3]), [0] * ranks, choose.random() < 0.7, list(begun[0])
    for _ in range(choose.choice([5, 15, 300])):
        ways: list[tuple[int, Event | None]] = [
            (each.rank, each) for step, world in enumerate(worlds) for each in world.events()
            if place[each.rank] == step and (each.name not in ("die", "expire") or choose.random() < rate)]
        standing = [(rank, worlds[at].ranks[rank]) for rank, at in enumerate(place) if at + 1 < steps]
        ways += [(rank, None) for rank, one in standing if (one.aborted or one.done) and not one.dead]
        if not ways:
            break
        rank, event = choose.choice(ways)
        if event is None:
            place[rank] += 1
            lines.append(begun[place[rank]][rank])
            continue
        step = place[rank]
        worlds[step] = worlds[step].after(event)
        if event.name not in hidden:
            values = told(event, worlds[step]) if says or event.name == "arrive" else {}
            lines.append(line(rank, event.name, step, **values))
    return lines, worlds[: 1 + max(place)]


@pytest.mark.parametrize("seed", range(8))
def test_a_right_log_is_never_rejected_and_one_that_ends_early_never_accepted(seed: int, tmp_path: Path) -> None:
    verdicts = Counter[tuple[bool, bool, str]]()
    for number in range(60):
        lines, worlds = a_run(random.Random(1000 * seed + number))
        recorded = {each["event"] for each in lines} - {"begin"}
        gone = any(rank.dead or rank.aborted or rank.called for world in worlds for rank in world.ranks)
        if not recorded or (gone and not recorded & ENDS):
            continue
        found = judged(tmp_path / "log", numbered(lines))
        assert found.verdict in ("accepted", "accepted so far"), lines
        agreed_on = {each["step"] for each in lines if each["values"].get("agreed") is not None}
        finished = all(map(over, worlds))
        told_all = recorded >= {"leave_exchange", "leave_broadcast"} and len(agreed_on) == len(worlds)
        verdicts[finished, told_all, found.verdict] += 1
        if told_all and not finished:
            # A call of which nobody knows is none: who was done is through.
            unseen = any(rank.called and not rank.answered for world in worlds for rank in world.ranks)
            assert found.verdict == "accepted so far" or (unseen and "call" not in recorded), lines
    assert {True, False} == {finished for finished, _, _ in verdicts}
