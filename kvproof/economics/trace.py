"""A trace of requests from a file."""

from __future__ import annotations

from pathlib import Path

from kvproof.errors import UsageError
from kvproof.models.requests import Request, parsed, prefixes_differ


def read(path: Path) -> list[Request]:
    """Return the requests of a trace, in the order of their arrival; raises UsageError, in one line."""
    try:
        with path.open("rb") as file:
            return parsed(file, path)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}; expected a trace of JSON lines") from error


def of_prefixes(path: Path) -> list[Request]:
    """Return the same of a trace whose equal blocks are equal prefixes; raises UsageError where they are not."""
    found = read(path)
    why = next(prefixes_differ(found), "")
    if why:
        raise UsageError(f"{path}: {why}; expected hash_ids that are equal for equal prefixes only")
    return found
