"""The prover's own honesty: what it cannot tell it does not call proved, and what it shows it has computed again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import z3

from kvproof.errors import UsageError
from kvproof.spec import library, load
from kvproof.spec.evaluate import compiled
from kvproof.spec.obligation import Always, Fact, Mutant, Obligation, over
from kvproof.spec.prover import Effort, prove
from kvproof.spec.system import Concrete, Step, action
from kvproof.spec.theory import Formula, Int, Rank, Rigid, State, Theory, View, exists, forall, put, within
from tests.protocols.turns import OBLIGATIONS, Turns

[ALONE] = OBLIGATIONS
TURNS = (Path(__file__).parent / "protocols" / "turns.py").read_text()
assert isinstance(ALONE, Always)


GATE = """
from kvproof.spec.obligation import Always, Mutant, NoDeadlock, Progress
from kvproof.spec.system import Step, System, action
from kvproof.spec.theory import Int, Rigid, State

class Gate(System):
    n = Rigid(Int)
    x = State(Int)
    def axioms(self, s): return [s.n >= 3]
    def init(self, s): return [s.x == 0]
    @action()
    def up(self, s): return Step(s.x < 3, x=s.x + 1)
    def invariant(self, s): return {"range": s.x <= 3}
    def safety(self, s): return {"few": s.x <= 3}
"""
OBLIGED = """
class Same(Gate):
    pass

SAME = Mutant("same", "nothing is changed", Same)
OBLIGATIONS = (Always(id='g.few', claim="x is small", scope="all", theory=Gate, fragment="LIA", safety='few',
                      sometimes=lambda t, s: s.x == 2, mutants=(SAME,), sizes=((1, 3),)),)
"""


def kvproof(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kvproof.cli", "prove", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


class Numbers(Theory):
    x = Rigid(Int)
    y = Rigid(Int)


def fact(goal: Any, *hypotheses: Any, mutants: tuple[Mutant, ...] = ()) -> Fact:
    return Fact(
        id="numbers.claim", claim="a claim", scope="all integers", theory=Numbers, fragment="LIA", mutants=mutants,
        hypotheses=lambda theory, s: [part(s) for part in hypotheses], goal=lambda theory, s: goal(theory, s),
        sizes=((1, 3),),
    )


class Changed(Numbers):
    """A mutant that changes nothing at all."""


def test_a_right_protocol_is_proved_with_its_mutant_refuted() -> None:
    result = prove(ALONE)
    assert (result.verdict, result.explain) == ("proved", "")
    [mutant] = result.mutants
    assert mutant.verdict == "refuted"
    assert mutant.trace is not None
    assert (mutant.trace.ranks, len(mutant.trace.actions)) == (2, 2), "not the smallest, shortest run"
    assert result.witness is not None


def test_contradictory_hypotheses_are_vacuous() -> None:
    result = prove(fact(lambda t, s: s.x == s.y, lambda s: s.x > s.y, lambda s: s.x < s.y))
    assert result.verdict == "vacuous"


def test_a_mutant_that_changes_nothing_makes_it_toothless() -> None:
    result = prove(fact(lambda t, s: s.x > 0, lambda s: s.x > 1, mutants=(Mutant("same", "nothing", Changed),)))
    assert result.verdict == "toothless"
    assert "same" in result.explain


def test_without_mutants_it_is_toothless() -> None:
    assert prove(fact(lambda t, s: s.x > 0, lambda s: s.x > 1)).verdict == "toothless"


def test_a_false_claim_is_refuted_with_a_model_and_a_limit_then_passes() -> None:
    false = fact(lambda t, s: s.x > 1, lambda s: s.x > 0)
    result = prove(false)
    assert result.verdict == "refuted"
    assert result.trace is not None
    assert not result.passes
    assert prove(replace(false, limit=True)).passes


class WeakTurns(Turns):
    """The invariant does not say that numbers differ."""

    def invariant(self, s: View) -> dict[str, Formula]:
        """Too little."""
        return {name: part for name, part in super().invariant(s).items() if name != "once"}


def test_a_too_weak_invariant_is_not_inductive_and_never_refuted() -> None:
    result = prove(replace(ALONE, theory=WeakTurns, sizes=((1, 2), (2, 2))))
    assert result.verdict == "unknown"
    assert result.explain.startswith("not inductive: ")
    assert result.trace is None


def test_a_query_that_is_cut_off_is_unknown() -> None:
    x, y, z = z3.Ints("x y z")
    hard = z3.And(x * x * x + y * y * y + z * z * z == 33, x > 10**6)
    result = prove(fact(lambda t, s: z3.Not(hard), lambda s: s.x == s.x), Effort(net=1, rlimit=0))
    assert result.verdict == "unknown", result.explain


def test_a_model_that_is_none_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from kvproof.spec import search

    honest = search.Finite.read

    def wrong(self: Any, model: Any, symbol: Any, meaning: Any) -> Any:
        value = honest(self, model, symbol, meaning)
        return dict.fromkeys(value, 7) if symbol.name == "drawn" else value

    monkeypatch.setattr(search.Finite, "read", wrong)
    result = prove(ALONE)
    assert result.verdict == "error"
    assert "computed in Python" in result.explain


def test_two_runs_give_the_same_trace_to_the_byte() -> None:
    asked = ("ledger.*", "ownership.*", "tests/protocols/turns.py", "--json", "-")
    runs = [json.loads(kvproof(*asked).stdout)["obligations"] for _ in range(2)]
    traces = [[(mutant["id"], mutant["trace"]) for row in run for mutant in row["mutants"]] for run in runs]
    assert len(traces[0]) > 10
    assert traces[0] == traces[1]


class EntersTwice(Turns):
    """One conjunct of a guard is gone."""

    @action(r=Rank)
    def draw(self, s: View, r: Any) -> Step:
        """Draw although one has a number."""
        return Step(z3.BoolVal(True), drawn=put(s.drawn, r, s.next), next=s.next + 1)


def test_what_is_allowed_is_compiled_from_the_formulas_that_are_proved() -> None:
    begin = {"drawn": {(0,): 0, (1,): 0}, "next": 1, "served": 1}
    drawn = {"drawn": {(0,): 1, (1,): 0}, "next": 2, "served": 1}
    again = {"drawn": {(0,): 2, (1,): 0}, "next": 3, "served": 1}
    right, flipped = Concrete(Turns(), 2, 3), Concrete(EntersTwice(), 2, 3)
    assert right.allows("draw", (0,), {}, begin, drawn)
    assert not right.allows("draw", (1,), {}, begin, drawn), "another rank's step"
    assert not right.allows("draw", (0,), {}, begin, {**drawn, "served": 2}), "something else changed as well"
    assert not right.allows("draw", (0,), {}, drawn, again)
    assert flipped.allows("draw", (0,), {}, drawn, again), "a flipped conjunct changes nothing"


def test_the_steps_of_the_spec_are_those_that_its_formulas_allow() -> None:
    concrete = Concrete(Turns(), 2, 3)
    begin = {"drawn": {(0,): 0, (1,): 0}, "next": 1, "served": 1}
    seen, todo = set(), [begin]
    while todo:
        state = todo.pop()
        key = json.dumps({name: str(value) for name, value in state.items()})
        if key not in seen:
            seen.add(key)
            todo += [after for _, _, after in concrete.steps({}, state)]
    assert len(seen) == 10, "not the states that one counts by hand: 1 + 2 + 2 + 2 + 2 + 1"


def test_evaluation_agrees_with_the_solver() -> None:
    class World(Theory):
        n = Rigid(Int)
        owner = Rigid(Int, Rank)
        weight = Rigid(Rank, Int)

    s = World().view()
    formula = forall(Rank, lambda r: exists(Int, lambda c: z3.And(within(0, c, s.n), s.owner(c) == r, s.weight(r) > c)))
    meaning = {"n": 2, "owner": {(0,): 0, (1,): 1, (2,): 0}, "weight": {(0,): 1, (1,): 2}}
    domains = {"#Rank": range(2), "#Int": range(3)}
    assert compiled(formula)({**domains, **meaning}) is True
    assert compiled(formula)({**domains, **meaning, "weight": {(0,): 1, (1,): 1}}) is False


def test_a_file_of_somebody_elses_is_proved() -> None:
    done = kvproof("tests/protocols/turns.py", "--explain")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "mutant same-number (the number is read and not counted up): refuted" in done.stdout
    assert "bad, because both are inside" in done.stdout


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("class (", "line 1: invalid syntax"),
        ("x = 1\n", "no system there"),
        ("import nowhere\n", "cannot be imported: ModuleNotFoundError"),
        ("x = 1\0\n", "null bytes"),
        ("from kvproof.spec.system import System\nclass Bare(System): ...\n", "Bare has no init"),
        (GATE.replace("safety", "safely"), "nothing is claimed"),
        (GATE.replace('return {"few": s.x <= 3}', "{}"), "Gate.safety returned None; expected a dictionary"),
        (GATE.replace('return {"few": s.x <= 3}', "return [s.x <= 3]"), "expected a dictionary of formulas"),
        (GATE.replace("return [s.x == 0]", "return s.x == 0"), "Gate.init returned x == 0; expected a list"),
        (GATE.replace("x=s.x + 1", "x=True"), "action up of Gate: x becomes a Bool; expected a Int"),
        (GATE.replace("x=s.x + 1", "n=s.x + 1"), "n is Rigid and keeps its meaning"),
        (GATE.replace("return [s.n >= 3]", "return [s.x <= 3]"), "axioms are about what is Rigid"),
        (GATE.replace("return [s.n >= 3]", "import sys; sys.exit(0)"), "it ends the process"),
        (GATE + OBLIGED.replace("'few'", "'phew'"), "names the claim 'phew'; safety(self, s) of Gate returns few"),
        (GATE + OBLIGED.replace("mutants=(SAME,)", "mutants=SAME"), "expected a tuple of Mutant(...)"),
        (GATE + OBLIGED.replace("'g.few'", "'../few'"), "'../few' is no id"),
        (GATE + "\nclass Other(Gate):\n    pass\n", "Gate and Other claim things of the same name"),
        (GATE + "\nOBLIGATIONS = ()\n", "OBLIGATIONS is empty"),
        (TURNS.replace("def invariant", "def invariants"), "Turns has no invariant"),
        (TURNS.replace("s.drawn(r) == 0, drawn=put", "s.drwan(r) == 0, drawn=put"),
         "action draw of Turns: there is no state or symbol 'drwan'"),
        (TURNS.replace("drawn=put(s.drawn, r, -1)", "darwn=put(s.drawn, r, -1)"),
         "action leave of Turns: there is no state or symbol 'darwn'"),
    ],
)
def test_a_file_that_is_no_protocol_is_one_clear_line(text: str, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "protocol.py"
    path.write_text(text)
    done = kvproof(str(path))
    assert done.returncode == 2, done.stdout + done.stderr
    assert expected in done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr


@pytest.mark.parametrize("name", ["load.no-skp", "nowhere.py", "x.*"])
def test_an_unknown_obligation_is_one_clear_line(name: str) -> None:
    done = kvproof(name)
    assert done.returncode == 2, done.stdout
    assert len(done.stderr.splitlines()) == 1, done.stderr


def test_a_protocol_without_mutants_cannot_exit_0(tmp_path: Path) -> None:
    path = tmp_path / "bare.py"
    path.write_text(TURNS[: TURNS.index("class SameNumber")])
    done = kvproof(str(path))
    assert done.returncode == 1, done.stdout
    assert "toothless" in done.stdout


def test_a_timeout_is_unknown_and_exits_with_3() -> None:
    done = kvproof("load.agree", "--timeout", "1", "--json", "-")
    [row] = json.loads(done.stdout)["obligations"]
    assert row["verdict"] in ("unknown", "proved"), row
    hard = Path("tests/protocols/hard.py")
    done = kvproof(str(hard), "--timeout", "1")
    assert done.returncode == 3, done.stdout
    assert "unknown" in done.stdout


def test_the_obligations_are_listed_and_written_as_smt_lib(tmp_path: Path) -> None:
    assert "load.no-skip" in kvproof("load.*", "--list").stdout
    done = kvproof("load.agree", "--smt2", str(tmp_path / "queries"))
    assert done.returncode == 0, done.stderr
    sums = (tmp_path / "queries" / "SHA256SUMS").read_text().splitlines()
    assert len(sums) == len(list((tmp_path / "queries").glob("*.smt2"))) == 92


def test_our_obligations_have_ids_of_their_own_and_say_their_scope() -> None:
    for obligation in library.obligations():
        assert isinstance(obligation, Obligation)
        assert obligation.scope, obligation.id
        assert obligation.mutants or obligation.limit, f"{obligation.id} has no mutants"


class HopesForOrder(Turns):
    """What it says of finitely many ranks is not true of all of them."""

    def finite(self, s: View) -> list[Formula]:
        """Nobody is inside twice, says who."""
        return [forall(Rank, Rank, lambda r, q: s.drawn(r) != s.drawn(q))]


def test_what_is_taken_for_granted_of_finitely_many_ranks_has_to_be_true() -> None:
    result = prove(replace(ALONE, theory=HopesForOrder, id="hopes.alone"))
    assert result.verdict == "error", result.explain
    assert "HopesForOrder.finite says need not hold in a world of 1 ranks" in result.explain


class ClaimsElse(Turns):
    """Breaks no protocol, and claims what is false."""

    def safety(self, s: View) -> dict[str, Formula]:
        """Nobody is ever inside."""
        return {name: forall(Rank, lambda r: s.drawn(r) <= 0) for name in super().safety(s)}


def test_a_mutant_that_changes_the_claim_and_not_the_protocol_is_an_error() -> None:
    result = prove(replace(ALONE, mutants=(Mutant("claims-else", "nothing", ClaimsElse),)))
    assert result.verdict == "error", result.explain
    assert "ClaimsElse overrides safety, and so changes the claim" in result.explain


class Bounded(Turns):
    """An axiom that is true of the integers in a finite world, and of no others."""

    def axioms(self, s: View) -> list[Formula]:
        """There is a largest integer."""
        return [exists(Int, lambda m: forall(Int, lambda k: k <= m))]


def test_what_only_a_finite_world_satisfies_is_vacuous() -> None:
    result = prove(replace(ALONE, theory=Bounded, id="bounded.alone"))
    assert result.verdict == "vacuous", result.explain
    assert "axioms and init" in result.explain


def test_a_helper_does_not_capture_its_callers_variable() -> None:
    knows = z3.Function("knows", Rank, Rank, z3.BoolSort())

    def everybody(x: Any) -> Formula:
        return forall(Rank, lambda r: knows(x, r))

    reflexive = forall(Rank, lambda r: knows(r, r))
    search = z3.Solver()
    search.add(reflexive, z3.Not(forall(Rank, lambda r: everybody(r))))
    assert search.check() == z3.sat, "every rank knows every rank follows from each knowing itself"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import sys; sys.exit(0)\n", "cannot be imported: SystemExit"),
        ("import os; os._exit(0)\n", "cannot be imported: SystemExit: os._exit(0)"),
        ("from posix import _exit; _exit(0)\n", "cannot be imported: SystemExit: os._exit(0)"),
        ("class Stop(BaseException): ...\nraise Stop('here')\n", "cannot be imported: Stop: here"),
        (GATE.replace("return [s.n >= 3]", "import os; os._exit(0)"), "it ends the process (SystemExit: os._exit(0))"),
        (GATE.replace("return [s.x == 0]", "raise GeneratorExit('here')"), "it ends the process (GeneratorExit: here)"),
        (GATE.replace("return Step(s.x < 3, x=s.x + 1)", "raise type('Stop', (BaseException,), {})('here')"),
         "it ends the process (Stop: here) when asked for its formulas"),
        ("OBLIGATIONS = 5\n", "expected a tuple of obligations"),
        (TURNS + "\nOBLIGATIONS = (OBLIGATIONS[0], Always(**{**OBLIGATIONS[0].__dict__, 'claim': 'another'}))\n",
         "two different obligations are called 'turns.alone'"),
    ],
)
def test_a_file_cannot_pass_by_a_trick(text: str, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "trick.py"
    path.write_text(text)
    done = kvproof(str(path))
    assert done.returncode == 2, done.stdout + done.stderr
    assert expected in done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr


def test_a_file_that_is_looked_at_leaves_the_process_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "forks.py").write_text(
        "import os\nchild = os.fork()\nif not child:\n    os._exit(7)\n"
        "CODE = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])\n" + GATE)
    before = os._exit
    library.of_file(tmp_path / "forks.py")
    assert os._exit is before
    assert sys.modules["kvproof_protocol_forks"].CODE == 7


TWO = GATE + """
class Door(Gate):
    def safety(self, s): return {"open": s.x <= 3}
"""


def test_the_system_of_a_file_is_the_only_one_or_has_to_be_named(tmp_path: Path) -> None:
    (tmp_path / "two.py").write_text(TWO)
    (tmp_path / "one.py").write_text(TWO + OBLIGED)
    with pytest.raises(UsageError, match=r"two\.py is about several systems, Gate and Door; expected one: "):
        library.system_of(tmp_path / "two.py")
    assert library.system_of(tmp_path / "two.py", "Door").__name__ == "Door"
    with pytest.raises(UsageError, match="no obligation about a system 'Window'; there are Gate, Door"):
        library.system_of(tmp_path / "two.py", "Window")
    assert library.system_of(tmp_path / "one.py").__name__ == "Gate", "its obligations are about one"


MEASURED = """
class Endless(Gate):
    used = State(Int, z3.BoolSort())
    def init(self, s): return [s.x == 0, forall(Int, lambda k: z3.Not(s.used(k)))]
    @action()
    def up(self, s): return Step(True, x=s.x + 1, used=put(s.used, s.x, True))
    def invariant(self, s): return {"used": forall(Int, lambda k: s.used(k) == z3.And(0 <= k, k < s.x))}
    def safety(self, s): return {}
    def measure(self, s): return {"left": ((Int,), lambda k: (z3.If(s.used(k), 0, 1),))}

class Stays(Endless):
    @action()
    def up(self, s): return Step(True)

OBLIGATIONS = (Progress(id="e.ends", claim="it ends", scope="all", theory=Endless, fragment="LIA",
                        sometimes=lambda t, s: s.x == 2, mutants=(Mutant("stays", "", Stays),), sizes=((1, 3),)),)
"""
HELPED = """
class Helped(Gate):
    def few(self, s): return s.x <= 3
    def safety(self, s): return {"few": self.few(s)}

class Helps(Helped):
    def few(self, s): return s.x <= 1

OBLIGATIONS = (Always(id="h.few", claim="x is small", scope="all", theory=Helped, fragment="LIA", safety="few",
                      sometimes=lambda t, s: s.x == 2, mutants=(Mutant("helps", "", Helps),), sizes=((1, 3),)),)
"""
SMALL = """
class Picked(Gate):
    @action(b=Int)
    def up(self, s, b): return Step(b == s.x + 1, x=b)
    def invariant(self, s): return {"range": s.x >= 0}
    def finished(self, s): return s.x < 0

class Unchanged(Picked):
    pass

OBLIGATIONS = (NoDeadlock(id="s.moves", claim="it moves", scope="all", theory=Picked, fragment="LIA",
                          sometimes=lambda t, s: s.x == 2, mutants=(Mutant("unchanged", "", Unchanged),),
                          sizes=((1, 3),)),)
"""


@pytest.mark.parametrize(
    ("text", "code", "expected"),
    [
        (GATE + OBLIGED, 1, "g.few: toothless: mutants survived: same"),
        (GATE + OBLIGED.replace("s.x == 2", "s.x >= 0"), 1, "g.few: vacuous: what the claim speaks of is there before"),
        (GATE + OBLIGED.replace("s.x == 2", "s.x == 9"), 1, "g.few: vacuous: nothing that the claim speaks of can hap"),
        (GATE + OBLIGED.replace("sizes=((1, 3),)", "depth=1"), 3, "g.few: unknown: nothing that the claim"),
        (GATE, 1, "toothless"),
        ("import z3\nfrom kvproof.spec.theory import forall, put\n" + GATE + MEASURED, 3, "integers and has no bound"),
        (GATE + HELPED, 3, "the claim holds as the protocol itself defines it"),
        (GATE + SMALL, 3, "its run is one of the protocol itself"),
    ],
    ids=["unchanged", "at-once", "never", "too-short", "no-mutants", "endless", "helped", "small-world"],
)
def test_what_is_false_or_empty_is_never_proved(text: str, code: int, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "gate.py"
    path.write_text(text)
    done = kvproof(str(path))
    assert done.returncode == code, done.stdout + done.stderr
    assert expected in " ".join(done.stdout.split()), done.stdout


def test_what_a_changed_protocol_adds_is_not_silently_covered() -> None:
    class Barrier(load.Load):
        """A further collective, before the exchange."""

        through = State(Rank, z3.BoolSort())

    [agree] = [each for each in load.OBLIGATIONS if each.id == "load.agree"]
    assert over(agree, Barrier, "barrier").assumes == (
        "nothing is claimed of what is new: through (override safety if the claim should speak of it)",)
    assert over(agree, Barrier, "barrier", depth=20).depth == 20  # type: ignore[attr-defined]  # it is an Always
    with pytest.raises(UsageError, match="Turns is no subclass of Load"):
        over(agree, Turns, "turns")
