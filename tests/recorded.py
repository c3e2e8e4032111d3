"""Traces for tests: found by the search, or, where every value matters, computed from the actions of one run."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from kvproof.models.trace import Trace
from kvproof.spec import load
from kvproof.spec.recorded import record
from kvproof.spec.search import Run
from kvproof.spec.system import Concrete

BY_ID = {each.id: each for each in load.OBLIGATIONS}


@cache
def of_mutant(claim: str, name: str) -> Trace:
    """Return the shortest run that breaks a claim about a mutant of the loading protocol."""
    [mutant] = [each for each in BY_ID[claim].mutants if each.id == name]
    found = BY_ID[claim].counterexample(mutant.theory(), 0)
    assert found is not None
    return record(found, "load", BY_ID[claim], "mutant", name, seed=0, versions={"kvproof": "0"})


@cache
def early_return() -> Trace:
    """Return the run in which rank 1 enters the exchange, and rank 0 misses its one chunk and returns."""
    obligation, concrete = BY_ID["load.no-skip"], Concrete(load.EarlyReturn(), 2, 1)
    [mutant] = [each for each in obligation.mutants if each.id == "early-return"]
    nothing = {(0,): 0, (1,): 0}
    rigid = {"length": {(0,): 1, (1,): 0}, "fingerprint": {(0,): 0, (1,): 1}, "layout": dict(nothing),
             "owner": {(0,): 0, (1,): 1}, "uniform": False}
    none = {(r, c): False for r in range(2) for c in range(2)}
    first = {"entered": nothing, "left": nothing, "loaded": none, "failure": nothing, "agreed": nothing,
             "least": {(0,): 0, (1,): 1}, "held": none, "gone": {(0,): False, (1,): False}}
    actions = (("enter_exchange", (1,)), ("go", (0,)))
    states = [first]
    for name, picks in actions:
        states.append(concrete.after(name, picks, rigid, states[-1]))
    run = Run(2, 1, rigid, tuple(states), actions)
    return record(run, "load", obligation, "mutant", mutant.id, seed=0, versions={"kvproof": "0"})


@cache
def witness() -> Trace:
    """Return the shortest run in which two ranks load one chunk."""
    found = BY_ID["load.no-skip"].witness(load.Load(), 0)
    assert found is not None
    return record(found, "load", BY_ID["load.no-skip"], "witness")


def changed(trace: Trace, number: int, symbol: str, key: tuple[int, ...] | None, value: object) -> Trace:
    """Return the trace with one value of one state changed."""
    state = dict(trace.states[number])
    state[symbol] = value if key is None else {**state[symbol], key: value}
    return replace(trace, states=(*trace.states[:number], state, *trace.states[number + 1 :]))
