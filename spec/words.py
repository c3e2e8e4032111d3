"""A formula that is false, in words: which part of it, for which ranks and integers, and what its symbols are there."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice, product
from typing import Any

import z3

from kvproof.models.trace import shown
from kvproof.spec.evaluate import CannotEvaluate, compiled
from kvproof.spec.system import Concrete
from kvproof.spec.theory import Formula, Rank

NAMED = 6
"""How many of the cases for which a formula is false are named."""
INCOMPUTABLE = (CannotEvaluate, KeyError, TypeError, ZeroDivisionError)
"""What computing a formula may raise, in a world that is too small for it."""

Here = Mapping[str, Any]


class Words:
    """Tells of formulas in states of one finite world."""

    def __init__(self, concrete: Concrete) -> None:
        """Take the world."""
        self.concrete = concrete
        self._functions: dict[tuple[int, tuple[str, ...], bool], Callable[..., Any]] = {}
        self._kept: list[Formula] = []

    def value(
        self, term: Formula, here: Here, constants: Sequence[Any] = (), values: Sequence[Any] = (), *,
        bounded: bool = False,
    ) -> Any:
        """Return what a term is in a state, with these values for these constants; bounded: as `compiled` has it."""
        key = (term.get_id(), tuple(str(constant) for constant in constants), bounded)
        if key not in self._functions:
            self._functions[key] = compiled(term, constants, bounded=bounded)
            self._kept.append(term)
        return self._functions[key](here, *values)

    def fails(
        self, formula: Formula, here: Here, constants: Sequence[Any] = (), values: Sequence[Any] = (), *,
        named: bool = True,
    ) -> str:
        """Return, in words, for what a formula is false in a state; "" when it is true.

        A conjunction comes down to its false parts, and what is said of all to those of whom it is false. named:
        whether the formula itself is written out.
        """
        try:
            if self.value(formula, here, constants, values):
                return ""
        except INCOMPUTABLE as error:
            return f"`{_written(formula)}` cannot be computed: {why(error)}"
        if z3.is_and(formula):
            parts = [self.fails(part, here, constants, values) for part in formula.children()]
            return "; ".join(part for part in parts if part)
        told = [f"`{_written(formula)}` is false"] if named else ["it fails"]
        if z3.is_quantifier(formula) and formula.is_forall():
            told[0] += self._cases(formula, here, constants, values)
        else:
            told += self._parts(formula, here, constants, values)
        return ", where ".join([told[0], " and ".join(told[1:])] if told[1:] else told)

    def _cases(self, formula: Formula, here: Here, constants: Sequence[Any], values: Sequence[Any]) -> str:
        """Return for which values of its variables a universal formula is false, and for one case what is so there."""
        count = formula.num_vars()
        names = [formula.var_name(index) for index in range(count)]
        sorts = [formula.var_sort(index) for index in range(count)]
        variables = [z3.Const(name, sort) for name, sort in zip(names, sorts, strict=True)]
        body = z3.substitute_vars(formula.body(), *reversed(variables))
        false = [case for case in product(*[self.concrete.values(sort) for sort in sorts])
                 if not self.value(body, here, [*constants, *variables], [*values, *case])]
        said = ["(" * (count > 1) + ", ".join(_case(*each) for each in zip(names, sorts, case, strict=True))
                + ")" * (count > 1) for case in islice(false, NAMED)]
        more = f", and {len(false) - NAMED} more" if len(false) > NAMED else ""
        parts = self._parts(body, here, [*constants, *variables], [*values, *false[0]]) if len(false) == 1 else []
        return f" for {', '.join(said)}{more}{', where ' if parts else ''}{' and '.join(parts)}"

    def _parts(self, formula: Formula, here: Here, constants: Sequence[Any], values: Sequence[Any]) -> list[str]:
        """Return what the symbols are that a formula without quantifiers speaks of."""
        found: dict[str, None] = {}
        for term in _applications(formula):
            if any(term.eq(constant) for constant in constants):
                continue
            try:
                found[f"{_written(term)} = {shown(self.value(term, here, constants, values))}"] = None
            except INCOMPUTABLE:
                continue
        return list(islice(found, NAMED))


def _case(name: str, sort: z3.SortRef, value: Any) -> str:
    return f"{_plain(name)} = {'rank ' if sort == Rank else ''}{shown(value)}"


def _applications(term: Formula) -> Iterator[Formula]:
    """Return the symbols in a term with their arguments, outermost first; nothing below a quantifier."""
    if z3.is_quantifier(term):
        return
    if term.decl().kind() == z3.Z3_OP_UNINTERPRETED:
        yield term
    for child in term.children():
        yield from _applications(child)


def _written(formula: Formula) -> str:
    """Return a formula in one line, its picks and variables by their plain names."""
    text = _plain(" ".join(str(formula).split()))
    return text if len(text) <= 300 else f"{text[:297]}..."


def _plain(text: str) -> str:
    return re.sub(r"\b\w+\.(\w+)", r"\1", re.sub(r"!\d+", "", text))


def why(error: Exception) -> str:
    """Return why something could not be computed."""
    if isinstance(error, KeyError):
        return f"it asks for {error.args[0]}, which is outside of this world"
    return str(error)
