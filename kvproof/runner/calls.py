"""What a runner does with its connector: describe it, open it, put, read, close."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from importlib import metadata
from typing import Any

from kvproof.connectors.adapter import Adapter, Cancelled, Endpoint, Failed, Hit, Miss, Outcome, Place, Read
from kvproof.connectors.rank_adapter import RankAdapter
from kvproof.faults.spawner import command_of, descendants
from kvproof.models import payloads
from kvproof.runner import buffers
from kvproof.runner.child import Session

CANCELLED = "cancelled"
"""How the reason begins in the outcome of a read that was cancelled."""
_LONGEST = 2000
"""Characters of a reason that are kept."""


class HasRanks(TypeError):
    """What was named is one rank of several, and no connector by itself."""


class AdapterMistake(TypeError):
    """An adapter returned what none may return; the message is for its author."""


def describe(session: Session) -> dict[str, Any]:
    """Return what the adapter declares, as data; raises HasRanks for one of ranks."""
    given: type[Any] = session.adapter_class
    if issubclass(given, RankAdapter):
        raise HasRanks(f"{given.__qualname__} has ranks; say how many with --ranks W")
    adapter = session.adapter_class
    try:
        version: str | None = metadata.version(adapter.distribution)
    except metadata.PackageNotFoundError:
        version = None
    return {
        "name": adapter.name,
        "distribution": adapter.distribution,
        "version": version,
        "reads": [{"name": r.name, "payload": r.payload, "batch": r.batch, "sync": r.sync} for r in adapter.reads],
        "capabilities": sorted(adapter.capabilities),
        "truth": adapter.truth,
        "payload": [adapter.payload.smallest, adapter.payload.largest, adapter.payload.step],
        "devices": list(adapter.devices),
        "abandons": adapter.abandons,
        "masks": adapter.masks,
        "deadline": adapter.deadline,
        "recovery": adapter.recovery,
    }


def cuda(session: Session) -> str:
    """Return "yes" when there is a CUDA device for buffers, else why not."""
    return buffers.cuda()


def open(session: Session, place: dict[str, Any], masked: bool = False) -> None:
    """Open the connector at `place`, the fields of an `adapter.Place`; with `masked`, keep its known bug away."""
    endpoint = Endpoint(**place["endpoint"])
    session.adapter = session.adapter_class(Place(**{**place, "endpoint": endpoint}))
    if masked:
        session.mask.enter_context(session.adapter.masked())


def put(session: Session, chunks: Sequence[tuple[str, int]], begins: str = "") -> list[str]:
    """Store each (chunk, version) with its coded payload; return one outcome a chunk, in words.

    begins: what each payload begins with in place of its own first bytes, one Latin-1 character a byte.
    """
    connector = session.connector
    outcomes = connector.put([payload_item(connector, chunk, version, begins) for chunk, version in chunks])
    checked(outcomes, len(chunks), "put")
    return [words(outcome) for outcome in outcomes]


def read(
    session: Session, read: str, chunks: Sequence[str], known: Sequence[tuple[str, int]] = (), begins: str = ""
) -> list[dict[str, Any]]:
    """Read each chunk into a poisoned buffer; return for each what the connector said and what the buffer holds.

    `known` are the (chunk, version) pairs that exist, for naming what was found; begins: as in `put`.
    """
    connector = session.connector
    how = read_named(connector, read)
    items = poisoned_items(connector, how, chunks)
    begun = time.monotonic()
    outcomes = connector.read(how, items)
    seconds = time.monotonic() - begun
    checked(outcomes, len(items), f"read by {read}")
    return [
        examined(outcome, buffer, known, seconds, begins)
        for outcome, (_, buffer) in zip(outcomes, items, strict=True)
    ]


def close(session: Session) -> dict[str, Any]:
    """Close the connector; return the threads and the processes that it leaves behind."""
    session.mask.close()
    if session.adapter is not None:
        session.adapter.close()
        session.adapter = None
    return {
        "threads": [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()],
        "processes": [command_of(pid) for pid in descendants(os.getpid())],
    }


def read_named(connector: Adapter, name: str) -> Read:
    """Return the declared read of that name."""
    for how in connector.reads:
        if how.name == name:
            return how
    raise LookupError(f"{connector.name} declares no read {name!r}")


def poisoned_items(connector: Adapter, how: Read, chunks: Sequence[str]) -> list[tuple[Any, Any]]:
    """Return (key, poisoned buffer) for each chunk; the buffers are empty for a read without payload."""
    place = connector.place
    size = place.chunk_bytes if how.payload else 0
    return [(place.key(chunk), buffers.poisoned(size, place.device)) for chunk in chunks]


def payload_item(connector: Adapter, chunk: str, version: int, begins: str = "") -> tuple[Any, Any]:
    """Return (key, buffer with the coded payload) for a chunk to be stored."""
    place = connector.place
    data = payloads.encode(chunk, version, place.chunk_bytes, begins.encode("latin-1"))
    return place.key(chunk), buffers.filled(data, place.device)


def examined(
    outcome: Outcome, buffer: Any, known: Sequence[tuple[str, int]], seconds: float, begins: str = ""
) -> dict[str, Any]:
    """Return an outcome, what its buffer holds and how long the call took, as data."""
    found = buffers.content(buffer, [(chunk, version) for chunk, version in known], begins.encode("latin-1"))
    return {
        "outcome": words(outcome),
        "holds": found.whose,
        "exact": found.exact,
        "first_wrong": found.first_wrong,
        "seconds": round(seconds, 3),
    }


def checked(outcomes: object, chunks: int, what: str) -> None:
    """Raise AdapterMistake, in words for the adapter's author, unless there is a list with one outcome a chunk."""
    if not isinstance(outcomes, list) or len(outcomes) != chunks:
        expected = "expected a list with one outcome a chunk"
        raise AdapterMistake(f"{what} of {chunks} chunks returned {_shown(outcomes)}; {expected}")
    for outcome in outcomes:
        words(outcome)


def cancelled(ended: object) -> Outcome:
    """Return what `Adapter.cancel_read` said as the outcome of its chunk; raises AdapterMistake for anything else."""
    if isinstance(ended, Cancelled):
        return Failed(f"{CANCELLED}: {ended.words}")
    checked(ended, 1, "cancel_read")
    assert isinstance(ended, list)
    found: Outcome = ended[0]
    return found


def words(outcome: object) -> str:
    """Return "hit", "miss" or "failed: reason"; raises AdapterMistake for what is no outcome."""
    match outcome:
        case Hit():
            return "hit"
        case Miss():
            return "miss"
        case Failed(reason=reason):
            return f"failed: {str(reason)[:_LONGEST]}"
    raise AdapterMistake(f"expected an outcome (Hit(), Miss() or Failed(reason)), got {_shown(outcome)}")


def _shown(value: object) -> str:
    """Return what an adapter gave, however badly it says what it is."""
    try:
        return repr(value)[:_LONGEST]
    except Exception:
        return f"a {type(value).__name__} whose __repr__ raises"
