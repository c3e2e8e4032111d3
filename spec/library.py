"""All obligations: ours by subject, and those of a file that somebody gives us."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from types import ModuleType
from typing import Any

from kvproof.errors import UsageError
from kvproof.spec.obligation import Always, NoDeadlock, Obligation, Progress
from kvproof.spec.system import System
from kvproof.spec.theory import Formula, UnknownSymbol, View

SUBJECTS = ("prefix", "load", "load_failures", "store", "completion", "framing", "ownership", "keys", "lifecycle",
            "ledger", "lease", "cost", "routing", "tiering")
"""The modules of this package that state obligations, in the order in which they are shown."""


def subjects() -> list[ModuleType]:
    """Import and return the subjects."""
    return [importlib.import_module(f"kvproof.spec.{name}") for name in SUBJECTS]


def obligations() -> list[Obligation]:
    """Return all our obligations; ids are distinct."""
    found = [obligation for subject in subjects() for obligation in subject.OBLIGATIONS]
    assert len({obligation.id for obligation in found}) == len(found), "two obligations with one id"
    return found


def select(patterns: Sequence[str]) -> list[Obligation]:
    """Return the obligations that the patterns name: ids, globs over ids, or files; all of ours when there are none.

    Raises UsageError for a pattern that names nothing, and for a file that is no protocol.
    """
    if not patterns:
        return obligations()
    chosen: list[Obligation] = []
    for pattern in patterns:
        if pattern.endswith(".py"):
            chosen += of_file(Path(pattern))
            continue
        ours = obligations()
        found = [obligation for obligation in ours if fnmatchcase(obligation.id, pattern)]
        if not found:
            near = difflib.get_close_matches(pattern, [obligation.id for obligation in ours], n=3, cutoff=0.3)
            raise UsageError(f"no obligation is called {pattern!r}; the nearest are {', '.join(near) or 'none'}")
        chosen += found
    by_id: dict[str, Obligation] = {}
    for obligation in chosen:
        if by_id.setdefault(obligation.id, obligation) is not obligation:
            raise UsageError(f"two different obligations are called {obligation.id!r}; give each an id of its own")
    return list(by_id.values())


def of_file(path: Path) -> list[Obligation]:
    """Return the obligations of a protocol file: its OBLIGATIONS, or what its systems declare.

    Raises UsageError, in one line, for a file that cannot be imported, has no system, or mentions an unknown symbol.
    """
    module = _import(path)
    declared = getattr(module, "OBLIGATIONS", ())
    if not isinstance(declared, (list, tuple)):
        raise UsageError(f"{path}: OBLIGATIONS is {declared!r}; expected a tuple of obligations")
    found = list(declared)
    systems = [
        value for value in vars(module).values()
        if inspect.isclass(value) and issubclass(value, System) and value.__module__ == module.__name__
    ]
    if not found and not systems:
        raise UsageError(f"{path}: no system there; expected a subclass of kvproof.spec.system.System, or OBLIGATIONS")
    if not all(isinstance(obligation, Obligation) for obligation in found):
        raise UsageError(f"{path}: OBLIGATIONS holds something that is no kvproof.spec.obligation.Obligation")
    if not found:
        found = [obligation for system in systems for obligation in _declared(path.stem, system)]
    if not found:
        raise UsageError(f"{path}: nothing is claimed; expected safety(self, s) to return claims, or OBLIGATIONS")
    # In a fixed order, since what is written first decides which of several smallest traces the solver finds.
    for system in dict.fromkeys([*systems, *(obligation.theory for obligation in found)]):
        if issubclass(system, System):
            _check(path, system)
    return found


def _import(path: Path) -> ModuleType:
    name = f"kvproof_protocol_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if path.is_dir():
        raise UsageError(f"{path} is a directory; expected a file that declares a protocol")
    if spec is None or spec.loader is None or not path.is_file():
        raise UsageError(f"{path}: there is no such file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        where = f"line {error.lineno}: " if error.lineno else ""
        raise UsageError(f"{path}: {where}{error.msg}") from error
    except (Exception, SystemExit) as error:
        raise UsageError(f"{path}: cannot be imported: {type(error).__name__}: {error}") from error
    return module


def _declared(name: str, system: type[System]) -> list[Obligation]:
    """Return what a system declares: each safety claim, and no deadlock and progress where it says what they mean."""
    made = system()
    common: dict[str, Any] = {"scope": "as the file declares", "theory": system, "fragment": "as the file declares"}
    reached = made.finished if _overrides(system, "finished") else None

    def sometimes(theory: System, s: View) -> Formula:
        return theory.finished(s) if reached else True

    found: list[Obligation] = [
        Always(id=f"{name}.{claim}", claim=claim, safety=claim, sometimes=sometimes, **common)
        for claim in made.safety(made.view())
    ]
    if reached:
        found.append(NoDeadlock(id=f"{name}.no-deadlock", claim="no deadlock", sometimes=sometimes, **common))
    if _overrides(system, "measure"):
        found.append(Progress(id=f"{name}.progress", claim="progress", sometimes=sometimes, **common))
    return found


def _overrides(system: type[System], method: str) -> bool:
    return getattr(system, method) is not getattr(System, method)


def _check(path: Path, system: type[System]) -> None:
    """Write out every formula once, so that a mistake in one is told before anything is proved."""
    made = system()
    s = made.view()
    for needed in ("init", "invariant"):
        if not _overrides(system, needed):
            raise UsageError(f"{path}: {system.__name__} has no {needed}; expected a method {needed}(self, s)")
    if not made.actions():
        raise UsageError(f"{path}: {system.__name__} has no action; expected methods marked with @action()")
    parts = {"init": made.init, "invariant": made.invariant, "safety": made.safety, "axioms": made.axioms}
    where = ""
    try:
        for name, part in parts.items():
            where = name
            part(s)
        for act in made.actions():
            where = f"action {act.name}"
            s.but(act.step(made, s, act.constants()).changes)
    except UnknownSymbol as error:
        raise UsageError(f"{path}: {where} of {system.__name__}: {error}") from error
    except Exception as error:
        raise UsageError(f"{path}: {where} of {system.__name__}: {type(error).__name__}: {error}") from error
