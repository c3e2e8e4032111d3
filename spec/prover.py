"""Proving an obligation: a witness, the queries, a counterexample if they fail, and every mutant refuted."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import z3

from kvproof.spec.evaluate import compiled
from kvproof.spec.obligation import Always, Fact, Mutant, Obligation, Query
from kvproof.spec.search import Model, Run, Undecided, WrongModel, possible, solver
from kvproof.spec.system import Concrete, Point, System
from kvproof.spec.theory import UnknownSymbol, View, all_of, as_formula

RLIMIT = 20_000_000
"""Z3's resource units for one query, about 10 s here: a bound that does not depend on the machine's load."""
NET = 60_000
"""Milliseconds after which a query is cut off all the same."""


@dataclass
class MutantResult:
    """What became of a mutant: refuted with its counterexample, or survived, or nobody knows."""

    id: str
    verdict: str
    says: str
    seconds: float = 0.0
    trace: Model | Run | None = None
    explain: str = ""
    redefines: str = ""


@dataclass
class Result:
    """What became of an obligation.

    verdict: proved, refuted, unknown, vacuous, toothless, not-run or error. explain: why, in words. trace: the
    counterexample of a refuted one. queries: the query names with their answers and seconds.
    """

    obligation: Obligation
    verdict: str
    seconds: float
    explain: str = ""
    witness: Model | Run | None = None
    trace: Model | Run | None = None
    mutants: list[MutantResult] = field(default_factory=list)
    queries: list[tuple[Query, str, float]] = field(default_factory=list)
    second: list[tuple[str, str, float]] = field(default_factory=list)

    @property
    def passes(self) -> bool:
        """Whether this is as it should be: proved, or refuted for a declared limit."""
        return self.verdict == ("refuted" if self.obligation.limit else "proved")


@dataclass(frozen=True)
class Effort:
    """How hard to try: the resource limit of a query, the clock as a safety net (ms), the solver's seed."""

    rlimit: int = RLIMIT
    net: int = NET
    seed: int = 0


DEFAULT = Effort()
_CLAIMS = ("safety", "finished", "measure")
"""What a mutant has to leave as it is: it says what is claimed."""
_CONSISTENCY = 100_000
"""Resource units for the question whether formulas contradict each other, which a contradiction answers at once."""
_checked: dict[Any, str] = {}
_WORLDS = ((1, 1), (2, 1), (3, 1), (3, 2), (4, 1), (5, 1), (6, 0))
"""The worlds, as numbers of ranks and sizes, in which what `finite` says is looked at."""
_unsound: dict[type[Any], int] = {}
_witnesses: dict[Any, Model | Run | None] = {}
_answers: dict[Any, tuple[str, float]] = {}


def hurry() -> None:
    """Leave out what a process that only proves and then ends can do without: a fifth of its time.

    That is collecting garbage, which goes through every term again and again, and the checks of arguments in Z3's own
    Python, which the tests run with.
    """
    gc.disable()
    z3.z3.Z3_DEBUG = False


def prove(obligation: Obligation, effort: Effort = DEFAULT) -> Result:
    """Prove one obligation; whatever goes wrong becomes a verdict."""
    begun = time.monotonic()
    result = Result(obligation, "error", 0.0)
    try:
        _prove(obligation, effort, result)
    except Undecided as error:
        result.verdict, result.explain = "unknown", str(error)
    except WrongModel as error:
        result.verdict, result.explain = "error", str(error)
    except Exception as error:
        # A mistake in a formula, or something that cannot be computed: nothing is known, which is never a pass.
        result.verdict, result.explain = "error", f"{type(error).__name__}: {error}"
    result.seconds = time.monotonic() - begun
    return result


def _prove(obligation: Obligation, effort: Effort, result: Result) -> None:
    theory = obligation.theory()
    try:
        theory.axioms(theory.rigid_view())
    except UnknownSymbol as error:
        raise TypeError(f"an axiom speaks of a state, which only the invariant may: {error}") from error
    key = (obligation.theory, obligation.speaks_of, effort.rlimit)
    if key not in _witnesses:
        _witnesses[key] = obligation.witness(theory, effort.rlimit)
    result.witness = _witnesses[key]
    if result.witness is None:
        if _unsatisfiable(obligation.empty(theory).formulas):
            result.verdict, result.explain = "vacuous", "nothing that the claim speaks of can happen, in any world"
        else:
            result.verdict = "unknown"
            result.explain = f"nothing that the claim speaks of was reached ({obligation.searched}); give it more room"
        return
    if isinstance(result.witness, Run) and not result.witness.actions:
        result.verdict = "vacuous"
        result.explain = "what the claim speaks of is there before anything happens; `sometimes` is to need a step"
        return
    wrong = _not_finite(theory)
    if wrong:
        result.verdict = "error"
        result.explain = f"what {type(theory).__name__}.finite says need not hold in a world of {wrong} ranks"
        return
    dead = _contradictory(obligation, theory)
    if dead:
        result.verdict, result.explain = "vacuous", f"contradictory for all integers and ranks: {dead}"
        return
    failed = _ask(obligation, theory, effort, result)
    if not result.queries:
        result.verdict, result.explain = "error", "it asks nothing, so nothing is proved"
        return
    if failed:
        result.verdict = "unknown"
        if not (obligation.limit or any(answer == "sat" for _, answer, _ in result.queries)):
            result.explain = f"the solver gave up on: {', '.join(query.name for query in failed)}"
            return
        try:
            result.trace = obligation.counterexample(theory, effort.rlimit)
            cut = f"there is no counterexample with {obligation.searched}"
        except Undecided as error:
            cut = f"the search for a counterexample was cut off: {error}"
        if result.trace is not None:
            result.verdict, result.explain = "refuted", obligation.broken
        else:
            what = "neither proved nor refuted" if isinstance(obligation, Fact) else "not inductive"
            result.explain = f"{what}: {'; '.join(query.otherwise for query in failed)} ({cut})"
        return
    if not obligation.mutants:
        result.verdict, result.explain = "toothless", "it has no mutants, so nothing shows that it could fail"
        return
    result.mutants = [_mutant(obligation, mutant, effort) for mutant in obligation.mutants]
    result.verdict = "proved"
    for bad, verdict in (("error", "error"), ("unknown", "unknown"), ("survived", "toothless")):
        those = [mutant for mutant in result.mutants if mutant.verdict == bad]
        if those:
            result.verdict = verdict
            result.explain = f"mutants {bad}: " + "; ".join(f"{mutant.id} {mutant.explain}" for mutant in those)
            return


def _contradictory(obligation: Obligation, theory: Any) -> str:
    """Return what can be said of no world at all, and would make every proof true; "" when nothing was found.

    A witness is a finite world, in which "for all integers" says less than in the proofs; so the same formulas are
    asked again as the proofs have them. That the solver gives up here is no answer and no harm.
    """
    key = (obligation.theory, obligation.speaks_of if isinstance(obligation, Fact) else None)
    if key not in _checked:
        _checked[key] = ""
        for name, formulas in _hypotheses(obligation, theory):
            if _unsatisfiable(formulas):
                _checked[key] = name
                break
    return _checked[key]


def _unsatisfiable(formulas: Iterable[Any]) -> bool:
    """Whether the formulas were found to contradict each other."""
    search = solver(_CONSISTENCY)
    search.add(*formulas)
    return bool(search.check() == z3.unsat)


def _not_finite(theory: Any) -> int:
    """Return the ranks of a world in which, in some state, what `finite` takes for granted is false; 0 if none is."""
    kind = type(theory)
    if kind not in _unsound:
        def false(theory: Any, s: View) -> Any:
            return z3.Not(all_of(*theory.finite(s)))

        wants = isinstance(theory, System) and kind.finite is not System.finite
        worlds = (ranks for ranks, size in _WORLDS if possible(theory, false, ranks, size, RLIMIT))
        _unsound[kind] = next(worlds, 0) if wants else 0
    return _unsound[kind]


def _hypotheses(obligation: Obligation, theory: Any) -> Iterator[tuple[str, list[Any]]]:
    s = theory.view()
    axioms = theory.axioms(s)
    if isinstance(obligation, Fact):
        yield "axioms and hypotheses", [*axioms, *obligation.hypotheses(theory, s)]
        return
    yield "axioms and init", [*axioms, *theory.init(s)]
    invariant = list(theory.invariant(s).values())
    yield "invariant and finite", [*axioms, *invariant, *theory.finite(s)]
    for act in theory.actions():
        yield f"the guard of {act.name}", [*axioms, *invariant, act.step(theory, s, act.constants()).guard]


def _ask(obligation: Obligation, theory: Any, effort: Effort, result: Result) -> list[Query]:
    failed = []
    for query in obligation.queries(theory):
        answer, seconds = _answer(obligation, query, effort)
        result.queries.append((query, answer, seconds))
        if answer != "unsat":
            failed.append(query)
    return failed


def _answer(obligation: Obligation, query: Query, effort: Effort) -> tuple[str, float]:
    """Ask one query; what is shared by all claims about a system (its invariant holds) is asked once a process."""
    key = (obligation.theory, query.name, effort)
    if query.shared and key in _answers:
        return _answers[key]
    # That the claim of a limit does not follow is shown by a run of it, and not by what is answered here.
    search = solver(_CONSISTENCY if obligation.limit and not query.shared else effort.rlimit, effort.seed)
    search.set("timeout", effort.net)
    search.add(*query.formulas)
    begun = time.monotonic()
    answer = (str(search.check()), time.monotonic() - begun)
    if query.shared:
        _answers[key] = answer
    return answer


def _foul(obligation: Obligation, mutant: Mutant) -> str:
    """Return how a mutant changes the claim instead of the protocol; "" when it does not."""
    changed = [name for name in _CLAIMS
               if getattr(mutant.theory, name, None) is not getattr(obligation.theory, name, None)]
    return f"{mutant.theory.__name__} overrides {changed[0]}, and so changes the claim" if changed else ""


def _shows_nothing(obligation: Obligation, mutant: Mutant, trace: Model | Run) -> str:
    """Return why a mutant's counterexample says nothing of its mistake; "" when it does.

    It must not be a counterexample of the protocol itself (then the finite world is to blame), and what is claimed has
    to be false there as the protocol itself defines it, unless the mutant says which definition it changes.
    """
    theory = obligation.theory()
    s, domains = theory.view(), {"#Rank": range(trace.ranks), "#Int": range(trace.size + 1)}
    if isinstance(trace, Model):
        meaning = {name: trace.meaning[name] for name in theory.symbols()}
        hypotheses = obligation.hypotheses(theory, s) if isinstance(obligation, Fact) else ()
        goal = obligation.goal(theory, s) if isinstance(obligation, Fact) else z3.BoolVal(False)
        itself = all_of(*theory.axioms(s), *hypotheses, z3.Not(goal))
        if set(theory.symbols()) == set(trace.meaning) and compiled(itself)({**domains, **meaning}):
            return "its counterexample is one of the protocol itself: the finite world breaks the claim, not the mutant"
        return ""
    assert isinstance(obligation, Always)
    system: Any = theory
    concrete = Concrete(system, trace.ranks, trace.size, bounded=False)
    known = set(theory.symbols())
    rigid = {name: value for name, value in trace.rigid.items() if name in known}
    states = [{name: value for name, value in state.items() if name in known} for state in trace.states]
    last = concrete.interpretation(rigid, states[-1])
    if _runs(system, concrete, rigid, states, trace) and compiled(as_formula(obligation.bad(system, s)))(last):
        return "its run is one of the protocol itself: the finite world breaks the claim, not the mutant"
    if not mutant.redefines and compiled(as_formula(obligation.claimed(theory, s)))(last):
        return ("in the last state of its run the claim holds as the protocol itself defines it; the mutant changes a "
                "definition of the claim, and is to say in `redefines` which and why")
    return ""


def _runs(theory: Any, concrete: Concrete, rigid: Point, states: list[Point], trace: Run) -> bool:
    """Whether a mutant's run is a run of the protocol."""
    s, actions = theory.view(), {act.name: act for act in theory.actions()}
    if not concrete.holds(all_of(*theory.axioms(s), *theory.init(s)), rigid, states[0]):
        return False
    for (name, picks), before, after in zip(trace.actions, states, states[1:], strict=False):
        if name not in actions or len(picks) != len(actions[name].picks):
            return False
        if not concrete.allows(name, picks, rigid, before, after):
            return False
    return True


def _mutant(obligation: Obligation, mutant: Mutant, effort: Effort) -> MutantResult:
    begun = time.monotonic()
    found = MutantResult(
        mutant.id, "survived", mutant.says, explain=mutant.consequence, redefines=mutant.redefines)
    foul = _foul(obligation, mutant)
    if foul:
        found.verdict, found.explain = "error", foul
        return found
    try:
        found.trace = obligation.counterexample(mutant.theory(), effort.rlimit)
    except Undecided as error:
        found.verdict, found.explain = "unknown", f"the search for its counterexample was cut off: {error}"
    except Exception as error:
        found.verdict, found.explain = "error", f"{type(error).__name__}: {error}"
    if found.trace is not None:
        found.verdict = "refuted"
        try:
            artefact = _shows_nothing(obligation, mutant, found.trace)
        except Exception as error:
            artefact = f"its trace could not be held against the protocol: {type(error).__name__}: {error}"
        if artefact:
            found.verdict, found.explain = "error", artefact
    found.seconds = time.monotonic() - begun
    return found

