"""Traces: a system, what its rigid symbols mean, its states, and the action before each later one; as ITF JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvproof.models.itf import Value, decode, described, encode, parse

SCHEMA = "kvproof.trace/1"
ROLES = ("witness", "counterexample", "mutant")
State = dict[str, Value]
_ITF = "https://apalache-mc.org/docs/adr/015adr-trace.html"
_MOST = 4096
"""Ranks, and integers, that a world has at most."""
_TEXTS = ("claim", "mutant", "role", "expected", "observed", "place", "mistake")


@dataclass(frozen=True)
class Taken:
    """An action that was taken: its picks by name, and the rank that took it, where it is a rank's."""

    action: str
    picks: Mapping[str, Value] = field(default_factory=dict)
    rank: int | None = None

    def __str__(self) -> str:
        """Return it as a call."""
        return f"{self.action}({', '.join(f'{name}={shown(value)}' for name, value in self.picks.items())})"


@dataclass(frozen=True)
class Trace:
    """States of a system and the actions between them.

    system, theory: which it is of: a subject of `kvproof.spec` such as "load", or the path of a Python file, and the
    class there. ranks, size: the world: so many ranks, and the integers 0..size. rigid: what the rigid symbols mean.
    states: each a dictionary from symbols to values; a function is a dictionary from argument tuples to values. taken:
    the action before each later state. claim, mutant: the ids of the obligation and mutant that it is about. role: one
    of `ROLES`, or "". seed: of the solver. expected, observed: in words. place: in the code. mistake: what the mutant
    does wrong, in words.

    Raises ValueError, in one sentence, for states and actions that do not fit each other.
    """

    system: str
    theory: str
    ranks: int
    size: int
    rigid: State
    states: tuple[State, ...]
    taken: tuple[Taken, ...] = ()
    claim: str = ""
    mutant: str = ""
    role: str = ""
    seed: int | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    expected: str = ""
    observed: str = ""
    place: str = ""
    mistake: str = ""

    def __post_init__(self) -> None:
        """Refuse what does not fit."""
        if len(self.states) != len(self.taken) + 1:
            raise ValueError(f"found {len(self.states)} states and {len(self.taken)} actions; expected one state more")
        if not (1 <= self.ranks <= _MOST and 0 <= self.size <= _MOST):
            raise ValueError(f"found {self.ranks} ranks, size {self.size}; expected 1 and 0, up to {_MOST}")
        if self.role and self.role not in ROLES:
            raise ValueError(f"found the role {self.role!r}; expected one of {', '.join(ROLES)}, or none")
        for number, taken in enumerate(self.taken, 1):
            if taken.rank is not None and not 0 <= taken.rank < self.ranks:
                raise ValueError(f"states[{number}].#meta.rank: found {taken.rank}; expected a rank below {self.ranks}")
        for number, state in enumerate(self.states):
            if state.keys() != self.states[0].keys():
                odd = sorted(state.keys() ^ self.states[0].keys())
                raise ValueError(f"states[{number}]: found other symbols than in the first state: {', '.join(odd)}")
        both = sorted(self.rigid.keys() & self.states[0].keys())
        if both:
            raise ValueError(f"found {', '.join(both)} both among the rigid symbols and in the states; expected one")
        for name in [*self.rigid, *self.states[0]]:
            if not name or name.startswith("#"):
                raise ValueError(f"found a symbol called {name!r}; expected a name that does not begin with #")

    @property
    def subject(self) -> str:
        """What it is about, in a few words."""
        role = f"mutant {self.mutant}" if self.mutant else self.role
        about = ", ".join(part for part in (self.claim, role) if part)
        return f"{about or 'a trace'}: {'a run' if self.taken else 'a state'} of {self.theory} in {self.system}"

    def to_itf(self) -> str:
        """Return the trace as ITF JSON; everything in it is ASCII."""
        told: dict[str, Any] = {
            "schema": SCHEMA, "system": self.system, "theory": self.theory, "ranks": self.ranks, "size": self.size,
        }
        told |= {name: getattr(self, name) for name in _TEXTS if getattr(self, name)}
        if self.seed is not None:
            told["seed"] = self.seed
        if self.versions:
            told["versions"] = dict(self.versions)
        rigid = {name: encode(value) for name, value in self.rigid.items()}
        states = []
        for number, state in enumerate(self.states):
            meta: dict[str, Any] = {"index": number}
            if number:
                taken = self.taken[number - 1]
                meta |= {"action": taken.action, "picks": {name: encode(pick) for name, pick in taken.picks.items()}}
                meta |= {} if taken.rank is None else {"rank": taken.rank}
            states.append({"#meta": meta, **rigid, **{name: encode(state[name]) for name in self.states[0]}})
        document = {
            "#meta": {"format": "ITF", "format-description": _ITF, "kvproof": told},
            "params": list(self.rigid), "vars": list(self.states[0]), "states": states,
        }
        return _laid_out(document)

    @classmethod
    def from_itf(cls, text: str) -> Trace:
        """Read ITF JSON; raises ValueError with one sentence: where, what was found and what was expected."""
        document = _object(parse(text), "the document", ("#meta", "vars", "states"), ("params",))
        told = _object(_object(document["#meta"], "#meta", ("kvproof",), None)["kvproof"], "#meta.kvproof",
                       ("schema", "system", "theory", "ranks", "size"), (*_TEXTS, "seed", "versions"))
        where = "#meta.kvproof"
        if told["schema"] != SCHEMA:
            raise ValueError(f"{where}.schema: found {described(told['schema'])}; expected {SCHEMA!r}")
        for name in ("system", "theory", *_TEXTS):
            _is(told.get(name, ""), str, f"{where}.{name}", "a string")
        for name in ("ranks", "size", "seed"):
            _is(told.get(name, 0), int, f"{where}.{name}", "a whole number")
        versions = _object(told.get("versions", {}), f"{where}.versions", (), None)
        for name, version in versions.items():
            _is(version, str, f"{where}.versions.{name}", "a string")
        params, symbols = _names(document.get("params", []), "params"), _names(document["vars"], "vars")
        states, taken = [], []
        rigid: State = {}
        for number, found in enumerate(_is(document["states"], list, "states", "a list")):
            where = f"states[{number}]"
            state = _object(found, where, (*symbols, *([] if number else params)), ("#meta", *params))
            meanings = {name: decode(state[name], f"{where}.{name}") for name in params if name in state}
            rigid = rigid or meanings
            for name, meaning in meanings.items():
                if meaning != rigid[name]:
                    raise ValueError(f"{where}.{name}: found another meaning than in the first state; "
                                     "expected a parameter to keep its own")
            states.append({name: decode(state[name], f"{where}.{name}") for name in symbols})
            step = _taken(state.get("#meta", {}), f"{where}.#meta", number)
            taken += [] if step is None else [step]
        if not states:
            raise ValueError("states: found an empty list; expected at least one state")
        return cls(
            told["system"], told["theory"], told["ranks"], told["size"], rigid, tuple(states), tuple(taken),
            seed=told.get("seed"), versions=versions, **{name: told.get(name, "") for name in _TEXTS},
        )


def _taken(found: Any, where: str, number: int) -> Taken | None:
    """Return the action before a state; None before the first, which has none."""
    meta = _object(found, where, ("action", "picks") if number else (), ("index", *(["rank"] if number else [])))
    if meta.get("index", number) != number:
        raise ValueError(f"{where}.index: found {described(meta['index'])}; expected {number}")
    if not number:
        return None
    picks = _object(meta["picks"], f"{where}.picks", (), None)
    rank = _is(meta["rank"], int, f"{where}.rank", "a rank's number") if "rank" in meta else None
    return Taken(_is(meta["action"], str, f"{where}.action", "an action's name"),
                 {name: decode(pick, f"{where}.picks.{name}") for name, pick in picks.items()}, rank)


def _is(found: Any, kind: type, where: str, expected: str) -> Any:
    if not isinstance(found, kind) or (kind is int and isinstance(found, bool)):
        raise ValueError(f"{where}: found {described(found)}; expected {expected}")
    return found


def _object(found: Any, where: str, needed: Sequence[str], optional: Sequence[str] | None) -> dict[str, Any]:
    """Return a JSON object that has all of `needed`, and besides only `optional` (None: anything)."""
    _is(found, dict, where, "an object")
    for name in needed:
        if name not in found:
            raise ValueError(f"{where}: found no {name!r}; expected an object with {', '.join(map(repr, needed))}")
    for name in found if optional is not None else ():
        if name not in needed and name not in (optional or ()):
            known = ", ".join(repr(each) for each in (*needed, *(optional or ())))
            raise ValueError(f"{where}: found an unknown key {name!r}; expected {known or 'none'}")
    return dict(found)


def _names(found: Any, where: str) -> list[str]:
    names = [_is(name, str, f"{where}[{index}]", "a name")
             for index, name in enumerate(_is(found, list, where, "a list"))]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{where}: found {name!r} twice; expected different names")
    return names


def _laid_out(document: dict[str, Any]) -> str:
    """Return the JSON text with one symbol a line, so that two traces can be compared by eye."""
    states = []
    for state in document["states"]:
        lines = [f"   {json.dumps(name)}: {json.dumps(value)}" for name, value in state.items()]
        states.append("  {\n" + ",\n".join(lines) + "\n  }")
    head = [f" {json.dumps(name)}: {json.dumps(document[name])}" for name in ("#meta", "params", "vars")]
    return "{\n" + ",\n".join([*head, ' "states": [\n' + ",\n".join(states) + "\n ]"]) + "\n}\n"


@dataclass(frozen=True)
class Change:
    """One value that differs between two states: of a symbol, or of a function at one key; None where there is none."""

    symbol: str
    key: tuple[Value, ...] | None
    old: Value | None
    new: Value | None

    @property
    def what(self) -> str:
        """What differs, as a term."""
        return self.symbol if self.key is None else f"{self.symbol}({','.join(map(shown, self.key))})"

    @property
    def after(self) -> str:
        """What it is afterwards."""
        return f"{self.what} = {shown(self.new)}"


def changes(before: Mapping[str, Value], after: Mapping[str, Value]) -> list[Change]:
    """Return what differs between two states, in the order of the symbols; for a function key by key."""
    found = []
    for name in dict.fromkeys([*before, *after]):
        old, new = before.get(name), after.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            keys = dict.fromkeys([*old, *new])
            found += [Change(name, key, old.get(key), new.get(key)) for key in keys if old.get(key) != new.get(key)]
        elif old != new:
            found.append(Change(name, None, old, new))
    return found


def printable(text: str) -> str:
    """Return the text without what a terminal, XML or HTML would take for more than text."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def shown(value: Any) -> str:
    """Return a value for a person: a function as its table."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{','.join(map(shown, key))}: {shown(here)}" for key, here in value.items()) + "}"
    if isinstance(value, tuple):
        return "(" + ", ".join(map(shown, value)) + ")"
    if isinstance(value, frozenset):
        return "{" + ", ".join(sorted(map(shown, value))) + "}"
    return "nothing" if value is None else str(value)
