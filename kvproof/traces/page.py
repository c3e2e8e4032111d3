"""A trace as one page that needs nothing else: the diagram, what changed in each state, and what was true in which."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvproof.models.trace import Trace, shown
from kvproof.traces.svg import diagram
from kvproof.traces.text import described, diff, printable

if TYPE_CHECKING:
    from kvproof.spec.judge import Judged


def page(trace: Trace, judged: Judged) -> str:
    """Return the page as HTML: no script, nothing from elsewhere, everything escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("kvproof.traces", "."), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        finalize=lambda value: printable(value) if type(value) is str else value,
    )
    states = [("the first state", [f"{name} = {shown(value)}" for name, value in trace.states[0].items()])]
    for number, taken in enumerate(trace.taken, 1):
        by = "" if taken.rank is None else f" by rank {taken.rank}"
        changed = diff(*trace.states[number - 1 : number + 1]) or ["nothing changes"]
        states.append((f"{taken}{by}", changed))
    return environment.get_template("page.html").render(
        trace=trace, judged=judged, diagram=Markup(diagram(trace)), states=states, described=described(trace),
        rigid=[f"{name} = {shown(value)}" for name, value in trace.rigid.items()],
        unknown=[(number, each) for each in judged.truths for number, holds in enumerate(each.states) if holds is None],
    ) + "\n"
