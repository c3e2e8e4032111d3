"""Obligations: a claim, its scope, the queries that prove it, a witness, and mutants that must break it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import z3

from kvproof.errors import UsageError
from kvproof.spec.search import SIZES, Bad, Model, Run, deadlock, find_model, find_run
from kvproof.spec.system import System
from kvproof.spec.theory import Formula, Int, State, Theory, View, all_of, as_formula, some

Formulas = Callable[[Any, View], Sequence[Formula]]
Sizes = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Query:
    """Formulas that must be unsatisfiable together; `shared` by all claims about a system.

    otherwise: what it means, in a sentence, that they are not.
    """

    name: str
    formulas: tuple[Formula, ...]
    shared: bool = False
    otherwise: str = ""


@dataclass(frozen=True)
class Mutant:
    """A mistake somebody would make: one line of a definition or action, changed in a subclass.

    says: the mistake in the words of code. consequence: why the last state of its trace is bad, in the same words.
    redefines: which definition that the claim itself uses is changed, and why the claim is still the same one; needed
    only where what the mutant breaks is not false as the protocol itself defines it.
    """

    id: str
    says: str
    theory: type[Theory]
    consequence: str = ""
    redefines: str = ""


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

    broken: ClassVar[str]
    """What a counterexample shows, in words."""

    @property
    def speaks_of(self) -> Any:
        """What a witness is a witness of: two claims about one theory with the same need only one."""
        return self

    @abstractmethod
    def queries(self, theory: Any) -> Iterator[Query]:
        """Return the queries, all of which must be unsatisfiable."""

    @abstractmethod
    def bad(self, theory: Any, s: View) -> Formula:
        """Return what is true of a model that breaks the claim, or of the last state of a run that does."""

    @abstractmethod
    def reached(self, theory: Any, s: View) -> Formula:
        """Return what is true of a model, or of the last state of a run, of which the claim speaks."""

    @abstractmethod
    def counterexample(self, theory: Any, rlimit: int) -> Model | Run | None:
        """Return a smallest model or run that breaks the claim, None when there is none within the sizes."""

    @abstractmethod
    def witness(self, theory: Any, rlimit: int) -> Model | Run | None:
        """Return a model of the hypotheses, or a run in which what the claim speaks of happens."""

    @abstractmethod
    def empty(self, theory: Any) -> Query:
        """Return the query that shows, for worlds of any size, that there is no such witness."""

    @abstractmethod
    def claimed(self, theory: Any, s: View) -> Formula:
        """Return what is claimed, as far as it can be said of the last state of a run or of a model."""

    @property
    def searched(self) -> str:
        """Where witnesses and counterexamples are looked for, in words."""
        return f"up to {max(ranks for ranks, _ in self.sizes)} ranks and size {max(size for _, size in self.sizes)}"


@dataclass(frozen=True, kw_only=True)
class Fact(Obligation):
    """A claim about one structure: the hypotheses imply the goal."""

    hypotheses: Formulas = lambda theory, s: ()
    goal: Callable[[Any, View], Formula]
    interesting: Formulas = lambda theory, s: ()

    broken = "the hypotheses hold in this world, and the claim does not"

    def queries(self, theory: Any) -> Iterator[Query]:
        """Return one query: axioms, hypotheses and the negated goal."""
        s = theory.view()
        formulas = (*theory.axioms(s), *self.hypotheses(theory, s), z3.Not(self.goal(theory, s)))
        yield Query("goal", formulas, otherwise="the claim does not follow from the hypotheses")

    def bad(self, theory: Any, s: View) -> Formula:
        """Return that the hypotheses hold and the goal does not."""
        return all_of(*self.hypotheses(theory, s), z3.Not(as_formula(self.goal(theory, s))))

    def reached(self, theory: Any, s: View) -> Formula:
        """Return that the hypotheses hold, and what makes the claim interesting."""
        return all_of(*self.hypotheses(theory, s), *self.interesting(theory, s))

    def counterexample(self, theory: Any, rlimit: int) -> Model | None:
        """Return a finite structure in which the hypotheses hold and the goal does not."""
        return find_model(theory, lambda t, s: [self.bad(t, s)], self.sizes, rlimit)

    def witness(self, theory: Any, rlimit: int) -> Model | None:
        """Return a finite structure in which the hypotheses hold, and what makes the claim interesting."""
        return find_model(theory, lambda t, s: [self.reached(t, s)], self.sizes, rlimit)

    def empty(self, theory: Any) -> Query:
        """Return that axioms, hypotheses and what makes the claim interesting cannot hold together."""
        s = theory.view()
        return Query("empty", (*theory.axioms(s), *self.hypotheses(theory, s), *self.interesting(theory, s)))

    def claimed(self, theory: Any, s: View) -> Formula:
        """Return false: a fact is about definitions, and its mutants change one."""
        return z3.BoolVal(False)


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

    broken = "the claim is false in the last state of this run"

    @property
    def speaks_of(self) -> Any:
        """The state that must be reachable."""
        return (self.sometimes, tuple(self.witness_sizes or self.sizes), self.depth)

    def queries(self, theory: Any) -> Iterator[Query]:
        """Return initiation and consecution of the invariant, then that it implies the claim."""
        yield from inductive(theory)
        s = theory.view()
        formulas = (*theory.axioms(s), *theory.invariant(s).values(), z3.Not(theory.safety(s)[self.safety]))
        yield Query("safety", formulas, otherwise=f"the invariant does not imply the claim {self.safety!r}")

    def bad(self, theory: Any, s: View) -> Formula:
        """Return that a run into this state is a counterexample."""
        return z3.Not(as_formula(theory.safety(s)[self.safety]))

    def reached(self, theory: Any, s: View) -> Formula:
        """Return that this is a state of which the claim says something."""
        return as_formula(self.sometimes(theory, s))

    def counterexample(self, theory: Any, rlimit: int) -> Run | None:
        """Return a shortest run into a bad state."""
        return find_run(theory, self.bad, sizes=self.sizes, depth=self.depth, rlimit=rlimit)

    def witness(self, theory: Any, rlimit: int) -> Run | None:
        """Return a shortest run into a state of which the claim says something."""
        return find_run(
            theory, self.reached, sizes=self.witness_sizes or self.sizes, depth=self.depth, rlimit=rlimit
        )

    def empty(self, theory: Any) -> Query:
        """Return that in no state of the invariant there is what the claim speaks of."""
        s = theory.view()
        return Query("empty", (*theory.axioms(s), *theory.invariant(s).values(), as_formula(self.sometimes(theory, s))))

    def claimed(self, theory: Any, s: View) -> Formula:
        """Return the safety formula."""
        found: Formula = theory.safety(s)[self.safety]
        return found

    @property
    def searched(self) -> str:
        """Where witnesses and counterexamples are looked for, in words."""
        return f"{super().searched}, up to {self.depth} steps"


@dataclass(frozen=True, kw_only=True)
class NoDeadlock(Always):
    """As long as a system has not finished, one of its fair actions can happen."""

    safety: str = ""

    broken = "in the last state of this run it is not finished, and nothing can happen"

    def claimed(self, theory: Any, s: View) -> Formula:
        """Return that it is finished; whether something can happen is what a mutant may change."""
        found: Formula = theory.finished(s)
        return found

    def queries(self, theory: Any) -> Iterator[Query]:
        """Return the invariant's queries, then that in no state of the invariant everything is stuck."""
        yield from inductive(theory)
        s = theory.view()
        formulas = (*theory.axioms(s), *theory.invariant(s).values(), *theory.finite(s), deadlock(theory, s))
        yield Query("stuck", formulas, otherwise="the invariant allows an unfinished state in which nothing can happen")

    def bad(self, theory: Any, s: View) -> Formula:
        """Return that this is a deadlock."""
        return deadlock(theory, s)


@dataclass(frozen=True, kw_only=True)
class Progress(Always):
    """Every action lowers a measure and raises none, so with no deadlock every run of fair actions ends.

    The measure of each index is a tuple of naturals in lexicographic order.
    """

    safety: str = ""

    broken = "in the last state of this run something can happen that lowers no measure, or raises one"

    def claimed(self, theory: Any, s: View) -> Formula:
        """Return false: a measure is claimed of steps, and no state breaks it by itself."""
        return z3.BoolVal(False)

    def queries(self, theory: Any) -> Iterator[Query]:
        """Return for each action: no measure grows, some measure falls, and all are naturals."""
        yield from inductive(theory)
        s = theory.view()
        base = (*theory.axioms(s), *theory.invariant(s).values())
        for name, (sorts, term, *_) in theory.measure(s).items():
            index = _index(name, sorts)
            outside = _outside(theory, name, index)
            if outside is not None:
                some_left = z3.Or(*[part != 0 for part in term(*index)])
                yield Query(f"{name} is bounded", (*base, some_left, outside),
                            otherwise=f"the measure {name!r} may be above 0 outside of its bound")
            for part in term(*index):
                if not isinstance(part, int) and part.sort() != Int:
                    raise TypeError(f"the measure {name} is a {part.sort()}; only a natural cannot fall for ever")
            negative = z3.Not(all_of(*[part >= 0 for part in term(*index)]))
            yield Query(f"{name} is natural", (*base, negative), otherwise=f"the measure {name!r} may be negative")
        for act in theory.actions():
            picks = act.constants()
            step = act.step(theory, s, picks)
            after = theory.measure(s.but(step.changes))
            falls = []
            for name, (sorts, term, *_) in theory.measure(s).items():
                index = _index(name, sorts)
                grown = _less(term(*index), after[name][1](*index))
                yield Query(f"{act.name} raises no {name}", (*base, step.guard, grown),
                            otherwise=f"the action {act.name} may raise the measure {name!r}")
                falls.append(_falls(sorts, term, after[name][1]))
            yield Query(f"{act.name} lowers something", (*base, step.guard, z3.Not(z3.Or(*falls))),
                        otherwise=f"the action {act.name} may lower no measure; extend measure()")

    def bad(self, theory: Any, s: View) -> Formula:
        """Return that something can happen here that lowers nothing or raises something, and so may for ever."""
        return _stalls(theory, s)


def _stalls(theory: System, s: View) -> Formula:
    """Return that some action can happen here that lowers no measure, or raises one."""
    ways = []
    for act in theory.actions():
        picks = act.constants()
        step = act.step(theory, s, picks)
        after = theory.measure(s.but(step.changes))
        falls, grows = [], []
        for name, (sorts, term, *_) in theory.measure(s).items():
            falls.append(_falls(sorts, term, after[name][1]))
            grows.append(_falls(sorts, after[name][1], term))
        way = z3.And(step.guard, z3.Or(z3.Not(z3.Or(*falls)), *grows))
        ways.append(some(picks, way))
    return z3.Or(*ways)


def _outside(theory: System, name: str, index: Sequence[z3.ExprRef]) -> Formula | None:
    """Return that an integer index is outside of the family's bound; None for a family without such an index.

    Raises TypeError when the bound is missing, or speaks of a state or of an integer index.
    """
    integers = [each for each in index if each.sort() == Int]
    if not integers:
        return None
    bounds = []
    for other in ("", "'"):
        _, _, *bound = theory.measure(theory.rigid_view())[name]
        if not bound:
            raise TypeError(f"the measure {name!r} is over integers and has no bound, so it need not come to an end")
        named = [z3.Const(f"{each}{other}", Int) if each.sort() == Int else each for each in index]
        bounds.append(bound[0](*named))
    if not z3.eq(*[z3.IntVal(each) if isinstance(each, int) else each for each in bounds]):
        raise TypeError(f"the bound of the measure {name!r} depends on the integer that it is to bound")
    return z3.Not(all_of(*[z3.And(each >= 0, each < bounds[0]) for each in integers]))


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
        yield Query(f"init {name}", (*axioms, *system.init(s), z3.Not(conjunct)), shared=True,
                    otherwise=f"the invariant {name!r} may be false at first")
    for act in system.actions():
        picks = act.constants()
        step = act.step(system, s, picks)
        for name, conjunct in system.invariant(s.but(step.changes)).items():
            formulas = (*axioms, *invariant.values(), step.guard, z3.Not(conjunct))
            yield Query(f"{act.name} keeps {name}", formulas, shared=True,
                        otherwise=f"the action {act.name} may end the invariant {name!r}")


def over(obligation: Obligation, theory: type[Theory], subject: str, **changes: Any) -> Obligation:
    """Return the same claim over a changed theory, a subclass of its own: the way to prove a change of a protocol.

    The mutants are made on the changed theory too. subject: what the id begins with instead. changes: what else is to
    be different, such as `depth`. Where the theory has states that the claim does not know, `assumes` says so. Raises
    UsageError when the theory is no subclass.
    """
    if not issubclass(theory, obligation.theory):
        raise UsageError(f"over: {theory.__name__} is no subclass of {obligation.theory.__name__}, which "
                         f"{obligation.id} speaks of")
    new = sorted(set(theory.symbols(State)) - set(obligation.theory.symbols(State)))
    same = getattr(theory, "safety", None) is getattr(obligation.theory, "safety", None)
    if new and same and type(obligation) is Always:
        said = f"nothing is claimed of what is new: {', '.join(new)} (override safety if the claim should speak of it)"
        changes = {"assumes": (*obligation.assumes, said), **changes}
    mutants = tuple(
        replace(mutant, theory=type(f"{mutant.theory.__name__}Of{theory.__name__}", (mutant.theory, theory), {}))
        for mutant in obligation.mutants
    )
    name = f"{subject}.{obligation.id.partition('.')[2]}"
    return replace(obligation, **{"id": name, "theory": theory, "mutants": mutants, **changes})
