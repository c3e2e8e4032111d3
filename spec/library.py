"""All obligations: ours by subject, and those of a file that somebody gives us."""

from __future__ import annotations

import difflib
import functools
import importlib
import importlib.util
import inspect
import os
import posix
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import z3

from kvproof.errors import UsageError
from kvproof.spec.obligation import Always, Mutant, NoDeadlock, Obligation, Progress
from kvproof.spec.system import Action, Step, System
from kvproof.spec.theory import Formula, State, Theory, UnknownSymbol, View, all_of, as_formula

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
    return [obligation for _, obligation in placed(patterns)]


def placed(patterns: Sequence[str]) -> list[tuple[str, Obligation]]:
    """Return what `select` does, each with where it is stated: a subject such as "load", or a file as it was given."""
    ours = [(name, each) for name, subject in zip(SUBJECTS, subjects(), strict=True) for each in subject.OBLIGATIONS]
    if not patterns:
        return ours
    chosen: list[tuple[str, Obligation]] = []
    for pattern in patterns:
        if pattern.endswith(".py"):
            chosen += [(pattern, obligation) for obligation in of_file(Path(pattern))]
            continue
        found = [(name, obligation) for name, obligation in ours if fnmatchcase(obligation.id, pattern)]
        if not found:
            near = difflib.get_close_matches(pattern, [obligation.id for _, obligation in ours], n=3, cutoff=0.3)
            hint = f"the nearest are {', '.join(near)}" if near else "kvproof prove --list shows them all"
            raise UsageError(f"no obligation is called {pattern!r}; {hint}")
        chosen += found
    by_id: dict[str, tuple[str, Obligation]] = {}
    for name, obligation in chosen:
        if by_id.setdefault(obligation.id, (name, obligation))[1] is not obligation:
            raise UsageError(f"two different obligations are called {obligation.id!r}; give each an id of its own")
    return list(by_id.values())


def of_file(path: Path) -> list[Obligation]:
    """Return the obligations of a protocol file: its OBLIGATIONS, or what its systems declare.

    Raises UsageError, in one line, for a file that cannot be imported or is no protocol, and says what is expected.
    """
    try:
        with _going_on():
            return _of_module(path, _import(path))
    except (Exception, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise UsageError(f"{path}: it ends the process ({_said(error)}) when asked for its formulas") from error


@contextmanager
def _going_on() -> Iterator[None]:
    """Let nothing end this process meanwhile without a word: a verdict that nobody has read is no pass."""
    was, own = os._exit, os.getpid()

    def ended(status: int) -> NoReturn:
        if os.getpid() != own:
            was(status)
        raise SystemExit(f"os._exit({status})")

    os._exit = posix._exit = ended
    try:
        yield
    finally:
        os._exit = posix._exit = was


def system_of(path: Path, name: str = "") -> type[System]:
    """Return the system of a protocol file that is called `name`, or the only one that its obligations are about.

    Raises UsageError, which names them, for several, and for none.
    """
    theories = dict.fromkeys(each.theory for each in of_file(path) if issubclass(each.theory, System))
    systems: dict[str, type[System]] = {each.__name__: each for each in theories}
    if not systems:
        raise UsageError(f"{path} has obligations about no system, and so no events")
    if name and name not in systems:
        raise UsageError(f"{path} has no obligation about a system {name!r}; there are {', '.join(systems)}")
    if not name and len(theories) > 1:
        raise UsageError(f"{path} is about several systems, {' and '.join(systems)}; expected one: keep each in a file "
                         "of its own, or say in OBLIGATIONS which it is")
    return systems[name] if name else next(iter(systems.values()))


def _of_module(path: Path, module: ModuleType) -> list[Obligation]:
    declared = getattr(module, "OBLIGATIONS", None)
    systems = [
        value for value in vars(module).values()
        if inspect.isclass(value) and issubclass(value, System) and value.__module__ == module.__name__
    ]
    if declared is None and not systems:
        raise UsageError(f"{path}: no system there; expected a subclass of kvproof.spec.system.System, or OBLIGATIONS")
    found = [] if declared is None else _obligations(path, declared)
    # In a fixed order, since what is written first decides which of several smallest traces the solver finds.
    for theory in dict.fromkeys([*systems, *(obligation.theory for obligation in found)]):
        _check(path, theory)
    if declared is None:
        found = [obligation for system in systems for obligation in _declared(path.stem, system)]
        if not found:
            raise UsageError(f"{path}: nothing is claimed; expected safety(self, s) to return claims, or OBLIGATIONS")
        if len({obligation.id for obligation in found}) < len(found):
            names = " and ".join(system.__name__ for system in systems)
            raise UsageError(f"{path}: {names} claim things of the same name; say in OBLIGATIONS which to prove")
    for obligation in found:
        if isinstance(obligation, Always) and obligation.safety:
            claims = obligation.theory().safety(obligation.theory().view())  # type: ignore[attr-defined]  # a system
            if obligation.safety not in claims:
                raise UsageError(f"{path}: {obligation.id} names the claim {obligation.safety!r}; safety(self, s) of "
                                 f"{obligation.theory.__name__} returns {', '.join(claims) or 'none'}")
    return found


def _obligations(path: Path, declared: Any) -> list[Obligation]:
    """Return what OBLIGATIONS holds, each looked at; raises UsageError."""
    if not isinstance(declared, (list, tuple)):
        raise UsageError(f"{path}: OBLIGATIONS is {_shown(declared)}; expected a tuple of obligations")
    if not declared:
        raise UsageError(f"{path}: OBLIGATIONS is empty; expected a tuple of obligations")
    for each in declared:
        if not isinstance(each, Obligation):
            raise UsageError(f"{path}: OBLIGATIONS holds {_shown(each)}; expected a kvproof.spec.obligation.Obligation")
        if not (isinstance(each.id, str) and re.fullmatch(r"[A-Za-z0-9][\w.-]*", each.id)):
            raise UsageError(f"{path}: {_shown(each.id)} is no id; expected letters, digits, '.', '_' and '-'")
        for name in ("claim", "scope", "fragment"):
            text = getattr(each, name)
            if not (isinstance(text, str) and text.isprintable()):
                raise UsageError(f"{path}: the {name} of {each.id} is {_shown(text)}; expected one line of text")
        if not (isinstance(each.mutants, tuple) and all(isinstance(mutant, Mutant) for mutant in each.mutants)):
            raise UsageError(f"{path}: mutants of {each.id} is {_shown(each.mutants)}; expected a tuple of Mutant(...)")
        for theory in (each.theory, *(mutant.theory for mutant in each.mutants)):
            if not (inspect.isclass(theory) and issubclass(theory, Theory)):
                raise UsageError(f"{path}: {each.id} is about {_shown(theory)}; expected a class, a System or a Theory")
    return list(declared)


def _shown(value: Any) -> str:
    """Return a value of somebody's in one short line."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:77]}..."


def _said(error: BaseException) -> str:
    """Return what somebody's exception says, in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def _import(path: Path) -> ModuleType:
    name = f"kvproof_protocol_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if os.path.isdir(path):
        raise UsageError(f"{path} is a directory; expected a file that declares a protocol")
    if spec is None or spec.loader is None or not os.path.isfile(path):
        raise UsageError(f"{path}: there is no such file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    # What it imports from the files beside it is found.
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        where = f"line {error.lineno}: " if error.lineno else ""
        raise UsageError(f"{path}: {where}{error.msg}") from error
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise UsageError(f"{path}: cannot be imported: {_said(error)}") from error
    finally:
        sys.path.remove(str(path.resolve().parent))
    return module


def _declared(name: str, system: type[System]) -> list[Obligation]:
    """Return what a system declares: each safety claim, and no deadlock and progress where it says what they mean."""
    made = system()
    common: dict[str, Any] = {"scope": "as the file declares", "theory": system, "fragment": "as the file declares"}
    reached = _overrides(system, "finished")

    def sometimes(theory: System, s: View) -> Formula:
        """It is finished; or, where nothing says what that means, something has happened."""
        return theory.finished(s) if reached else z3.Not(all_of(*theory.init(s)))

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


_RETURNS = {"init": "a list of formulas", "axioms": "a list of formulas", "finite": "a list of formulas",
            "invariant": "a dictionary of formulas", "safety": "a dictionary of formulas",
            "finished": "a formula", "measure": "a dictionary of measures"}
"""What each method of a system returns, in words."""


def _check(path: Path, theory: type[Theory]) -> None:
    """Write out every formula once, so that a mistake in one is told before anything is proved."""
    where = f"{path}: {theory.__name__}"
    try:
        made = theory()
    except Exception as error:
        said = f"{where}() cannot be made: {_said(error)}; expected a class made without arguments"
        raise UsageError(said) from error
    if not isinstance(made, System):
        _returned(where, "axioms", lambda: made.axioms(made.rigid_view()))
        return
    for needed in ("init", "invariant"):
        if not _overrides(type(made), needed):
            raise UsageError(f"{where} has no {needed}; expected a method {needed}(self, s) that returns "
                             f"{_RETURNS[needed]}")
    if not made.actions():
        raise UsageError(f"{where} has no action; expected methods marked with @action()")
    s = made.view()
    _returned(where, "axioms", lambda: made.axioms(made.rigid_view()))
    for name in ("init", "invariant", "safety", "finite", "finished", "measure"):
        _returned(where, name, functools.partial(getattr(made, name), s))
    for act in made.actions():
        try:
            _act(made, act, s)
        except UsageError as error:
            raise UsageError(f"{path}: action {act.name} of {theory.__name__}: {error}") from error
        except UnknownSymbol as error:
            raise UsageError(f"{path}: action {act.name} of {theory.__name__}: {error}") from error
        except Exception as error:
            raise UsageError(f"{path}: action {act.name} of {theory.__name__}: {_said(error)}") from error


def _returned(where: str, name: str, call: Callable[[], Any]) -> None:
    """Call a method of a system and look at what it returns; raises UsageError."""
    try:
        value = call()
    except UnknownSymbol as error:
        path, _, kind = where.rpartition(": ")
        hint = "; axioms are about what is Rigid, and the invariant about states" if name == "axioms" else ""
        raise UsageError(f"{path}: {name} of {kind}: {error}{hint}") from error
    except Exception as error:
        path, _, kind = where.rpartition(": ")
        raise UsageError(f"{path}: {name} of {kind}: {_said(error)}") from error
    parts: Any = value
    fits = {"a list of formulas": isinstance(value, (list, tuple)), "a formula": True}.get(
        _RETURNS[name], isinstance(value, dict))
    if isinstance(value, dict):
        parts = list(value.values()) if name != "measure" else []
    elif _RETURNS[name] == "a formula":
        parts = [value]
    if not fits or not all(isinstance(part, bool) or z3.is_bool(part) for part in parts):
        raise UsageError(f"{where}.{name} returned {_shown(value)}; expected {_RETURNS[name]}")


def _act(system: System, act: Action, s: View) -> None:
    """Write out what an action does; raises UsageError for a change that is none."""
    step = act.step(system, s, act.constants())
    if not isinstance(step, Step):
        raise UsageError(f"it returned {_shown(step)}; expected a Step(guard, symbol=meaning)")
    s.but(step.changes)
    states = system.symbols(State)
    for name, meaning in step.changes.items():
        if name not in states:
            raise UsageError(f"{name} is Rigid and keeps its meaning; expected a State to change")
        arguments = [z3.Const(f"{name}.{place}", sort) for place, sort in enumerate(states[name].arguments)]
        if arguments and not callable(meaning):
            raise UsageError(f"{name} is changed to {_shown(meaning)}; expected a function, such as put(s.{name}, ...)")
        try:
            changed = as_formula(meaning(*arguments) if arguments else meaning)
        except Exception as error:
            raise UsageError(f"what {name} becomes cannot be written out: {_said(error)}") from error
        if not isinstance(changed, int) and changed.sort() != states[name].result:
            raise UsageError(f"{name} becomes a {changed.sort()}; expected a {states[name].result}")
