"""Traces from files, and the views of a trace: one module each, drawn from the trace and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

from kvproof.errors import UsageError
from kvproof.models.trace import Trace, printable


def read(path: Path) -> Trace:
    """Return the trace in a file; raises UsageError, in one line, when it cannot be read or holds no trace."""
    try:
        return Trace.from_itf(path.read_text())
    except OSError as error:
        hint = ""
        if path.suffix != ".json" and re.fullmatch(r"[\w-]+\.[\w.*-]+", str(path)):
            hint = f"; `kvproof prove {path} --traces DIR` writes the traces of an obligation"
        raise UsageError(f"cannot read {path}: {error.strerror}; expected a trace as ITF JSON{hint}") from error
    except ValueError as error:
        raise UsageError(f"{path}: {error}") from error


def checked(trace: Trace, beside: Path) -> tuple[bool, str]:
    """Return whether a trace is a run of its system that ends as it says, and the sentence for it."""
    from kvproof.spec.judge import judge

    judged = judge(trace, beside)
    if judged.refusal is not None:
        return False, printable(f"{trace.subject}: refused at {judged.refusal}")
    steps = f"{len(trace.taken)} step{'' if len(trace.taken) == 1 else 's'}"
    told = printable(f"{trace.subject}: begins in an initial state, and each of its {steps} is allowed")
    if judged.ends is None:
        return True, told
    ends = {"witness": "reaches what the claim speaks of"}.get(trace.role, "ends where the claim fails")
    if not judged.ends:
        return False, f"{told}; but it is not true that it {ends}"
    return True, f"{told}; it {ends}"
