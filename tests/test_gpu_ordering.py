"""What streams order: that there are none on the host is said, and on a GPU each wrong order is caught."""

from __future__ import annotations

import threading

import pytest

from kvproof.connectors import Connector
from kvproof.faults.servers import valkey
from kvproof.gpu import ordering
from kvproof.results import CellRow
from kvproof.runner import buffers


def rows(device: str, target: str) -> list[CellRow]:
    """Return the rows of one connector."""
    connector = Connector(target.partition(":")[2], target, "kvproof", "0", "")
    with valkey() as server:
        return ordering.run([connector], server, device, lambda row: None, threading.Event())


def test_on_the_host_there_is_nothing_to_order_and_it_says_so() -> None:
    [row] = rows("cpu", "kvproof.connectors.reference:Reference")
    assert (row.rule, row.verdict, row.explain) == (
        "device-ordered", "unsupported", "buffers on the host are on no stream")


@pytest.mark.gpu
@pytest.mark.parametrize(("target", "broken"), [
    ("kvproof.connectors.reference:Reference", set()),
    ("kvproof.gpu.unordered:UnorderedStore", {"put"}),
    ("kvproof.gpu.unordered:UnorderedLoad", {"get", "batched_get", "async_get", "batched_async_get"}),
], ids=["reference", "store", "load"])
def test_a_wrong_order_is_caught_on_a_gpu(target: str, broken: set[str]) -> None:
    if buffers.cuda() != "yes":
        pytest.skip(f"not run: {buffers.cuda()}")
    found = rows("cuda", target)
    assert {row.read: row.verdict for row in found} == {
        name: "fail" if name in broken else "pass"
        for name in ("put", "get", "batched_get", "async_get", "batched_async_get")}
