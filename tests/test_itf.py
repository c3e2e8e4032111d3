"""Traces as ITF JSON: what is written comes back exactly, and anything else is refused in one sentence."""

from __future__ import annotations

import json
import re
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from kvproof.models.itf import Value
from kvproof.models.trace import ROLES, Taken, Trace
from tests import recorded

PLAIN = some.one_of(some.booleans(), some.integers(), some.text(), some.fractions())
HASHABLE = some.recursive(
    PLAIN, lambda inner: some.one_of(some.lists(inner, max_size=3).map(tuple), some.frozensets(inner, max_size=3)),
    max_leaves=4,
)
VALUES = some.recursive(
    HASHABLE, lambda inner: some.dictionaries(some.lists(HASHABLE, max_size=3).map(tuple), inner, max_size=3),
    max_leaves=6,
)
NAMES = some.text(min_size=1, max_size=6).filter(lambda name: not name.startswith("#"))


@some.composite
def traces(draw: Any) -> Trace:
    names = draw(some.lists(NAMES, max_size=4, unique=True))
    cut, ranks = draw(some.integers(0, len(names))), draw(some.integers(1, 4))
    states = draw(some.lists(some.fixed_dictionaries(dict.fromkeys(names[cut:], VALUES)), min_size=1, max_size=4))
    taken = [Taken(draw(some.text()), draw(some.dictionaries(some.text(), HASHABLE, max_size=2)),
                   draw(some.none() | some.integers(0, ranks - 1))) for _ in states[1:]]
    return Trace(
        draw(some.text()), draw(some.text()), ranks, draw(some.integers(0, 9)),
        draw(some.fixed_dictionaries(dict.fromkeys(names[:cut], VALUES))), tuple(states), tuple(taken),
        draw(some.text()), draw(some.text()), draw(some.sampled_from(("", *ROLES))),
        draw(some.none() | some.integers(0, 2**40)), draw(some.dictionaries(some.text(), some.text(), max_size=2)),
        draw(some.text()), draw(some.text()), draw(some.text()),
    )


def exact(value: Value) -> Any:
    """The value with its types, since True == 1 and Fraction(2) == 2 in Python."""
    if isinstance(value, dict):
        return dict, [(exact(key), exact(here)) for key, here in value.items()]
    if isinstance(value, frozenset):
        return frozenset, frozenset(map(exact, value))
    return type(value), tuple(map(exact, value)) if isinstance(value, tuple) else value


@settings(max_examples=80, deadline=None, derandomize=True)
@given(traces())
def test_a_trace_comes_back_from_itf_exactly(trace: Trace) -> None:
    text = trace.to_itf()
    back = Trace.from_itf(text)
    assert back == trace
    assert back.to_itf() == text
    for was, now in zip([trace.rigid, *trace.states], [back.rigid, *back.states], strict=True):
        assert {name: exact(value) for name, value in was.items()} == {
            name: exact(value) for name, value in now.items()}, text
    assert [exact(dict(each.picks)) for each in trace.taken] == [exact(dict(each.picks)) for each in back.taken]
    assert text.isascii()


def test_the_format_is_that_of_apalache_and_quint() -> None:
    document = json.loads(recorded.early_return().to_itf())
    assert document["#meta"]["format"] == "ITF"
    assert document["params"] == ["length", "fingerprint", "layout", "owner", "uniform"]
    assert document["vars"] == ["entered", "left", "loaded", "failure", "agreed", "least", "held", "gone"]
    second = document["states"][1]
    assert second["#meta"] == {"index": 1, "action": "enter_exchange", "picks": {"r": 1}, "rank": 1}
    assert second["entered"] == {"#map": [[0, 0], [1, 1]]}
    assert second["held"]["#map"][1] == [{"#tup": [0, 1]}, False]
    assert set(document["#meta"]["kvproof"]) == {
        "schema", "system", "theory", "ranks", "size", "claim", "mutant", "role", "expected", "observed", "place",
        "mistake",
        "seed", "versions"}


def test_numbers_past_53_bits_are_bigints_and_fractions_say_that_they_are_none_of_the_format() -> None:
    trace = Trace("load", "Load", 1, 0, {}, ({"n": 2**53, "f": Fraction(-1, 3), "s": frozenset({2, 1})},))
    [state] = json.loads(trace.to_itf())["states"]
    assert state["n"] == {"#bigint": "9007199254740992"}
    assert state["f"] == {"#unserializable": "-1/3"}
    assert state["s"] == {"#set": [1, 2]}


@pytest.mark.parametrize("value", [10**1000 - 1, Fraction(1, 10**1000 - 1)])
def test_the_longest_number_comes_back_and_a_longer_one_is_not_written(value: Fraction | int) -> None:
    def trace(value: Value) -> Trace:
        return Trace("load", "Load", 1, 0, {}, ({"n": {(value,): -value}},))

    assert Trace.from_itf(trace(value).to_itf()) == trace(value)
    for longer in (10**1000, -(10**5000), Fraction(1, 10**1000), Fraction(10**1000, 3)):
        with pytest.raises(ValueError, match="bits; expected at most 1000 decimal digits"):
            trace(longer).to_itf()


GOOD = Trace("load", "Load", 2, 1, {"k": 1}, ({"n": {(0,): 0, (1,): 1}}, {"n": {(0,): 1, (1,): 1}}),
             (Taken("go", {"r": 0}, 0),)).to_itf()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("{", "[", "line "),
        ('"k": 1', '"k": 1.5', "states[0].k: found 1.5; expected a truth value, whole number"),
        ('"k": 1', '"k": null', "states[0].k: found null; expected a truth value"),
        ('"k": 1', '"k": NaN', "found NaN; expected JSON"),
        ('"k": 1', '"k": 9007199254740993', "expected one past 53 bits to be written as #bigint"),
        ('"k": 1', '"k": 1, "k": 1', "found the key 'k' twice"),
        ('"k": 1', '"k": {"#bigint": "1_0"}', "expected a whole number as a string"),
        ('"k": 1', '"k": {"#unserializable": "1/0"}', "expected a fraction"),
        ('"k": 1', '"k": {"tag": "None", "value": 0}', "states[0].k: found {\"tag\""),
        ('"k": 1', '"k": {"#set": [1, 1]}', "states[0].k: found 1 twice"),
        ('"k": 1', '"k": {"#set": [{"#map": []}]}', "found a function as an element or a key"),
        ('"k": 1', '"k": ' + "[" * 100_000, "nested too deeply"),
        ('"#map": [[0, 0], [1, 1]]', '"#map": [[0, 0], [0, 1]]', "states[0].n[1]: found (0,) twice"),
        ('"#map": [[0, 0], [1, 1]]', '"#map": [[0, 0], [1]]', "states[0].n[1]: found [1]; expected a key and a value"),
        ('"params": ["k"]', '"params": ["k", "k"]', "params: found 'k' twice"),
        ('"params": ["k"]', '"params": ["j"]', "states[0]: found no 'j'"),
        ('"params": ["k"]', '"params": []', "states[0]: found an unknown key 'k'"),
        ('"vars": ["n"]', '"vars": "n"', 'vars: found "n"; expected a list'),
        ('"action": "go", ', "", "states[1].#meta: found no 'action'"),
        ('"index": 1', '"index": 2', "states[1].#meta.index: found 2; expected 1"),
        ('"index": 0', '"index": 0, "action": "go"', "states[0].#meta: found an unknown key 'action'"),
        ('"rank": 0', '"rank": true', "states[1].#meta.rank: found true; expected a rank's number"),
        ('"rank": 0', '"rank": 99', "states[1].#meta.rank: found 99; expected a rank below 2"),
        ('"rank": 0', '"rank": -1', "states[1].#meta.rank: found -1; expected a rank below 2"),
        ('"k": 1', '"k": {"#set": [1, true]}', "states[0].k: found true beside 1, which is the same value in Python"),
        ('"#map": [[0, 0], [1, 1]]', '"#map": [[1, 0], [true, 1]]', "found {\"#tup\": [true]} beside {\"#tup\": [1]}"),
        ('"ranks": 2', '"ranks": "2"', '#meta.kvproof.ranks: found "2"; expected a whole number'),
        ('"ranks": 2', '"ranks": 1000000000', "found 1000000000 ranks"),
        ('"ranks": 2', '"ranks": 2, "clam": ""', "#meta.kvproof: found an unknown key 'clam'"),
        ('"ranks": 2', '"ranks": 2, "role": "hero"', "found the role 'hero'"),
        ("kvproof.trace/1", "kvproof.trace/2", "#meta.kvproof.schema: found \"kvproof.trace/2\""),
        ('"kvproof":', '"other":', "#meta: found no 'kvproof'"),
        ('"states":', '"loop": 0, "states":', "the document: found an unknown key 'loop'"),
    ],
)
def test_anything_else_is_refused_in_one_sentence_that_says_where(old: str, new: str, said: str) -> None:
    assert old in GOOD
    with pytest.raises(ValueError, match=re.escape(said)) as caught:
        Trace.from_itf(GOOD.replace(old, new, 1))
    assert "\n" not in str(caught.value)


def test_a_parameter_keeps_its_meaning() -> None:
    at = GOOD.rindex('"k": 1')
    with pytest.raises(ValueError, match=r"states\[1\]\.k: found another meaning than in the first state"):
        Trace.from_itf(GOOD[:at] + GOOD[at:].replace('"k": 1', '"k": 2'))


def test_states_and_actions_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="found 2 states and 0 actions"):
        Trace("load", "Load", 1, 0, {}, ({"n": 0}, {"n": 1}))
    with pytest.raises(ValueError, match="other symbols than in the first state: m"):
        Trace("load", "Load", 1, 0, {}, ({"n": 0}, {"n": 1, "m": 0}), (Taken("go"),))
    with pytest.raises(ValueError, match="found n both among the rigid symbols and in the states"):
        Trace("load", "Load", 1, 0, {"n": 1}, ({"n": 0},))
