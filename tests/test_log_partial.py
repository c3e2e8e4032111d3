"""Logs in which whole kinds of events were not recorded: what is right is told, in worlds of a realistic size."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from kvproof.models.load import Plan, World, round_robin
from kvproof.spec import protocol_load
from kvproof.spec.follow import Follower
from tests.logs import Lines, begins, everybody, judged, line, numbered

KINDS = {"arrive", "look", "enter_exchange", "leave_exchange", "enter_broadcast", "leave_broadcast"}


def a_whole_step(ranks: int, chunks: int, missed: int | None = None) -> Lines:
    """Return a step with all of its events; its owner misses the chunk `missed`, and nobody says what it knows."""
    agreed = chunks if missed is None else missed
    lines = begins(ranks, chunks)
    for chunk in range(chunks):
        if chunk != missed:
            lines.append(line(chunk % ranks, "arrive", chunk=chunk))
    for rank in range(ranks):
        stops = agreed if agreed % ranks == rank else chunks
        lines += [line(rank, "look")] * stops
    lines += everybody(range(ranks), "enter_exchange") + everybody(range(ranks), "leave_exchange")
    for _ in range(agreed):
        lines += everybody(range(ranks), "enter_broadcast") + everybody(range(ranks), "leave_broadcast")
    return lines


def saying(lines: Lines, agreed: int) -> Lines:
    """Return the lines with what was agreed on."""
    return [{**each, "values": {"agreed": agreed}} if each["event"] == "leave_exchange" else each for each in lines]


UNRECORDED = [
    {"arrive", "look"}, {"look"}, {"arrive"}, {"enter_exchange"}, {"look", "enter_exchange"},
    {"arrive", "look", "enter_exchange"}, {"arrive", "enter_exchange"}, {"arrive", "look", "leave_exchange"},
]


@pytest.mark.parametrize(("ranks", "chunks"), [(2, 16), (4, 8), (8, 32)])
@pytest.mark.parametrize("unrecorded", UNRECORDED, ids=lambda names: "-".join(sorted(names)))
def test_a_right_log_without_them_is_accepted(
    unrecorded: set[str], ranks: int, chunks: int, tmp_path: Path
) -> None:
    for missed in (None, 0, chunks // 2 + 1):
        lines = a_whole_step(ranks, chunks, missed)
        agreed = chunks if missed is None else missed
        for some in (lines, saying(lines, agreed)):
            kept = [each for each in some if each["event"] not in unrecorded]
            found = judged(tmp_path / "log", numbered(kept), complete=True)
            # Where no chunk was agreed on, nothing comes after an exchange that would show that it was left.
            shown = agreed or "leave_exchange" not in unrecorded
            assert found.verdict == ("accepted" if shown else "inconclusive"), (missed, found)
            assert set(found.filled) <= unrecorded


@pytest.mark.parametrize("unrecorded", [names for names in UNRECORDED if "arrive" in names],
                         ids=lambda names: "-".join(sorted(names)))
def test_a_wrong_one_is_rejected_at_the_event_that_is_wrong(unrecorded: set[str], tmp_path: Path) -> None:
    lines = [each for each in a_whole_step(4, 16, missed=9) if each["event"] not in unrecorded]
    wrong = [*lines, line(3, "leave_broadcast")]
    found = judged(tmp_path / "log", numbered(wrong))
    assert (found.verdict, found.line and found.line.number) == ("rejected", len(wrong)), found
    if "leave_exchange" not in unrecorded:
        wrong = [*saying(lines, 9), line(3, "enter_broadcast")]
        found = judged(tmp_path / "log", numbered(wrong))
        assert (found.verdict, found.line and found.line.number) == ("rejected", len(wrong)), found
        apart = saying(lines, 9)
        last = max(place for place, each in enumerate(apart) if each["event"] == "leave_exchange")
        apart[last] = {**apart[last], "values": {"agreed": 8}}
        found = judged(tmp_path / "log", numbered(apart))
        assert (found.verdict, found.line and found.line.number) == ("rejected", last + 1), found
        assert found.why == "agreed(3) was 8, and is 9 in every behaviour"


def test_of_all_values_that_there_may_be_none_is_left_out(tmp_path: Path) -> None:
    begun = [*begins(1, 2), line(0, "enter_exchange")]
    found = judged(tmp_path / "log", numbered([*begun, line(0, "leave_exchange", agreed=3)]))
    assert found.why == "agreed(0) was 3, and is 0 or 1 or 2 in every behaviour"


def some_run(choose: random.Random) -> Lines:
    """Return a random run of the model, some kinds of which nobody recorded, and perhaps with something wrong."""
    ranks, chunks = choose.randint(1, 3), choose.randint(0, 2)
    plans = [Plan(chunks)] * ranks
    if choose.random() < 0.2:
        plans[0] = Plan(chunks, 1)
    world = World.begin(tuple(plans), round_robin(chunks, ranks), failing=choose.random() < 0.4)
    lines = [line(rank, "begin", world_size=ranks, length=chunks, fingerprint=plan.fingerprint)
             for rank, plan in enumerate(plans)]
    while (now := list(world.events())) and choose.random() < 0.97:
        event = choose.choice(now)
        if event.name in ("die", "expire") and choose.random() < 0.8:
            continue
        world = world.after(event)
        rank = world.ranks[event.rank]
        values = {"arrive": {"chunk": event.chunk}, "enter_exchange": {"failure": rank.failure},
                  "leave_exchange": {"agreed": rank.agreed}}.get(event.name, {})
        if choose.random() < 0.3 and event.name != "arrive":
            values = {}
        lines.append(line(event.rank, event.name, **values))
    if choose.random() < 0.6 and len(lines) > ranks + 1:
        at = choose.randrange(ranks, len(lines))
        other = choose.randrange(ranks, len(lines))
        lines[at], lines[other] = lines[other], lines[at]
    if choose.random() < 0.3 and len(lines) > ranks + 1:
        del lines[choose.randrange(ranks, len(lines))]
    gone = set(choose.sample(sorted(KINDS | {"expire", "call", "answer"}), choose.randint(0, 4)))
    return [each for each in lines if each["event"] not in gone]


@pytest.mark.parametrize("seed", range(60))
def test_one_order_for_what_was_not_recorded_tells_what_all_orders_do(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose = random.Random(seed)
    for _ in range(3):
        lines = some_run(choose)
        if all(each["event"] == "begin" for each in lines):
            continue
        with monkeypatch.context() as every:
            every.setattr(protocol_load, "Follower", lambda made, rigid, state, hidden, *_: Follower(
                made, rigid, state, hidden, ends=frozenset({"expire"})))
            exhaustive = judged(tmp_path / "log", numbered(lines))
        found = judged(tmp_path / "log", numbered(lines))
        if exhaustive.verdict != "unclear":
            assert (found.verdict, found.line) == (exhaustive.verdict, exhaustive.line), lines


@pytest.mark.parametrize("recorded", ["leave_exchange", "leave_broadcast"])
def test_one_kind_alone_is_enough_for_a_log(recorded: str, tmp_path: Path) -> None:
    sizes = {"leave_exchange": (4, 32), "leave_broadcast": (3, 2)}
    lines = [each for each in a_whole_step(*sizes[recorded]) if each["event"] in (recorded, "begin")]
    assert judged(tmp_path / "log", numbered(lines)).verdict in ("accepted", "accepted so far")
