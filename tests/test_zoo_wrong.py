"""The wrong connectors of the zoo are wrong, each where it says, by checks that the honest one passes."""

from __future__ import annotations

import gc
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

from kvproof.connectors.adapter import Failed, Hit, Miss, Outcome
from kvproof.faults import servers
from kvproof.faults.families import Drip, Error, Flip, Hold, Silence, Split, UnknownType
from kvproof.faults.fault import Fault
from kvproof.faults.servers import Server
from tests.zoo import absence, batches, keys, passwords, replies, threads, values, waits, writes
from tests.zoo.honest import BATCHED_EXISTS, BATCHED_GET, EXISTS, GET, Honest, Unsealed
from tests.zoo.members import MEMBERS
from tests.zoo.opened import SIZE, cancelled, got, opened, poisoned, stored, value

Check = Callable[[Server, type[Honest]], bool]
"""Whether a connector of this kind is right."""
SECRET = "hunter2-secret"


def reads_back(chunk: bytes, *schedule: Fault, dtype: str = "bfloat16") -> Check:
    def check(server: Server, kind: type[Honest]) -> bool:
        with opened(server, *schedule, kind=kind, size=len(chunk), dtype=dtype) as (connector, _):
            connector.put([(connector.place.key("aa"), memoryview(bytearray(chunk)))])
            return got(connector, "aa") == [(Hit(), chunk)]
    return check


def holes_stay(server: Server, kind: type[Honest]) -> bool:
    with opened(server, kind=kind) as (connector, _):
        stored(connector, "bb", "dd")
        found = got(connector, "aa", "bb", "cc", "dd", how=BATCHED_GET)
        counted = [one for one, _ in got(connector, "bb", "cc", "dd", how=BATCHED_EXISTS)]
        return [one for one, _ in found] == [Miss(), Hit(), Miss(), Hit()] and found[1::2] == [
            value("bb"), value("dd")] and counted == [Hit(), Miss(), Miss()]


def error_is_its_own(server: Server, kind: type[Honest]) -> bool:
    """Read one, an error, then a batch of three, of which the second is an error; then the next read."""
    with opened(server, Error(command="GET", match=1), Error(command="GET", match=3), kind=kind) as (connector, _):
        stored(connector, "aa", "bb", "cc")
        [(alone, _)] = got(connector, "aa")
        first, second, third = got(connector, "aa", "bb", "cc", how=BATCHED_GET)
        return isinstance(alone, Failed) and isinstance(second[0], Failed) and [first, third] == [
            value("aa"), value("cc")] and got(connector, "bb") == [value("bb")]


def ended(connector: Honest, call: Callable[[], object], within: float = 0.8) -> bool:
    """Whether a call ends in time; where it does not, the connector is closed."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(within)
    if thread.is_alive():
        connector.close()
        return False
    return True


def ends(fault: Fault) -> Check:
    def check(server: Server, kind: type[Honest]) -> bool:
        with opened(server, fault, kind=kind) as (connector, _):
            stored(connector, "aa")
            return ended(connector, lambda: got(connector, "aa"))
    return check


def takes_as_long_as_it_declares(server: Server, kind: type[Honest]) -> bool:
    with opened(server, kind=kind) as (connector, _):
        return connector.call().left() <= (connector.deadline or connector.place.timeout)


def evicted_is_missed(server: Server, kind: type[Honest]) -> bool:
    with opened(server, kind=kind) as (connector, _):
        stored(connector, "aa")
        got(connector, "aa", how=EXISTS)
        with server.connect() as truth:
            truth.command("FLUSHALL")
        found: list[Outcome] = []
        return ended(connector, lambda: found.append(got(connector, "aa")[0][0])) and found == [Miss()]


def flipped_is_no_hit(server: Server, kind: type[Honest]) -> bool:
    with opened(server, Flip(command="GET"), kind=kind) as (connector, _):
        stored(connector, "aa")
        return isinstance(got(connector, "aa")[0][0], Failed)


def another_size_is_no_hit(size: int) -> Check:
    def check(server: Server, kind: type[Honest]) -> bool:
        with opened(server, kind=kind, size=size) as (writer, _), opened(server, kind=kind) as (reader, _):
            stored(writer, "aa")
            return isinstance(got(reader, "aa")[0][0], Failed)
    return check


def works_after(*schedule: Fault) -> Check:
    def check(server: Server, kind: type[Honest]) -> bool:
        with opened(server, *schedule, kind=kind, timeout=0.2) as (connector, _):
            stored(connector, "aa")
            got(connector, "aa")
            return got(connector, "aa") == [value("aa")]
    return check


def late_goes_nowhere(server: Server, kind: type[Honest]) -> bool:
    """After a timeout, and after a cancellation."""
    held = (Hold(command="GET", until="go"), Hold(command="GET", match=3, until="on"))
    with opened(server, *held, kind=kind, timeout=0.5) as (connector, endpoint):
        stored(connector, "aa", "bb")
        chunks = poisoned(connector, "aa")
        connector.read(GET, chunks)
        endpoint.release("go")
        right = got(connector, "bb") == [value("bb")] and chunks[0][1] == poisoned(connector, "aa")[0][1]
        _, (_, buffer) = cancelled(connector, endpoint, held=2)
        endpoint.release("on")
        return right and got(connector, "bb") == [value("bb")] and buffer == poisoned(connector, "aa")[0][1]


def refused_is_seen(server: Server, kind: type[Honest]) -> bool:
    with opened(server, Error(command="SET", code="OOM"), kind=kind) as (connector, _):
        return isinstance(stored(connector, "aa")[0], Failed)


def ranks_find(server: Server, kind: type[Honest]) -> bool:
    with ExitStack() as stack:
        (zero, _), (one, _) = (stack.enter_context(opened(server, kind=kind, rank=rank)) for rank in (0, 1))
        (first, _), (second, _) = (
            stack.enter_context(opened(server, kind=kind, rank=rank, replicated=True)) for rank in (0, 1))
        stored(zero, "aa", version=1)
        stored(one, "aa", version=2)
        stored(first, "bb")
        return got(zero, "aa") == [value("aa")] and all(
            got(second, "bb", how=how)[0][0] == Hit() for how in second.reads)


IDENTITIES: list[dict[str, Any]] = [
    {}, {"model": "m", "world_size": 11}, {"model": "m1", "world_size": 1}, {"dtype": "float16"}, {"salt": "ab"},
    {"adapter": "ab"}, {"salt": "a", "adapter": "b"}, {"salt": "b", "adapter": "a"},
]


def identities_differ(server: Server, kind: type[Honest]) -> bool:
    names = set()
    for identity in IDENTITIES:
        with opened(server, kind=kind, **identity) as (connector, _):
            names.add(connector.wire_key(connector.place.key("aa")))
    return len(names) == len(IDENTITIES)


def threads_may_call(server: Server, kind: type[Honest]) -> bool:
    names = [f"{number:04x}" for number in range(40)]
    with opened(server, kind=kind, connections=3, timeout=0.5) as (connector, _), ThreadPoolExecutor(6) as pool:
        stored(connector, *names)
        calls = [pool.submit(got, connector, name) for name in names]
        return all(
            not call.exception() and call.result() == [value(name)] for call, name in zip(calls, names, strict=True))


def another_thread_reads_after_a_miss(server: Server, kind: type[Honest]) -> bool:
    with opened(server, kind=kind) as (connector, _):
        got(connector, "aa")
        return ended(connector, lambda: got(connector, "aa"))


def close_ends_calls(server: Server, kind: type[Honest]) -> bool:
    with opened(server, Silence(command="GET"), kind=kind, timeout=60.0) as (connector, endpoint):
        calls = [
            threading.Thread(target=call, daemon=True) for call in (lambda: got(connector, "aa"), connector.close)]
        calls[0].start()
        endpoint.wait("request:GET")
        calls[1].start()
        for call in calls:
            call.join(0.8)
        try:
            return not any(call.is_alive() for call in calls)
        finally:
            connector.connections.clear()  # A close that waits for them holds the lock.


def nothing_is_left(server: Server, kind: type[Honest]) -> bool:
    with opened(server, kind=kind) as (first, _), server.connect() as truth:
        got(first, "aa")

        def clients() -> int:
            return int(truth.info("clients")["connected_clients"])

        before, threads_before = clients(), set(threading.enumerate())
        second = kind(first.place)
        got(second, "aa")
        second.close()
        end = time.monotonic() + 0.5
        while clients() > before or set(threading.enumerate()) - threads_before:
            if time.monotonic() > end:
                return False
            time.sleep(0.01)
        return True


def takes(size: int) -> Check:
    def check(server: Server, kind: type[Honest]) -> bool:
        with opened(server, kind=kind, size=size) as (connector, _):
            try:
                return connector.put([(connector.place.key("aa"), memoryview(bytearray(size)))]) == [Hit()]
            except ValueError:
                return False
    return check


def nothing_is_held(server: Server, kind: type[Honest]) -> bool:
    memory = bytearray(SIZE)
    with opened(server, kind=kind) as (connector, _):
        stored(connector, "aa")
        connector.read(GET, [(connector.place.key("aa"), memoryview(memory))])
    gc.collect()
    try:
        memory.clear()
    except BufferError:
        return False
    return connector.lent() == 0


def last_write_is_read(server: Server, kind: type[Honest]) -> bool:
    with opened(server, kind=kind) as (connector, _):
        stored(connector, "aa")
        got(connector, "aa")
        stored(connector, "aa", version=2)
        return got(connector, "aa") == [value("aa", 2)]


LIKE_RESP = b"*1\r\n$-1\r\n" * 2000
CHECKS: dict[type[Honest], Check] = {
    values.TypedByFirstByte: reads_back(LIKE_RESP),
    values.SplitEnd: reads_back(bytes(16), Split(command="GET", at=[len(b"$24\r\n") + 24 + 1])),
    values.EmptyIsAbsent: reads_back(b""),
    values.ElementsOfTwoBytes: reads_back(bytes(64), dtype="float32"), values.TakesNoOddSize: takes(SIZE - 1),
    absence.NilIsHit: holes_stay, absence.ZeroIsPresent: holes_stay, absence.WaitsForAbsent: evicted_is_missed,
    batches.HolesCloseUp: holes_stay, batches.HitsLead: holes_stay, batches.ErrorIsNoReply: error_is_its_own,
    batches.CountsHits: holes_stay, batches.LastHitLeads: holes_stay, batches.HoleCounts: holes_stay,
    waits.DripsProlong: ends(Drip(command="GET", seconds=0.05)),
    waits.NoDeadlineInside: ends(Silence(command="GET", at=100)),
    waits.ExpiryNeverSet: takes_as_long_as_it_declares,
    waits.DeadAfterTimeout: works_after(Silence(command="GET")),
    waits.PoolDrains: works_after(Silence(command="GET")), waits.BadBytesStay: works_after(UnknownType(command="GET")),
    replies.KeptAfterTimeout: late_goes_nowhere, replies.KeptAfterCancel: late_goes_nowhere,
    replies.StopsAtError: error_is_its_own,
    values.ChecksumUnread: flipped_is_no_hit, values.ShortIsWhole: another_size_is_no_hit(SIZE // 2),
    values.LongIsCut: another_size_is_no_hit(2 * SIZE),
    writes.RefusedIsStored: refused_is_seen, writes.ErrorIsFinished: error_is_its_own,
    absence.PromisedIsThere: evicted_is_missed, absence.VerdictStays: evicted_is_missed,
    absence.KeptByLookup: evicted_is_missed,
    keys.LookupAsksOwn: ranks_find, keys.AsyncAsksOwn: ranks_find, keys.AllAskZero: ranks_find,
    keys.NoAdapterInKey: identities_differ, keys.NoSaltInKey: identities_differ, keys.NoDtypeInKey: identities_differ,
    keys.JoinedBare: identities_differ,
    replies.WritesAfterCancel: late_goes_nowhere, replies.WritesAfterTimeout: late_goes_nowhere,
    threads.OneForAll: threads_may_call, threads.OneStagingBuffer: threads_may_call,
    threads.StrictTurns: threads_may_call, threads.EarlyReturnKeepsLock: another_thread_reads_after_a_miss,
    threads.CloseTellsNobody: close_ends_calls, threads.CloseHoldsLock: close_ends_calls,
    threads.SocketsStayOpen: nothing_is_left, threads.ThreadStays: nothing_is_left,
    threads.BuffersStay: nothing_is_held, threads.PoolShrinks: nothing_is_held,
    writes.OldVersions: last_write_is_read, writes.WritesBehind: last_write_is_read,
}
ELSEWHERE = {waits.AllocatesAnnounced, keys.KeyOfThisProcess, threads.ProcessStays}
"""Wrong only in a process of their own: one dies, one differs from process to process, one leaves a process behind."""


@pytest.fixture(autouse=True)
def _empty(server: Server) -> None:
    with server.connect() as truth:
        truth.command("FLUSHALL")


@pytest.mark.parametrize("kind", CHECKS, ids=lambda kind: kind.__name__)
def test_it_is_wrong(server: Server, kind: type[Honest]) -> None:
    assert not CHECKS[kind](server, kind)


@pytest.mark.parametrize("check", dict.fromkeys(CHECKS.values()), ids=lambda check: check.__qualname__)
def test_the_honest_one_is_not(server: Server, check: Check) -> None:
    assert check(server, Honest)
    assert check in (flipped_is_no_hit,) or check(server, Unsealed)


@pytest.mark.parametrize("password", [None, "other", SECRET], ids=["none", "wrong", "right"])
def test_passwords(password: str | None, capfd: pytest.CaptureFixture[str]) -> None:
    """A wrong or missing one is seen, and none is shown."""
    wrong = set()
    with servers.valkey(password=SECRET) as locked:
        for kind in (Honest, *(each for each in MEMBERS if each.rule == "auth-fails-loud")):
            try:
                with opened(locked, kind=kind, password=password) as (connector, _):
                    found = got(connector, "aa")[0][0]
            except ConnectionError as error:
                found = Failed(str(error))
            shown = password is not None and password in str(found) + "".join(capfd.readouterr())
            if shown or isinstance(found, Failed) != (password != SECRET):
                wrong.add(kind)
    assert wrong == {
        None: {passwords.NoAuthIsMiss}, "other": {
            passwords.DegradesSilently, passwords.TellsPassword, passwords.LogsPassword},
        SECRET: {passwords.LogsPassword}}[password]


def test_every_member_is_checked() -> None:
    checked = {*CHECKS, *ELSEWHERE, *(kind for kind in MEMBERS if kind.rule == "auth-fails-loud")}
    assert checked == set(MEMBERS)


def test_every_member_says_whose_mistake_it_is() -> None:
    said = [kind.__doc__ or "" for kind in MEMBERS]
    assert not [text for text in said if not re.match(r"[A-I]\d|LMCache #\d", text)]
    assert all(kind.rule in kind.breaks for kind in MEMBERS)
    assert all(sum(kind.rule == rule for kind in MEMBERS) > 1 for rule in {rule for k in MEMBERS for rule in k.breaks})
