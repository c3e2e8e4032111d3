"""A second solver: cvc5 is asked the same unsatisfiability queries, in SMT-LIB."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import z3

OPTIONS = {"enum-inst": "true", "nl-ext-tplanes": "true", "quiet": "true"}
LIMIT = 2000
"""Milliseconds for one query."""


@dataclass(frozen=True)
class Opinion:
    """What cvc5 made of a query: not-contradicted (it agrees), unknown, or contradicted (it found a model).

    why: what it said when it could not even read the query, which is no opinion.
    """

    query: str
    verdict: str
    seconds: float
    why: str = ""


def available() -> str | None:
    """Return cvc5's version, None when it is not installed."""
    try:
        import cvc5
    except ImportError:
        return None
    return str(cvc5.__version__)


def smt2(formulas: Sequence[object]) -> str:
    """Return the query as SMT-LIB 2; unsat is what is expected."""
    search = z3.Solver()
    search.add(*formulas)
    return str(search.to_smt2())


def ask(query: str, formulas: Sequence[object], limit: int = LIMIT) -> Opinion:
    """Ask cvc5 whether the formulas are unsatisfiable; raises ImportError when it is not installed."""
    import cvc5

    begun = time.monotonic()
    solver = cvc5.Solver()
    for name, value in OPTIONS.items():
        solver.setOption(name, value)
    solver.setOption("tlimit-per", str(limit))
    parser = cvc5.InputParser(solver)
    parser.setStringInput(cvc5.InputLanguage.SMT_LIB_2_6, f"(set-logic ALL)\n{smt2(formulas)}", "query")
    symbols = parser.getSymbolManager()
    verdict, why = "unknown", ""
    try:
        while not (command := parser.nextCommand()).isNull():
            said = str(command.invoke(solver, symbols)).strip()
            if said in ("sat", "unsat"):
                verdict = "contradicted" if said == "sat" else "not-contradicted"
    except RuntimeError as error:
        verdict, why = "unknown", str(error)
    return Opinion(query, verdict, time.monotonic() - begun, why)
