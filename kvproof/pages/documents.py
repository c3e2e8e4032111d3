"""Reading results documents back: the rows of each, or one clear line about what is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any, TypeVar

from kvproof.errors import UsageError
from kvproof.pages.text import line
from kvproof.results import SCHEMA, CellRow, Complaint, ObligationRow, ReplayRow, Where

MEANS = {
    0: "all pass, or exactly as the known files say",
    1: "a finding that is not known, or a known entry that is stale or expired",
    3: "inconclusive: something could not tell, or nothing was run",
}
"""What an exit code of a run means."""

_TYPES: dict[str, tuple[type, ...]] = {
    "str": (str,), "bool": (bool,), "int": (int,), "float": (int, float), "list": (list,), "dict": (dict,),
    "None": (type(None),), "Where": (dict,),
}
_MOST = 2**53
"""The largest number; nor is one that is none read."""
_Row = TypeVar("_Row", CellRow, ObligationRow, ReplayRow, Complaint, Where)


@dataclass(frozen=True)
class Run:
    """One document: what one run found."""

    number: int
    versions: dict[str, Any]
    seed: int
    seconds: float
    exit_code: int
    interrupted: bool
    obligations: list[ObligationRow]
    replays: list[ReplayRow]
    cells: list[CellRow]
    complaints: list[Complaint]

    @property
    def means(self) -> str:
        """What its exit code means."""
        return MEANS.get(self.exit_code, "no exit code of a run of kvproof")


def read(documents: Sequence[Any]) -> list[Run]:
    """Read documents; raises UsageError for the first that is none, and where it is wrong."""
    if not documents:
        raise UsageError("no results were given; expected at least one document, as `kvproof check --json FILE` "
                         "writes it")
    return [_run(number, document) for number, document in enumerate(documents, 1)]


def _run(number: int, document: Any) -> Run:
    name = f"results document {number}"
    if not isinstance(document, Mapping) or document.get("schema") != SCHEMA:
        given = (f"its schema is {line(document.get('schema'), 60)}" if isinstance(document, Mapping)
                 else f"it is {type(document).__name__}")
        raise UsageError(f"{name} is no results document: {given}, expected an object with the schema \"{SCHEMA}\"; "
                         "give a file that kvproof wrote with --json")
    summary = _field(name, document, "summary", "dict")
    return Run(
        number, _field(name, document, "versions", "dict"), _field(name, document, "seed", "int"),
        _field(name, document, "seconds", "float"), _field(f"{name}: summary", summary, "exit_code", "int"),
        _field(f"{name}: summary", summary, "interrupted", "bool"),
        _rows(name, document, "obligations", ObligationRow), _rows(name, document, "replays", ReplayRow),
        _rows(name, document, "cells", CellRow), _rows(name, document, "complaints", Complaint),
    )


def _rows(name: str, document: Mapping[str, Any], what: str, row: type[_Row]) -> list[_Row]:
    return [_row(f"{name}: {what}[{index}]", each, row)
            for index, each in enumerate(_field(name, document, what, "list"))]


def _row(place: str, given: Any, row: type[_Row]) -> _Row:
    """Return a row; a field that this version does not know is left out."""
    if not isinstance(given, dict):
        raise UsageError(f"{place} is {type(given).__name__}, expected an object; give a file that kvproof wrote "
                         "with --json")
    values: dict[str, Any] = {}
    for each in fields(row):
        if each.name not in given and (each.default is not MISSING or each.default_factory is not MISSING):
            continue
        value = _field(place, given, each.name, str(each.type))
        values[each.name] = _row(f"{place}.where", value, Where) if each.type == "Where" else value
    return row(**values)


def _field(place: str, given: Mapping[str, Any], name: str, kind: str) -> Any:
    if name in given and _fits(given[name], kind):
        return given[name]
    said = f"{name} is {line(given[name], 60)}" if name in given else f"there is no {name}"
    raise UsageError(f"{place}: {said}, expected {kind}; give a file that kvproof wrote with --json")


def _fits(value: Any, kind: str) -> bool:
    """Return whether a value is of a type that is written such as "float | None" or "list[dict[str, Any]]"."""
    outer, _, inner = kind.partition("[")
    allowed = tuple(each for one in outer.split(" | ") for each in _TYPES[one])
    if " | " in inner:
        allowed += tuple(each for one in inner.partition(" | ")[2].split(" | ") for each in _TYPES[one])
    if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
        return False
    if isinstance(value, (int, float)):
        return -_MOST <= value <= _MOST
    if isinstance(value, list) and inner:
        return all(isinstance(each, _TYPES[inner.partition("[")[0].removesuffix("]")]) for each in value)
    return True
