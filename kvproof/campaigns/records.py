"""What a journal's record, a finding's file and a corpus's entry have to have: checked before anything reads them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Check = Callable[[Any], bool]


def _is(*kinds: type) -> Check:
    return lambda value: isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))


def _all(kind: type) -> Check:
    return lambda value: isinstance(value, list) and all(map(_is(kind), value))


_text, _number, _whole, _flag, _object, _texts, _wholes = (
    _is(str), _is(int, float), _is(int), _is(bool), _is(dict), _all(str), _all(int))
_PLACED: Mapping[str, Check] = {"target": _text, "where": _text, "shape": _texts}
_FOUND: Mapping[str, Check] = {
    **_PLACED, "rule": _text, "verdict": _text, "explain": _text, "case": _object,
    "size": lambda value: _wholes(value) and len(value) > 0, "felt": _texts, "steps": _texts, "evidence": _object}
_SHRUNK: Mapping[str, Check] = {**_FOUND, "rate": _number, "chance": _flag, "done": _flag}
KINDS: Mapping[str, Mapping[str, Check]] = {
    "campaign": {"schema": _text, "targets": _texts, "ranks": _whole, "seed": _whole},
    "worker": {"number": _whole},
    "opened": {"target": _text, "version": _text, "server": _text, "ranks": _whole},
    "kept": {"target": _text, "case": _object, "behaviour": _wholes},
    "found": _FOUND,
    "shrunk": {**_SHRUNK, "was": _texts},
    "seen": _PLACED,
    "retried": {**_PLACED, "came": _whole},
    "counted": {"seconds": _number,
                "counts": lambda value: isinstance(value, dict) and all(map(_whole, value.values()))},
}
"""The records of a journal by their kind, and what each field has to be."""
FINDING: Mapping[str, Check] = {"id": _text, "target": _text, "where": _text, "shape": _texts, "least": _object}
"""A finding's file, and its entry in a corpus."""
LEAST = _SHRUNK
"""The smallest case of a finding, there."""
KEPT = KINDS["kept"]
"""A case's entry in a corpus."""


def wrong(given: Any, fields: Mapping[str, Check]) -> str:
    """Say what is wrong with an object: which field is not there, or is something else; "" when nothing is."""
    if not isinstance(given, dict):
        return "it is no object"
    for name, fits in fields.items():
        if name not in given:
            return f"it has no {name}"
        if not fits(given[name]):
            return f"its {name} is {str(given[name])[:40]!r}"
    return ""


def wrong_record(given: Any) -> str:
    """Say what is wrong with a record of a journal; "" when nothing is, or when nobody here knows its kind."""
    kind = given.get("record") if isinstance(given, dict) else None
    return wrong(given, KINDS.get(kind, {})) if isinstance(kind, str) else "it is no record"
