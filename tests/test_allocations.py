"""The i-th allocation fails, for each i, wherever the allocator is looked up."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any, ClassVar

import pytest

from kvproof.connectors.adapter import Endpoint, Hit, Place
from kvproof.connectors.reference import Reference
from kvproof.errors import UsageError
from kvproof.faults.allocations import each_allocation, failing
from kvproof.faults.gates import substitute
from kvproof.faults.servers import Server
from kvproof.models import client as client_model


class Pool:
    """A pool of buffers, and a read of several chunks that leaks when an allocation in the middle fails."""

    lent: ClassVar[int] = 0

    def allocate(self, size: int) -> bytearray | None:
        Pool.lent += 1
        return bytearray(size)

    @staticmethod
    def plain(size: int) -> bytearray:
        return bytearray(size)

    @classmethod
    def of_class(cls, size: int) -> tuple[str, bytearray]:
        return cls.__name__, bytearray(size)

    def read(self, sizes: list[int]) -> list[bytearray]:
        buffers = []
        for size in sizes:
            buffer = self.allocate(size)
            if buffer is None:
                return []
            buffers.append(buffer)
        Pool.lent -= len(buffers)
        return buffers


class SmallPool(Pool):
    pass


def test_each_allocation_fails_once_and_a_leak_is_seen_at_those_after_the_first() -> None:
    for how, error in (("raise", MemoryError), ("none", type(None))):
        leaked = {}
        for run in each_allocation(Pool, "allocate", lambda: Pool().read([1, 2, 3]), how):  # type: ignore[arg-type]  # wrong on purpose
            leaked[run.nth], Pool.lent = Pool.lent, 0
            assert (run.struck, run.calls, type(run.error)) == (True, run.nth, error)
        assert leaked == {1: 0, 2: 1, 3: 2}, f"expected what was lent before the failure to stay lent, got {leaked}"


@pytest.mark.parametrize("owner", [Pool, SmallPool, SmallPool()])
@pytest.mark.parametrize("attribute", ["allocate", "plain", "of_class"])
def test_every_kind_of_method_can_fail_and_is_afterwards_what_it_was(owner: Any, attribute: str) -> None:
    before = {each: dict(vars(each)) for each in (Pool, SmallPool)}
    used = SmallPool() if isinstance(owner, type) else owner
    with failing(owner, attribute, 2) as seen:
        expected = ("SmallPool", bytearray(1)) if attribute == "of_class" else bytearray(1)
        assert getattr(used, attribute)(1) == expected
        with pytest.raises(MemoryError, match=f"allocation 2 of {attribute}"):
            getattr(used, attribute)(1)
        assert getattr(used, attribute)(1) == expected
    assert (seen.calls, seen.struck) == (3, True)
    Pool.lent = 0
    for each, attributes in before.items():
        assert {**attributes, **vars(each)} == attributes, f"{each.__name__} is not what it was"
        assert vars(each).keys() == attributes.keys()
    assert not vars(used)


def test_a_builtin_fails_in_one_module_only() -> None:
    module = ModuleType("somebodys")
    exec("def make(size): return bytearray(size)", module.__dict__)
    with failing(module, "bytearray", 1) as seen:
        with pytest.raises(MemoryError):
            module.make(1)
        assert bytearray(1)
        assert module.make(1) == bytearray(1)
    assert seen.struck
    assert "bytearray" not in vars(module)


def test_the_nth_call_is_one_call_whatever_the_thread() -> None:
    failed = []
    start = threading.Barrier(8)

    def allocate() -> None:
        start.wait()
        for _ in range(50):
            try:
                Pool.plain(1)
            except MemoryError:
                failed.append(threading.current_thread().name)

    with failing(Pool, "plain", 200) as seen:
        threads = [threading.Thread(target=allocate) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert (seen.calls, len(failed)) == (400, 1)


def test_a_failure_that_is_not_come_to_is_not_struck() -> None:
    runs = iter((3, 1, 1, 1))
    struck = [run.struck for run in each_allocation(Pool, "plain", lambda: [Pool.plain(1) for _ in range(next(runs))])]
    assert struck == [True, False, False]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: list(each_allocation(Pool, "plain", lambda: None)), "no allocation through plain"),
        (lambda: failing(Pool, "absent", 1).__enter__(), "has no allocator 'absent'"),
        (lambda: failing(Pool, "plain", -1).__enter__(), "nth from 0 on"),
        (lambda: failing(Pool, "plain", 1, "throw").__enter__(), "'raise' or 'none'"),  # type: ignore[arg-type]  # wrong on purpose
    ],
)
def test_what_cannot_fail_is_refused(wrong: Callable[[], object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        wrong()


def test_what_the_call_raises_without_a_failure_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        list(each_allocation(Pool, "plain", lambda: 1 // 0))


def test_an_instance_attribute_is_put_back_as_it_was() -> None:
    pool: Any = Pool()
    pool.allocate = pool.plain
    kept = pool.allocate
    with substitute(pool, "allocate", None):
        assert pool.allocate is None
    assert vars(pool) == {"allocate": kept}


# The connector's own thread ends with the MemoryError.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_the_reference_connector_that_cannot_allocate_says_so_and_works_the_next_time(server: Server) -> None:
    place = Place(Endpoint(server.host, server.port), chunk_bytes=8, timeout=1.0)

    def read() -> object:
        reference = Reference(place)
        try:
            key = place.key("aa")
            reference.put([(key, memoryview(bytearray(b"12345678")))])
            return reference.read(Reference.reads[2], [(key, memoryview(bytearray(8)))])
        finally:
            reference.close()

    for run in each_allocation(client_model, "bytearray", read):
        assert run.struck
        assert isinstance(run.error, (MemoryError, ConnectionError)), f"allocation {run.nth}: {run}"
    assert read() == [Hit()]
