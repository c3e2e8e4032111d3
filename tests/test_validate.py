"""Logs held against the spec: right ones are accepted, and a wrong one is rejected at the event that is wrong."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from kvproof import report
from kvproof.connectors.adapter import Endpoint, Place
from kvproof.connectors.reference_bugs import ForgetfulConnection
from kvproof.connectors.reference_client import Client
from kvproof.connectors.reference_recorded import RecordedRegistry, recorded, recording
from kvproof.errors import UsageError
from kvproof.faults.servers import Server
from kvproof.models.client import Absent, Connection, Done, Found, get
from kvproof.models.exchanges import deliver
from kvproof.models.load import Event, Plan, World, round_robin
from kvproof.models.registry import Outcomes, completion
from kvproof.recorder import Recorder
from kvproof.validate import validate
from tests.logs import Lines, judged, numbered


def a_world(choose: random.Random) -> World:
    ranks, chunks = choose.randint(1, 4), choose.randint(0, 6)
    plans = [Plan(chunks)] * ranks
    if choose.random() < 0.2:
        plans[choose.randrange(ranks)] = Plan(choose.randint(0, chunks), 1, choose.randint(0, 1))
    return World.begin(tuple(plans), round_robin(chunks, ranks), failing=choose.random() < 0.3)


def begins(world: World, step: int = 0) -> Lines:
    return [{"rank": rank, "step": step, "event": "begin", "values": {
        "world_size": len(world.plans), "length": plan.length, "fingerprint": str(plan.fingerprint),
        "layout": plan.layout, "owners": list(world.owners)}} for rank, plan in enumerate(world.plans)]


def said(world: World, event: Event, step: int = 0) -> dict[str, Any]:
    """What is recorded of an event of the model, with what the rank knows afterwards."""
    values: dict[str, Any] = {"chunk": event.chunk} if event.name == "arrive" else {}
    rank = world.after(event).ranks[event.rank]
    if event.name == "leave_exchange":
        values["agreed"] = rank.agreed
    if event.name == "enter_exchange":
        values["failure"] = rank.failure
    return {"rank": event.rank, "step": step, "event": event.name, "values": values}


def walk(world: World, choose: random.Random) -> tuple[Lines, list[Event]]:
    lines, events = begins(world), []
    while now := list(world.events()):
        event = choose.choice(now)
        if event.name == "die" and choose.random() < 0.9:
            continue
        lines.append(said(world, event))
        events.append(event)
        world = world.after(event)
    return lines, events


@pytest.mark.parametrize("seed", range(100))
def test_a_random_run_of_the_model_is_accepted(seed: int, tmp_path: Path) -> None:
    choose = random.Random(seed)
    lines, _ = walk(a_world(choose), choose)
    assert judged(tmp_path / "log", numbered(lines)).verdict == "accepted"


@pytest.mark.parametrize("seed", range(20))
def test_what_nobody_recorded_is_filled_in(seed: int, tmp_path: Path) -> None:
    choose = random.Random(seed)
    lines, _ = walk(a_world(choose), choose)
    partial = [line for line in lines if line["event"] not in ("arrive", "look")]
    found = judged(tmp_path / "log", numbered(partial))
    assert found.verdict == "accepted", found
    assert set(found.filled) <= {"arrive", "look"}
    assert found.filled or all(line["values"].get("failure", 0) == 0 for line in partial)


def first_impossible(world: World, events: list[Event], agreed: dict[int, int]) -> int | None:
    """The first event that the model cannot do, or after which it does not know what was recorded."""
    for place, event in enumerate(events):
        if event not in world.events():
            return place
        world = world.after(event)
        if place in agreed and world.ranks[event.rank].agreed != agreed[place]:
            return place
    return None


def dropped(events: list[Event], choose: random.Random) -> list[Event]:
    at = choose.randrange(len(events))
    return events[:at] + events[at + 1 :]


def swapped(events: list[Event], choose: random.Random) -> list[Event]:
    at, other = sorted(choose.sample(range(len(events)), 2))
    return [*events[:at], events[other], *events[at + 1 : other], events[at], *events[other + 1 :]]


def duplicated(events: list[Event], choose: random.Random) -> list[Event]:
    at = choose.randrange(len(events))
    return [*events[: at + 1], *events[at:]]


def renamed(events: list[Event], choose: random.Random) -> list[Event]:
    at = choose.randrange(len(events))
    event = events[at]
    return [*events[:at], event._replace(rank=(event.rank + 1) % 3), *events[at + 1 :]]


def revalued(events: list[Event], choose: random.Random) -> list[Event]:
    places = [place for place, event in enumerate(events) if event.name == "arrive"]
    at = choose.choice(places)
    return [*events[:at], events[at]._replace(chunk=(events[at].chunk + 1) % 5), *events[at + 1 :]]


CORRUPTIONS = [dropped, swapped, duplicated, renamed, revalued]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("corrupt", CORRUPTIONS)
def test_a_corrupted_copy_is_rejected_at_the_event_that_is_wrong(
    corrupt: Callable[[list[Event], random.Random], list[Event]], seed: int, tmp_path: Path
) -> None:
    world = World.begin((Plan(5),) * 3, round_robin(5, 3))
    choose = random.Random(seed)
    while True:
        _, events = walk(world, choose)
        changed = corrupt(events, choose)
        at = first_impossible(world, changed, {})
        if at is not None:
            break
    lines = begins(world) + [
        {"rank": event.rank, "step": 0, "event": event.name,
         "values": {"chunk": event.chunk} if event.name == "arrive" else {}} for event in changed]
    found = judged(tmp_path / "log", numbered(lines))
    assert found.verdict == "rejected"
    assert found.line is not None
    assert found.line.number == len(world.plans) + at + 1, found
    assert found.why


def test_an_event_that_is_missing_is_seen_by_its_number(tmp_path: Path) -> None:
    choose = random.Random(1)
    lines, _ = walk(World.begin((Plan(3),) * 2, round_robin(3, 2)), choose)
    whole = numbered(lines)
    last = max(place for place, line in enumerate(whole) if line["event"] == "arrive" and line["rank"] == 1)
    found = judged(tmp_path / "log", whole[:last] + whole[last + 1 :])
    assert found.verdict == "rejected"
    assert f"of rank 1 event {whole[last]['seq']} is missing before" in found.why
    found = judged(tmp_path / "log", whole[: last + 1] + whole[last:])
    assert f"rank 1 has recorded its event {whole[last]['seq']} before" in found.why


def test_a_wrong_prefix_is_told_in_words(tmp_path: Path) -> None:
    world = World.begin((Plan(1),) * 2, (0, 0))
    names = [("enter_exchange", 0), ("look", 1), ("enter_exchange", 1), ("leave_exchange", 0)]
    lines = begins(world) + [{"rank": rank, "event": name, "values": {}} for name, rank in names]
    lines[-1]["values"] = {"agreed": 1}
    found = judged(tmp_path / "log", numbered(lines))
    assert found.why == "agreed(0) was 1, and is 0 in every behaviour"
    lines[-1]["values"] = {}
    lines.append({"rank": 0, "event": "enter_broadcast", "values": {}})
    found = judged(tmp_path / "log", numbered(lines))
    assert found.why == "`entered(r) < 1 + agreed(r)` is false, where entered(r) = 1 and agreed(r) = 0"


def test_many_steps_are_followed_each_for_itself(tmp_path: Path) -> None:
    choose, lines = random.Random(2), []
    for step in range(5):
        world = World.begin((Plan(2),) * 2, round_robin(2, 2))
        some, _ = walk(world, choose)
        lines += [{**line, "step": step} for line in some]
    assert judged(tmp_path / "log", numbered(lines)).verdict == "accepted"


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[tuple[Recorder, Recorder]]:
    with Recorder(tmp_path / "operations") as operations, Recorder(tmp_path / "requests") as requests:
        yield operations, requests


def exercise(client: Client) -> None:
    """Some of everything: hits, misses, batches, futures that are cancelled, a close with something in flight."""
    payload, buffer = memoryview(b"x" * 100), memoryview(bytearray(100))
    for number in range(40):
        client.set(f"validate-{number % 3}", payload)
        client.get(f"validate-{number % 3}", buffer)
        client.get("validate-absent", buffer)
        client.batch_exists([f"validate-{each}" for each in range(4)])
        begun = client.begin_get(f"validate-{number % 3}", memoryview(bytearray(100)))
        if number % 4 == 0:
            client.cancel(begun)
        else:
            begun.slot.result(5)
    client.begin_get("validate-0", buffer)
    client.close()


def place(server: Server) -> Place:
    return Place(Endpoint(server.host, server.port, server.password), chunk_bytes=100, connections=2, timeout=5.0)


def test_a_real_run_of_the_reference_connector_is_accepted(
    server: Server, logs: tuple[Recorder, Recorder], tmp_path: Path
) -> None:
    exercise(recorded(place(server), *logs))
    for name, protocol in (("operations", "completion"), ("requests", "ownership")):
        found = validate(tmp_path / name, protocol)
        assert found.verdict == "accepted", found
        assert found.events > 300


def test_a_connection_that_is_given_back_too_early_is_rejected(tmp_path: Path) -> None:
    buffer = memoryview(bytearray(100))
    with Recorder(tmp_path / "requests") as record:
        connection = recording(ForgetfulConnection, record, itertools.count())()
        connection.begin(get(1, "k", buffer))
        connection.cancel(1, "the caller has gone")
        connection.begin(get(2, "l", buffer))
    found = validate(tmp_path / "requests", "ownership")
    assert found.verdict == "rejected"
    assert found.line is not None
    assert found.line.event == "give_back"
    assert found.why == "`turn == sent` is false, where turn = 0 and sent = 1"


def test_a_read_is_recorded_for_the_request_that_is_given_the_reply(tmp_path: Path) -> None:
    with Recorder(tmp_path / "requests") as record:
        connection = recording(ForgetfulConnection, record, itertools.count())()
        connection.begin(get("first", "k", memoryview(bytearray(2))))
        connection.cancel("first", "the caller has gone")
        connection.begin(get("second", "l", memoryview(bytearray(2))))
        assert deliver(connection, b"$2\r\nab\r\n") == [Done("second", Found())], "the reply to the first"
    last = json.loads((tmp_path / "requests").read_text().splitlines()[-1])
    assert (last["event"], last["values"]) == ("read", {"request": 1})


def test_a_push_may_be_read_while_no_reply_is_due(tmp_path: Path) -> None:
    with Recorder(tmp_path / "requests") as record:
        connection = recording(Connection, record, itertools.count())()
        for number in range(2):
            connection.begin(get(number, "k", memoryview(bytearray(2))))
            assert deliver(connection, b"$2\r\nab\r\n>1\r\n:7\r\n") == [Done(number, Found())]
    found = validate(tmp_path / "requests", "ownership")
    assert found.verdict == "accepted", found


def test_a_completion_that_finds_nobody_is_rejected(tmp_path: Path) -> None:
    with Recorder(tmp_path / "operations") as record:
        registry: RecordedRegistry[Future[Outcomes]] = RecordedRegistry(Future, record)
        late = registry.reserve()
        registry.drain([completion(late, (Absent(),))])
        registry.register(late)
    found = validate(tmp_path / "operations", "completion")
    assert found.verdict == "rejected"
    assert found.line is not None
    assert (found.line.number, found.line.event) == (1, "drain_unknown")


def test_a_system_of_ones_own_judges_its_logs(tmp_path: Path) -> None:
    first = {"rank": 0, "seq": 0, "event": "begin", "values": {"ranks": 2, "size": 2, "next": 1, "served": 1}}
    right = [first, {"rank": 0, "seq": 1, "event": "draw"}, {"rank": 1, "seq": 0, "event": "draw"},
             {"rank": 0, "seq": 2, "event": "leave"}, {"rank": 1, "seq": 1, "event": "leave"}]
    protocol = str(Path(__file__).parent / "protocols" / "turns.py")
    assert judged(tmp_path / "log", right, protocol).verdict == "accepted"
    found = judged(tmp_path / "log", right[:4], protocol)
    assert found.verdict == "accepted so far"
    assert found.unfinished == (
        "step 0: it is not finished: `ForAll(r, drawn(r) == -1)` is false for r = rank 1, where drawn(r) = 2",)
    found = judged(tmp_path / "log", [*right[:3], {"rank": 1, "seq": 1, "event": "leave"}], protocol)
    assert found.verdict == "rejected"
    assert found.why == "`drawn(r) == served` is false, where drawn(r) = 2 and served = 1"


LATCH = """
import z3
from kvproof.spec.obligation import Always
from kvproof.spec.system import Step, System, action
from kvproof.spec.theory import Bool, Int, State

class Latch(System):
    armed = State(Bool)
    fired = State(Bool)
    n = State(Int)
    def init(self, s): return [z3.Not(s.armed), z3.Not(s.fired), s.n == 0]
    @action()
    def arm(self, s): return Step(s.n == 0, armed=z3.BoolVal(True))
    @action()
    def count(self, s): return Step(True, n=s.n + 1)
    @action()
    def fire(self, s): return Step(s.armed, fired=z3.BoolVal(True))
    def invariant(self, s): return {"counts": s.n >= 0}
    def safety(self, s): return {"counts": s.n >= 0}
"""


def test_what_nobody_recorded_may_have_come_before_an_event_that_did_not_need_it(tmp_path: Path) -> None:
    (tmp_path / "latch.py").write_text(LATCH)
    lines = numbered([{"rank": 0, "event": name, "values": {}} for name in ["begin", "count", "fire"]])
    found = judged(tmp_path / "log", lines, str(tmp_path / "latch.py"))
    assert (found.verdict, found.filled) == ("accepted", ("arm",))
    assert report.judgement(found) == (
        "accepted: 3 events are a behaviour of the protocol; Latch does not say when it is `finished`; not recorded, "
        "and filled in: arm\n")
    found = judged(tmp_path / "log", lines, str(tmp_path / "latch.py"), complete=True)
    assert found.exit_code == 3
    assert report.judgement(found) == (
        "inconclusive: whether the log ends finished is not told: Latch does not say when it is `finished`\n")


KILLED = """
import os, signal, sys
from kvproof.models.registry import Outcomes, completion
from kvproof.recorder import Recorder
record = Recorder(sys.argv[1], rank=3)
for number in range(1000):
    record("leave_exchange", step=number, agreed=number, text='ü"%d', fine=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_process_that_is_killed_loses_no_event(tmp_path: Path) -> None:
    log = tmp_path / "log"
    done = subprocess.run([sys.executable, "-c", KILLED, str(log)], timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["seq"] for line in lines] == list(range(1000))
    assert lines[7] == {"rank": 3, "seq": 7, "step": 7, "event": "leave_exchange",
                        "values": {"agreed": 7, "text": 'ü"%d', "fine": True}}


def test_a_value_that_is_no_json_is_the_callers_error(tmp_path: Path) -> None:
    with Recorder(tmp_path / "log") as record, pytest.raises(TypeError):
        record("look", what=object())
    assert os.stat(tmp_path / "log").st_size == 0


BAD_LENGTH = """\
{"rank": 0, "seq": 0, "event": "begin", "values": {"world_size": 1, "length": "x"}}
{"rank": 0, "seq": 1, "event": "look"}
"""


@pytest.mark.parametrize(("text", "expected"), [
    ("", "there is no event in it"),
    ('{"rank": 0, "seq": 0, "event": "begin", "values": {"length": 1}}\n',
     "there is nothing but `begin` in it"),
    ("hello\n", ":1: no JSON"),
    ("[1]\n", ":1: list instead of an object"),
    ('{"rank": 0, "seq": 0}\n', ":1: no event"),
    ('{"rank": -1, "seq": 0, "event": "look"}\n', ":1: rank is -1, which is no natural number"),
    ('{"rank": 0, "seq": 0, "event": "look"}\n', "no `begin` event says what was to be loaded"),
    (BAD_LENGTH, "has length = 'x'; expected a natural number"),
])
def test_a_file_that_is_no_log_is_one_clear_line(text: str, expected: str, tmp_path: Path) -> None:
    (tmp_path / "log").write_text(text)
    command = [sys.executable, "-m", "kvproof.cli", "validate", str(tmp_path / "log")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2, done.stdout + done.stderr
    assert expected in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_an_unknown_protocol_and_an_unknown_event_are_said(tmp_path: Path) -> None:
    lines = numbered([*begins(World.begin((Plan(1),), (0,))), {"rank": 0, "event": "sleep", "values": {}}])
    with pytest.raises(UsageError, match="log:2: there is no event 'sleep'; there are begin, arrive, look"):
        judged(tmp_path / "log", lines)
    command = [sys.executable, "-m", "kvproof.cli", "validate", str(tmp_path / "log"), "--protocol", "lod"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "expected load, completion, ownership, or a FILE.py" in done.stderr
