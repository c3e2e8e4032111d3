"""Clients that have much in flight, or live long: none of it is a reason to reject a log, and too much is unclear."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvproof.spec import protocol_client
from tests.logs import Lines, judged, line, numbered, operations, requests


def registered(numbers: range, worker: int | None = None) -> list[str]:
    return [f"{event} {number}" for number in numbers for event in ("register", "submit")]


@pytest.mark.parametrize("count", [5, 24, 25, 40, 100])
def test_a_pipeline_may_be_long(count: int, tmp_path: Path) -> None:
    for events in (["send"] * count + ["read"] * count, ["send", *["send", "read"] * count, "read"],
                   ["send"] * count + [f"read {number}" for number in range(count)] + ["give_back", "send", "read"]):
        found = judged(tmp_path / "log", numbered(requests(*events)), "ownership")
        assert found.verdict == "accepted", found
    found = judged(tmp_path / "log", numbered(requests(*["send"] * count, *["read"] * (count + 1))), "ownership")
    assert (found.verdict, found.line and found.line.number) == ("rejected", 2 * count + 1)


def test_requests_keep_their_numbers_while_the_window_slides_and_grows(tmp_path: Path) -> None:
    events = [*["send"] * 3, *(each for number in range(50) for each in ("send", f"read {number}", "send"))]
    left = [f"read {number}" for number in range(50, 103)]
    assert judged(tmp_path / "log", numbered(requests(*events, *left)), "ownership").verdict == "accepted"
    found = judged(tmp_path / "log", numbered(requests(*events, "read 49")), "ownership")
    assert (found.verdict, found.means) == ("rejected", "the next reply is that to request 50")
    found = judged(tmp_path / "log", numbered(requests(*events, "give_up 80", "give_up 80")), "ownership")
    assert (found.verdict, found.means) == ("rejected", "request 80 has its reply, or was given up before")
    found = judged(tmp_path / "log", numbered(requests(*events, "give_up 3")), "ownership")
    assert found.means == "request 3 has its reply, or was given up before"
    found = judged(tmp_path / "log", numbered(requests(*events, *left[:-1])), "ownership")
    assert found.unfinished == ("connection 0: no reply was read to request 102",)


def test_push_frames_are_read_while_the_window_slides(tmp_path: Path) -> None:
    events = ["send", "send", *["send", "read_push", "read"] * 30]
    assert judged(tmp_path / "log", numbered(requests(*events)), "ownership").verdict == "accepted so far"


@pytest.mark.parametrize("count", [5, 24, 25, 30, 100])
def test_many_operations_may_be_in_flight(count: int, tmp_path: Path) -> None:
    begun, drains = registered(range(count)), [f"drain {number}" for number in range(count)]
    for ends in (drains, drains[::-1]):
        assert judged(tmp_path / "log", numbered(operations(*begun, *ends)), "completion").verdict == "accepted"
    found = judged(tmp_path / "log", numbered(operations(*begun, *drains, "drain 2")), "completion")
    assert (found.verdict, found.line and found.line.number) == ("rejected", 3 * count + 1)
    assert found.means == "operation 2 was never registered, or is over"


def test_operations_that_were_cancelled_and_never_submitted_stay_followed(tmp_path: Path) -> None:
    events = [f"{event} {number}" for number in range(60) for event in ("register", "cancel")]
    found = judged(tmp_path / "log", numbered(operations(*events)), "completion")
    assert found.verdict == "accepted"
    assert found.unfinished == ()
    found = judged(tmp_path / "log", numbered(operations(*events, "submit 3", "drain 3", "register 3")), "completion")
    assert found.verdict == "accepted so far"
    found = judged(tmp_path / "log", numbered(operations(*events, "register 3")), "completion")
    assert found.verdict == "rejected"
    assert found.means == "operation 3 was registered before, and its completion not drained"


def test_more_than_can_be_followed_is_unclear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol_client, "MOST_IN_FLIGHT", 64)
    events = [f"register {number}" for number in range(65)]
    found = judged(tmp_path / "log", numbered(operations(*events)), "completion")
    assert (found.verdict, found.exit_code, found.line and found.line.number) == ("unclear", 3, 65)
    assert found.why == "more than 64 operations are not over, which is as many as are followed"
    found = judged(tmp_path / "log", numbered(requests(*["send"] * 65)), "ownership")
    assert (found.verdict, found.exit_code, found.line and found.line.number) == ("unclear", 3, 65)
    assert found.why == "more than 64 requests have no reply yet, which is as many as are followed"


def workers(*events: str) -> Lines:
    """Return what a client of two workers records: "register 5 1" is operation 5 for worker 1, "die 0" a worker."""
    found = [line(0, "begin", workers=2)]
    for event in events:
        name, *numbers = event.split()
        names = ("worker",) if name in ("die", "reap") else ("operation", "worker")
        found.append(line(0, name, **dict(zip(names, map(int, numbers), strict=False))))
    return found


def test_a_dead_worker_gives_its_ids_back(tmp_path: Path) -> None:
    events = ["register 5 0", "die 0", "reap 0", "register 5 1", "submit 5", "drain 5"]
    assert judged(tmp_path / "log", numbered(workers(*events)), "completion").verdict == "accepted"
    found = judged(tmp_path / "log", numbered(workers(*events[:2], "register 5 1")), "completion")
    assert (found.verdict, found.line and found.line.number) == ("rejected", 4)
    found = judged(tmp_path / "log", numbered(workers(*events[:3], "submit 5")), "completion")
    assert (found.verdict, found.line and found.line.number) == ("rejected", 5)


def test_what_a_dead_worker_had_completed_is_drained_however_much_came_between(tmp_path: Path) -> None:
    begun = ["register 1 0", "submit 1", "register 2 1", "submit 2", "die 0", "drain 2"]
    found = judged(tmp_path / "log", numbered(workers(*begun, "drain 1")), "completion")
    assert (found.verdict, found.filled) == ("accepted", ("complete",))
    found = judged(tmp_path / "log", numbered(workers(*begun, "reap 0")), "completion")
    assert found.verdict == "accepted"
    found = judged(tmp_path / "log", numbered(workers(*begun, "reap 0", "drain 1")), "completion")
    assert found.verdict == "rejected"
    recorded = ["register 1 0", "submit 1", "register 2 1", "submit 2", "complete 2", "die 0", "drain 2", "drain 1"]
    found = judged(tmp_path / "log", numbered(workers(*recorded)), "completion")
    assert (found.verdict, found.line and found.line.number) == ("rejected", 9), "completions are recorded here"


def test_what_a_dead_worker_may_have_completed_does_not_count_as_filled_in_unless_it_is_needed(tmp_path: Path) -> None:
    found = judged(tmp_path / "log", numbered(workers("register 1 0", "submit 1", "die 0", "reap 0")), "completion")
    assert (found.verdict, found.filled) == ("accepted", ())
