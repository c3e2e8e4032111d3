"""Runs and models as traces, and a trace's system found again."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvproof.errors import UsageError
from kvproof.models.trace import Taken, Trace
from kvproof.spec import library
from kvproof.spec.obligation import Obligation
from kvproof.spec.search import Model, Run
from kvproof.spec.system import System
from kvproof.spec.theory import Rank, State, Theory


def record(
    found: Model | Run,
    system: str,
    obligation: Obligation,
    role: str,
    mutant: str = "",
    *,
    seed: int | None = None,
    versions: Mapping[str, str] | None = None,
) -> Trace:
    """Return a run, or a model as the one state of a trace, as it was found for an obligation or its mutant.

    system: where the obligation is stated: a subject, or a file. role: witness, counterexample or mutant.
    """
    [(theory, observed, mistake)] = [
        (each.theory, each.consequence, each.says) for each in obligation.mutants if each.id == mutant] or [
        (obligation.theory, "", "")]
    if isinstance(found, Model):
        names = theory.symbols(State)
        rigid = {name: value for name, value in found.meaning.items() if name not in names}
        states: tuple[Any, ...] = ({name: value for name, value in found.meaning.items() if name in names},)
        taken = []
    else:
        rigid, states = found.rigid, found.states
        assert issubclass(theory, System)
        taken = [_taken(theory, name, picks) for name, picks in found.actions]
    return Trace(
        system, theory.__name__, found.ranks, found.size, rigid, states, tuple(taken), obligation.id, mutant, role,
        seed, dict(versions or {}), obligation.claim, observed, _place(theory), mistake,
    )


def _taken(theory: type[System], name: str, picks: tuple[Any, ...]) -> Taken:
    [act] = [each for each in theory.actions() if each.name == name]
    ranks = [pick for pick, sort in zip(picks, act.picks.values(), strict=True) if sort == Rank]
    return Taken(name, dict(zip(act.picks, picks, strict=True)), ranks[0] if ranks else None)


def _place(theory: type[Theory]) -> str:
    """Return the file and line where a class is written; "" for one that is not written out."""
    try:
        path, line = inspect.getsourcefile(theory), inspect.getsourcelines(theory)[1]
    except (OSError, TypeError):
        return ""
    ours = theory.__module__.startswith("kvproof.")
    return f"{'/'.join(theory.__module__.split('.')[1:])}.py:{line}" if ours else f"{Path(path or '').name}:{line}"


@dataclass(frozen=True)
class Subject:
    """What a trace is of: the theory or system, and the obligation that it was found for."""

    theory: Theory
    obligation: Obligation | None


def find(trace: Trace, beside: Path | None = None) -> Subject:
    """Return the system of a trace and its obligation; a file is imported, from here or from the folder `beside`.

    Raises UsageError, in one line, when the trace names something that is not there.
    """
    if trace.system.endswith(".py"):
        path = _file(trace.system, beside)
        obligations = library.of_file(path)
        names = vars(sys.modules[f"kvproof_protocol_{path.stem}"])
    elif trace.system in library.SUBJECTS:
        module = importlib.import_module(f"kvproof.spec.{trace.system}")
        obligations, names = list(module.OBLIGATIONS), vars(module)
    else:
        raise UsageError(f"the trace is of {trace.system!r}; expected a Python file, or one of "
                         f"{', '.join(library.SUBJECTS)}")
    obligation = next((each for each in obligations if each.id == trace.claim), None)
    if trace.claim and obligation is None:
        raise UsageError(f"{trace.system} states no obligation {trace.claim!r}, which the trace is about")
    theory: Any = names.get(trace.theory)
    if obligation is not None:
        theory = _of(obligation, trace)
    if not (inspect.isclass(theory) and issubclass(theory, Theory)) or theory.__name__ != trace.theory:
        raise UsageError(f"{trace.system} has no system {trace.theory!r}, which the trace is of")
    return Subject(theory(), obligation)


def _of(obligation: Obligation, trace: Trace) -> type[Theory] | None:
    if not trace.mutant:
        return obligation.theory
    return next((mutant.theory for mutant in obligation.mutants if mutant.id == trace.mutant), None)


def _file(name: str, beside: Path | None) -> Path:
    for path in (Path(name), *([beside / name, beside / Path(name).name] if beside else [])):
        # Not Path.is_file, which raises for a name that is too long.
        if os.path.isfile(path):
            return path
    told = name if len(name) <= 200 else f"{name[:197]}..."
    raise UsageError(f"{told}, which the trace is of, is not there; run this where it is, or put it beside the trace")
