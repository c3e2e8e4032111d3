"""The registry and the pool without I/O: each operation is resolved once, on a connection that is nobody else's."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future

import pytest

from kvproof.models.client import (
    Absent,
    Failed,
    Found,
    Outcome,
    Request,
    exists,
    get,
    put,
)
from kvproof.models.payloads import encode
from kvproof.models.pool import Action, Connect, Drop, Pool, Send
from kvproof.models.registry import Outcomes, Registry, completion
from tests.replies import SIZE, V, bulk, is_outcome, poisoned


class Slot:
    """Counts how often it is resolved."""

    def __init__(self) -> None:
        self.results: list[Outcomes] = []

    def set_result(self, result: Outcomes, /) -> None:
        self.results.append(result)


def test_a_completion_that_comes_during_the_submission_is_not_lost() -> None:
    registry: Registry[Slot] = Registry(Slot)

    def hand_over(identity: int) -> None:
        assert registry.registered(identity), "nobody is registered at the moment of the submission"
        assert registry.drain([completion(identity, (Found(),))]) == 0

    ticket = registry.submit(hand_over)
    assert ticket.slot.results == [(Found(),)]
    assert not registry.registered(ticket.identity)


def test_each_slot_is_resolved_once_whatever_comes_in_which_order() -> None:
    ends: dict[str, Callable[[Registry[Slot], int], object]] = {
        "complete": lambda registry, identity: registry.drain([completion(identity, (Found(), Absent()))]),
        "cancel": lambda registry, identity: registry.cancel(identity, "cancelled"),
        "close": lambda registry, identity: registry.close("closed"),
    }
    for first in ends:
        for second in ends:
            registry: Registry[Slot] = Registry(Slot)
            ticket = registry.submit(lambda identity: None, keys=2)
            ends[first](registry, ticket.identity)
            ends[second](registry, ticket.identity)
            results = ticket.slot.results
            assert [len(result) for result in results] == [2], f"{first}, then {second}: resolved with {results}"
            assert len(registry) == 0


def test_a_closed_registry_resolves_at_once_and_a_failed_submission_leaves_nothing() -> None:
    registry: Registry[Future[Outcomes]] = Registry(Future)

    def refuse(identity: int) -> None:
        raise ValueError(identity)

    with pytest.raises(ValueError, match="1"):
        registry.submit(refuse)
    assert len(registry) == 0
    registry.close("closed")
    assert registry.submit(lambda identity: None).slot.result(0) == (Failed("closed"),)


class Wire:
    """A pool with the other ends of its connections: carries out actions, and answers when told to."""

    def __init__(self, size: int, *, depth: int = 1, password: str | None = None) -> None:
        self.pool = Pool(size, depth=depth, password=password)
        self.opening: list[int] = []
        self.sent: dict[int, list[bytes]] = {}
        self.dropped: set[int] = set()
        self.done: dict[Hashable, Outcome] = {}
        self.act(self.pool.start())

    def act(self, actions: Sequence[Action]) -> None:
        for action in actions:
            if isinstance(action, Connect):
                self.opening.append(action.link)
            elif isinstance(action, Send):
                assert action.link not in self.dropped, f"sent on the dropped link {action.link}"
                self.sent.setdefault(action.link, []).append(b"".join(action.chunks))
            elif isinstance(action, Drop):
                self.dropped.add(action.link)
            else:
                assert action.identity not in self.done, f"{action.identity} ended twice"
                self.done[action.identity] = action.outcome

    def open(self) -> int:
        link = self.opening.pop(0)
        self.act(self.pool.connected(link, deadline=10))
        return link

    def submit(self, request: Request, deadline: float = 1) -> None:
        self.act(self.pool.submit(request, deadline))

    def reply(self, link: int, data: bytes) -> None:
        while data and (into := self.pool.receive_into(link)) is not None:
            count = min(len(into), len(data))
            into[:count] = data[:count]
            self.act(self.pool.received(link, count))
            data = data[count:]


def test_a_cancelled_read_takes_its_connection_with_it_and_nobody_gets_its_reply() -> None:
    for cut in range(len(bulk(V))):
        wire, first, second = Wire(1), poisoned(), poisoned()
        link = wire.open()
        wire.submit(get("first", "k", memoryview(first)))
        wire.submit(get("second", "next", memoryview(second)))
        wire.reply(link, bulk(V)[:cut])
        before = bytes(first)
        wire.act(wire.pool.cancel("first"))
        assert wire.done == {"first": Failed("cancelled")}
        assert wire.dropped == {link}
        wire.reply(link, bulk(V)[cut:])
        again = wire.open()
        wire.reply(again, bulk(encode("next", 1, SIZE)))
        assert wire.done["second"] == Found()
        assert (bytes(first), second) == (before, encode("next", 1, SIZE)), f"cancelled after {cut} bytes"


def test_neighbours_of_a_cancelled_read_on_one_connection_get_their_own() -> None:
    wire, second = Wire(1, depth=3), poisoned()
    link = wire.open()
    wire.submit(get("first", "k", memoryview(poisoned())))
    wire.submit(get("second", "next", memoryview(second)))
    wire.act(wire.pool.cancel("first"))
    assert link not in wire.dropped, "the second read still waits on it"
    wire.submit(exists("third", "k"))
    assert len(wire.sent[link]) == 2, "a tainted connection must not take a new request"
    wire.reply(link, bulk(V) + bulk(encode("next", 1, SIZE)))
    assert wire.done["second"] == Found()
    assert second == encode("next", 1, SIZE)
    wire.reply(link, b":1\r\n")
    assert wire.done["third"] == Found()


def test_a_set_that_ends_early_drops_its_connection() -> None:
    wire = Wire(1, depth=2)
    link = wire.open()
    wire.submit(put("first", "k", memoryview(V)))
    wire.submit(exists("second", "k"))
    wire.act(wire.pool.cancel("first"))
    assert wire.dropped == {link}
    assert is_outcome(wire.done["second"], "dropped, because a SET on it ended early")


def test_deadlines_end_what_waits_and_what_is_under_way() -> None:
    wire = Wire(1)
    link = wire.open()
    assert wire.pool.next_deadline() is None
    wire.submit(get("sent", "k", memoryview(poisoned())), deadline=1)
    wire.submit(exists("queued", "k"), deadline=2)
    wire.submit(exists("patient", "k"), deadline=9)
    assert wire.pool.next_deadline() == 1
    wire.act(wire.pool.expire(0.9))
    assert wire.done == {}
    wire.act(wire.pool.expire(2, "deadline"))
    assert wire.done == {"sent": Failed("deadline"), "queued": Failed("deadline")}
    assert wire.dropped == {link}
    wire.reply(wire.open(), b":1\r\n")
    assert wire.done["patient"] == Found()
    assert wire.pool.next_deadline() is None


def test_a_lost_connection_fails_what_was_on_it_and_is_opened_again() -> None:
    wire = Wire(2)
    one, two = wire.open(), wire.open()
    wire.submit(exists("a", "k"))
    wire.submit(exists("b", "k"))
    wire.submit(exists("c", "k"))
    wire.reply(two, b":1\r\n")
    assert wire.done == {"b": Found()}
    wire.act(wire.pool.received(one, 0))
    assert is_outcome(wire.done["a"], "closed the connection")
    wire.act(wire.pool.lost(two, "reset"))
    assert wire.done["c"] == Failed("reset")
    wire.submit(exists("d", "k"))
    wire.reply(wire.open(), b":0\r\n")
    assert wire.done["d"] == Absent()


def test_refusals_fail_the_waiting_only_when_no_connection_is_left() -> None:
    wire = Wire(2)
    one, two = wire.opening
    wire.submit(exists("a", "k"))
    wire.act(wire.pool.refused(one, "refused"))
    assert wire.done == {}
    assert not wire.pool.settled
    wire.act(wire.pool.refused(two, "refused"))
    assert wire.done == {"a": Failed("refused")}
    assert wire.pool.settled
    wire.opening.clear()
    wire.submit(exists("b", "k"))
    assert len(wire.opening) == 1, "a request after a refusal tries again"
    wire.reply(wire.open(), b":1\r\n")
    assert wire.done["b"] == Found()


def test_a_refusal_leaves_those_waiting_who_wait_for_an_open_connection() -> None:
    wire = Wire(2)
    one = wire.open()
    wire.submit(exists("under way", "k"))
    wire.submit(exists("waiting", "k"))
    wire.act(wire.pool.refused(wire.opening.pop(), "refused"))
    assert wire.done == {}
    wire.reply(one, b":1\r\n")
    wire.reply(one, b":0\r\n")
    assert wire.done == {"under way": Found(), "waiting": Absent()}


def test_a_peer_that_closes_at_once_is_not_connected_to_in_a_circle() -> None:
    wire = Wire(1)
    wire.act(wire.pool.received(wire.open(), 0))
    assert wire.opening == []
    wire.submit(exists("a", "k"))
    wire.act(wire.pool.received(wire.open(), 0))
    assert is_outcome(wire.done["a"], "closed the connection")
    assert wire.opening == []


def test_nothing_is_sent_before_the_password_was_accepted() -> None:
    wire = Wire(1, password="secret")
    wire.submit(exists("a", "k"))
    link = wire.open()
    assert wire.sent[link] == [b"*2\r\n$4\r\nAUTH\r\n$6\r\nsecret\r\n"]
    wire.reply(link, b"+OK\r\n")
    wire.reply(link, b":1\r\n")
    assert wire.done == {"a": Found()}


@pytest.mark.parametrize("how", ["refused", "silent", "closed"])
def test_a_password_that_is_not_accepted_fails_loud_and_is_not_shown(how: str) -> None:
    wire = Wire(1, password="secret")
    wire.submit(exists("a", "k"), deadline=99)
    link = wire.open()
    if how == "refused":
        wire.reply(link, b"-WRONGPASS invalid username-password pair or user is disabled.\r\n")
    elif how == "silent":
        wire.act(wire.pool.expire(10, "deadline"))
    else:
        wire.act(wire.pool.received(link, 0))
    outcome = wire.done["a"]
    assert isinstance(outcome, Failed)
    assert "secret" not in outcome.reason
    assert wire.opening == []
    assert wire.dropped == {link}


def test_close_ends_everything_and_what_comes_later() -> None:
    wire = Wire(2)
    link = wire.open()
    late = wire.opening[0]
    for name in "abc":
        wire.submit(exists(name, "k"))
    wire.act(wire.pool.close("closed"))
    assert wire.done == dict.fromkeys("abc", Failed("closed"))
    assert wire.dropped == {link, late}
    wire.submit(exists("d", "k"))
    assert wire.done["d"] == Failed("closed")
    wire.act(wire.pool.connected(late, 1))
    wire.reply(link, b":1\r\n")
    assert len(wire.done) == 4
