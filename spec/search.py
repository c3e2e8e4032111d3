"""The search for finite models and runs: smallest first, and each computed again in Python before it is believed.

For a given number of ranks and a size, quantifiers become conjunctions and disjunctions, so that the solver decides
without them. What it finds is taken apart into Python values and evaluated by `evaluate`, which shares no code with
the solver; a model that does not stand that is a `WrongModel`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import z3

from kvproof.models.trace import shown
from kvproof.spec.evaluate import compiled, value_of
from kvproof.spec.system import Action, Concrete, Point, System
from kvproof.spec.theory import (
    Formula,
    Rank,
    Rigid,
    State,
    Symbol,
    Theory,
    View,
    all_of,
    as_formula,
    some,
    within_universe,
)

SIZES = ((1, 0), (1, 1), (2, 0), (2, 1), (1, 2), (2, 2), (3, 1), (2, 3), (3, 2), (3, 3), (4, 4))
"""(ranks, size) in the order in which models are looked for: ranks first, then chunks."""


_QUANTIFIED = z3.Probe("has-quantifiers")
_LOOK_AHEAD = 3
"""After so many steps it is asked again whether there are runs of that length at all."""


class WrongModel(Exception):
    """What the solver gave as a model is none when it is computed."""


@dataclass(frozen=True)
class Model:
    """A finite structure: how many ranks, integers up to which size, and what each symbol means."""

    ranks: int
    size: int
    meaning: Point

    def describe(self) -> list[str]:
        """Return one line a symbol."""
        return [f"{name} = {shown(value)}" for name, value in self.meaning.items()]


@dataclass(frozen=True)
class Run:
    """A run from an initial state: rigid symbols, states, and the action with its picks before each next one.

    lanes: for each action which of its picks is the rank that takes it, the first of that sort; None without one.
    """

    ranks: int
    size: int
    rigid: Point
    states: tuple[Point, ...]
    actions: tuple[tuple[str, tuple[Any, ...]], ...]
    lanes: tuple[int | None, ...] = ()

    def describe(self) -> list[str]:
        """Return the rigid symbols, then one line a step with what it changed."""
        lines = [f"{self.ranks} ranks", *(f"{name} = {shown(value)}" for name, value in self.rigid.items())]
        lines.append("first: " + "; ".join(f"{name} = {shown(value)}" for name, value in self.states[0].items()))
        for index, (name, picks) in enumerate(self.actions):
            before, after = self.states[index], self.states[index + 1]
            changed = [f"{symbol} = {shown(after[symbol])}" for symbol in after if after[symbol] != before[symbol]]
            said = ", ".join(str(pick) for pick in picks)
            lines.append(f"{index + 1}. {name}({said}): " + ("; ".join(changed) or "nothing changes"))
        return lines


@dataclass
class Finite:
    """A universe of `ranks` ranks and the integers 0..size, in which quantifiers can be written out."""

    ranks: int
    size: int

    def __post_init__(self) -> None:
        """Name the ranks."""
        self.named = [z3.Const(f"#rank{index}", Rank) for index in range(self.ranks)]
        self._seen: dict[int, z3.ExprRef] = {}
        self._kept: list[z3.ExprRef] = []

    def values(self, sort: z3.SortRef) -> list[Any]:
        """Return the elements of a sort, as terms; none for a sort that is not finite here."""
        if sort == Rank:
            return list(self.named)
        if sort == z3.IntSort():
            return [z3.IntVal(number) for number in range(self.size + 1)]
        if sort == z3.BoolSort():
            return [z3.BoolVal(False), z3.BoolVal(True)]
        if sort.kind() == z3.Z3_DATATYPE_SORT:
            return [sort.constructor(index)() for index in range(sort.num_constructors())]
        return []

    def keys(self, symbol: Symbol) -> list[tuple[Any, ...]]:
        """Return every argument tuple of a function, as terms."""
        return list(product(*[self.values(sort) for sort in symbol.arguments]))

    def write(self, formulas: Callable[[], Any]) -> Any:
        """Return what `formulas` writes, with every quantifier written out."""
        with within_universe(self):
            written = formulas()
        return [self._plain_of(part) for part in written] if isinstance(written, list) else self._plain_of(written)

    def _plain_of(self, term: Any) -> Any:
        """Return a formula without quantifiers, also when somebody has used z3's own."""
        term = as_formula(term)
        goal = z3.Goal()
        goal.add(term)
        return self.ground(term) if _QUANTIFIED(goal) else term

    def ground(self, term: Any) -> Any:
        """Return the formula with every quantifier of z3's own written out."""
        term = as_formula(term)
        known = self._seen.get(term.get_id())
        if known is not None:
            return known
        if z3.is_quantifier(term):
            parts = []
            for values in product(*[self.values(term.var_sort(index)) for index in range(term.num_vars())]):
                parts.append(self.ground(z3.substitute_vars(term.body(), *reversed(values))))
            found = z3.And(*parts) if term.is_forall() else z3.Or(*parts)
        elif z3.is_app(term) and term.num_args():
            children = [self.ground(child) for child in term.children()]
            same = all(new.eq(old) for new, old in zip(children, term.children(), strict=True))
            found = term if same else term.decl()(*children)
        else:
            found = term
        self._seen[term.get_id()] = found
        self._kept.append(term)
        return found

    def within(self, term: z3.ExprRef) -> Formula:
        """Return that a rank is one of ours, or an integer pick within the size; true for other sorts."""
        if term.sort() == Rank:
            return z3.Or(*[term == rank for rank in self.named])
        if term.sort() == z3.IntSort():
            return z3.And(term >= 0, term <= self.size)
        return z3.BoolVal(True)

    def closed(self, symbol: Symbol, meaning: Any) -> list[Formula]:
        """Return that a function's values are within this universe, where its result is a rank."""
        if symbol.result != Rank:
            return []
        return [self.within(meaning(*key) if key else meaning) for key in self.keys(symbol)]

    def distinct(self) -> Formula:
        """Return that the named ranks are different ones."""
        return z3.Distinct(*self.named) if self.ranks > 1 else z3.BoolVal(True)

    def read(self, model: z3.ModelRef, symbol: Symbol, meaning: Any) -> Any:
        """Return the Python value of a symbol in a model."""
        if not symbol.arguments:
            return self._value(model, meaning)
        plain = product(*[self._plain(sort) for sort in symbol.arguments])
        return {key: self._value(model, meaning(*terms)) for key, terms in zip(plain, self.keys(symbol), strict=True)}

    def _plain(self, sort: z3.SortRef) -> list[Any]:
        return list(range(self.ranks)) if sort == Rank else [value_of(value) for value in self.values(sort)]

    def _value(self, model: z3.ModelRef, term: z3.ExprRef) -> Any:
        found = model.eval(term, model_completion=True)
        if term.sort() != Rank:
            return value_of(found)
        for index, rank in enumerate(self.named):
            if model.eval(rank, model_completion=True).eq(found):
                return index
        raise WrongModel(f"{term} is a rank that does not exist")


def solver(rlimit: int, seed: int = 0) -> z3.Solver:
    """Return a solver with a resource limit (0: none), which unlike a clock gives the same answer every time."""
    found = z3.Solver()
    found.set("rlimit", rlimit)
    found.set("random_seed", seed)
    return found


def find_model(
    theory: Theory,
    formulas: Callable[[Theory, View], Sequence[Formula]],
    sizes: Sequence[tuple[int, int]],
    rlimit: int,
) -> Model | None:
    """Return a smallest finite structure in which the axioms and the formulas hold; None when there is none.

    Raises Undecided when the solver gave up at a size.
    """
    view = theory.view()
    for ranks, size in sizes:
        finite = Finite(ranks, size)
        search = solver(rlimit)
        def wanted(theory: Theory = theory, size: int = size) -> list[Formula]:
            return [*theory.axioms(view), *theory.sized(view, size), *formulas(theory, view)]

        search.add(finite.distinct(), *finite.write(wanted))
        for name, symbol in theory.symbols().items():
            search.add(*finite.closed(symbol, getattr(view, name)))
        answer = search.check()
        if answer == z3.unknown:
            raise Undecided(f"{search.reason_unknown()} at {ranks} ranks, size {size}")
        if answer == z3.sat:
            found = search.model()
            meaning = {name: finite.read(found, each, getattr(view, name)) for name, each in theory.symbols().items()}
            model = Model(ranks, size, meaning)
            _believe(all_of(*wanted()), model)
            return model
    return None


def possible(theory: Theory, formula: Callable[[Theory, View], Formula], ranks: int, size: int, rlimit: int) -> bool:
    """Whether axioms and formula can hold with that many ranks, numbers being as large as they like.

    Quantifiers over integers are written out up to `size` only. Raises Undecided when the solver gave up.
    """
    view, finite, search = theory.view(), Finite(ranks, size), solver(rlimit)
    search.add(finite.distinct(), *finite.write(lambda: [*theory.axioms(view), formula(theory, view)]))
    for name, symbol in theory.symbols().items():
        search.add(*finite.closed(symbol, getattr(view, name)))
    answer = search.check()
    if answer == z3.unknown:
        raise Undecided(f"{search.reason_unknown()} at {ranks} ranks, size {size}")
    return bool(answer == z3.sat)


class Undecided(Exception):
    """The solver gave up within its resource limit."""


def _believe(formula: Formula, model: Model) -> None:
    domains = {"#Rank": range(model.ranks), "#Int": range(model.size + 1)}
    if not compiled(formula)({**domains, **model.meaning}):
        raise WrongModel(f"computed in Python, the model is none: {model.meaning}")


Bad = Callable[[System, View], Formula]


def find_run(
    system: System, bad: Bad, *, sizes: Sequence[tuple[int, int]] = SIZES, depth: int = 12, rlimit: int = 0
) -> Run | None:
    """Return a run from an initial state to one in which `bad` holds: fewest ranks, then smallest, then shortest.

    None when there is none within the sizes and `depth` steps. Raises Undecided and WrongModel.
    """
    for ranks, size in sizes:
        key = (type(system), ranks, size)
        if key not in _unrolled:
            _unrolled[key] = _Unrolling(system, ranks, size)
        found = _unrolled[key].search(bad, depth, rlimit)
        if found is not None:
            believe_run(system, found, bad)
            return found
    return None


def deadlock(system: System, s: View) -> Formula:
    """Return that the system has not finished and nothing can happen but what the environment does."""
    stuck = [z3.Not(_possible(system, s, act)) for act in system.actions() if act.fair]
    return z3.And(z3.Not(system.finished(s)), *stuck)


def _possible(system: System, s: View, act: Action) -> Formula:
    picks = act.constants()
    return some(picks, act.step(system, s, picks).guard)


class _Unrolling:
    """A system unrolled step by step: its first state, and its steps as far as any search has come.

    The step is written out once, between two generic states, and then renamed for each place in the run.
    """

    def __init__(self, system: System, ranks: int, size: int) -> None:
        self.system, self.finite = system, Finite(ranks, size)
        self.actions = system.actions()
        self.symbols = system.symbols(State)
        self._names: list[tuple[list[tuple[Any, Any]], list[tuple[Any, Any]]]] = []
        self.here, self.next = system.view(), system.view("'")
        self.taken = z3.Int("#taken")
        self.picks = [act.constants() for act in self.actions]
        self.step = self._step()
        s = self.here
        first = self.finite.write(lambda: [*system.axioms(s), *system.sized(s, size), *system.init(s)])
        for name, symbol in system.symbols().items():
            first += self.finite.closed(symbol, getattr(s, name))
        self.first = self._at(z3.And(self.finite.distinct(), *first), 0)
        self.steps: list[Formula] = []

    def search(self, bad: Bad, depth: int, rlimit: int) -> Run | None:
        """Return a shortest run of at most `depth` steps into a state in which `bad` holds."""
        wrong = self.finite.write(lambda: bad(self.system, self.here))
        asked, length = solver(rlimit), 0
        asked.add(self.first)
        while True:
            asked.push()
            asked.add(self._at(wrong, length))
            if _found(asked, length):
                return self._run(asked.model(), length)
            asked.pop()
            if length == depth:
                return None
            if length == len(self.steps):
                self.steps.append(self._at(self.step, length))
            asked.add(self.steps[length])
            length += 1
            if length % _LOOK_AHEAD == 0 and not _found(asked, length):
                # No run is as long as that, so longer ones need not be looked at.
                return None

    def _step(self) -> Formula:
        return self.finite.write(self._ways)

    def _ways(self) -> Formula:
        ways = []
        for index, act in enumerate(self.actions):
            step = act.step(self.system, self.here, self.picks[index])
            meaning = self.here.but(step.changes)
            parts = [self.taken == index, step.guard, *[self.finite.within(pick) for pick in self.picks[index]]]
            for name, symbol in self.symbols.items():
                old, new = getattr(meaning, name), getattr(self.next, name)
                keys = self.finite.keys(symbol)
                parts += [new(*key) == old(*key) for key in keys] if symbol.arguments else [new == old]
            ways.append(z3.And(*[as_formula(part) for part in parts]))
        return z3.Or(*ways)

    def _at(self, formula: Any, number: int) -> Any:
        """Return the formula said of the state at that place in the run, and the step that leaves it."""
        constants, functions = self._renaming(number)
        renamed = z3.substitute(formula, *constants)
        return z3.substitute_funs(renamed, *functions) if functions else renamed

    def _renaming(self, number: int) -> tuple[list[tuple[Any, Any]], list[tuple[Any, Any]]]:
        """Return what each generic constant and function is called at that place in the run."""
        if number < len(self._names):
            return self._names[number]
        constants = [(self.taken, z3.Int(f"#taken@{number}"))]
        constants += [(p, z3.Const(f"{p}@{number}", p.sort())) for picks in self.picks for p in picks]
        functions = []
        for name, symbol in self.symbols.items():
            for generic, place in ((getattr(self.here, name), number), (getattr(self.next, name), number + 1)):
                renamed = symbol.declare(f"@{place}")
                if symbol.arguments:
                    variables = [z3.Var(index, sort) for index, sort in enumerate(symbol.arguments)]
                    functions.append((generic, renamed(*variables)))
                else:
                    constants.append((generic, renamed))
        self._names.append((constants, functions))
        return self._names[number]

    def _point(self, model: z3.ModelRef, symbols: Mapping[str, Symbol], view: View) -> Point:
        return {name: self.finite.read(model, each, getattr(view, name)) for name, each in symbols.items()}

    def _run(self, model: z3.ModelRef, length: int) -> Run:
        finite, system = self.finite, self.system
        rigid = self._point(model, system.symbols(Rigid), self.here)
        views = [system.view(f"@{number}") for number in range(length + 1)]
        states = tuple(self._point(model, self.symbols, view) for view in views)
        actions, lanes = [], []
        for number in range(length):
            index = model.eval(z3.Int(f"#taken@{number}")).as_long()
            picks = [z3.Const(f"{pick}@{number}", pick.sort()) for pick in self.picks[index]]
            actions.append((self.actions[index].name, tuple(finite._value(model, pick) for pick in picks)))
            lanes.append(next((place for place, pick in enumerate(picks) if pick.sort() == Rank), None))
        return Run(finite.ranks, finite.size, rigid, states, tuple(actions), tuple(lanes))


_unrolled: dict[tuple[type[System], int, int], _Unrolling] = {}
"""What has been written out, for the next search: its formulas are the same whatever is searched for."""


def _found(asked: z3.Solver, length: int) -> bool:
    answer = asked.check()
    if answer == z3.unknown:
        raise Undecided(f"{asked.reason_unknown()} after {length} steps")
    return bool(answer == z3.sat)


def believe_run(system: System, run: Run, bad: Bad, concrete: Concrete | None = None) -> None:
    """Compute the run in Python: it starts initially, each step is allowed, and it ends badly."""
    concrete = concrete or Concrete(system, run.ranks, run.size, bounded=False)
    view = system.view()
    start = all_of(*system.axioms(view), *system.sized(view, run.size), *system.init(view))
    if not concrete.holds(start, run.rigid, run.states[0]):
        raise WrongModel("computed in Python, the run does not begin in an initial state")
    for index, (name, picks) in enumerate(run.actions):
        if not concrete.allows(name, picks, run.rigid, run.states[index], run.states[index + 1]):
            raise WrongModel(f"computed in Python, step {index + 1} ({name}) is not allowed")
    if not concrete.holds(as_formula(bad(system, view)), run.rigid, run.states[-1]):
        raise WrongModel("computed in Python, the run does not end badly")

