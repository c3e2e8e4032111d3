"""The gate search: races that it was told nothing of are found and named, and correct code is left alone."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any

import pytest

from kvproof import connectors
from kvproof.connectors.adapter import Endpoint, Place
from kvproof.errors import UsageError
from kvproof.faults.gate_search import Callback, Report, search
from kvproof.faults.gates import Line, PlaceGone, pause_at_call, pause_before
from kvproof.faults.servers import Server
from kvproof.runner import Returned
from kvproof.runner.forks import Forks

QUICK: dict[str, Any] = {"deadline": 0.6}
"""For subjects that do nothing but what is in their few lines."""


class Bell:
    """A lost wake-up: whoever comes between looking and listening is not heard."""

    def __init__(self) -> None:
        self.rung = False
        self.ears: list[threading.Event] = []

    def wait(self) -> bool:
        if self.rung:
            return True
        ear = threading.Event()
        self.ears.append(ear)
        return ear.wait()

    def ring(self) -> None:
        self.rung = True
        for ear in self.ears:
            ear.set()


class Count:
    """A lost update, between two lines."""

    def __init__(self) -> None:
        self.value = 0
        self.lock = threading.Lock()

    def add(self) -> None:
        value = self.value
        self.value = value + 1


class CountInOneLine(Count):
    """A lost update within one line, around a native call."""

    def add(self) -> None:
        self.value = max(self.value, 0) + 1


class CountLocked(Count):
    """No lost update."""

    def add(self) -> None:
        with self.lock:
            value = self.value
            self.value = value + 1


class Purse:
    """Two who look before they take."""

    def __init__(self) -> None:
        self.coins = [1]

    def take(self) -> int | None:
        return self.coins.pop() if self.coins else None

    def take_all(self) -> list[int]:
        if len(self.coins) == 0:
            return []
        last = self.coins[-1]
        self.coins.remove(last)
        return [last]


class Post:
    """Hands work to a thread of its own, and only then says who waits for it: the shape of the lost completion."""

    def __init__(self) -> None:
        self.work: SimpleQueue[int | None] = SimpleQueue()
        self.pending: dict[int, threading.Event] = {}
        threading.Thread(target=self._serve, daemon=True).start()

    def ask(self) -> bool:
        done = threading.Event()
        self.work.put(1)
        self.pending[1] = done
        return done.wait()

    def _serve(self) -> None:
        while (number := self.work.get()) is not None:
            self._deliver(number)

    def _deliver(self, number: int) -> None:
        waiting = self.pending.pop(number, None)
        if waiting is not None:
            waiting.set()

    def close(self) -> None:
        self.work.put(None)


class PostInOrder(Post):
    """Says first who waits."""

    def ask(self) -> bool:
        done = threading.Event()
        self.pending[1] = done
        self.work.put(1)
        return done.wait()


def two(count: Count, *_: object) -> str | None:
    return None if count.value == 2 else f"the count is {count.value}, expected 2"


def counted(make: Callable[[], Count], **options: Any) -> Report:
    return search(make, lambda count: count.add(), lambda count: count.add(), judge=two, **{**QUICK, **options})


def only(report: Report) -> Any:
    assert len(report.findings) == 1, f"expected one finding, got:\n{report}"
    return report.findings[0]


def test_a_lost_wake_up_is_found_and_named() -> None:
    report = search(Bell, Bell.wait, Bell.ring, **QUICK)
    found = only(report)
    assert found.between == ("`if self.rung:`", "append"), report
    assert found.function == "Bell.wait", report
    assert "wait did not return within 0.6 s, it waits at `return ear.wait()`" in found.lost, report
    assert (report.ungated, report.unconfirmed, report.unreached) == (None, (), ()), report
    assert (report.tried, report.reached, report.lost) == (9, 9, 3), report
    assert report.overlapped == 7, f"what comes after `ear.wait()`, and ringing an ear, is met by nobody:\n{report}"


def test_the_place_that_was_found_can_be_paused_at() -> None:
    place = only(search(Bell, Bell.wait, Bell.ring, **QUICK)).place
    bell, heard = Bell(), []

    def wait() -> None:
        with pause_before(place, bell.ring):
            heard.append(bell.wait())

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    waiting.join(0.2)
    assert (bell.rung, heard) == (True, []), f"pausing before {place} did not lose the wake-up"
    bell.ears[0].set()
    waiting.join(5.0)
    assert heard == [True]


def test_a_lost_update_is_found_on_either_side() -> None:
    found = only(counted(Count))
    assert found.between == ("`value = self.value`", "`self.value = value + 1`"), found
    assert (found.stopped, found.lost) == ("either", "the count is 1, expected 2"), found
    assert str(found.place).startswith("'self.value = value + 1' in Count.add"), found


def test_a_lost_update_around_a_native_call_is_found_within_its_line() -> None:
    found = only(counted(CountInOneLine))
    assert found.between == ("max()", "the rest of `self.value = max(self.value, 0) + 1`"), found
    assert found.place is None, "no line can be paused at to force it"


def test_nothing_is_found_where_a_lock_is_held() -> None:
    report = counted(CountLocked)
    assert (report.findings, report.lost, report.unconfirmed, report.unreached) == ((), 0, (), ()), report
    assert report.tried == report.reached > report.overlapped > 0, f"some points are inside the lock:\n{report}"


def test_a_race_of_the_second_entry_point_is_found_and_an_exception_is_a_loss() -> None:
    report = search(Purse, Purse.take, Purse.take_all, **QUICK)
    named = [(found.stopped, found.between, found.lost) for found in report.findings]
    assert named == [
        ("second", ("len()", "`last = self.coins[-1]`"), "take_all raised IndexError: list index out of range"),
        ("second", ("`last = self.coins[-1]`", "remove"), "take_all raised ValueError: list.remove(x): x not in list"),
    ], report
    assert {found.function for found in report.findings} == {"Purse.take_all"}, report


def test_a_callback_on_a_thread_of_the_subjects_own_is_found_to_come_too_early() -> None:
    report = search(Post, Post.ask, Callback(Post, "_deliver"), close=Post.close, **QUICK)
    found = only(report)
    assert found.between == ("put", "`self.pending[1] = done`"), report
    assert found.function == "Post.ask", report
    again = search(Post, Post.ask, Callback(Post, "_deliver"), close=Post.close, **QUICK)
    assert [str(each) for each in again.findings] == [str(found)], "two searches, two answers"


def test_nothing_is_found_where_whoever_waits_is_known_first() -> None:
    report = search(PostInOrder, PostInOrder.ask, Callback(Post, "_deliver"), close=Post.close, **QUICK)
    assert (report.ungated, report.findings, report.unconfirmed) == (None, (), ()), report
    assert report.overlapped, f"the callback never ran while the call was stopped:\n{report}"


def test_the_class_is_as_it_was_after_a_search() -> None:
    before = vars(Post)["_deliver"]
    search(PostInOrder, PostInOrder.ask, Callback(PostInOrder, "_deliver"), close=Post.close, **QUICK)
    assert vars(Post)["_deliver"] is before


def test_what_fails_without_any_gate_is_said_and_nothing_else_is_tried() -> None:
    report = search(Bell, Bell.wait, lambda bell: None, deadline=0.2, settle=0.1)
    assert (report.tried, report.findings) == (0, ()), report
    assert str(report).startswith("it fails without any gate: wait did not return within 0.2 s"), report


def test_a_point_that_is_not_reached_again_is_no_pass() -> None:
    runs = itertools.count(1)

    class Fickle(Count):
        def add(self) -> None:
            with self.lock:
                if next(runs) <= 6:
                    self.value += 0
                self.value += 1

    report = counted(Fickle)
    assert report.reached == report.tried - len(report.unreached), report
    assert report.unreached, f"the line that only the first runs have was tried, and is no pass:\n{report}"
    assert "before `self.value += 0`" in report.unreached[0], report


@pytest.mark.parametrize(("at", "attribute"), [(5, "now_and_then"), (11, "unconfirmed")])
def test_a_loss_that_does_not_come_again_is_shown_and_is_no_finding(at: int, attribute: str) -> None:
    judged = itertools.count(1)

    def judge(*_: object) -> str | None:
        return "the moon" if next(judged) == at else None

    report = search(CountLocked, CountLocked.add, CountLocked.add, judge=judge, at_once=1, **QUICK)
    assert report.findings == (), report
    assert "the moon" in str(getattr(report, attribute)), report


def test_what_cannot_be_searched_is_said() -> None:
    with pytest.raises(UsageError, match="Post has no method '_arrive'"):
        search(Post, Post.ask, Callback(Post, "_arrive"), **QUICK)
    with pytest.raises(UsageError, match=r"no function of nothing\.like\.it was run"):
        counted(CountLocked, within=("nothing.like.it",))


def test_a_native_call_is_paused_at_before_and_after() -> None:
    class Owner:
        def __init__(self) -> None:
            self.queue: Any = deque([1, 2])

    owner, seen = Owner(), []
    native = owner.queue
    look = lambda: seen.append(list(native))  # noqa: E731  # it is passed twice
    with pause_at_call(owner, "queue", "popleft", before=look, after=look) as pause:
        assert not pause.reached
        assert (owner.queue.popleft(), owner.queue.popleft()) == (1, 2)
        owner.queue.append(3)
    assert (pause.reached, seen) == (True, [[1, 2], [2]]), "once before and once after the first call"
    assert owner.queue is native
    with pytest.raises(PlaceGone, match=r"has no queue\.shove"), pause_at_call(owner, "queue", "shove"):
        pass


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    with Forks() as started:
        yield started


def searched(forks: Forks, name: str, function: str, server: Server) -> dict[str, Any]:
    """Search a client in a runner of its own and return the report as data."""
    try:
        connector = connectors.find(name)
    except connectors.NotInstalled as error:
        pytest.skip(str(error))
    key = f"searched-{name}"
    with server.connect() as raw:
        raw.command("SET", key, "value")
    with forks.runner(connector) as runner:
        opened = runner.open(Place(Endpoint(server.host, server.port), 1024))
        assert isinstance(opened, Returned), opened
        answer = runner.call(f"tests.searched:{function}", 60.0, key=key)
    assert isinstance(answer, Returned), answer
    return dict(answer.value)


def test_the_lost_completion_of_lmcache_is_found_without_a_hint(forks: Forks, server: Server) -> None:
    report = searched(forks, "lmcache-resp", "resp_client", server)
    assert report["seconds"] < 60.0, report["text"]
    assert len(report["findings"]) == 1, report["text"]
    [found] = report["findings"]
    assert found["between"] == ["submit_batch_exists", "_register_future_sync"], report["text"]
    assert found["function"].endswith(".batch_exists_sync"), report["text"]
    assert "exists_sync did not return" in found["lost"], report["text"]
    assert "_register_future_sync(" in found["place"], report["text"]


def test_nothing_is_found_in_the_reference(forks: Forks, server: Server) -> None:
    report = searched(forks, "reference", "reference_client", server)
    assert (report["ungated"], report["findings"], report["unconfirmed"]) == (None, [], []), report["text"]
    assert report["reached"] == report["tried"] > 100, report["text"]
    assert report["overlapped"] > 10, f"the callback ran too seldom while the call was stopped: {report['text']}"


def test_the_same_search_finds_the_lost_completion_put_into_the_reference(forks: Forks, server: Server) -> None:
    report = searched(forks, "reference+lost-completion", "reference_client", server)
    assert [found["between"][1] for found in report["findings"]] == ["register"], report["text"]
    assert report["findings"][0]["function"] == "LateClient._call", report["text"]


def test_a_place_found_is_one_that_a_replay_could_name() -> None:
    place = only(counted(Count)).place
    assert place.locate() == Line(Count.add, r"self\.value = value \+ 1").locate()
