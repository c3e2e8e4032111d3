"""What a load costs on a connector here: prefixes of several lengths are loaded, and a line is fitted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from kvproof import check, connectors
from kvproof.errors import UsageError
from kvproof.models.estimate import Estimate, estimate
from kvproof.rig import Ground, Rig, Unsupported, briefly
from kvproof.runner import Returned

LENGTHS = (1, 2, 4, 8, 16, 32)
"""Chunks of the prefixes that are loaded."""
TIMES = 12
"""How often each is loaded; the first time does not count."""
CHUNK_BYTES = 1 << 20
_WITHIN = 60.0

Progress = Callable[[int, int], None]
Points = list[tuple[float, list[float]]]


def loads(name: str, *, chunk_bytes: int = CHUNK_BYTES, server: str | None = None, device: str = "cpu",
          progress: Progress = lambda done, of: None) -> tuple[str, Points]:
    """Return the version of a connector, and for each length in bytes the seconds that each of its loads took.

    Raises UsageError for a connector that has ranks, or does not hold chunks of this size, and NotOpened where it does
    not work.
    """
    connector = connectors.find(connectors.for_device(name, device))
    if connector.ranks:
        raise UsageError(f"{name} has ranks; measure the connector that each of them has")
    with check.grounds(server, device) as make:
        try:
            ground = make(connector, threading.Event())
        except Unsupported as error:
            raise UsageError(str(error)) from error
        if not ground.described.holds(chunk_bytes):
            raise UsageError(f"{name} holds no chunks of {chunk_bytes} bytes; name another size with --chunk-bytes")
        place = ground.at("measure", chunk_bytes=chunk_bytes, timeout=10.0, chunks=2 * max(LENGTHS))
        with ground.rig(place) as rig:
            return ground.version, _measured(ground, rig, chunk_bytes, progress)


def _measured(ground: Ground, rig: Rig, chunk_bytes: int, progress: Progress) -> Points:
    reads = ground.described.payload_reads()
    read = next((each for each in reads if each.batch), reads[0])
    chunks = [f"{number:08x}" for number in range(max(LENGTHS))]
    for chunk in chunks:
        rig.put((chunk, 1))
    found: dict[int, list[float]] = {length: [] for length in LENGTHS}
    for turn in range(TIMES + 1):
        # All lengths in each turn, so that what else the machine does is in all of them.
        for length in LENGTHS:
            calls = [chunks[:length]] if read.batch else [[chunk] for chunk in chunks[:length]]
            seconds = sum(_load(ground, rig, read.name, call) for call in calls)
            if turn:
                found[length].append(seconds)
        progress(turn + 1, TIMES + 1)
    return [(float(length * chunk_bytes), times) for length, times in found.items()]


def _load(ground: Ground, rig: Rig, read: str, chunks: Sequence[str]) -> float:
    answer = rig.run("kvproof.runner.calls:read", slack=_WITHIN, read=read, chunks=chunks,
                     known=[(chunk, 1) for chunk in chunks])
    said: Any = answer.value if isinstance(answer, Returned) else None
    if said is None or any(each["outcome"] != "hit" for each in said):
        raise UsageError(f"{ground.connector.name}: loading {len(chunks)} chunks by {read}, which are stored: "
                         f"{briefly(answer)}")
    return float(said[0]["seconds"])


def fitted(points: Points) -> Estimate:
    """Return the line through what was measured."""
    return estimate(points)
