"""Formulas to Python: what is proved symbolically is computed here for a finite number of ranks.

`compiled` turns a formula into a Python function of an *interpretation*: constants by name, functions as dictionaries
from argument tuples, and the finite domain of each sort that is quantified over. Ranks and integers are Python's
integers, enumeration values their names, reals fractions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import z3

Value = bool | int | str | Fraction
Interpretation = Mapping[str, Any]


class CannotEvaluate(Exception):
    """A formula holds something that has no meaning in Python, or asks a function beyond its domain."""


class BeyondSize(CannotEvaluate):
    """A run leaves the integers of its finite world, beyond which neither functions nor quantifiers go.

    What is computed there would be no answer: take a larger world.
    """

    def __init__(self, what: str, size: int, *, below: bool = False) -> None:
        """Say what leaves them, the largest of them, and whether it is below 0, where a larger one helps nobody."""
        remedy = "no function has values below 0, so ask first whether it is there" if below else "give a larger `size`"
        super().__init__(f"{what}: the run leaves the integers 0..{size}; {remedy}")


@dataclass
class _Compiler:
    """Writes one Python expression for one formula; `arguments` are the constants that are passed by position.

    bounded: whether each integer up to which a variable or an argument goes is looked at.
    """

    arguments: Mapping[str, str] = field(default_factory=dict)
    bounded: bool = False
    bound: list[str] = field(default_factory=list)
    written: dict[tuple[int, int], str] = field(default_factory=dict)

    def write(self, term: z3.ExprRef) -> str:
        # Bound variables are named by how deep they are, so this is all that the text of a term depends on.
        key = (term.get_id(), len(self.bound))
        if key not in self.written:
            self.written[key] = self._write(term)
        return self.written[key]

    def _write(self, term: z3.ExprRef) -> str:
        if z3.is_quantifier(term):
            return self._quantifier(term)
        if z3.is_var(term):
            return str(self.bound[-1 - z3.get_var_index(term)])
        kind = term.decl().kind()
        parts = [self.write(child) for child in term.children()]
        if kind == z3.Z3_OP_UNINTERPRETED:
            return self._application(term, parts)
        if kind in _INFIX and len(parts) == 1 and kind == z3.Z3_OP_SUB:
            return f"(-{parts[0]})"
        if kind in _INFIX:
            return self._within_size(term, kind, f"({f' {_INFIX[kind]} '.join(parts)})")
        return self._other(term, kind, parts)

    def _within_size(self, term: z3.ExprRef, kind: int, comparison: str) -> str:
        """Return a comparison, after a look at what an integer variable is compared with in it."""
        if not self.bounded or kind not in _COMPARISONS or term.arg(0).sort() != z3.IntSort():
            return comparison
        left, right = term.children()
        if not (self._varies(left) or self._varies(right)):
            return comparison
        # Of k < n the integers up to n - 1 have to be there, of k <= n those up to n.
        before = (kind in (z3.Z3_OP_LT, z3.Z3_OP_GE) and self._is_variable(left)) or (
            kind in (z3.Z3_OP_GT, z3.Z3_OP_LE) and self._is_variable(right))
        looks = [f"up_to({self.write(part)}, E['#Int'], {before}, {' '.join(str(part).split())!r})"
                 for side in (left, right) for part in self._fixed(side)]
        return f"({' and '.join([*looks, comparison])})"

    def _limited(self, term: z3.ExprRef, index: int) -> bool:
        """Whether a variable is compared, somewhere in a term, with what is neither a variable nor a literal."""
        if z3.is_var(term):
            return False
        if z3.is_quantifier(term):
            return self._limited(term.body(), index + term.num_vars())
        if term.decl().kind() in _COMPARISONS and term.arg(0).sort() == z3.IntSort():
            left, right = term.children()
            if (_mentions(left, index) or _mentions(right, index)) and any(
                    not z3.is_int_value(part) for side in (left, right) for part in self._fixed(side)):
                return True
        return any(self._limited(child, index) for child in term.children())

    def _is_variable(self, term: z3.ExprRef) -> bool:
        """Whether a term is an integer variable or argument."""
        if term.sort() != z3.IntSort():
            return False
        return z3.is_var(term) or (z3.is_const(term) and term.decl().name() in self.arguments)

    def _varies(self, term: z3.ExprRef) -> bool:
        """Whether an integer varies with a variable other than as what a function is of it."""
        if self._is_variable(term) or z3.is_var(term):
            return self._is_variable(term)
        applied = term.decl().kind() == z3.Z3_OP_UNINTERPRETED
        return not applied and term.sort() == z3.IntSort() and any(map(self._varies, term.children()))

    def _fixed(self, term: z3.ExprRef) -> list[z3.ExprRef]:
        """Return the largest parts of an integer that do not vary."""
        if not self._varies(term):
            return [term] if term.sort() == z3.IntSort() else []
        return [part for child in term.children() for part in self._fixed(child)]

    def _other(self, term: z3.ExprRef, kind: int, parts: list[str]) -> str:
        if kind == z3.Z3_OP_NOT:
            return f"(not {parts[0]})"
        if kind == z3.Z3_OP_IMPLIES:
            return f"((not {parts[0]}) or {parts[1]})"
        if kind == z3.Z3_OP_ITE:
            return f"({parts[1]} if {parts[0]} else {parts[2]})"
        if kind == z3.Z3_OP_DISTINCT:
            return f"(len({{{', '.join(parts)}}}) == {len(parts)})"
        if kind == z3.Z3_OP_UMINUS:
            return f"(-{parts[0]})"
        if kind in (z3.Z3_OP_IDIV, z3.Z3_OP_MOD):
            # SMT's division leaves a remainder that is never negative, whatever it is divided by.
            return f"{'mod' if kind == z3.Z3_OP_MOD else 'div'}({parts[0]}, {parts[1]})"
        if kind == z3.Z3_OP_DIV:
            return f"(Fraction({parts[0]}) / {parts[1]})"
        if kind in (z3.Z3_OP_TO_REAL, z3.Z3_OP_TO_INT):
            return f"(Fraction({parts[0]}))" if kind == z3.Z3_OP_TO_REAL else f"({parts[0]} // 1)"
        if kind == z3.Z3_OP_TRUE:
            return "True"
        if kind == z3.Z3_OP_FALSE:
            return "False"
        return repr(value_of(term))

    def _application(self, term: z3.ExprRef, parts: list[str]) -> str:
        name = term.decl().name()
        if not parts:
            return self.arguments.get(name, f"E[{name!r}]")
        return f"E[{name!r}][{', '.join(parts)},]"

    def _quantifier(self, term: z3.QuantifierRef) -> str:
        names = [f"v{len(self.bound) + index}" for index in range(term.num_vars())]
        self.bound += names
        body = self.write(term.body())
        del self.bound[len(self.bound) - len(names) :]
        free = [term.var_name(index).split("!")[0] for index in range(len(names))
                if term.var_sort(index) == z3.IntSort() and not self._limited(term.body(), len(names) - 1 - index)]
        loops = " ".join(
            f"for {name} in E[{'#' + term.var_sort(index).name()!r}]" for index, name in enumerate(names)
        )
        said = f"{'all' if term.is_forall() else 'any'}({body} {loops})"
        return f"(E['#Beyond']({free[0]!r}) and {said})" if self.bounded and free else said


_INFIX = {
    z3.Z3_OP_AND: "and", z3.Z3_OP_OR: "or", z3.Z3_OP_EQ: "==", z3.Z3_OP_IFF: "==", z3.Z3_OP_XOR: "!=",
    z3.Z3_OP_LE: "<=", z3.Z3_OP_LT: "<", z3.Z3_OP_GE: ">=", z3.Z3_OP_GT: ">",
    z3.Z3_OP_ADD: "+", z3.Z3_OP_SUB: "-", z3.Z3_OP_MUL: "*",
}


_COMPARISONS = frozenset({z3.Z3_OP_EQ, z3.Z3_OP_LE, z3.Z3_OP_LT, z3.Z3_OP_GE, z3.Z3_OP_GT})


def _mentions(term: z3.ExprRef, index: int) -> bool:
    """Return whether an integer varies with a variable, other than as what a function is of it."""
    if z3.is_var(term):
        return bool(z3.get_var_index(term) == index)
    if z3.is_quantifier(term) or term.decl().kind() == z3.Z3_OP_UNINTERPRETED:
        return False
    return any(_mentions(child, index) for child in term.children())


def _up_to(value: int, integers: range, before: bool, what: str) -> bool:
    """Return True when the integers go up to a value (or to that before it); raises BeyondSize."""
    if value >= integers.stop + before:
        said = f"{value} is asked for" if what == str(value) else f"{what} is {value}"
        raise BeyondSize(said, integers.stop - 1)
    return True


def _div(value: int, by: int) -> int:
    return value // by if by > 0 else -(value // -by)


def _mod(value: int, by: int) -> int:
    return value % abs(by)


def compiled(
    term: z3.ExprRef, arguments: Sequence[z3.ExprRef] = (), *, bounded: bool = False
) -> Callable[..., Any]:
    """Return the function ``f(interpretation, *arguments)`` that computes the term.

    arguments: constants of the term that are passed by position instead of by name. bounded: raise BeyondSize where an
    integer variable or argument is compared with more than the integers go up to, rather than leave out what is beyond;
    and, before a variable that is compared with nothing but literals, ask the interpretation's `#Beyond` to do so.
    """
    names = {str(argument.decl().name()): f"a{index}" for index, argument in enumerate(arguments)}
    source = f"lambda E{''.join(f', {name}' for name in names.values())}: {_Compiler(names, bounded).write(term)}"
    code = compile(source, "<formula>", "eval")
    function: Callable[..., Any] = eval(code, {"Fraction": Fraction, "up_to": _up_to, "div": _div, "mod": _mod})
    return function


def value_of(term: z3.ExprRef) -> Value:
    """Return the Python value of a literal; raises CannotEvaluate for what is none."""
    if z3.is_true(term) or z3.is_false(term):
        return bool(z3.is_true(term))
    if z3.is_int_value(term):
        return int(term.as_long())
    if z3.is_rational_value(term):
        return Fraction(term.numerator_as_long(), term.denominator_as_long())
    if z3.is_string_value(term):
        return str(term.as_string())
    if z3.is_app(term) and term.decl().kind() == z3.Z3_OP_DT_CONSTRUCTOR and term.num_args() == 0:
        return str(term.decl().name())
    raise CannotEvaluate(f"{term} is no value")
