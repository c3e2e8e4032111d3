"""Whether a trace is a run of its system, and what is true in each of its states, computed in Python and in words."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import z3

from kvproof.models.trace import Trace, changes, shown
from kvproof.spec.obligation import Always, Fact
from kvproof.spec.recorded import Subject, find
from kvproof.spec.system import Action, Concrete, System
from kvproof.spec.theory import Formula, Rank, Rigid, State, Symbol, as_formula
from kvproof.spec.words import INCOMPUTABLE, NAMED, Words, why


@dataclass(frozen=True)
class Refusal:
    """The first thing for which a trace is no run: the number of its state, and what is wrong there."""

    step: int
    says: str

    def __str__(self) -> str:
        """Return it as a sentence."""
        return f"{f'step {self.step}' if self.step else 'the first state'}: {self.says}"


@dataclass(frozen=True)
class Truth:
    """What is true of one formula in each state; None where it cannot be computed. why: for what it is false."""

    kind: str
    name: str
    states: tuple[bool | None, ...]
    why: tuple[str, ...]

    def sentence(self, state: int) -> str:
        """Return in words that it is false, or cannot be computed, in that state."""
        cannot = self.states[state] is None
        said = "cannot be computed" if cannot else "is false"
        return f"{self.kind} {self.name} {said} in state {state}{': ' if self.why[state] else ''}{self.why[state]}"


@dataclass(frozen=True)
class Judged:
    """What a trace is worth.

    refusal: why it is no run, None when it is one. ends: whether its last state is what its role says: one in which
    the claim fails, or, for a witness, one of which the claim speaks; None when it names no claim or is no run.
    """

    subject: Subject
    refusal: Refusal | None
    ends: bool | None
    truths: tuple[Truth, ...]

    @property
    def false(self) -> list[tuple[int, Truth]]:
        """What is false in which state, in the order of the states."""
        count = len(self.truths[0].states) if self.truths else 0
        return [(number, each) for number in range(count) for each in self.truths if each.states[number] is False]


def judge(trace: Trace, beside: Path | None = None) -> Judged:
    """Return what a trace is worth; raises UsageError when its system cannot be found."""
    subject = find(trace, beside)
    world = _World(subject, trace)
    refusal = world.shape()
    if refusal is not None:
        return Judged(subject, refusal, None, ())
    refusal = world.check()
    return Judged(subject, refusal, world.ends() if refusal is None else None, tuple(world.truths()))


class _World:
    """A trace's system for as many ranks and integers as it has."""

    def __init__(self, subject: Subject, trace: Trace) -> None:
        self.theory, self.obligation, self.trace = subject.theory, subject.obligation, trace
        self.system = self.theory if isinstance(self.theory, System) else System()
        self.concrete = Concrete(self.system, trace.ranks, trace.size, bounded=False)
        self.view = self.theory.view()
        self.words = Words(self.concrete)

    def here(self, number: int) -> dict[str, Any]:
        return {**self.concrete.domains, **self.trace.rigid, **self.trace.states[number]}

    def shape(self) -> Refusal | None:
        """Return what is wrong with the symbols and their values, whatever the formulas say."""
        for kind, points in ((Rigid, (self.trace.rigid,)), (State, self.trace.states)):
            symbols = self.theory.symbols(kind)
            for number, point in enumerate(points):
                odd = sorted(symbols.keys() ^ point.keys())
                if odd:
                    there = "is not a symbol of" if odd[0] in point else "is not there, and is a symbol of"
                    return Refusal(number, f"{odd[0]} {there} {type(self.theory).__name__}")
                for name, symbol in symbols.items():
                    says = self._misfit(name, symbol, point[name])
                    if says:
                        return Refusal(number, says)
        return None

    def _misfit(self, name: str, symbol: Symbol, value: Any) -> str:
        if not symbol.arguments:
            return self._stray(name, symbol.result, value)
        if not isinstance(value, dict):
            return f"{name} is {shown(value)}; expected a function"
        count = math.prod(len(self.concrete.values(sort)) for sort in symbol.arguments)
        if len(value) != count:
            return f"{name} is given for {len(value)} arguments; expected {count}"
        odd = value.keys() - {*self.concrete.keys(symbol)}
        if odd:
            return f"{name} is given for ({','.join(map(shown, odd.pop()))}), which is not in this world"
        stray = (self._stray(f"{name}({','.join(map(shown, key))})", symbol.result, here)
                 for key, here in value.items())
        return next(filter(None, stray), "")

    def _stray(self, name: str, sort: z3.SortRef, value: Any) -> str:
        """Return that a value is not of its sort; "" when it is. Integers may be of any size, as results may be."""
        whole = isinstance(value, int) and not isinstance(value, bool)
        if sort == Rank:
            fits, expected = whole and 0 <= value < self.trace.ranks, f"a rank below {self.trace.ranks}"
        elif sort == z3.IntSort():
            fits, expected = whole, "a whole number"
        elif sort == z3.BoolSort():
            fits, expected = isinstance(value, bool), "true or false"
        elif sort == z3.RealSort():
            fits, expected = whole or hasattr(value, "numerator"), "a number"
        elif sort.kind() == z3.Z3_DATATYPE_SORT:
            fits, expected = value in self.concrete.values(sort), f"one of the values of {sort}"
        else:
            fits, expected = isinstance(value, str), f"a {sort}"
        return "" if fits else f"{name} is {shown(value)}; expected {expected}"

    def check(self) -> Refusal | None:
        """Return the first thing for which the trace is no run."""
        theory, view = self.theory, self.view
        first = {"the axioms": theory.axioms(view), f"size {self.trace.size}": theory.sized(view, self.trace.size)}
        if isinstance(theory, System):
            first["init"] = theory.init(view)
        elif self.trace.taken:
            return Refusal(1, f"{type(theory).__name__} has no actions")
        for name, formulas in first.items():
            for formula in formulas:
                says = self.words.fails(as_formula(formula), self.here(0))
                if says:
                    return Refusal(0, f"it is not allowed by {name}: {says}")
        steps = (self._step(number) for number in range(1, len(self.trace.states)))
        return next((step for step in steps if step is not None), None)

    def _step(self, number: int) -> Refusal | None:
        taken = self.trace.taken[number - 1]
        act = next((each for each in self.system.actions() if each.name == taken.action), None)
        if act is None:
            return Refusal(number, f"there is no action {taken.action}")
        if list(act.picks) != list(taken.picks):
            return Refusal(number, f"{taken} has not the picks of {act.name}: {', '.join(act.picks) or 'none'}")
        for name, sort in act.picks.items():
            if taken.picks[name] not in self.concrete.values(sort) or self._stray(name, sort, taken.picks[name]):
                return Refusal(number, f"{taken}: there is no {name} = {shown(taken.picks[name])} in this world")
        ranks = [taken.picks[name] for name, sort in act.picks.items() if sort == Rank]
        if taken.rank != (ranks[0] if ranks else None):
            return Refusal(number, f"{taken} is said to be rank {taken.rank}'s")
        picks, values = act.constants(), tuple(taken.picks.values())
        says = self.words.fails(
            act.step(self.system, self.view, picks).guard, self.here(number - 1), picks, values)
        if says:
            return Refusal(number, f"{taken} may not happen: of its guard, {says}")
        return self._differs(act, values, number)

    def _differs(self, act: Action, values: tuple[Any, ...], number: int) -> Refusal | None:
        try:
            after = self.concrete.after(act.name, values, self.trace.rigid, self.trace.states[number - 1])
        except INCOMPUTABLE as error:
            return Refusal(number, f"{self.trace.taken[number - 1]} cannot be computed: {why(error)}")
        odd = [f"{change.what} is {shown(change.new)}, and would be {shown(change.old)}"
               for change in changes(after, self.trace.states[number])]
        return Refusal(number, f"after {self.trace.taken[number - 1]}, {'; '.join(odd[:NAMED])}") if odd else None

    def ends(self) -> bool | None:
        """Whether the last state is what the trace's role says."""
        if self.obligation is None or not self.trace.role:
            return None
        witness = self.trace.role == "witness"
        says = self.obligation.reached if witness else self.obligation.bad
        try:
            return bool(self.words.value(says(self.theory, self.view), self.here(len(self.trace.states) - 1)))
        except INCOMPUTABLE:
            return False

    def truths(self) -> Iterator[Truth]:
        """Return what is true in each state: the invariant's conjuncts, then the claims."""
        for kind, name, formula in self._told():
            states: list[bool | None] = []
            reasons = []
            for number in range(len(self.trace.states)):
                try:
                    states.append(bool(self.words.value(formula, self.here(number))))
                    said = "" if states[-1] else self.words.fails(
                        formula, self.here(number), named=False)
                    reasons.append("" if said == "it fails" else said)
                except INCOMPUTABLE as error:
                    states.append(None)
                    reasons.append(why(error))
            yield Truth(kind, name, tuple(states), tuple(reasons))

    def _told(self) -> Iterator[tuple[str, str, Formula]]:
        if isinstance(self.theory, System):
            for name, formula in self.theory.invariant(self.view).items():
                yield "the invariant", name, as_formula(formula)
            for name, formula in self.theory.safety(self.view).items():
                yield "the claim", name, as_formula(formula)
        obligation = self.obligation
        if isinstance(obligation, Fact):
            for number, formula in enumerate(obligation.hypotheses(self.theory, self.view), 1):
                yield "the hypothesis", str(number), as_formula(formula)
            yield "the claim", obligation.id, as_formula(obligation.goal(self.theory, self.view))
        elif isinstance(obligation, Always) and not obligation.safety:
            yield "the claim", obligation.id, z3.Not(obligation.bad(self.theory, self.view))
