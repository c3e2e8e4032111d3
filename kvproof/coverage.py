"""Which kinds of fault are covered by what: docs/coverage.md, drawn from coverage.toml."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import groupby
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".toml")
PAGE = Path(__file__).parents[1] / "docs" / "coverage.md"


@dataclass(frozen=True)
class Kind:
    """A kind of fault, the obligations and replays that stand against it, or why it is out of scope."""

    group: str
    name: str
    obligations: tuple[str, ...] = ()
    replays: tuple[str, ...] = ()
    scope: str = ""


def kinds(path: Path = SOURCE) -> list[Kind]:
    """Read the kinds."""
    return [
        Kind(
            entry["group"],
            entry["name"],
            tuple(entry.get("obligations", ())),
            tuple(entry.get("replays", ())),
            entry.get("scope", ""),
        )
        for entry in tomllib.loads(path.read_text())["kind"]
    ]


def complaints(found: Sequence[Kind], obligations: Sequence[str], replays: Sequence[str]) -> list[str]:
    """Return what is wrong: a kind with nothing against it and no reason, or one that names what does not exist."""
    wrong = []
    for kind in found:
        if not (kind.obligations or kind.replays or kind.scope):
            wrong.append(f"nothing stands against: {kind.name}")
        wrong += [f"{kind.name}: no obligation is {name}" for name in kind.obligations
                  if not any(fnmatchcase(each, name) for each in obligations)]
        wrong += [f"{kind.name}: no replay is {name}" for name in kind.replays if name not in replays]
    return wrong


def page(found: Sequence[Kind]) -> str:
    """Return the page."""
    lines = [
        "# What is covered",
        "",
        "The kinds of fault that public reports of KV-cache connectors and RESP clients show, restated, and what",
        "stands against each: proof obligations (`kvproof prove`), replays of historic bugs (`kvproof replay`), or why",
        "a kind is out of scope. This page is drawn from `kvproof/coverage.toml` by `python -m kvproof.coverage`, and",
        "a test checks both.",
    ]
    for group, members in groupby(found, key=lambda kind: kind.group):
        heading = f"## {group[0].upper()}{group[1:]}"
        lines += ["", heading, "", "| kind of fault | obligations | replays |", "|---|---|---|"]
        for kind in members:
            obligations = ", ".join(f"`{name}`" for name in kind.obligations) or f"out of scope: {kind.scope}"
            lines.append(f"| {kind.name} | {obligations} | {', '.join(f'`{name}`' for name in kind.replays)} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Write the page; return 1 when something is wrong with the kinds."""
    from kvproof.replays import REPLAYS
    from kvproof.spec import library

    found = kinds()
    wrong = complaints(found, [obligation.id for obligation in library.obligations()], list(REPLAYS))
    for line in wrong:
        print(line, file=sys.stderr)
    PAGE.write_text(page(found))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
