"""A trace as a pytest module of its own, which says what the trace is worth today."""

from __future__ import annotations

import re
from pathlib import Path

from kvproof.errors import UsageError
from kvproof.models.trace import Trace, printable

_MODULE = '''"""A trace that `kvproof replay TRACE --pytest` wrote; it needs kvproof and the system."""

from pathlib import Path

from kvproof.models.trace import Trace
from kvproof.spec.judge import judge

TRACE = r"""
{trace}"""


def test_{name}() -> None:
    judged = judge(Trace.from_itf(TRACE), beside=Path(__file__).parent)
    {body}
'''
_RUN = '''assert judged.refusal is None, (
        f"no run any more, refused at {judged.refusal}: if the protocol was mended, write this test again")'''
_ENDS = '''
    assert judged.ends, "it is still a run, and does not end as it did: the claim was changed"'''
_REFUSED = 'assert judged.refusal is not None, "the protocol allows this run (again)"'


def module(trace: Trace, beside: Path) -> tuple[str, str]:
    """Return in words what the test asserts, and the text of the module.

    A trace that is a run has to stay one that ends where the claim fails (a witness: where the claim speaks of
    something); one that is refused by now, the protocol being mended, has to stay refused. Raises UsageError for a run
    that does neither.
    """
    from kvproof.spec.judge import judge

    judged = judge(trace, beside)
    parts = [part for part in (trace.claim, trace.mutant, trace.role) if part]
    about = re.sub(r"\W+", "_", "_".join(parts), flags=re.ASCII).lower()
    if judged.refusal is not None:
        told, name, body = f"it is refused at {judged.refusal}", "is_refused", _REFUSED
    elif judged.ends is None:
        told, name, body = "it is a run of its system", "is_a_run", _RUN
    elif judged.ends:
        says = "reaches what the claim speaks of" if trace.role == "witness" else "ends where the claim fails"
        told, name, body = f"it is a run that {says}", says.replace(" ", "_"), _RUN + _ENDS
    else:
        raise UsageError(f"{trace.subject} is a run that does not end as it says, so there is nothing to assert; "
                         "prove the claim again and take its trace")
    # JSON in ASCII ends no raw string: it has no three quotes in a row, and its last letter is no backslash.
    return printable(told), _MODULE.format(trace=trace.to_itf(), name=f"{about or 'the_trace'}_{name}", body=body)
