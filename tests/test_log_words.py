"""What is said of a log that is wrong: in the names that were written, and in the words of the protocol."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kvproof.errors import UsageError
from kvproof.spec.events import COMPLETION, LOAD, OWNERSHIP, Events
from tests.logs import Lines, a_step, begins, everybody, judged, line, numbered, operations, requests, said

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "validating-a-log.md").read_text()
STEP = a_step(2, 2)


def wrong(path: Path, lines: Lines, protocol: str) -> tuple[str, str]:
    """Return what is said of the last line, in words and beside them."""
    found = judged(path, numbered(lines), protocol)
    assert found.verdict == "rejected", found
    assert found.line is not None
    assert found.line.number == len(lines)
    return found.means, found.why


@pytest.mark.parametrize(("events", "means", "why"), [
    ("send send read give_back", "one reply is still outstanding (request 1)",
     "`turn == sent` is false, where turn = 1 and sent = 2"),
    ("send send give_back", "2 replies are still outstanding (requests 0, 1)", "`turn == sent` is false"),
    ("give_back", "nobody has borrowed the connection: nothing was sent since it was given back", "`lent` is false"),
    ("send send read:1", "the next reply is that to request 0", "request was 1, and is 0 in every behaviour"),
    ("send read read", "no reply is outstanding", "`taken < sent` is false"),
    ("send give_up:1", "request 1 was not sent", "`k < sent` is false"),
    ("send read give_up:0", "request 0 has its reply, or was given up before", "`wanted(k)` is false"),
    ("drop send", "the connection was dropped before", "`open` is false"),
])
def test_a_wrong_event_of_a_connection_is_told_in_words(events: str, means: str, why: str, tmp_path: Path) -> None:
    told = wrong(tmp_path / "log", requests(*(each.replace(":", " ") for each in events.split())), "ownership")
    assert told[0] == means
    assert told[1].startswith(why)


@pytest.mark.parametrize(("events", "means"), [
    ("register:3 submit:3 drain:3 drain:3", "operation 3 was never registered, or is over"),
    ("register:3 submit:3 register:3", "operation 3 was registered before, and its completion not drained"),
    ("register:3 drain:3", "operation 3 was not submitted"),
    ("register:3 submit:3 submit:3", "operation 3 was submitted before"),
    ("register:3 submit:3 cancel:3 drain_unknown:3",
     "operation 3 is registered: record `drain`, also when it was cancelled"),
    ("drain_unknown:3", "operation 3 was never registered, or is over; its completion finds nobody, and is lost"),
    ("register:3 submit:3 close drain:3", "operation 3 is registered no more: after `close`, record `drain_unknown`"),
    ("close register:3", "the client is closed, and takes nothing new"),
    ("close close", "the client was closed before"),
    ("register:3 cancel:3 cancel:3", "operation 3 had ended"),
])
def test_a_wrong_event_of_an_operation_is_told_in_words(events: str, means: str, tmp_path: Path) -> None:
    lines = operations(*(each.replace(":", " ") for each in events.split()))
    told, why = wrong(tmp_path / "log", lines, "completion")
    assert told == means
    assert "` is false" in why


AWAY = [*begins(2, 2), line(0, "enter_exchange", failure=2)]
MISSED = [*begins(2, 2), line(0, "enter_exchange", failure=0)]
CAME = line(1, "arrive", chunk=1)


@pytest.mark.parametrize(("lines", "means"), [
    ([*STEP, line(1, "enter_broadcast")], "2 chunks were agreed on, and rank 1 has been through 2 broadcasts"),
    ([*STEP, line(1, "enter_exchange")],
     "rank 1 has entered the exchange of this step before; give each load step its number"),
    ([*STEP[:-1], line(1, "enter_broadcast")], "rank 1 has not left broadcast 2"),
    ([*STEP[:-3], line(0, "leave_broadcast")], "rank 1 has not entered broadcast 2, and it owns the chunk"),
    ([*STEP[:-4], line(0, "leave_broadcast")], "rank 0 is in no broadcast"),
    ([*STEP[:-4], line(0, "enter_broadcast", chunk=0)], "the broadcast that comes next for rank 0 is that of chunk 1"),
    ([*STEP[:-2], line(0, "leave_broadcast", chunk=0)], "the broadcast that rank 0 is in is that of chunk 1"),
    ([*AWAY, line(0, "leave_exchange")], "rank 1 has not entered the exchange"),
    ([*AWAY, line(1, "leave_exchange")], "rank 1 has not entered the exchange"),
    ([*AWAY, line(1, "enter_exchange", failure=1), line(0, "leave_exchange", agreed=2)],
     "the least failure is 1, of rank 1"),
    ([*MISSED, line(1, "arrive", chunk=7)], "rank 1 has no chunk 7: its list has 2"),
    ([*MISSED, line(1, "arrive", chunk=0)], "chunk 0 is rank 0's"),
    ([*MISSED, CAME, CAME], "chunk 1 of rank 1 has come before"),
    ([*MISSED, CAME, line(1, "enter_exchange", failure=1)], "rank 1 misses none of its own chunks"),
    ([*MISSED, line(0, "arrive", chunk=0), line(1, "enter_exchange", failure=2)], "rank 1 misses chunk 1 first"),
    ([*MISSED, CAME, line(1, "look"), line(1, "enter_exchange")], "rank 1 has not gone past chunk 1, which has come"),
    ([*MISSED, CAME, line(0, "look")], "rank 0 is in the exchange already, or past it"),
    ([*AWAY, line(0, "die"), line(0, "leave_exchange")], "rank 0 is dead"),
    ([*AWAY, line(0, "expire"), line(0, "leave_exchange")], "rank 0 has given this step up"),
    ([*STEP, line(1, "expire")], ""),
])
def test_a_wrong_event_of_a_load_step_is_told_in_words(lines: Lines, means: str, tmp_path: Path) -> None:
    if means:
        assert wrong(tmp_path / "log", lines, "load")[0] == means
    else:
        assert judged(tmp_path / "log", numbered(lines)).verdict != "rejected", "it may have called unseen"


def test_what_there_is_not_is_called_as_it_was_written(tmp_path: Path) -> None:
    lines = [*MISSED, line(1, "arrive", chunk=7)]
    assert wrong(tmp_path / "log", lines, "load")[1] == "no chunk 7 can be meant here"
    lines = requests(*["send", "read"] * 30, "send", "give_up 3")
    assert wrong(tmp_path / "log", lines, "ownership") == (
        "request 3 has its reply, or was given up before", "no request 3 can be meant here")


def test_words_and_formula_stand_beside_each_other_in_one_line(tmp_path: Path) -> None:
    assert said(tmp_path / "log", requests("send", "send", "read", "give_back"), "ownership") == (
        "rejected: line 4: give_back of rank 0 in connection 0 is explained by no behaviour: one reply is still "
        "outstanding (request 1) (`turn == sent` is false, where turn = 1 and sent = 2)\n")


@pytest.mark.parametrize(("lines", "protocol", "expected"), [
    ([line(0, "send", request=0)], "ownership", "log:1: send takes no 'request'; it takes nothing; docs/validating"),
    ([line(0, "send"), line(0, "give_up")], "ownership", "log:2: give_up needs 'request'; it takes request; docs/"),
    ([line(0, "read", request="x")], "ownership", "log:1: read has request = 'x'; expected a natural number"),
    ([line(0, "register", operation=[1])], "completion", "register has operation = [1]; expected a number or a string"),
    ([*begins(1, 1), line(0, "enter_broadcast", c=1)], "load",
     "enter_broadcast takes no 'c'; it takes chunk (optional); docs/"),
    ([line(0, "begin", length=1, worldsize=2), line(0, "look")], "load", "log:1: begin takes no 'worldsize'; it takes"),
    ([line(0, "begin"), line(0, "look")], "load", "log:1: begin needs 'world_size'; it takes world_size, length, "),
    (operations("register 1"), "load", ("there is no event 'register'; there are begin, arrive, look, enter_exchange, "
     "leave_exchange, enter_broadcast, leave_broadcast, die, expire, call, answer; the events are those of --protocol "
     "completion")),
    ([line(0, "register", operation=1, worker=3)], "completion",
     "line 1: register has worker = 3, and there are 1; record how many `workers` there are in a `begin`"),
    (requests("send"), "completion", "the events are those of --protocol ownership"),
    ([*begins(2, 1), line(0, "look"), line(0, "begin", world_size=2, length=1)], "load",
     "log:4: rank 0 begins step 0 twice; give each step a number of its own"),
    ([line(0, "begin", length=1, world_size=2), line(1, "begin", length=1, world_size=3), line(0, "look")], "load",
     "`begin` of rank 1 has world_size = 3, and that of rank 0 has 2; expected one world for all ranks"),
])
def test_what_is_no_event_of_the_protocol_is_wrong_use(
    lines: Lines, protocol: str, expected: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError) as raised:
        judged(tmp_path / "log", numbered(lines), protocol)
    assert expected in str(raised.value)


def test_every_judgement_ends_with_a_line_break(tmp_path: Path) -> None:
    for lines in (requests("send"), requests("read"), requests("read", "read_push"), requests(*["send"] * 25)):
        shown = said(tmp_path / "log", lines, "ownership")
        assert shown.endswith("\n")
        assert shown.strip() == shown[:-1]


def test_a_record_that_was_lost_is_said_to_be(tmp_path: Path) -> None:
    lines = numbered(requests("send", "read", "give_back"))
    found = judged(tmp_path / "log", [lines[0], lines[2]], "ownership")
    assert (found.verdict, found.lost) == ("rejected", True)
    (tmp_path / "log").write_text("".join(json.dumps(each) + "\n" for each in [lines[0], lines[2]]))
    command = [sys.executable, "-m", "kvproof", "validate", str(tmp_path / "log"), "--protocol", "ownership"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "rejected: line 2: of rank 0 event 1 is missing before event 2: a record was lost\n"


def test_a_second_run_into_the_same_file_is_said_to_be(tmp_path: Path) -> None:
    lines = numbered(a_step(2, 0))
    found = judged(tmp_path / "log", lines + lines)
    assert found.why == ("rank 0 has recorded its event 0 before, or out of order; the next is 3; was the file there "
                         "from an earlier run?")


def test_files_that_were_put_together_are_a_hint(tmp_path: Path) -> None:
    lines = sorted(a_step(2, 2), key=lambda each: int(each["rank"]))
    shown = said(tmp_path / "log", lines)
    assert shown.startswith("rejected: line 3: leave_exchange of rank 0 (agreed = 2) in step 0 is explained by no "
                            "behaviour: rank 1 has not entered the exchange (")
    assert shown.endswith("; the lines of each rank stand together; if these are several files put together, their "
                          "order is not that in which things happened\n")
    assert "stand together" not in said(tmp_path / "log", [*a_step(2, 2), line(0, "enter_broadcast")])


def test_only_what_was_needed_counts_as_filled_in(tmp_path: Path) -> None:
    assert judged(tmp_path / "log", numbered(requests("send", "read")), "ownership").filled == ()
    pushed = judged(tmp_path / "log", numbered(requests("send", "read_push", "read")), "ownership")
    assert pushed.filled == ("push",)
    missed = begins(2, 1) + everybody([0, 1], "enter_exchange") + everybody([0, 1], "leave_exchange", agreed=0)
    assert judged(tmp_path / "log", numbered(missed)).filled == ("look",), "rank 1 went past what is not its own"


@pytest.mark.parametrize("events", [LOAD, COMPLETION, OWNERSHIP], ids=["load", "completion", "ownership"])
def test_the_page_has_a_row_for_each_event(events: Events) -> None:
    for name, event in events.items():
        row = f"| `{name}` | {event.takes} | {event.means} |"
        assert row in PAGE, f"docs/validating-a-log.md lacks the row\n{row}"
