"""Values in the Informal Trace Format of Apalache and Quint, strictly.

What has a JSON form of its own has that; numbers past 53 bits are ``#bigint``, functions ``#map`` (the key of several
arguments a ``#tup``), tuples ``#tup``, sets ``#set``. The format has no fractions: they are ``#unserializable``. Its
records, lists and other text that is ``#unserializable`` are not read: no system here has such a value.
"""

from __future__ import annotations

import json
import re
from fractions import Fraction
from typing import Any, TypeAlias

Value: TypeAlias = Any
"""bool, int, str, Fraction, a tuple or frozenset of values, or a dictionary from argument tuples to values."""

_EXACT = 2**53 - 1
"""The largest number that every reader of JSON takes as it is."""
_DIGITS = 1000
"""Decimal digits that a number has at most."""
_WHOLE = re.compile(rf"-?(0|[1-9][0-9]{{0,{_DIGITS - 1}}})")
_EXPECTED = "a truth value, whole number, string, #bigint, #map, #set, #tup or #unserializable fraction"


def parse(text: str) -> Any:
    """Return JSON as Python; raises ValueError for anything else, and for an object that has one key twice."""
    try:
        return json.loads(text, object_pairs_hook=_once, parse_constant=_constant, parse_int=_whole)
    except json.JSONDecodeError as error:
        raise ValueError(f"line {error.lineno}: expected JSON: {error.msg}") from None
    except RecursionError:
        raise ValueError("found JSON that is nested too deeply; expected a trace") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"found the key {name!r} twice in one object; expected it once")
        found[name] = value
    return found


def _constant(name: str) -> Any:
    raise ValueError(f"found {name}; expected JSON, which has no such number")


def _whole(digits: str) -> int:
    if not _WHOLE.fullmatch(digits) or abs(int(digits)) > _EXACT:
        raise ValueError(f"found the number {digits[:40]}; expected one past 53 bits to be written as #bigint")
    return int(digits)


def described(found: Any) -> str:
    """Return what was found in a JSON document, short enough for a sentence."""
    text = json.dumps(found, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."


def encode(value: Value) -> Any:
    """Return a value as JSON; raises ValueError for what is none."""
    if isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return value if abs(value) <= _EXACT else {"#bigint": _digits(value)}
    if isinstance(value, Fraction):
        return {"#unserializable": f"{_digits(value.numerator)}/{_digits(value.denominator)}"}
    if isinstance(value, tuple):
        return {"#tup": [encode(part) for part in value]}
    if isinstance(value, frozenset):
        return {"#set": sorted((encode(part) for part in value), key=json.dumps)}
    if isinstance(value, dict):
        return {"#map": [[_key(key), encode(here)] for key, here in value.items()]}
    raise ValueError(f"found {value!r}; expected {_EXPECTED}")


def _digits(number: int) -> str:
    """Return a number in decimal digits; raises ValueError where there are more than are read back."""
    if abs(number) >= 10**_DIGITS:
        raise ValueError(f"found a number of {number.bit_length()} bits; expected at most {_DIGITS} decimal digits")
    return str(number)


def _key(key: Any) -> Any:
    if not isinstance(key, tuple):
        raise ValueError(f"found {key!r} as the key of a function; expected a tuple of its arguments")
    return encode(key[0]) if len(key) == 1 and not isinstance(key[0], tuple) else encode(key)


def decode(found: Any, where: str) -> Value:
    """Return the value that some JSON stands for; raises ValueError with `where` it is, what it is and what it is not.

    What `encode` has written comes back exactly: True is not 1, and 2/1 is not 2.
    """
    if isinstance(found, (bool, int, str)):
        return found
    if not isinstance(found, dict) or len(found) != 1:
        raise ValueError(f"{where}: found {described(found)}; expected {_EXPECTED}")
    [(kind, inner)] = found.items()
    if kind in ("#bigint", "#unserializable"):
        return _number(kind, inner, where)
    if kind not in ("#map", "#set", "#tup") or not isinstance(inner, list):
        raise ValueError(f"{where}: found {described(found)}; expected {_EXPECTED}")
    if kind == "#map":
        return _function(inner, where)
    parts = [decode(part, f"{where}[{index}]") for index, part in enumerate(inner)]
    if kind == "#tup":
        return tuple(parts)
    return _set(parts, where)


def _number(kind: str, inner: Any, where: str) -> int | Fraction:
    top, _, bottom = inner.partition("/") if isinstance(inner, str) else ("", "", "")
    if kind == "#bigint" and isinstance(inner, str) and _WHOLE.fullmatch(inner):
        return int(inner)
    if kind == "#unserializable" and _WHOLE.fullmatch(top) and _WHOLE.fullmatch(bottom) and int(bottom) > 0:
        return Fraction(int(top), int(bottom))
    expected = "a whole number as a string" if kind == "#bigint" else "a fraction such as \"1/3\""
    raise ValueError(f"{where}: found {described({kind: inner})}; expected {expected}")


def _set(parts: list[Value], where: str) -> frozenset[Value]:
    seen: dict[Value, None] = {}
    for part in parts:
        seen[_apart(seen, part, where)] = None
    return frozenset(seen)


def _function(pairs: list[Any], where: str) -> dict[tuple[Value, ...], Value]:
    table: dict[tuple[Value, ...], Value] = {}
    for index, pair in enumerate(pairs):
        here = f"{where}[{index}]"
        if not isinstance(pair, list) or len(pair) != 2:
            raise ValueError(f"{here}: found {described(pair)}; expected a key and a value")
        key = decode(pair[0], f"{here}[0]")
        arguments = key if isinstance(key, tuple) else (key,)
        table[_apart(table, arguments, here)] = decode(pair[1], f"{here}[1]")
    return table


def _apart(seen: dict[Any, Any], value: Value, where: str) -> Value:
    """Return a value that may be an element or a key: neither a function nor there already."""
    try:
        twice = value in seen
    except TypeError:
        raise ValueError(f"{where}: found a function as an element or a key; expected a plain value") from None
    if twice:
        here, there = described(encode(value)), described(encode(next(other for other in seen if other == value)))
        if here != there:
            raise ValueError(f"{where}: found {here} beside {there}, which is the same value in Python; "
                             "expected elements and keys of one sort")
        raise ValueError(f"{where}: found {value!r} twice; expected each element and key once")
    return value
