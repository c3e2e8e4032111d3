"""The contract's results for people at a terminal: the table of rules, and every cause with its least cell."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Sequence

from kvproof.causes import causes
from kvproof.report import COLOURS, console, kind_of, last_line
from kvproof.results import INCONCLUSIVE, CellRow, Results
from kvproof.traces.text import printable
from kvproof.witnesses import again


def table(results: Results, *, width: int | None = None) -> str:
    """Return the table of rules by connectors, every cause of failure with its least cell, and the sum."""
    from rich.table import Table
    from rich.text import Text

    out = io.StringIO()
    screen = console(out, width)
    connectors_ = list(dict.fromkeys(row.connector for row in results.cells))
    view = Table(title="The contract", title_justify="left", box=None, pad_edge=False)
    view.add_column("rule", no_wrap=True)
    for name in connectors_:
        view.add_column(name)
    for rule in dict.fromkeys(row.rule for row in results.cells):
        fields = [_counted([row for row in results.cells if (row.rule, row.connector) == (rule, name)])
                  for name in connectors_]
        view.add_row(rule, *[Text(text, style) for text, style in fields])
    if results.cells:
        screen.print(view)
    for number, cause in enumerate(causes(results.cells), 1):
        least = cause.rows[0]
        screen.print()
        count = f"{len(cause.rows)} cells" if len(cause.rows) > 1 else "1 cell"
        rate = f", {least.rate:.0%} of tries" if least.rate is not None else ""
        listed = ", known" if cause.known else ""
        head = f"{number}. {cause.connector}: {', '.join(cause.rules)} ({count}{rate}{listed})"
        screen.print(Text(head, COLOURS["known" if cause.known else "finding"]))
        screen.print(Text(f"  {printable(least.id)}: {least.verdict}"))
        screen.print(Text(f"  {printable(least.explain)}"))
        for frame in least.evidence.get("stack", [])[:4]:
            screen.print(Text(f"    {printable(frame)}", "dim"))
        screen.print(Text(f"  again: {again(least)}"), soft_wrap=True)
    unsure = [row for row in results.cells if row.verdict in INCONCLUSIVE]
    for row in unsure[:20]:
        screen.print()
        screen.print(Text(f"{row.connector} {printable(row.id)}: {row.verdict}: {printable(row.explain)}",
                           COLOURS["inconclusive"]))
    if len(unsure) > 20:
        screen.print(Text(f"and {len(unsure) - 20} more that could not tell", COLOURS["inconclusive"]))
    for complaint in results.complaints:
        screen.print()
        screen.print(Text(f"known file of {complaint.connector}, {complaint.entry}: {complaint.problem}", "bold red"))
    masked = {row.connector: row.masked for row in results.cells if row.masked}
    for name, bug in masked.items():
        screen.print()
        screen.print(Text(f"{name}: masked: {bug} (kept from striking, so that the rest can be judged)"))
    screen.print()
    counts = Counter(row.verdict + (" (known)" if row.known else "") for row in results.cells)
    screen.print(Text(last_line(results, counts)))
    return out.getvalue()


def _counted(rows: Sequence[CellRow]) -> tuple[str, str]:
    """Return how many of a rule's cells ended how, and in which colour the worst of them is."""
    counts = Counter(row.verdict + (" known" if row.known else "") for row in rows)
    kinds = {kind_of(row) for row in rows}
    worst = next((kind for kind in ("finding", "inconclusive", "known", "neutral", "pass") if kind in kinds), "neutral")
    return ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items())), COLOURS[worst]
