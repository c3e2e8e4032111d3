"""The fields of the matrix, connectors by rules: what each says, and the causes behind what was found there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from kvproof.causes import innermost, words
from kvproof.pages.documents import Run
from kvproof.pages.text import line
from kvproof.results import INCONCLUSIVE, NEUTRAL, CellRow, is_finding
from kvproof.witnesses import again

Kind = Literal["finding", "intermittent", "inconclusive", "known", "neutral", "pass"]
KINDS: tuple[Kind, ...] = ("finding", "intermittent", "inconclusive", "known", "neutral", "pass")
"""What a row may mean for its run, the worst first."""
_LETTERS = {"fail": "F", "hang": "H", "crash": "C", "leak": "L", "reproduced": "R", "refuted": "R", "toothless": "T",
            "vacuous": "V", "unsupported": "-"}


def kind_of(verdict: str, known: bool = False, rate: float | None = None) -> Kind:
    """Return what a verdict means; what could not tell is never anything better than inconclusive."""
    if is_finding(verdict):
        return "known" if known else "finding" if rate is None else "intermittent"
    if verdict in NEUTRAL:
        return "neutral"
    return "inconclusive" if verdict in INCONCLUSIVE else "pass"


def letter_of(verdict: str) -> str:
    """Return the letter or sign of a verdict, so that its colour is never all that tells it."""
    means = kind_of(verdict)
    return "✓" if means == "pass" else "?" if means == "inconclusive" else _LETTERS.get(verdict, "!")


@dataclass
class Shown:
    """A cell, where it stands on the page, and how another run's same cell ended if it ended differently."""

    id: str
    row: CellRow
    before: str = ""
    evidence: str | None = None

    @property
    def kind(self) -> Kind:
        """What it means for its run."""
        return kind_of(self.row.verdict, self.row.known, self.row.rate)

    @property
    def cause(self) -> str:
        """What tells its cause from others."""
        return line(words(self.row))

    @property
    def replay(self) -> str:
        """The command that tries it again."""
        return line(again(self.row), 2000)


@dataclass
class Group:
    """Cells of one field that share a cause: one finding."""

    kind: Kind
    verdict: str
    cause: str
    cells: list[Shown]

    @property
    def told(self) -> str:
        """What happened, in the words of the first cell."""
        return line(self.cells[0].row.explain)

    @property
    def place(self) -> str:
        """Where all of them are stuck, if they are."""
        return line(innermost(self.cells[0].row))

    @property
    def rates(self) -> str:
        """The shares of tries that ended so, where tries ended differently."""
        rates = sorted({round(100 * cell.row.rate) for cell in self.cells if cell.row.rate is not None})
        return "" if not rates else f"{rates[0]}%" if len(rates) == 1 else f"{rates[0]}-{rates[-1]}%"


@dataclass(frozen=True)
class Column:
    """A connector as one run met it."""

    run: int
    connector: str
    version: str
    device: str
    ranks: int
    server: str


@dataclass
class Field:
    """One connector under one rule: its cells, and their groups, the worst first."""

    id: str
    column: Column
    rule: str
    cells: list[Shown] = field(default_factory=list)

    @property
    def groups(self) -> list[Group]:
        """What was found, could not tell or was not supported, by cause."""
        found: dict[tuple[Kind, str], Group] = {}
        for cell in self.cells:
            if cell.kind != "pass":
                cause = cell.cause
                group = found.setdefault((cell.kind, cause), Group(cell.kind, cell.row.verdict, cause, []))
                group.cells.append(cell)
        return sorted(found.values(), key=lambda group: (KINDS.index(group.kind), -len(group.cells)))

    @property
    def passes(self) -> list[Shown]:
        """The cells that pass."""
        return [cell for cell in self.cells if cell.kind == "pass"]

    @property
    def kinds(self) -> list[Kind]:
        """What is in it, the worst first."""
        there = {cell.kind for cell in self.cells}
        return [kind for kind in KINDS if kind in there]

    @property
    def counts(self) -> list[tuple[Kind, str, int, str]]:
        """Kind, verdict, number of cells and rate, the worst first."""
        counts = Counter((cell.kind, cell.row.verdict) for cell in self.cells)
        found = []
        for (kind, verdict), count in sorted(counts.items(), key=lambda one: (KINDS.index(one[0][0]), one[0][1])):
            those = [cell for cell in self.cells if (cell.kind, cell.row.verdict) == (kind, verdict)]
            rate = Group(kind, verdict, "", those).rates if kind in ("intermittent", "known") else ""
            found.append((kind, verdict, count, rate))
        return found

    @property
    def changed(self) -> int:
        """How many of its cells ended otherwise in an earlier run."""
        return sum(bool(cell.before) for cell in self.cells)


@dataclass
class Matrix:
    """All fields: the columns, those of one connector side by side; the rules; the fields that there are."""

    columns: list[Column]
    rules: list[str]
    fields: dict[tuple[Column, str], Field]

    def ordered(self) -> list[Field]:
        """Return the fields, a connector and its rules after the other."""
        return [self.fields[column, rule] for column in self.columns for rule in self.rules
                if (column, rule) in self.fields]


def matrix(runs: Sequence[Run], order: Iterable[str]) -> Matrix:
    """Return the matrix of several runs; order: of the rules that are known, others come last."""
    fields: dict[tuple[Column, str], Field] = {}
    ended: dict[tuple[str, str, str], tuple[int, str]] = {}
    for run in runs:
        for number, row in enumerate(run.cells, 1):
            column = Column(run.number, row.connector, row.version, row.where.device, row.where.ranks,
                            row.where.server)
            there = fields.setdefault((column, row.rule), Field(f"f{len(fields) + 1}", column, row.rule))
            shown = Shown(f"{run.number}-{number}", row)
            name = (row.connector, row.where.device, row.id)
            before = ended.get(name)
            if before and before[0] != run.number and before[1] != row.verdict:
                shown.before = f"run {before[0]}: {before[1]}"
            ended[name] = (run.number, row.verdict)
            there.cells.append(shown)
    columns = list(dict.fromkeys(column for column, _ in fields))
    connectors = list(dict.fromkeys(column.connector for column in columns))
    columns.sort(key=lambda column: connectors.index(column.connector))
    known = list(order)
    rules = sorted(dict.fromkeys(rule for _, rule in fields),
                   key=lambda rule: known.index(rule) if rule in known else len(known))
    return Matrix(columns, rules, fields)


@dataclass
class Cause:
    """One finding of a connector, with all the fields, of all runs, in which it is seen."""

    connector: str
    group: Group
    fields: list[tuple[Field, int]]

    @property
    def versions(self) -> list[str]:
        """The versions of the connector that have it."""
        return list(dict.fromkeys(field.column.version for field, _ in self.fields))

    @property
    def count(self) -> int:
        """How many cells it is seen in."""
        return sum(number for _, number in self.fields)


def causes(found: Matrix, kinds: Sequence[Kind]) -> list[Cause]:
    """Return what was found of these kinds, one entry a connector and cause, the most cells first."""
    merged: dict[tuple[str, Kind, str], Cause] = {}
    for each in found.ordered():
        for group in each.groups:
            if group.kind in kinds:
                connector = each.column.connector
                cause = merged.setdefault((connector, group.kind, group.cause), Cause(connector, group, []))
                cause.fields.append((each, len(group.cells)))
    return sorted(merged.values(), key=lambda cause: (KINDS.index(cause.group.kind), -cause.count))
