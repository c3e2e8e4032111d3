"""What is kept of a finding: a file with the evidence of each cause, and a test for one's own suite."""

from __future__ import annotations

import json
import re
import shlex
import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from hashlib import blake2b
from pathlib import Path

from kvproof.causes import Cause
from kvproof.results import CellRow, write_text
from kvproof.traces.text import printable

SCHEMA = "kvproof.witness/1"
_LONGEST = 200
"""Bytes in a file's name, which may be 255 with what is put behind it."""
_MODULE = '''"""Cells in which a connector broke the contract, one for each cause; `kvproof check --pytest` wrote this.

It needs kvproof and the connector. Each test fails for as long as its cell does.
"""

import pytest

from kvproof import check

CELLS = [
{cells}]


@pytest.mark.parametrize(("connector", "rule", "fault", "read", "where"), CELLS)
def test_the_contract_holds(connector: str, rule: str, fault: str, read: str, where: dict[str, str | int]) -> None:
    row = check.one(connector, rule, fault, read, **where)
    if row.verdict != "pass":
        pytest.fail(f"{{row.verdict}}: {{row.explain}}", pytrace=False)
'''


def again(row: CellRow) -> str:
    """Return the command that tries a cell again, or plays again what a campaign has found."""
    if "again" in row.evidence:
        return str(row.evidence["again"])
    words = ["kvproof", "check", "-c", shlex.quote(row.connector), "--rule", shlex.quote(_literal(row.rule)),
             "--fault", _in_quotes(row.fault), "--read", _in_quotes(row.read)]
    return " ".join([*words, *(f"--{name} {shlex.quote(str(value))}" for name, value in _where(row).items())])


def _literal(name: str) -> str:
    """Return a glob that only this name fits; one that stands for any stays."""
    return name if name == "*" else re.sub(r"[*?\[]", r"[\g<0>]", name)


def _in_quotes(name: str) -> str:
    said = shlex.quote(_literal(name))
    return said if said.startswith("'") else f"'{said}'"


def write(directory: Path, causes: Sequence[Cause]) -> list[Path]:
    """Write one file for each cause, which holds its least cell with its evidence, and name it in all its rows."""
    paths = []
    for cause in causes:
        least = cause.rows[0]
        name = re.sub(r"[^\w.+=-]+", "-", f"{cause.connector}.{least.rule}.{least.fault}.{least.read}")
        if len(name.encode()) > _LONGEST:
            name = f"{name[:_LONGEST // 4]}~{blake2b(name.encode(), digest_size=8).hexdigest()}"
        path = directory / f"{name}.json"
        for row in cause.rows:
            row.witness = str(path)
        document = {"schema": SCHEMA, "again": again(least), "cell": asdict(least),
                    "alike": [row.id for row in cause.rows[1:]]}
        write_text(path, json.dumps(document, indent=1) + "\n")
        paths.append(path)
    return paths


def module(causes: Sequence[Cause]) -> str:
    """Return a pytest module with a test for the least cell of each cause."""
    return _MODULE.format(cells="".join(_case(cause.rows[0]) for cause in causes))


def _case(row: CellRow) -> str:
    rate = f" ({row.rate:.0%} of tries)" if row.rate is not None else ""
    said = printable(f"{row.version}: {row.verdict}{rate}: {row.explain}")
    comment = textwrap.fill(said, 116, initial_indent="    # ", subsequent_indent="    # ", break_long_words=False)
    words = ", ".join(map(_quoted, (row.connector, row.rule, row.fault, row.read)))
    where = ", ".join(f"{_quoted(name)}: {json.dumps(value)}" for name, value in _where(row).items())
    return f"{comment}\n    ({words}, {{{where}}}),\n"


def _quoted(text: str) -> str:
    """Return a string as Python, in double quotes."""
    return json.dumps(text)


def _where(row: CellRow) -> dict[str, str | int]:
    """Return where a cell was tried, as far as that is not what is usual."""
    if row.world:
        return {"ranks": row.where.ranks, **({"device": row.where.device} if row.where.device != "cpu" else {})}
    name, _, address = row.where.server.partition(" at ")
    server = f"redis://{address}" if address else "fakeredis" if name.startswith("fakeredis") else ""
    device = row.where.device if row.where.device != "cpu" else ""
    return {name: value for name, value in (("server", server), ("device", device)) if value}
