"""Runs of `receiver` with one reply, shortest first, walked through in Python; and claims about every reply."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import z3

from kvproof.spec.evaluate import compiled
from kvproof.spec.grammar import CLASSES, SENDER, classes_of
from kvproof.spec.obligation import Always
from kvproof.spec.receiver import Framing
from kvproof.spec.search import Run, believe_run
from kvproof.spec.system import Concrete, Point
from kvproof.spec.theory import Bool, Formula, Int, State

LENGTHS = ("0", "1", "2", str(2**31))
"""The numbers that a sender announces in the runs that are looked for; proofs hold for all."""


def bytes_to_try(system: Framing, types: str, state: Point) -> Iterator[tuple[Any, ...]]:
    """Return the picks of a next byte: one for each row of the grammar and row of the table that it meets."""
    at, here = state["position"].removeprefix("at "), state["state"].removeprefix("in ")
    rows = [(classes_of(sends.on), sends.to, sends.effect or "nothing") for sends in SENDER.sends if sends.at == at]
    if at == "payload" and state["to_send"]:
        rows = [(tuple(CLASSES), "payload", "skip")]
    taken = {name: (rule.to, rule.action or "nothing") for rule in system.rules if rule.state == here
             for name in classes_of(rule.on)}
    if here == "payload" and state["remaining"] > 0:
        taken = dict.fromkeys(CLASSES, ("payload", "skip"))
    for names, position, effect in rows:
        tried = set()
        for name in names:
            if at == "value" and not set(CLASSES[name]) & set(types.encode()):
                continue
            to, does = taken.get(name, (here, "malformed"))
            if effect in ("length", "positive", "negative"):
                said = str(10 * state["announced"] + int(name))
                if any(length.startswith(said) for length in LENGTHS):
                    yield f"byte {name}", f"at {position}", f"send {effect}", f"in {to}", f"do {does}"
            elif (to, does) not in tried:
                tried.add((to, does))
                yield f"byte {name}", f"at {position}", f"send {effect}", f"in {to}", f"do {does}"


_CONCRETE: dict[type[Framing], Concrete] = {}


def _concrete(system: Framing) -> Concrete:
    kind = type(system)
    if kind not in _CONCRETE:
        _CONCRETE[kind] = Concrete(system, 1, max(world["bound"] for world in system.worlds), bounded=False)
    return _CONCRETE[kind]


def shortest(system: Framing, bad: Formula, depth: int, types: str = "") -> Run | None:
    """Return a shortest run of one reply into a state that is `bad`, computed in Python alone; None if there is none.

    The solver proves; here, where each state has few successors, walking through them is faster than asking it.
    """
    concrete, s = _concrete(system), system.view()
    is_bad = compiled(bad)
    numbers = {name: dict.fromkeys(concrete.keys(symbol), 0) if symbol.arguments else 0
               for name, symbol in system.symbols(State).items() if symbol.result == Int}
    truths = {name: False for name, symbol in system.symbols(State).items() if symbol.result == Bool}
    first = {**numbers, **truths, "position": "at value", "state": "in value", "refusal": "none", "kind": "byte +"}
    assert all(concrete.holds(formula, system.worlds[0], first) for formula in system.init(s))
    level: list[tuple[Point, tuple[Point, ...], tuple[tuple[str, tuple[Any, ...]], ...]]] = [
        (world, (first, concrete.after("begin", (), world, first)), (("begin", ()),)) for world in system.worlds]
    for _ in range(depth):
        after: list[Any] = []
        seen = set()
        for world, states, actions in level:
            state = states[-1]
            if is_bad(concrete.interpretation(world, state)):
                found = Run(1, concrete.size, world, states, actions, (None,) * len(actions))
                believe_run(system, found, lambda theory, view: bad, concrete)
                return found
            if state["beyond"] or state["refusal"] != "none" or not (state["pending"] or state["closing"]):
                continue
            name = "close" if state["closing"] else "byte"
            for picks in ((),) if state["closing"] else bytes_to_try(system, types or system.types, state):
                reached = concrete.after(name, picks, world, state)
                mark = (str(world), str(reached))
                if mark not in seen:
                    seen.add(mark)
                    after.append((world, (*states, reached), (*actions, (name, picks))))
        level = after
    return None


@dataclass(frozen=True, kw_only=True)
class Replies(Always):
    """A claim about every reply; runs are those of one reply, walked through in Python.

    shows: the types of value that the witness is made of.
    """

    shows: str
    depth: int = 16

    @property
    def speaks_of(self) -> Any:
        """The state that must be reachable, and by which types of value."""
        return (super().speaks_of, self.shows)

    def counterexample(self, theory: Any, rlimit: int) -> Run | None:
        """Return a shortest run that breaks the claim."""
        return shortest(theory, z3.Not(theory.safety(theory.view())[self.safety]), self.depth)

    def witness(self, theory: Any, rlimit: int) -> Run | None:
        """Return a shortest run in which what the claim speaks of happens."""
        return shortest(theory, self.sometimes(theory, theory.view()), self.depth, self.shows)
