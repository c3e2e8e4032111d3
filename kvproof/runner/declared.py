"""What an adapter's class declares, checked in the runner before anything is made of it."""

from __future__ import annotations

import re
from typing import Any

from kvproof.connectors.adapter import CAPABILITIES, Adapter, PayloadRange, Read
from kvproof.connectors.rank_adapter import Load, RankAdapter

_NAME = re.compile(r"[\w.-]{1,64}")
"""Names of reads and loads: they stand in ids, in globs and in names of files."""
_LONGEST = 3600
"""Seconds that an adapter can declare at most."""


class InvalidAdapter(Exception):
    """A class that was named as an adapter is none, or declares something that does not fit."""


def declared(target: str, found: object) -> type[Any]:
    """Return what was found under a target, an `Adapter` or a `RankAdapter`; raises InvalidAdapter for all else."""
    if isinstance(found, type) and issubclass(found, RankAdapter):
        _check_rank(found)
    elif isinstance(found, type) and issubclass(found, Adapter):
        _check(found)
    else:
        raise InvalidAdapter(f"{target} is no subclass of kvproof.connectors.adapter.Adapter, and none of "
                             "kvproof.connectors.rank_adapter.RankAdapter")
    return found


class _Declared:
    """Raises InvalidAdapter, naming the declaration and what is expected, for the first that does not fit."""

    def __init__(self, adapter: type[Any]) -> None:
        self._adapter = adapter

    def __call__(self, attribute: str, fits: bool, expected: str) -> None:
        if not fits:
            got = getattr(self._adapter, attribute, None)
            raise InvalidAdapter(f"{self._adapter.__qualname__}.{attribute} is {got!r}; expected {expected}")

    def common(self) -> None:
        """Check what both kinds of adapters declare."""
        for attribute in ("name", "distribution"):
            value = getattr(self._adapter, attribute, None)
            self(attribute, isinstance(value, str) and bool(value), "a string")
        devices = self._adapter.devices
        fits = isinstance(devices, tuple) and bool(devices) and set(devices) <= {"cpu", "cuda"}
        self("devices", fits, 'a tuple of "cpu" and "cuda"')


def _check_rank(adapter: type[RankAdapter]) -> None:
    require = _Declared(adapter)
    require.common()
    loads: Any = getattr(adapter, "loads", ())
    fits = isinstance(loads, tuple) and bool(loads) and all(isinstance(load, Load) for load in loads)
    require("loads", fits, "a tuple of Load(...), such as (Load(\"load\"),)")
    names = [load.name for load in loads]
    fits = all(isinstance(each, str) and _NAME.fullmatch(each) for each in names) and len({*names}) == len(names)
    require("loads", fits, "names that differ, of 1 to 64 letters, digits, '_', '-' and '.'")
    rebuilds: Any = getattr(adapter, "rebuilds", True)
    require("rebuilds", type(rebuilds) is bool, "True or False")
    for method in ("store", "lookup", "load", "close", *["rebuild"] * rebuilds):
        require(method, getattr(adapter, method) is not getattr(RankAdapter, method), "a method of its own")


def _check(adapter: type[Adapter]) -> None:
    require = _Declared(adapter)
    require.common()
    reads: Any = getattr(adapter, "reads", ())
    fits = isinstance(reads, tuple) and bool(reads) and all(isinstance(read, Read) for read in reads)
    require("reads", fits, "a tuple of Read(...), such as (Read(\"get\"),)")
    names = [read.name for read in reads]
    fits = all(isinstance(each, str) and _NAME.fullmatch(each) for each in names)
    require("reads", fits, "names of 1 to 64 letters, digits, '_', '-' and '.'")
    require("reads", len({*names}) == len(names) and "put" not in names, "names that differ, and none that is \"put\"")
    fits = all(isinstance(flag, bool) for read in reads for flag in (read.payload, read.batch, read.sync))
    require("reads", fits, "True or False for payload, batch and sync")
    require("abandons", adapter.abandons in ("cancel", "timeout", "never"), '"cancel", "timeout" or "never"')
    require("truth", adapter.truth in ("resp", "directory", "none"), '"resp", "directory" or "none"')
    promised = adapter.capabilities
    fits = isinstance(promised, frozenset) and promised <= set(CAPABILITIES)
    require("capabilities", fits, f"a frozenset of {', '.join(sorted(CAPABILITIES))}")
    for attribute in ("deadline", "recovery"):
        value = getattr(adapter, attribute)
        fits = isinstance(value, (int, float)) and 0 < value <= _LONGEST
        require(attribute, fits or (attribute == "deadline" and value is None),
                f"seconds, more than 0 and at most {_LONGEST}")
    require("payload", _is_range(adapter.payload), "a PayloadRange(...) of sizes in bytes, with a step of 1 or more")
    require("masks", isinstance(adapter.masks, str), "a string")
    for method in ("put", "read", "close", *(["cancel_read"] if adapter.abandons == "cancel" else [])):
        require(method, getattr(adapter, method) is not getattr(Adapter, method), "a method of its own")


def _is_range(payload: object) -> bool:
    if not isinstance(payload, PayloadRange):
        return False
    sizes = (payload.smallest, payload.largest, payload.step)
    return all(isinstance(size, int) for size in sizes) and 0 <= sizes[0] <= sizes[1] and sizes[2] >= 1
