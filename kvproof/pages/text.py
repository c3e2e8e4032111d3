"""Text of third parties on a page: bounded first, then printable, however long or hostile it is."""

from __future__ import annotations

import json
from typing import Any

from kvproof.traces.text import printable

LINE = 400
"""Letters of one line that are shown."""
LINES = 160
"""Lines of one piece of evidence that are shown."""


def line(value: Any, letters: int = LINE) -> str:
    """Return a value as one printable line, cut to so many letters."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    cut = text[:letters]
    return (cut if cut.isprintable() else printable(cut)) + ("…" if len(text) > letters else "")


def lines(value: Any, most: int = LINES) -> list[str]:
    """Return a text, a list or anything else as printable lines; of too many the last ones, after a line that says so.

    A list gives one line an entry, whatever is in it.
    """
    if isinstance(value, str):
        # Only the end is looked at: a text may be megabytes.
        end = value[-most * LINE :]
        found: list[Any] = end.replace("\r\n", "\n").replace("\r", "\n").removesuffix("\n").split("\n") if end else []
        cut = len(end) < len(value)
    else:
        found, cut = (value if isinstance(value, list) else [value]), False
    if len(found) > most or cut:
        found = ["… what came before is left out", *found[-most:]]
    return [line(each) for each in found]
