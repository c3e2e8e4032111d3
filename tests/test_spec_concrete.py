"""A system computed in a finite world: it says when a run leaves that world, and never answers for what is beyond."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest
import z3

from kvproof.spec.evaluate import BeyondSize, compiled
from kvproof.spec.system import Concrete, Step, System, action
from kvproof.spec.theory import Bool, Formula, Int, Rank, Rigid, State, View, exists, forall, put, within


class Flags(System):
    """Flags are raised one by one; some number of them may be skipped."""

    limit = Rigid(Int)
    n = State(Int)
    f = State(Int, Bool)
    last = State(Rank, Int)

    def init(self, s: View) -> list[Formula]:
        return [s.n == 0, forall(Int, lambda k: z3.Not(s.f(k))), forall(Rank, lambda r: s.last(r) == -1)]

    @action()
    def go(self, s: View) -> Step:
        return Step(True, n=s.n + 1, f=put(s.f, s.n, True))

    @action()
    def skip(self, s: View) -> Step:
        return Step(True, n=s.n + 1)

    @action(r=Rank)
    def before(self, s: View, r: Any) -> Step:
        return Step(s.f(s.n - 1), last=put(s.last, r, s.n))

    @action()
    def everyone(self, s: View) -> Step:
        return Step(forall(Int, lambda k: z3.Implies(within(0, k, s.n), s.f(k))))

    @action()
    def everyone_but(self, s: View) -> Step:
        return Step(forall(Int, lambda k: z3.Or(s.n <= k, s.f(k))))

    @action()
    def somebody(self, s: View) -> Step:
        return Step(exists(Int, lambda k: z3.And(k == s.n, z3.Not(s.f(k)))))

    @action()
    def twice(self, s: View) -> Step:
        return Step(forall(Int, lambda k: z3.Implies(within(0, k, s.n + s.n), s.f(k))))

    @action()
    def all_of_them(self, s: View) -> Step:
        return Step(forall(Int, lambda k: s.f(k)))

    @action()
    def all_natural(self, s: View) -> Step:
        return Step(forall(Int, lambda k: z3.Implies(k >= 0, s.f(k))))

    @action()
    def one_is_down(self, s: View) -> Step:
        return Step(exists(Int, lambda k: z3.Not(s.f(k))))

    @action(k=Int)
    def look(self, s: View, k: Any) -> Step:
        return Step(k == s.n)

    @action()
    def all_raised(self, s: View) -> Step:
        return Step(True, f=lambda k: within(0, k, s.n))

    @action()
    def within_limit(self, s: View) -> Step:
        return Step(exists(Int, lambda k: z3.And(k < s.limit, s.f(k))))


def flags(n: int, raised: int, limit: int = 0) -> tuple[Concrete, dict[str, Any], dict[str, Any]]:
    """Return a world of the integers 0..3, its rigid symbols and a state."""
    return Concrete(Flags(), 1, 3, kept=True), {"limit": limit}, {
        "n": n, "f": {(k,): k < raised for k in range(4)}, "last": {(0,): -1}}


@pytest.mark.parametrize(("name", "n", "raised", "limit", "said"), [
    ("go", 4, 4, 0, "go gives f a value at 4"),
    ("before", 0, 0, 0, "the guard of before asks what a function is at -1"),
    ("before", 5, 4, 0, "the guard of before asks what a function is at 4"),
    ("everyone", 5, 4, 0, "n is 5"),
    ("everyone_but", 5, 4, 0, "n is 5"),
    ("somebody", 4, 4, 0, "n is 4"),
    ("twice", 3, 4, 0, "n + n is 6"),
    ("look", 4, 4, 0, "n is 4"),
    ("all_raised", 5, 4, 0, "n is 5"),
    ("within_limit", 0, 0, 5, "limit is 5"),
    ("all_of_them", 4, 4, 0, "k may be any integer, and n is 4"),
    ("all_natural", 4, 4, 0, "k may be any integer, and n is 4"),
    ("one_is_down", 4, 4, 0, "k may be any integer, and n is 4"),
])
def test_a_run_that_leaves_its_integers_is_not_judged(name: str, n: int, raised: int, limit: int, said: str) -> None:
    concrete, rigid, state = flags(n, raised, limit)
    picks = (0,) if name in ("before", "look") else ()
    remedy = "no function has values below 0" if "-1" in said else "give a larger `size`"
    with pytest.raises(BeyondSize, match=re.escape(f"{said}: the run leaves the integers 0..3; {remedy}")):
        concrete.enabled(name, picks, rigid, state) and concrete.after(name, picks, rigid, state)


@pytest.mark.parametrize(("name", "n", "raised", "may"), [
    ("go", 3, 3, True), ("skip", 9, 4, True), ("before", 4, 4, True), ("everyone", 4, 4, True),
    ("everyone", 4, 3, False), ("everyone_but", 4, 4, True), ("somebody", 3, 3, True),
    ("somebody", 3, 4, False), ("twice", 2, 4, True),
    ("look", 3, 4, True), ("all_raised", 4, 0, True), ("all_natural", 3, 3, False), ("one_is_down", 3, 3, True),
])
def test_a_run_that_stays_within_its_integers_is_judged(name: str, n: int, raised: int, may: bool) -> None:
    concrete, rigid, state = flags(n, raised)
    picks = {"before": (0,), "look": (n,)}.get(name, ())
    assert concrete.enabled(name, picks, rigid, state) is may
    after = concrete.after(name, picks, rigid, state)
    assert after["n"] == n + (name in ("go", "skip"))
    up = {"all_raised": n, "go": n + 1}.get(name, raised)
    assert after["f"] == {(k,): k < up for k in range(4)}
    assert after["last"] == {(0,): n if name == "before" else -1}


def test_what_no_run_begins_with_is_the_formula_that_is_false() -> None:
    concrete, rigid, state = flags(0, 0)
    assert concrete.no_beginning(rigid, state) is None
    assert str(concrete.no_beginning(rigid, {**state, "n": 1})) == "n == 0"
    assert "last" in str(concrete.no_beginning(rigid, {**state, "last": {(0,): 0}}))


class Puts(System):
    """Functions that change at keys, in every way in which that is written."""

    one = State(Int, Int)
    two = State(Rank, Int, Int)

    def init(self, s: View) -> list[Formula]:
        return []

    @action(r=Rank, k=Int)
    def act(self, s: View, r: Any, k: Any) -> Step:
        one = put(put(s.one, k, s.one(k) + 1), s.one(0), 7)
        two = put(put(s.two, (r, k), 5), (r, s.one(k)), s.two(r, k))
        return Step(True, one=one, two=two)

    @action(k=Int)
    def odd(self, s: View, k: Any) -> Step:
        return Step(
            True, one=lambda j: z3.If(j == s.one(j), k, s.one(j)), two=lambda r, j: z3.If(j == k, 1, s.two(r, j)))


def test_what_is_put_is_what_the_whole_formula_says() -> None:
    concrete = Concrete(Puts(), 2, 3)
    system, view, draw = Puts(), Puts().view(), random.Random(0)
    for act in system.actions():
        picks = act.constants()
        for _ in range(60):
            state: dict[str, Any] = {"one": {(k,): draw.randint(0, 3) for k in range(4)},
                                     "two": {(r, k): draw.randint(0, 3) for r in range(2) for k in range(4)}}
            values = draw.choice(list(concrete.choices(act)))
            after = concrete.after(act.name, values, {}, state)
            for name, meaning in act.step(system, view, picks).changes.items():
                arguments = [z3.Const(f"x{place}", sort) for place, sort in enumerate(system.symbols()[name].arguments)]
                whole = compiled(meaning(*arguments), [*picks, *arguments])
                here = concrete.interpretation({}, state)
                expected = {key: whole(here, *values, *key) for key in state[name]}
                assert after[name] == expected, (act.name, values, state)


@pytest.mark.parametrize("by", [-3, -2, 2, 3])
def test_integers_are_divided_as_the_solver_divides_them(by: int) -> None:
    n = z3.Int("n")
    terms: list[Any] = [n / by, n % by]
    for term in terms:
        computed = compiled(term, [n])
        for value in range(-7, 8):
            expected: Any = z3.simplify(z3.substitute(term, (n, z3.IntVal(value))))
            assert computed({}, value) == int(str(expected)), (term, value)
