"""Where a log ends: finished or not, who is still where, and no rank turns to another step from inside of one."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from kvproof.models.load import Event, Plan, World, round_robin
from kvproof.spec.events import ENDS
from tests.logs import Lines, a_step, begins, everybody, judged, line, numbered, operations, requests, said

STANDS = "ranks 0, 1 wait in broadcast 3 of 3; rank 2 has left broadcast 2 of 3 and not entered the next"
ACCEPTED = "accepted so far: {} events are a behaviour of the protocol{}; the log ends unfinished:\n  {}\n"
UNSEEN = "; not recorded, and filled in: look"
WITH_CHUNKS = "; not recorded, and filled in: arrive, look"


def test_a_step_that_is_finished_is_accepted(tmp_path: Path) -> None:
    for lines in (a_step(3, 3), a_step(3, 3) + a_step(3, 2, step=1), a_step(1, 0)):
        for complete in (False, True):
            found = judged(tmp_path / "log", numbered(lines), complete=complete)
            assert (found.verdict, found.unfinished, found.exit_code) == ("accepted", (), 0)


def test_a_skipped_broadcast_at_the_end_is_unfinished(tmp_path: Path) -> None:
    lines = a_step(3, 3, short=2)
    assert said(tmp_path / "log", lines) == ACCEPTED.format(23, WITH_CHUNKS, f"step 0: {STANDS}")
    found = judged(tmp_path / "log", numbered(lines))
    assert (found.exit_code, found.unfinished) == (0, (f"step 0: {STANDS}",))


def test_a_log_that_has_to_be_complete_is_inconclusive_when_it_ends_unfinished(tmp_path: Path) -> None:
    lines = a_step(3, 3, short=2)
    assert said(tmp_path / "log", lines, complete=True) == (
        f"inconclusive: the log ends unfinished:\n  step 0: {STANDS}\n")
    command = [sys.executable, "-m", "kvproof", "validate", str(tmp_path / "log"), "--complete"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 3
    assert done.stdout.startswith("inconclusive: the log ends unfinished:")


def test_a_rank_that_goes_on_while_it_is_still_in_a_step_is_rejected_where_it_begins(tmp_path: Path) -> None:
    short = a_step(3, 3, short=2)
    for more in (a_step(3, 3, step=1), [line(2, "enter_exchange", 1), *begins(3, 3, step=1)[:2]]):
        if more[0]["event"] != "begin":
            more = [*begins(3, 3, step=1)[2:], *more]
        found = judged(tmp_path / "log", numbered(short + more))
        assert found.verdict == "rejected"
        assert found.line is not None
        assert found.line.number == len(short) + 1
        rank = more[0]["rank"]
        assert found.why == f"rank {rank} has neither finished step 0, nor given it up, nor died: {STANDS}"


def test_a_rank_that_has_no_line_of_a_step_has_not_finished_it(tmp_path: Path) -> None:
    lines = [*begins(2, 1)[:1], line(0, "enter_exchange"), *begins(2, 1, step=1)[1:]]
    found = judged(tmp_path / "log", numbered(lines))
    assert found.verdict == "rejected"
    assert found.why == ("rank 1 has neither finished step 0, nor given it up, nor died: rank 0 waits in the exchange; "
                         "rank 1 has not entered the exchange")
    assert found.hint == "nobody records `expire` or `die` in this log, so nobody is taken to have given up or died"


GIVEN_UP = everybody([0, 1, 2], "enter_exchange", failure=2) + everybody([0, 1], "leave_exchange", agreed=2)


@pytest.mark.parametrize("end", ["expire", "die"])
def test_a_rank_that_gave_up_or_died_may_go_on(end: str, tmp_path: Path) -> None:
    lines = begins(3, 2) + GIVEN_UP + [line(2, end)]
    lines += begins(3, 0, step=1)[2:]
    found = judged(tmp_path / "log", numbered(lines))
    assert found.verdict == "accepted so far"
    state = "has given up" if end == "expire" else "is dead"
    assert found.unfinished[0] == (
        f"step 0: ranks 0, 1 have left the exchange and entered none of 2 broadcasts; rank 2 {state} "
        "(unless enter_broadcast, leave_broadcast, which nobody records in this log, came after)")


def without(lines: Lines, *events: str) -> Lines:
    return [each for each in lines if each["event"] not in events]


@pytest.mark.parametrize("events", [("leave_broadcast",), ("leave_exchange", "leave_broadcast"), ("enter_broadcast",)])
def test_ends_of_kinds_that_nobody_records_are_filled_in(events: tuple[str, ...], tmp_path: Path) -> None:
    found = judged(tmp_path / "log", numbered(without(a_step(3, 2) + a_step(3, 1, step=1), *events)))
    assert found.verdict in ("accepted", "accepted so far"), found


def test_expiring_may_be_filled_in_where_some_end_is_recorded(tmp_path: Path) -> None:
    lines = [*begins(2, 1), line(0, "enter_exchange"), line(1, "die"), *begins(2, 0, step=1)[:1]]
    assert judged(tmp_path / "log", numbered(lines)).verdict == "accepted so far"


def test_who_goes_on_is_not_taken_to_have_died_unseen(tmp_path: Path) -> None:
    lines = [*begins(2, 1), line(0, "enter_exchange"), line(0, "expire"), *begins(2, 0, step=1)[1:]]
    found = judged(tmp_path / "log", numbered(lines))
    assert found.verdict == "rejected"
    assert found.why == ("rank 1 has neither finished step 0, nor given it up, nor died: rank 0 has given up; "
                         "rank 1 has not entered the exchange")


def test_what_would_have_to_come_after_the_end_is_not_taken_as_done(tmp_path: Path) -> None:
    lines = without(a_step(2, 1), "leave_broadcast")
    assert said(tmp_path / "log", lines) == ACCEPTED.format(
        8, WITH_CHUNKS, "step 0: ranks 0, 1 wait in broadcast 1 of 1 (unless leave_broadcast, which nobody records in "
        "this log, came after)")


def test_chunks_may_come_for_a_step_that_nobody_has_turned_to(tmp_path: Path) -> None:
    early = [line(0, "arrive", 1, chunk=0)]
    lines = a_step(2, 0) + begins(2, 2, step=1)
    for place in (0, 2, 4):
        found = judged(tmp_path / "log", numbered(lines[:place] + early + lines[place:]))
        assert found.verdict == "accepted so far", found
        assert found.unfinished == ("step 1: ranks 0, 1 have not entered the exchange",)


def test_steps_may_have_any_numbers(tmp_path: Path) -> None:
    lines = a_step(2, 1, step=7) + a_step(2, 1, step=3) + a_step(2, 0, step=5)
    assert judged(tmp_path / "log", numbered(lines)).verdict == "accepted"


@pytest.mark.parametrize(("events", "unfinished"), [
    (["register 1", "submit 1"], "operation 1 was submitted and never drained"),
    (["register 1", "submit 1", "drain 1", "register 2"], "operation 2 was registered and never submitted"),
    (["register 1", "submit 1", "cancel 1"], "operation 1 was cancelled, and its completion never drained"),
    (["register 1", "submit 1", "drain 1"], ""),
    (["register 1", "cancel 1"], ""),
    (["register 1", "submit 1", "cancel 1", "drain 1"], ""),
    (["register 1", "submit 1", "close"], ""),
])
def test_an_operation_that_is_not_over_is_named(events: list[str], unfinished: str, tmp_path: Path) -> None:
    found = judged(tmp_path / "log", numbered(operations(*events)), "completion")
    assert found.verdict == ("accepted so far" if unfinished else "accepted")
    assert found.unfinished == ((f"step 0: {unfinished}",) if unfinished else ())


@pytest.mark.parametrize(("events", "unfinished"), [
    (["send", "send", "read 0"], "no reply was read to request 1"),
    (["send", "give_up 0"], "no reply was read to request 0"),
    (["send", "give_up 0", "drop"], ""),
    (["send", "read"], ""),
    (["send", "read"] * 30 + ["send", "send"], "no reply was read to requests 30, 31"),
])
def test_a_reply_that_was_not_read_is_named(events: list[str], unfinished: str, tmp_path: Path) -> None:
    found = judged(tmp_path / "log", numbered(requests(*events)), "ownership")
    assert found.verdict == ("accepted so far" if unfinished else "accepted")
    assert found.unfinished == ((f"connection 0: {unfinished}",) if unfinished else ())


def test_a_pipeline_that_never_ends_is_followed(tmp_path: Path) -> None:
    steady = ["send"] * 20 + ["send", "read"] * 100
    assert judged(tmp_path / "log", numbered(requests(*steady)), "ownership").verdict == "accepted so far"


def test_only_so_many_unfinished_steps_are_shown(tmp_path: Path) -> None:
    lines = [line(0, "send", step) for step in range(10)]
    shown = said(tmp_path / "log", lines, "ownership").splitlines()
    assert len(shown) == 1 + 8 + 1
    assert shown[-1] == "  and 2 more, which --json lists"


@pytest.mark.parametrize("chunks", [16, 40])
def test_many_chunks_that_nobody_recorded_are_no_reason_to_be_unclear(chunks: int, tmp_path: Path) -> None:
    lines = a_step(4, chunks, short=2)
    assert judged(tmp_path / "log", numbered(lines)).verdict == "accepted so far"
    found = judged(tmp_path / "log", numbered([*lines, line(3, "enter_broadcast")]))
    assert found.verdict == "rejected"
    assert found.line is not None
    assert found.line.number == len(lines) + 1


def a_run(choose: random.Random, steps: int, *, failing: bool) -> tuple[Lines, list[World]]:
    """Random steps of the model, each rank beginning the next one as soon as it is through, or has given up."""
    ranks, chunks = choose.randint(1, 3), choose.randint(0, 3)
    owners = round_robin(chunks, ranks)
    worlds = [World.begin((Plan(chunks),) * ranks, owners, failing=failing) for _ in range(steps)]
    place, lines = [-1] * ranks, Lines()
    while True:
        ways: list[tuple[int, Event | None]] = []
        for rank in range(ranks):
            here = worlds[place[rank]].ranks[rank] if place[rank] >= 0 else None
            if here is None or here.done or here.aborted:
                ways += [(rank, None)] if place[rank] + 1 < steps and not (here and here.dead) else []
            if here is not None:
                now = [each for each in worlds[place[rank]].events() if each.rank == rank]
                ways += [(rank, each) for each in now if each.name not in ("call", "answer")
                         and (each.name not in ("die", "expire") or choose.random() < 0.1)]
        if not ways:
            return lines, worlds
        rank, event = choose.choice(ways)
        if event is None:
            place[rank] += 1
            lines.append(line(rank, "begin", place[rank], world_size=ranks, length=chunks, owners=list(owners)))
            continue
        world = worlds[place[rank]] = worlds[place[rank]].after(event)
        told = {"enter_exchange": {"failure": world.ranks[rank].failure}, "arrive": {"chunk": event.chunk},
                "leave_exchange": {"agreed": world.ranks[rank].agreed},
                "leave_broadcast": {"chunk": world.ranks[rank].left - 2}}
        lines.append(line(rank, event.name, place[rank], **told.get(event.name, {})))


def through(world: World) -> bool:
    return all(rank.done or rank.dead or rank.aborted for rank in world.ranks)


@pytest.mark.parametrize("failing", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_ranks_that_go_on_when_they_may_are_never_rejected(seed: int, failing: bool, tmp_path: Path) -> None:
    choose = random.Random(seed)
    lines, worlds = a_run(choose, 3, failing=failing)
    begun = {each["step"] for each in lines}
    finished = all(through(worlds[step]) for step in begun)
    found = judged(tmp_path / "log", numbered(lines))
    assert found.verdict == ("accepted" if finished else "accepted so far"), found
    kinds = sorted({each["event"] for each in lines} - {"begin"})
    for _ in range(3):
        kept = without(lines[: choose.randint(1, len(lines))], *choose.sample(kinds, choose.randint(0, len(kinds))))
        recorded = {each["event"] for each in kept} - {"begin"}
        if recorded and (recorded & ENDS or not set(kinds) & ENDS):
            assert judged(tmp_path / "log", numbered(kept)).verdict in ("accepted", "accepted so far"), kept


@pytest.mark.parametrize("seed", range(10))
def test_a_rank_that_goes_on_from_the_middle_of_a_step_is_rejected(seed: int, tmp_path: Path) -> None:
    choose = random.Random(seed)
    while True:
        lines, _ = a_run(choose, 2, failing=False)
        inside = [place for place, each in enumerate(lines) if each["step"] == 0 and each["event"] in (
            "enter_exchange", "enter_broadcast")]
        if inside and {"leave_exchange", "leave_broadcast"} <= {each["event"] for each in lines}:
            break
    at = choose.choice(inside) + 1
    rank = lines[at - 1]["rank"]
    begin = next(each for each in lines if (each["rank"], each["step"], each["event"]) == (rank, 1, "begin"))
    # The rest stays, so that what the log records at all it still does, and nothing of it may be filled in.
    found = judged(tmp_path / "log", numbered([*lines[:at], begin, *(each for each in lines[at:] if each != begin)]))
    assert found.verdict == "rejected", found
    assert found.line is not None
    assert found.line.number == at + 1
