"""Chunks and their keys: the cut and its hashes, owners, and the text of a key both ways."""

from __future__ import annotations

import subprocess
import sys
from itertools import takewhile
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproof.models import chunks
from kvproof.models.chunks import ChunkKey, Names, block_cyclic, chunk_hashes, replicated, round_robin
from tests.store_properties import key_pairs, keys, names

KEY = ChunkKey("meta-llama/Llama-3.1-8B", 8, 3, "0123abcd", "bfloat16")
tokens = st.lists(st.integers(0, 3), max_size=40)


@given(tokens, tokens, st.integers(1, 8))
def test_two_lists_have_as_many_hashes_in_common_as_whole_chunks(first: list[int], other: list[int], size: int) -> None:
    shared = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(first, other, strict=False))))
    one, two = chunk_hashes(first, size), chunk_hashes(other, size)
    assert len(one) == len(first) // size
    assert [a == b for a, b in zip(one, two, strict=False)] == [
        (k + 1) * size <= shared for k in range(min(len(one), len(two)))]


@given(tokens, tokens, st.integers(1, 4))
def test_what_comes_after_a_chunk_does_not_change_its_hash(first: list[int], more: list[int], size: int) -> None:
    before = chunk_hashes(first, size)
    assert chunk_hashes(first + more, size)[: len(before)] == before


def test_hashes_are_the_same_in_every_process() -> None:
    code = "from kvproof.models.chunks import chunk_hashes; print(*chunk_hashes(range(512)))"
    seen = {subprocess.run([sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True,
                           check=True, timeout=60).stdout.split()[-1] for seed in ("1", "2")}
    assert seen == {chunk_hashes(range(512))[1]}
    assert seen == {"51244ec9896511bdb06d88791a19bd072ba0d97d9463ba34ffbc5d523908d601"}


def test_what_the_kv_depends_on_besides_changes_every_hash() -> None:
    plain, other = chunk_hashes([1, 2, 3, 4], 2), chunk_hashes([1, 2, 3, 4], 2, b"adapter")
    assert len({*plain, *other}) == 4
    assert chunk_hashes([1, 12], 2) != chunk_hashes([11, 2], 2), "tokens run into each other"
    with pytest.raises(ValueError, match="one token or more, got 0"):
        chunk_hashes([1], 0)


def test_owners_are_dealt_out_in_turn_in_blocks_or_all_to_worker_0() -> None:
    assert round_robin(5, 2) == (0, 1, 0, 1, 0)
    assert block_cyclic(7, 2, 2) == (0, 0, 1, 1, 0, 0, 1)
    assert block_cyclic(5, 3, 1) == round_robin(5, 3)
    assert replicated(3) == (0, 0, 0)


def test_engines_with_other_numbers_of_ranks_do_not_find_each_others_chunks() -> None:
    assert [c for c in range(7) if chunks.owner(c, 2) != chunks.owner(c, 3)] == [2, 3, 4, 5]


def test_a_key_is_written_as_it_always_was_and_what_is_optional_comes_after() -> None:
    assert KEY.format() == "meta-llama/Llama-3.1-8B@8@3@0123abcd@bfloat16"
    full = ChunkKey("a@b%", 1, 0, "c", "d", "lora@1", "tenant")
    assert full.format() == "a%ab%%@1@0@c@d@llora%a1@stenant"
    assert ChunkKey.parse(full.format()) == full
    assert KEY.stored(replicated=True).worker == 0
    assert KEY.stored(replicated=False) == KEY


@given(keys())
def test_the_text_of_a_key_is_read_as_that_key(fields: dict[str, Any]) -> None:
    assert ChunkKey.parse(ChunkKey(**fields).format()) == ChunkKey(**fields)


@given(key_pairs())
def test_two_keys_have_two_texts(pair: tuple[dict[str, Any], dict[str, Any]]) -> None:
    first, second = (ChunkKey(**fields) for fields in pair)
    assert (first.format() == second.format()) == (first == second)


@given(st.one_of(st.text("@%als01", max_size=20), keys().map(lambda fields: ChunkKey(**fields).format() + "@sx")))
def test_what_is_read_as_a_key_is_the_text_of_that_key(text: str) -> None:
    try:
        key = ChunkKey.parse(text)
    except ValueError:
        return
    assert key.format() == text


@pytest.mark.parametrize("text", [
    "", "m@1@0@c", "m@one@0@c@d", "m@01@0@c@d", "m@ 1@0@c@d", "m@1@0@c@d@", "m@1@0@c@d@l", "m@1@0@c@d@x",
    "m@1@0@c@d@sx@ly", "m@1@0@c@d@lx@ly", "m%@1@0@c@d", "m%s@1@0@c@d"])
def test_a_text_of_no_key_is_not_read(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        ChunkKey.parse(text)


@pytest.mark.parametrize("text", ["%", "%s", "a%%%"])
def test_an_escape_that_stands_for_nothing_is_no_name(text: str) -> None:
    with pytest.raises(ValueError, match="stands for nothing"):
        Names().read(text)


@given(names(), names())
def test_a_name_is_written_without_the_separator_and_as_nothing_else_is(name: str, other: str) -> None:
    written = Names().write(name)
    assert Names.SEPARATOR not in written
    assert Names().read(written) == name
    assert (written == Names().write(other)) == (name == other)
