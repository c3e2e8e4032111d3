"""Collectives are recorded as they are entered and left, and a stall is told in one sentence."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from kvproof.ranks import collectives
from kvproof.ranks.collectives import Collective, Entered
from kvproof.ranks.story import stall


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A group of one rank, in this process."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    distributed = pytest.importorskip("torch.distributed")
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1,
                                   timeout=timedelta(seconds=5))
    yield distributed
    distributed.destroy_process_group()


def test_what_is_entered_and_left_is_recorded_with_its_place(group: Any, tmp_path: Path) -> None:
    import torch

    plain = group.broadcast
    with collectives.recording(tmp_path / "log", 0):
        group.broadcast(torch.zeros(4), src=0)
        found: list[Any] = [None]
        group.all_gather_object(found, {"a": 1})
        work = group.all_reduce(torch.zeros(2), async_op=True)
        begun = collectives.read(tmp_path / "log").of(0)
        work.wait()
        with pytest.raises((RuntimeError, ValueError)):
            group.broadcast(torch.zeros(4), src=7)
    assert group.broadcast is plain, "the wrapping is gone"
    assert found == [{"a": 1}]
    assert begun[-1].waits, "a collective that was only begun is not left"
    entered = collectives.read(tmp_path / "log")
    assert [(each.number, each.call, each.root, each.left) for each in entered.of(0)] == [
        (1, "broadcast", 0, True), (2, "all_gather_object", None, True), (3, "all_reduce", None, True),
        (4, "broadcast", 7, False)]
    assert all(each.place.startswith("test_what_is_entered_and_left_is_recorded_with_its_place (test_ranks_col")
               for each in entered.of(0))
    assert entered.of(0)[3].error
    assert entered.waiting(0) is None
    assert entered.of(5) == ()


def test_a_collective_may_be_refused_before_it_is_entered(group: Any, tmp_path: Path) -> None:
    import torch

    def refuse(number: int) -> None:
        if number == 2:
            raise RuntimeError("not this one")

    with collectives.recording(tmp_path / "log", 3, refuse):
        group.broadcast(torch.zeros(4), src=0)
        with pytest.raises(RuntimeError, match="not this one"):
            group.broadcast(torch.zeros(4), src=0)
    assert [each.number for each in collectives.read(tmp_path / "log").of(3)] == [1]


def test_a_log_that_was_cut_off_is_read_up_to_there(tmp_path: Path) -> None:
    path = tmp_path / "log"
    assert collectives.read(path) == Entered({})
    values = {"call": "barrier", "place": "f (a.py:1)", "root": None, "group": [0, 2]}
    line = json.dumps({"rank": 2, "seq": 0, "step": 1, "event": "enter", "values": values})
    path.write_text(f"{line}\n{line[:30]}")
    [only] = collectives.read(path).of(2)
    assert (only.group, only.waits) == ((0, 2), True)


def entered(*ranks: str) -> Entered:
    """Return ranks that have entered: "EBb" is an exchange and a broadcast that were left, and one that was not."""
    calls = {"e": "all_gather", "b": "broadcast"}
    return Entered({rank: [Collective(number, calls[letter.lower()], f"f (a.py:{number})", left=letter.isupper())
                           for number, letter in enumerate(letters, 1)] for rank, letters in enumerate(ranks)})


E, B = "all_gather in f (a.py:{})", "broadcast in f (a.py:{})"


@pytest.mark.parametrize(("ranks", "says"), [
    (("E", "E"), ""),
    (("", ""), ""),
    (("e", ""), f"rank 0 waited in collective 1, {E.format(1)}, which rank 1 never entered: rank 1 is w1"),
    (("e", "", "e"),
     f"ranks 0 and 2 waited in collective 1, {E.format(1)}, which rank 1 never entered: rank 1 is w1"),
    (("EB", "Eb", "E"), f"rank 1 waited in collective 2, {B.format(2)}, which rank 2 never entered: rank 2 is w2"),
    (("b", "e"), f"ranks 0 and 1 waited in collective 1, {B.format(1)}, which all had entered"),
    (("Ee", "EB"), (f"rank 0 waited in collective 2, {E.format(2)}, and the others were in another one: rank 1 was in "
                    f"{B.format(2)}, and is w1")),
    (("e", "E"), f"rank 0 waited in collective 1, {E.format(1)}, which all had entered: rank 1 is w1"),
])
def test_a_stall_is_told_in_a_sentence(ranks: tuple[str, ...], says: str) -> None:
    assert stall(entered(*ranks), {rank: f"is w{rank}" for rank in range(len(ranks))}) == says
