"""Which rank is in which collective: torch.distributed's calls, recorded as they are entered and left.

`recording(path, rank)` wraps them in the process that it is called in; what a rank has entered is in the file before it
waits, so that a rank that never leaves, or is killed, is known to be in there. `read` makes of the file what each rank
has done. It knows nothing of any protocol.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any

from kvproof.recorder import Recorder

CALLS = (
    "all_gather", "all_gather_into_tensor", "all_gather_object", "all_reduce", "all_to_all", "all_to_all_single",
    "barrier", "broadcast", "broadcast_object_list", "gather", "gather_object", "monitored_barrier", "reduce",
    "reduce_scatter", "reduce_scatter_tensor", "scatter", "scatter_object_list",
)
"""The collectives of torch.distributed that are recorded; one that is called within another is a part of it."""

Before = Callable[[int], None]
"""What is called with the number of a collective, from 1 on, before it is entered; it may raise."""


@contextmanager
def recording(path: str | Path, rank: int, before: Before = lambda number: None) -> Iterator[None]:
    """Record the collectives that this process enters and leaves, as rank `rank`, at the end of the file `path`."""
    import torch.distributed
    from torch.distributed import distributed_c10d

    inside = threading.local()
    modules = [torch.distributed, distributed_c10d]
    kept = [(module, name, getattr(module, name)) for module in modules for name in CALLS if hasattr(module, name)]
    wrapped: dict[str, Any] = {}
    with Recorder(path, rank) as record:
        counted = _Counted(record, before)
        for module, name, call in kept:
            wrapped.setdefault(name, _wrap(name, call, counted, inside))
            setattr(module, name, wrapped[name])
        try:
            yield
        finally:
            for module, name, call in kept:
                setattr(module, name, call)


class _Counted:
    """Numbers collectives from 1 on, and records them."""

    def __init__(self, record: Recorder, before: Before) -> None:
        self.record, self._before = record, before
        self._number = 0
        self._lock = threading.Lock()

    def enter(self, name: str, given: Mapping[str, Any]) -> int:
        """Return the number of the collective that is about to be entered."""
        with self._lock:
            self._number += 1
            number = self._number
        self._before(number)
        self.record("enter", step=number, call=name, place=_place(), root=given.get("root"), group=_members(given))
        return number


def _wrap(name: str, call: Any, counted: _Counted, inside: threading.local) -> Any:
    @wraps(call)
    def recorded(*arguments: Any, **named: Any) -> Any:
        if getattr(inside, "call", ""):
            return call(*arguments, **named)
        number = counted.enter(name, _given(name, arguments, named))
        inside.call = name
        try:
            work = call(*arguments, **named)
        except BaseException as error:
            counted.record("raise", step=number, error=f"{type(error).__name__}: {error}"[:300])
            raise
        finally:
            inside.call = ""
        if named.get("async_op") and work is not None:
            return _Work(work, counted.record, number)
        counted.record("leave", step=number)
        return work

    return recorded


class _Work:
    """The handle of a collective that was only begun: it is left when somebody has waited for it."""

    def __init__(self, work: Any, record: Recorder, number: int) -> None:
        self._work, self._record, self._number = work, record, number

    def wait(self, *arguments: Any, **named: Any) -> Any:
        """Wait for it, and record that it was left."""
        try:
            found = self._work.wait(*arguments, **named)
        except BaseException as error:
            self._record("raise", step=self._number, error=f"{type(error).__name__}: {error}"[:300])
            raise
        self._record("leave", step=self._number)
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)


def _given(name: str, arguments: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """Return the root and the group of a call, where it has them."""
    given: dict[str, Any] = {"group": named.get("group")}
    if name.startswith(("broadcast", "scatter")):
        given["root"] = named.get("src", arguments[1] if len(arguments) > 1 and name == "broadcast" else None)
    return given


def _members(given: Mapping[str, Any]) -> list[int] | None:
    """Return the ranks of the group of a call; None for all."""
    from torch.distributed import distributed_c10d

    group = given.get("group")
    if group is None:
        return None
    try:
        return list(distributed_c10d.get_process_group_ranks(group))
    except (ValueError, KeyError, RuntimeError):
        return None


_OURS = (os.path.dirname(os.path.abspath(__file__)), f"{os.sep}torch{os.sep}", f"{os.sep}contextlib.py")


def _place() -> str:
    """Return the function, file and line of the innermost frame that is neither torch's nor of this recorder."""
    frame: Any = sys._getframe(2)
    while frame is not None and any(part in frame.f_code.co_filename for part in _OURS):
        frame = frame.f_back
    if frame is None:
        return ""
    return f"{frame.f_code.co_name} ({os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno})"


@dataclass(slots=True)
class Collective:
    """One collective of one rank: its number, from 1 on, the call, where it was made, its root, its group.

    left: whether the rank has left it; error: what it raised instead.
    """

    number: int
    call: str
    place: str
    root: int | None = None
    group: tuple[int, ...] | None = None
    left: bool = False
    error: str = ""

    @property
    def waits(self) -> bool:
        """Whether the rank is still in there, as far as it has recorded."""
        return not (self.left or self.error)

    @property
    def words(self) -> str:
        """What it is, for a sentence."""
        return f"collective {self.number}, {self.call} in {self.place}"


@dataclass(frozen=True, slots=True)
class Entered:
    """The collectives of each rank, in the order in which it entered them."""

    ranks: Mapping[int, Sequence[Collective]] = field(default_factory=dict)

    def of(self, rank: int) -> Sequence[Collective]:
        """Return those of one rank."""
        return self.ranks.get(rank, ())

    def waiting(self, rank: int) -> Collective | None:
        """Return the one that a rank is in, if it is in one."""
        return next((each for each in self.of(rank) if each.waits), None)


def read(path: str | Path) -> Entered:
    """Read what `recording` has written, by any number of ranks; a last line that was cut off is left out."""
    ranks: dict[int, list[Collective]] = {}
    try:
        data = Path(path).read_bytes()
    except FileNotFoundError:
        return Entered({})
    for text in data.split(b"\n")[:-1]:
        line = json.loads(text)
        values, mine = line["values"], ranks.setdefault(line["rank"], [])
        if line["event"] == "enter":
            group = tuple(values["group"]) if values["group"] is not None else None
            mine.append(Collective(line["step"], values["call"], values["place"], values["root"], group))
            continue
        for each in mine:
            if each.number == line["step"]:
                each.left, each.error = line["event"] == "leave", values.get("error", "")
    return Entered(ranks)
