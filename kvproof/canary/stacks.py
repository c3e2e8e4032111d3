"""Where a Python process was when it was ended: what faulthandler prints, read."""

from __future__ import annotations

import re

from kvproof.canary.tree import Process

_ABORTED = "Fatal Python error: Aborted"
"""What a Python process says that the canary has asked where it is."""
_FRAME = re.compile(r'File "([^"]+)", line (\d+) in (\S+)')
_LIBRARY = re.compile(r"/lib(?:64)?/python3\.\d+/(?!site-packages|dist-packages)|<frozen ")
"""What is in the path of a module of Python's own."""


def threads(process: Process) -> list[list[str]]:
    """Return the frames of each thread, the innermost first; the thread that was running first."""
    return [[_said(frame) for frame in thread] for thread in _threads(process)]


def places(process: Process) -> list[str]:
    """Return where each thread was: in the innermost frame that is not of Python's own library, and what it called."""
    found = []
    for thread in _threads(process):
        own = next((frame for frame in thread if not _LIBRARY.search(frame[0])), thread[0])
        found.append(_said(own) if own is thread[0] else f"{_said(own)}, in {_said(thread[0])}")
    return found


def place(process: Process) -> str:
    """Return where its running thread was; "" where that is not known."""
    return next(iter(places(process)), "")


def _threads(process: Process) -> list[list[tuple[str, str, str]]]:
    text = process.text()
    at = text.rfind(_ABORTED)
    found: list[list[tuple[str, str, str]]] = []
    for block in re.split(r"\n(?=(?:Current thread|Thread) 0x)", text[at:])[1:] if at >= 0 else ():
        frames = _FRAME.findall(block)
        if frames:
            found.insert(0, frames) if block.startswith("Current") else found.append(frames)
    return found


def _said(frame: tuple[str, str, str]) -> str:
    path, line, name = frame
    return f"{name} ({path.rpartition('/')[2]}:{line})"
