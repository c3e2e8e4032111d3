"""Obligations: a claim, its scope, the queries that prove it, a witness, and mutants that must break it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import z3

from kvproof.spec.search import SIZES, Bad, Model, Run, deadlock, find_model, find_run
from kvproof.spec.system import System
from kvproof.spec.theory import Formula, Int, Theory, View, all_of, some

Formulas = Callable[[Any, View], Sequence[Formula]]
Sizes = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Query:
    """Formulas that must be unsatisfiable together, and what that shows; `shared` by all claims about a system."""

    name: str
    formulas: tuple[Formula, ...]
    shared: bool = False


@dataclass(frozen=True)
class Mutant:
    """A mistake somebody would make: one line of a definition or action, changed in a subclass.

    says: the mistake in the words of code. consequence: why the last state of its trace is bad, in the same words.
    """

    id: str
    says: str
    theory: type[Theory]
    consequence: str = ""


@dataclass(frozen=True, kw_only=True)
class Obligation(ABC):
    """A claim that is to be proved, for the scope that it states.

    id: such as "load.no-skip". claim: in English. scope: for which worlds. theory: what it is stated over. mutants:
    each must be refuted. limit: the claim is known to be false, and kept with its counterexample because people would
    like to rely on it. assumes: what is assumed beyond the theory's axioms, in words. sizes: where models are sought.
    """

    id: str
    claim: str
    scope: str
    theory: type[Theory]
    fragment: str
    mutants: tuple[Mutant, ...] = ()
    limit: bool = False
    assumes: tuple[str, ...] = ()
    sizes: Sizes = SIZES

    @property
    def speaks_of(self) -> Any:
        """What a witness is a witness of: two claims about one theory with the same need only one."""
        return self

    @abstractmethod
    def queries(self, theory: Any) -> Iterator[Query]:
        """Return the queries, all of which must be unsatisfiable."""

    @abstractmethod
    def counterexample(self, theory: Any, rlimit: int) -> Model | Run | None:
        """Return a smallest model or run that breaks the claim, None when there is none within the sizes."""

    @abstractmethod
    def witness(self, theory: Any, rlimit: int) -> Model | Run | None:
        """Return a model of the hypotheses, or a run in which what the claim speaks of happens."""


@dataclass(frozen=True, kw_only=True)
class Fact(Obligation):
    """A claim about one structure: the hypotheses imply the goal."""

    hypotheses: Formulas = lambda theory, s: ()
    goal: Callable[[Any, View], Formula]
    interesting: Formulas = lambda theory, s: ()

    def queries(self, theory: Any) -> Iterator[Query]:
        """Return one query: axioms, hypotheses and the negated goal."""
        s = theory.view()
        yield Query("goal", (*theory.axioms(s), *self.hypotheses(theory, s), z3.Not(self.goal(theory, s))))

    def counterexample(self, theory: Any, rlimit: int) -> Model | None:
        """Return a finite structure in which the hypotheses hold and the goal does not."""
        return find_model(
            theory, lambda t, s: [*self.hypotheses(t, s), z3.Not(self.goal(t, s))], self.sizes, rlimit
        )

    def witness(self, theory: Any, rlimit: int) -> Model | None:
        """Return a finite structure in which the hypotheses hold, and what makes the claim interesting."""
        return find_model(
            theory, lambda t, s: [*self.hypotheses(t, s), *self.interesting(t, s)], self.sizes, rlimit
        )


@dataclass(frozen=True, kw_only=True)
class Always(Obligation):
    """A claim about every reachable state of a system: one of its `safety` formulas.

    sometimes: a state that must be reachable, or the claim says nothing about anything. depth: how many steps a
    counterexample or witness may have.
    """

    safety: str
    sometimes: Bad
    depth: int = 14
    witness_sizes: Sizes | None = None

    @property
    def speaks_of(self) -> Any:
        """The state that must be reachable."""
        return (self.sometimes, tuple(self.witness_sizes or self.sizes), self.depth)

    def queries(self, theory: Any) -> Iterator[Query]:
        """Return initiation and consecution of the invariant, then that it implies the claim."""
        yield from inductive(theory)
        s = theory.view()
        formulas = (*theory.axioms(s), *theory.invariant(s).values(), z3.Not(theory.safety(s)[self.safety]))
        yield Query("safety", formulas)

    def counterexample(self, theory: Any, rlimit: int) -> Run | None:
        """Return a shortest run into a state that breaks the claim."""
        return find_run(
            theory, lambda t, s: z3.Not(t.safety(s)[self.safety]), sizes=self.sizes, depth=self.depth, rlimit=rlimit
        )

    def witness(self, theory: Any, rlimit: int) -> Run | None:
        """Return a shortest run into a state of which the claim says something."""
        return find_run(
            theory, self.sometimes, sizes=self.witness_sizes or self.sizes, depth=self.depth, rlimit=rlimit
        )


@dataclass(frozen=True, kw_only=True)
class NoDeadlock(Always):
    """As long as a system has not finished, one of its fair actions can happen."""

    safety: str = ""

    def queries(self, theory: Any) -> Iterator[Query]:
        """Return the invariant's queries, then that in no state of the invariant everything is stuck."""
        yield from inductive(theory)
        s = theory.view()
        yield Query("stuck", (*theory.axioms(s), *theory.invariant(s).values(), *theory.finite(s), deadlock(theory, s)))

    def counterexample(self, theory: Any, rlimit: int) -> Run | None:
        """Return a shortest run into a deadlock."""
        return find_run(theory, deadlock, sizes=self.sizes, depth=self.depth, rlimit=rlimit)


@dataclass(frozen=True, kw_only=True)
class Progress(Always):
    """Every action lowers a measure and raises none, so with no deadlock every run of fair actions ends.

    The measure of each index is a tuple of naturals in lexicographic order.
    """

    safety: str = ""

    def queries(self, theory: Any) -> Iterator[Query]:
        """Return for each action: no measure grows, some measure falls, and all are naturals."""
        yield from inductive(theory)
        s = theory.view()
        base = (*theory.axioms(s), *theory.invariant(s).values())
        for name, (sorts, term) in theory.measure(s).items():
            index = _index(name, sorts)
            for part in term(*index):
                if not isinstance(part, int) and part.sort() != Int:
                    raise TypeError(f"the measure {name} is a {part.sort()}; only a natural cannot fall for ever")
            yield Query(f"{name} is natural", (*base, z3.Not(all_of(*[part >= 0 for part in term(*index)]))))
        for act in theory.actions():
            picks = act.constants()
            step = act.step(theory, s, picks)
            after = theory.measure(s.but(step.changes))
            falls = []
            for name, (sorts, term) in theory.measure(s).items():
                index = _index(name, sorts)
                grown = _less(term(*index), after[name][1](*index))
                yield Query(f"{act.name} raises no {name}", (*base, step.guard, grown))
                falls.append(_falls(sorts, term, after[name][1]))
            yield Query(f"{act.name} lowers something", (*base, step.guard, z3.Not(z3.Or(*falls))))

    def counterexample(self, theory: Any, rlimit: int) -> Run | None:
        """Return a run in which the last step lowers nothing or raises something (a run that may go on for ever)."""
        return find_run(theory, _stalls, sizes=self.sizes, depth=self.depth, rlimit=rlimit)


def _stalls(theory: System, s: View) -> Formula:
    """Return that some action can happen here that lowers no measure, or raises one."""
    ways = []
    for act in theory.actions():
        picks = act.constants()
        step = act.step(theory, s, picks)
        after = theory.measure(s.but(step.changes))
        falls, grows = [], []
        for name, (sorts, term) in theory.measure(s).items():
            falls.append(_falls(sorts, term, after[name][1]))
            grows.append(_falls(sorts, after[name][1], term))
        way = z3.And(step.guard, z3.Or(z3.Not(z3.Or(*falls)), *grows))
        ways.append(some(picks, way))
    return z3.Or(*ways)


def _index(name: str, sorts: Sequence[z3.SortRef]) -> list[z3.ExprRef]:
    return [z3.Const(f"{name}.at{number}", sort) for number, sort in enumerate(sorts)]


def _falls(sorts: Sequence[z3.SortRef], before: Callable[..., Any], after: Callable[..., Any]) -> Formula:
    """Return that the measure falls at some index."""
    index = _index("some", sorts)
    lower = _less(after(*index), before(*index))
    return some(index, lower)


def _less(left: Sequence[Any], right: Sequence[Any]) -> Formula:
    """Return that one tuple comes before the other in lexicographic order."""
    ways = []
    for place in range(len(left)):
        equal = [left[earlier] == right[earlier] for earlier in range(place)]
        ways.append(all_of(*equal, left[place] < right[place]))
    return z3.Or(*ways)


def inductive(system: System) -> Iterator[Query]:
    """Return the queries that show the system's invariant to hold at first and after every action.

    They are the same for every claim about a system, and written out once.
    """
    kind = type(system)
    if kind not in _inductive:
        _inductive[kind] = list(_write_inductive(system))
    yield from _inductive[kind]


_inductive: dict[type[System], list[Query]] = {}


def _write_inductive(system: System) -> Iterator[Query]:
    s = system.view()
    axioms, invariant = system.axioms(s), system.invariant(s)
    for name, conjunct in invariant.items():
        yield Query(f"init {name}", (*axioms, *system.init(s), z3.Not(conjunct)), shared=True)
    for act in system.actions():
        picks = act.constants()
        step = act.step(system, s, picks)
        for name, conjunct in system.invariant(s.but(step.changes)).items():
            formulas = (*axioms, *invariant.values(), step.guard, z3.Not(conjunct))
            yield Query(f"{act.name} keeps {name}", formulas, shared=True)


def over(obligation: Obligation, theory: type[Theory], subject: str) -> Obligation:
    """Return the same claim over a changed theory, a subclass of its own: the way to prove a change of a protocol.

    The mutants are made on the changed theory too. subject: what the id begins with instead.
    """
    mutants = tuple(
        replace(mutant, theory=type(f"{mutant.theory.__name__}Of{theory.__name__}", (mutant.theory, theory), {}))
        for mutant in obligation.mutants
    )
    name = f"{subject}.{obligation.id.partition('.')[2]}"
    return replace(obligation, id=name, theory=theory, mutants=mutants)
