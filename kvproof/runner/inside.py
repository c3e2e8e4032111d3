"""What rules do with a connector in its runner: calls from several threads, at once, or while it is closed."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Any

from kvproof.connectors.adapter import Adapter, Failed
from kvproof.faults.spawner import descendants
from kvproof.runner import buffers, calls
from kvproof.runner.child import Session, text_of

_SETTLE = 0.02

_kept: list[tuple[Any, bytes]] = []
"""The buffers of `keep`, and what was in them when their call returned."""
_ours = buffers.Watched()
_cycles: list[dict[str, int]] = []
"""What this process had after each `cycle`."""


def keep(session: Session, read: str, chunks: Sequence[str], known: Sequence[tuple[str, int]], cancel: bool = False
         ) -> list[dict[str, Any]]:
    """Read, or begin to and cancel once the host says so; keep the buffers, and what they held when it returned."""
    connector = session.connector
    how = calls.read_named(connector, read)
    items = calls.poisoned_items(connector, how, chunks)
    begun = time.monotonic()
    if cancel:
        ended = connector.cancel_read(how, items, lambda: session.told("cancel"))
        outcomes = [calls.cancelled([each]) for each in ended] if isinstance(ended, list) else [
            calls.cancelled(ended)] * len(items)
    else:
        try:
            outcomes = connector.read(how, items)
        except Exception as error:
            outcomes = [Failed(_raised(error))] * len(items)
    seconds = time.monotonic() - begun
    calls.checked(outcomes, len(items), f"read by {read}")
    _kept[:] = [(buffer, _bytes(buffer)) for _, buffer in items]
    return [calls.examined(outcome, buffer, known, seconds)
            for outcome, (_, buffer) in zip(outcomes, items, strict=True)]


def _raised(error: Exception) -> str:
    return f"raised {type(error).__name__}: {text_of(error)}"


def _asked(session: Session, read: str, chunk: str, known: Sequence[tuple[str, int]]) -> dict[str, Any]:
    """Read one chunk; what the connector raises is how that ended, as it is for the host in a call of its own."""
    try:
        return calls.read(session, read, [chunk], known)[0]
    except calls.AdapterMistake:
        raise
    except Exception as error:
        return {"outcome": _raised(error), "holds": "?", "exact": False}


def kept(session: Session, known: Sequence[tuple[str, int]]) -> list[str]:
    """Return for each kept buffer "" if it is as it was when its call returned, else what it holds now."""
    return ["" if _bytes(buffer) == before else buffers.content(buffer, known).whose for buffer, before in _kept]


def _bytes(buffer: Any) -> bytes:
    return bytes(buffer) if isinstance(buffer, memoryview) else bytes(buffer.cpu().numpy())


def from_threads(session: Session, reads: Sequence[str], chunks: Sequence[str], known: Sequence[tuple[str, int]],
                 threads: int, times: int) -> list[dict[str, Any]]:
    """Make the same reads from several threads at once, each in an order of its own; return each result."""
    found: list[dict[str, Any]] = []
    barrier = threading.Barrier(threads)

    def work(number: int) -> None:
        barrier.wait(5)
        for turn in range(times):
            chunk = chunks[(number + turn) % len(chunks)]
            name = reads[turn % len(reads)]
            found.append({"thread": number, "read": name, "chunk": chunk, **_asked(session, name, chunk, known)})

    with ThreadPoolExecutor(threads) as pool:
        for future in [pool.submit(work, number) for number in range(threads)]:
            future.result()
    return found


def close_during(session: Session, read: str, chunks: Sequence[str], known: Sequence[tuple[str, int]], within: float
                 ) -> dict[str, Any]:
    """Begin a read, close the connector once the host says so, and tell how both ended within so many seconds."""
    connector = session.connector
    with ThreadPoolExecutor(2) as pool:
        reading = pool.submit(calls.read, session, read, chunks, known)
        session.told("close")
        closing = pool.submit(connector.close)
        begun = time.monotonic()
        both: list[Future[Any]] = [reading, closing]
        wait(both, within)
        told: dict[str, Any] = {"seconds": round(time.monotonic() - begun, 3)}
        for name, future in (("read", reading), ("close", closing)):
            told[name] = _ended(future) if future.done() else "not back"
        session.note(**told)
        if not (reading.done() and closing.done()):
            # Whoever waits for this one waits for ever, as the connector's user would.
            wait(both)
    return told


def _ended(future: Future[Any]) -> str:
    error = future.exception()
    if error is not None:
        return f"raised {type(error).__name__}: {error}"
    return "returned" if future.result() is None else str(future.result()[0]["outcome"])


def cycle(session: Session, place: dict[str, Any], read: str, chunk: str, number: int) -> dict[str, int]:
    """Open, store, read and close once more, and return what this process then has.

    That is its threads, descriptors and the processes below it, the buffers of ours that somebody still holds, and the
    connectors' own that they have lent and not taken back.
    """
    with buffers.watched(_ours):
        calls.open(session, place)
        connector = session.connector
        try:
            _put(session, chunk, number)
            _asked(session, read, chunk, [(chunk, number)])
        finally:
            calls.close(session)
    before = _cycles[-1] if _cycles else None
    _cycles.append(_settled(partial(_footprint, connector, before["lent buffers"] if before else 0), before))
    return _cycles[-1]


def _settled(footprint: Callable[[], dict[str, int]], before: dict[str, int] | None) -> dict[str, int]:
    """Give what ends by itself a second to end: back to what it was before the cycle."""
    until = time.monotonic() + 1.0
    gc.collect()
    while True:
        now = footprint()
        if before is None or all(now[name] <= before[name] for name in now) or time.monotonic() > until:
            return now
        threading.Event().wait(_SETTLE)
        gc.collect()


def _footprint(connector: Adapter, lent: int) -> dict[str, int]:
    return {
        "threads": len(os.listdir("/proc/self/task")), "descriptors": len(os.listdir("/proc/self/fd")),
        "buffers": _ours.held(), "lent buffers": lent + connector.lent(), "processes": len(descendants(os.getpid())),
    }


def overwrite(session: Session, read: str, chunk: str, versions: int, readers: int) -> list[dict[str, Any]]:
    """Overwrite a chunk again and again in one thread and read it in others; return every call with its times."""
    history: list[dict[str, Any]] = []
    known = [(chunk, version) for version in range(1, versions + 1)]
    over = threading.Event()

    def write() -> None:
        try:
            for version in range(2, versions + 1):
                _timed(history, "put", partial(_put, session, chunk, version), version)
        finally:
            over.set()

    def look() -> None:
        while not over.is_set():
            _timed(history, "read", lambda: _asked(session, read, chunk, known))

    with ThreadPoolExecutor(readers + 1) as pool:
        for future in [pool.submit(look) for _ in range(readers)] + [pool.submit(write)]:
            future.result()
    return sorted(history, key=lambda call: float(call["began"]))


def _put(session: Session, chunk: str, version: int) -> str:
    try:
        return calls.put(session, [(chunk, version)])[0]
    except calls.AdapterMistake:
        raise
    except Exception as error:
        return _raised(error)


def _timed(history: list[dict[str, Any]], what: str, call: Callable[[], Any], version: int = 0) -> None:
    began = time.monotonic()
    said = call()
    entry = {"what": what, "version": version, "began": began, "ended": time.monotonic()}
    history.append({**entry, **(said if isinstance(said, dict) else {"outcome": said})})


