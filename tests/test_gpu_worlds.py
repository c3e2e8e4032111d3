"""The worlds of `make gpu`: on the host here, and on a GPU where there is one."""

from __future__ import annotations

import threading

import pytest

from kvproof.gpu import worlds
from kvproof.runner import buffers
from tests.worlds import wrong

FEW = ("none", "long-chunks", "nil@*", "killed-at-collective@last")


def test_the_worlds_of_a_gpu_run_on_the_host_where_there_is_none() -> None:
    rows = worlds.run("cpu", lambda row: None, threading.Event(), FEW)
    assert wrong(rows) == {}
    assert {row.read for row in rows} == set(worlds.LOADS)
    assert len(rows) > 40


@pytest.mark.gpu
def test_the_worlds_of_a_gpu_pass_on_one() -> None:
    if buffers.cuda() != "yes":
        pytest.skip(f"not run: {buffers.cuda()}")
    rows = worlds.run("cuda", lambda row: None, threading.Event())
    assert wrong(rows) == {}
    assert {row.where.ranks for row in rows} == {1, 2}
