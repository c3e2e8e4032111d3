"""Which kinds of fault are covered by what: docs/coverage.md, drawn from coverage.toml."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvproof.spec.obligation import Obligation

SOURCE = Path(__file__).with_suffix(".toml")
PAGE = Path(__file__).parents[1] / "docs" / "coverage.md"


@dataclass(frozen=True)
class Kind:
    """A kind of fault, the obligations, replays and rules that stand against it, or why none does.

    scope: why it is out of scope. later: what will stand against it.
    """

    group: str
    name: str
    obligations: tuple[str, ...] = ()
    replays: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    scope: str = ""
    later: str = ""


def kinds(path: Path = SOURCE) -> list[Kind]:
    """Read the kinds."""
    return [
        Kind(
            entry["group"],
            entry["name"],
            tuple(entry.get("obligations", ())),
            tuple(entry.get("replays", ())),
            tuple(entry.get("rules", ())),
            entry.get("scope", ""),
            entry.get("later", ""),
        )
        for entry in tomllib.loads(path.read_text())["kind"]
    ]


def mistakes(subjects: Mapping[str, str], obligations: Sequence[Obligation]) -> list[str]:
    """Return the lines of the table of named mistakes; subjects: the test that makes one of a subject in its model."""
    lines = []
    for obligation in obligations:
        subject = obligation.id.partition(".")[0]
        for mutant in obligation.mutants:
            made = f"`{subjects[subject].format(obligation=obligation.id, mutant=mutant.id)}`"
            lines.append(f"| {mutant.says} | `{mutant.id}` | `{obligation.id}` | {mutant.consequence} | {made} |")
    return lines


def made_by(path: Path = SOURCE) -> dict[str, str]:
    """Return the test that makes a named mistake of a subject in its model, by subject."""
    return dict(tomllib.loads(path.read_text())["mistakes"])


def complaints(
    found: Sequence[Kind], obligations: Sequence[str], replays: Sequence[str], rules: Sequence[str]
) -> list[str]:
    """Return what is wrong: a kind with nothing against it and no reason, or one that names what does not exist."""
    wrong = []
    for kind in found:
        if not (kind.obligations or kind.replays or kind.rules or kind.scope or kind.later):
            wrong.append(f"nothing stands against: {kind.name}")
        wrong += [f"{kind.name}: no obligation is {name}" for name in kind.obligations
                  if name not in obligations]
        wrong += [f"{kind.name}: no replay is {name}" for name in kind.replays if name not in replays]
        wrong += [f"{kind.name}: no rule is {name}" for name in kind.rules if name not in rules]
    return wrong


def page(found: Sequence[Kind], subjects: Mapping[str, str], ours: Sequence[Obligation]) -> str:
    """Return the page."""
    designs = sum(bool(kind.obligations) for kind in found)
    real = sum(bool(kind.replays or kind.rules) for kind in found)
    lines = [
        "# What is covered",
        "",
        "The kinds of fault that public reports of KV-cache connectors and RESP clients show, restated, and what",
        "stands against each: proof obligations (`kvproof prove ID --explain` shows one with the mistakes it rules",
        "out), replays of historic bugs (`kvproof replay BUG -c NAME`), rules of the contract (`kvproof check -c NAME",
        "--rule RULE`), or why nothing does.",
        "",
        "An obligation proves a design; it says nothing of a connector's code. Replays and rules are run against real",
        f"ones. Of the {len(found)} kinds {designs} are ruled out in a design, {real} are provoked on real connectors.",
        "",
        "This page is drawn from `kvproof/coverage.toml` by `python -m kvproof.coverage`; a test checks that every",
        "name in it exists and that the page is the latest.",
    ]
    for group, members in groupby(found, key=lambda kind: kind.group):
        heading = f"## {group[0].upper()}{group[1:]}"
        lines += ["", heading, "", "| kind of fault | obligations | replays | rules |", "|---|---|---|---|"]
        for kind in members:
            nothing = f"not yet: {kind.later}" if kind.later else f"out of scope: {kind.scope}"
            obligations, replays, rules = (
                ", ".join(f"`{name}`" for name in names) for names in (kind.obligations, kind.replays, kind.rules))
            first = obligations or ("" if replays or rules else nothing)
            lines.append(f"| {kind.name} | {first} | {replays} | {rules} |")
    lines += [
        "", "## Named mistakes", "",
        "Each mistake that an obligation refutes (`kvproof prove OBLIGATION --explain` shows the run), what comes of",
        "it, and the test in which it is made in the executable model and killed by what the model promises, in words",
        "that share nothing with the formulas: `python -m pytest 'TEST'`.", "",
        "| mistake | mutant | obligation | what comes of it | made in the model by |", "|---|---|---|---|---|",
        *mistakes(subjects, ours),
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Write the page; return 1 when something is wrong with the kinds."""
    from kvproof.contract import claims
    from kvproof.replays import REPLAYS
    from kvproof.spec import library

    found, ours = kinds(), library.obligations()
    wrong = complaints(found, [obligation.id for obligation in ours], list(REPLAYS), list(claims()))
    for line in wrong:
        print(line, file=sys.stderr)
    PAGE.write_text(page(found, made_by(), ours))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
