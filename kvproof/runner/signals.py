"""What campaigns do inside of a runner: note which lines of the adapter run, and choose the order of asyncio loops.

Both are begun before the connector is opened.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from kvproof.connectors import adapter, rank_adapter
from kvproof.faults import seeded_order
from kvproof.faults.gates import INSTALLING
from kvproof.runner.child import Session

_lines: set[tuple[str, int]] = set()
_loops = 0


def follow(session: Session) -> None:
    """Take note from now on of the lines of the adapter's own modules that run in the thread that makes the calls.

    Other threads are not followed: a trace that two threads begin at once can end a thread.
    """
    bases = {adapter.__file__, rank_adapter.__file__}
    modules = [sys.modules[kind.__module__] for kind in session.adapter_class.__mro__ if kind is not object]
    files = {str(module.__file__) for module in modules if getattr(module, "__file__", None)} - bases
    names = {file: os.path.basename(file) for file in files}

    def called(frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
        name = names.get(frame.f_code.co_filename)
        if name is None:
            return None

        def ran(frame: FrameType, event: str, argument: Any) -> Callable[..., Any]:
            _lines.add((name, frame.f_lineno))
            return ran

        return ran

    with INSTALLING:
        sys.settrace(called)


def seen(session: Session) -> list[tuple[str, int]]:
    """Return the lines that ran, each with the name of its file."""
    return sorted(_lines)


def shuffle(session: Session, seed: int) -> None:
    """Let asyncio loops that are made from now on run what is ready in an order that is this seed's."""
    asyncio.set_event_loop_policy(seeded_order.policy(seed, _made))


def _made() -> None:
    global _loops
    _loops += 1


def loops(session: Session) -> int:
    """Return how many loops were made since they are shuffled."""
    return _loops
