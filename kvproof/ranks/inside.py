"""What a runner does with its rank: describe it, open it, store, look up, load, rebuild, close."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass, field
from importlib import metadata
from typing import Any

from kvproof.connectors.adapter import Endpoint, Place
from kvproof.connectors.rank_adapter import RankAdapter, RankPlace, StepAborted
from kvproof.faults.spawner import command_of, descendants
from kvproof.models import payloads
from kvproof.ranks import collectives
from kvproof.runner import buffers, calls
from kvproof.runner.child import Session


@dataclass(frozen=True, slots=True)
class Strike:
    """A disturbance inside of a rank: what it does at the `match`-th passing of a seam once it is armed.

    seam: one of the adapter's own, or "collective", before one is entered. does: "raise", "no-memory", "kill", "end"
    (of the thread) or "hold" (until `release`).
    """

    seam: str
    does: str
    match: int = 1


@dataclass
class _Open:
    """The rank that is open in this process."""

    rank: RankAdapter
    recording: ExitStack = field(default_factory=ExitStack)


_open: list[_Open] = []
_armed: list[Strike] = []
_passed = 0
_seen: set[str] = set()
_released = threading.Event()
_HELD = 30.0
"""Seconds after which what is held goes on by itself."""


def describe(session: Session) -> dict[str, Any]:
    """Return what the adapter declares, as data."""
    adapter = _adapter(session)
    try:
        version: str | None = metadata.version(adapter.distribution)
    except metadata.PackageNotFoundError:
        version = None
    return {
        "name": adapter.name, "distribution": adapter.distribution, "version": version,
        "loads": [asdict(load) for load in adapter.loads], "devices": list(adapter.devices),
        "exchanges": adapter.exchanges, "rebuilds": adapter.rebuilds, "layouts": adapter.layouts,
        "records": adapter.records, "memory": adapter.memory,
    }


def open(session: Session, place: dict[str, Any], entered: str) -> None:
    """Open a rank at `place`, the fields of a `RankPlace`.

    entered: where collectives are recorded; "" where the ranks have none.
    """
    inner = Place(**{**place["place"], "endpoint": Endpoint(**place["place"]["endpoint"])})
    where = RankPlace(**{**place, "place": inner, "owners": tuple(place["owners"]), "cost": tuple(place["cost"])})
    recording = ExitStack()
    adapter = _adapter(session)
    if entered:
        recording.enter_context(_recorded(session, entered, inner.rank))
    rank = adapter(where)
    _open.append(_Open(rank, recording))
    for name, (owner, method) in rank.seams().items():
        setattr(owner, method, _seamed(session, name, getattr(owner, method)))


def store(session: Session, chunks: Sequence[tuple[str, int]], parts: bool = False) -> list[str]:
    """Store a prompt, of which each chunk has its coded payload; return one outcome a chunk, in words.

    parts: whether each rank has a part of its own of every chunk.
    """
    rank = current()
    place = rank.place.place
    items = [(chunk, buffers.filled(payloads.encode(_payload(chunk, place.rank, parts), version, place.chunk_bytes),
                                    place.device))
             for chunk, version in chunks]
    outcomes = rank.store(items)
    calls.checked(outcomes, len(items), "store")
    return [calls.words(outcome) for outcome in outcomes]


def lookup(session: Session, chunks: Sequence[str]) -> int | None:
    """Return how many leading chunks the rank promises."""
    return current().lookup(chunks)


def schedule(session: Session, reports: Sequence[int]) -> int:
    """Return how many leading chunks are promised to the engine."""
    return current().scheduler(reports)


def load(
    session: Session, chunks: Sequence[str], known: Sequence[tuple[str, int]], parts: bool = False
) -> dict[str, Any]:
    """Load chunks into poisoned buffers; return how many are used, and what each buffer holds.

    `known` are the (chunk, version) pairs that exist, for naming what was found; with `parts`, each of as many parts
    as there are ranks, of which the rank's own is called as the chunk is. aborted: why the step was given up.
    """
    rank = current()
    place = rank.place.place
    items = [(chunk, buffers.poisoned(place.chunk_bytes, place.device)) for chunk in chunks]
    begun, uses, aborted = time.monotonic(), 0, ""
    try:
        uses = rank.load(items)
    except StepAborted as error:
        aborted = str(error) or type(error).__name__
    seconds = time.monotonic() - begun
    if not isinstance(uses, int) or not 0 <= uses <= len(chunks):
        raise calls.AdapterMistake(f"load of {len(chunks)} chunks returned {uses!r}; expected how many are used")
    ranks = range(place.world_size) if parts else range(1)
    pairs = [(_payload(chunk, other, parts), version) for chunk, version in known for other in ranks]
    held = [buffers.content(buffer, pairs) for _, buffer in items]
    return {"uses": uses, "aborted": aborted, "seconds": round(seconds, 3),
            "holds": [each.whose.replace(_payload("", place.rank, parts), "") for each in held],
            "exact": [each.exact for each in held]}


def arm(session: Session, seam: str, does: str, match: int = 1) -> None:
    """Let a disturbance strike from now on, once."""
    global _passed
    _passed = 0
    _released.clear()
    _armed[:] = [Strike(seam, does, match)]


def passed(session: Session) -> list[str]:
    """Return the seams that were passed since this was asked for the last time."""
    names = sorted(_seen)
    _seen.clear()
    return names


def release(session: Session) -> None:
    """Let go on what is held."""
    _released.set()


def rebuild(session: Session, rendezvous: str, entered: str, log: str) -> None:
    """Join a new group, whose collectives are recorded anew."""
    opened, rank = _open[-1], current()
    opened.recording.close()
    opened.recording = ExitStack()
    if entered:
        opened.recording.enter_context(_recorded(session, entered, rank.place.place.rank))
    rank.rebuild(rendezvous, log)


def footprint(session: Session) -> dict[str, int]:
    """Return how many threads and descriptors this process has."""
    gc.collect()
    return {"threads": threading.active_count(), "descriptors": len(os.listdir("/proc/self/fd"))}


def close(session: Session) -> dict[str, Any]:
    """Close the rank; return the threads and the processes that it leaves behind."""
    opened = _open.pop()
    opened.rank.close()
    opened.recording.close()
    return {
        "threads": [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()],
        "processes": [command_of(pid) for pid in descendants(os.getpid())],
    }


def _payload(chunk: str, rank: int, parts: bool) -> str:
    """Return the name that is coded into what a rank stores of a chunk."""
    return f"{chunk} of worker {rank}" if parts else chunk


def _recorded(session: Session, path: str, rank: int) -> AbstractContextManager[None]:
    return collectives.recording(path, rank, lambda number: _passing(session, "collective"))


def _adapter(session: Session) -> type[RankAdapter]:
    found: type[Any] = session.adapter_class
    if not issubclass(found, RankAdapter):
        raise TypeError(f"{found.__qualname__} is no RankAdapter")
    return found


def current() -> RankAdapter:
    """Return the rank that is open in this process."""
    if not _open:
        raise RuntimeError("no rank is open in this process")
    return _open[-1].rank


def _seamed(session: Session, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    def passed(*arguments: Any, **named: Any) -> Any:
        _passing(session, name)
        return method(*arguments, **named)

    return passed


def _passing(session: Session, name: str) -> None:
    """Strike, if what is armed is due at this seam now."""
    global _passed
    _seen.add(name)
    if not _armed or _armed[0].seam != name:
        return
    _passed += 1
    if _passed != _armed[0].match:
        return
    strike = _armed.pop()
    session.note(struck=asdict(strike))
    if strike.does == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if strike.does == "end":
        raise SystemExit
    if strike.does == "hold":
        _released.wait(_HELD)
        return
    if strike.does == "no-memory":
        raise MemoryError(f"kvproof: no memory at {name}")
    raise RuntimeError(f"kvproof: an exception at {name}")
