"""Worlds of ranks whose buffers are on a GPU, or on the host where there is none."""

from __future__ import annotations

import threading
from collections.abc import Callable

from kvproof import connectors
from kvproof.check import Asked
from kvproof.ranks import check
from kvproof.results import CellRow

LOADS = ("load", "replicated-load")
"""The ways to load that are run: each moves buffers by its own path."""


def run(device: str, progress: Callable[[CellRow], None], stopped: threading.Event,
        faults: tuple[str, ...] = ()) -> list[CellRow]:
    """Try the rules over a world: two ranks on one device by gloo and, where there is a GPU, one of its own by NCCL.

    faults: globs over the disturbances, all when there are none.
    """
    found = [connectors.find("sharded-reference")]
    asked = Asked(faults=faults, reads=LOADS, again=0)
    rows = check.run(found, 2, asked, device=device, progress=progress, stopped=stopped)
    if device == "cuda" and not stopped.is_set():
        rows += check.run(found, 1, asked, device=device, progress=progress, stopped=stopped, backend="nccl")
    return rows
