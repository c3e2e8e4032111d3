"""The text of a key: its fields, their separator and tags, how a name is escaped, and that no two keys share one."""

from __future__ import annotations

from typing import Any

import z3

from kvproof.spec.obligation import Always, Fact, Mutant, Obligation
from kvproof.spec.system import Step, System, action
from kvproof.spec.theory import Bool, Formula, Int, Rigid, State, Theory, View, forall, put, within

FIELDS = ("model", "world", "worker", "chunk", "dtype", "adapter", "salt")
"""What a key identifies; the last two are optional."""


class Text(Theory):
    """One text, read as a key in two ways, `k` and `l`, which might be two different keys.

    A key is its mandatory fields, then those optional ones that it has, each as a tag and a value, and each field is
    followed by the separator. `k_start(i)` is where the i-th field starts; it has `k_fields` of them. `char` says what
    stands where, `k_has(i)` that the optional field i is there. So both ways are one key just when they have the same
    optional fields, and every field starts at the same place in both.
    """

    MANDATORY, OPTIONAL, SEPARATOR, TAG = 5, 2, 0, 1

    length = Rigid(Int)
    char = Rigid(Int, Int)
    k_fields = Rigid(Int)
    k_start = Rigid(Int, Int)
    k_has = Rigid(Int, Bool)
    l_fields = Rigid(Int)
    l_start = Rigid(Int, Int)
    l_has = Rigid(Int, Bool)

    def free(self, s: View, key: str, i: Any) -> Formula:
        """Field i of the key holds no separator, as names with one in them are escaped."""
        start = getattr(s, f"{key}_start")
        return forall(Int, lambda p: z3.Implies(within(start(i), p, start(i + 1) - 1), s.char(p) != self.SEPARATOR))

    def tagged(self, s: View, start: Any, number: int, place: Any) -> Formula:
        """The optional field of that number starts with its tag."""
        return s.char(start(place)) == self.TAG + number

    def place(self, has: Any, number: int) -> Any:
        """As which field of the text an optional field comes."""
        place: Any = z3.IntVal(self.MANDATORY)
        for earlier in range(number):
            place = place + z3.If(has(earlier), 1, 0)
        return place

    def read_as(self, s: View, key: str) -> list[Formula]:
        """The text is that of a key with these fields."""
        start, has, fields = (getattr(s, f"{key}_{name}") for name in ("start", "has", "fields"))
        most = self.MANDATORY + self.OPTIONAL
        parts = [start(0) == 0, fields == self.place(has, self.OPTIONAL)]
        for i in range(most):
            end = start(i + 1) - 1
            parts.append(z3.Implies(i < fields, z3.And(
                end >= start(i), s.char(end) == self.SEPARATOR, self.free(s, key, z3.IntVal(i)))))
        parts += [z3.Implies(fields == n, start(n) == s.length) for n in range(self.MANDATORY, most + 1)]
        for number in range(self.OPTIONAL):
            for at in range(self.MANDATORY, most):
                parts.append(z3.Implies(z3.And(has(number), self.place(has, number) == at), z3.And(
                    start(at + 1) - 1 > start(at), self.tagged(s, start, number, z3.IntVal(at)))))
        return parts

    def axioms(self, s: View) -> list[Formula]:
        """The text is read as a key in two ways."""
        return [*self.read_as(s, "k"), *self.read_as(s, "l")]

    def sized(self, s: View, size: int) -> list[Formula]:
        """A text of at most `size` characters, out of four."""
        return [s.length <= size, *(within(0, s.char(p), 4) for p in range(size + 1)),
                *(within(0, start(p), size + 1) for p in range(size + 1) for start in (s.k_start, s.l_start))]

    def same(self, s: View) -> Formula:
        """Both ways are the same."""
        options = [s.k_has(number) == s.l_has(number) for number in range(self.OPTIONAL)]
        starts = [z3.Implies(i <= s.k_fields, s.k_start(i) == s.l_start(i))
                  for i in range(self.MANDATORY + self.OPTIONAL + 1)]
        return z3.And(s.k_fields == s.l_fields, *options, *starts)


class Untagged(Text):
    """Optional fields are written without a tag."""

    def tagged(self, s: View, start: Any, number: int, place: Any) -> Formula:
        """Write the value alone."""
        return z3.BoolVal(True)


class NameUnescaped(Text):
    """A name is written as it is, although it may hold the separator."""

    def free(self, s: View, key: str, i: Any) -> Formula:
        """The adapter's and the model's names may hold anything."""
        return z3.Or(i == 0, i == self.MANDATORY, super().free(s, key, i))


class Written(Text):
    """A text that is read as the keys k and l, with what their fields say: `k_value(i)` and `l_value(i)`.

    Values are naturals, whatever they identify; an adapter or a salt of 0 is none. What stands in a field is the
    writing of its value, and no two values are written the same: where a field of both keys is the same piece of the
    text, the same value is written there.
    """

    k_value = Rigid(Int, Int)
    l_value = Rigid(Int, Int)

    def written(self, i: int, value: Any) -> Any:
        """What of the value of field i is written."""
        return value

    def axioms(self, s: View) -> list[Formula]:
        """The fields of both keys say what their values are."""
        parts = [*super().axioms(s), *(value(i) >= 0 for i in range(len(FIELDS)) for value in (s.k_value, s.l_value))]
        for i in range(self.MANDATORY):
            parts.append(self.one_writing(s, i, z3.IntVal(i), z3.IntVal(i)))
        for number in range(self.OPTIONAL):
            i = self.MANDATORY + number
            parts += [has(number) == (self.written(i, value(i)) != 0)
                      for has, value in ((s.k_has, s.k_value), (s.l_has, s.l_value))]
            there = z3.And(s.k_has(number), s.l_has(number))
            parts.append(z3.Implies(
                there, self.one_writing(s, i, self.place(s.k_has, number), self.place(s.l_has, number))))
        return parts

    def one_writing(self, s: View, i: int, k_place: Any, l_place: Any) -> Formula:
        """If field i, at these places, is the same piece of the text in both, one value is written there."""
        same = z3.And(s.k_start(k_place) == s.l_start(l_place), s.k_start(k_place + 1) == s.l_start(l_place + 1))
        return z3.Implies(same, self.written(i, s.k_value(i)) == self.written(i, s.l_value(i)))

    def same_values(self, s: View) -> Formula:
        """Both keys say the same."""
        return z3.And(*[s.k_value(i) == s.l_value(i) for i in range(len(FIELDS))])


class SixteenBits(Written):
    """16 bits of the chunk's identity are written."""

    def written(self, i: int, value: Any) -> Any:
        """Cut it."""
        return value % 2**16 if FIELDS[i] == "chunk" else value


def _without(name: str) -> type[Written]:
    def written(self: Written, i: int, value: Any) -> Any:
        return z3.IntVal(0) if FIELDS[i] == name else value

    return type(f"Without{name.title()}", (Written,), {
        "written": written, "__doc__": f"The {name} is not in the key.", "__module__": __name__})


class Escape(System):
    """A name is written into a key character by character, the separator escaped; and read back.

    `done` characters of `raw` are written, as `size` characters of `out`; `at(i)` is where the i-th begins. The reader
    has come to `read`, and has `back` characters of `name`; `escaped` says that the last it read was the escape.
    """

    SEPARATOR, ESCAPE, STANDS = 0, 1, 2

    raw = Rigid(Int, Int)
    length = Rigid(Int)

    done = State(Int)
    size = State(Int)
    out = State(Int, Int)
    at = State(Int, Int)
    read = State(Int)
    back = State(Int)
    name = State(Int, Int)
    escaped = State(Bool)

    def axioms(self, s: View) -> list[Formula]:
        """Characters are naturals."""
        return [s.length >= 0, forall(Int, lambda p: s.raw(p) >= 0)]

    def sized(self, s: View, size: int) -> list[Formula]:
        """Short names out of four characters, with room for all of them escaped."""
        return [2 * s.length <= size, forall(Int, lambda p: s.raw(p) <= 3)]

    def init(self, s: View) -> list[Formula]:
        """Nothing is written."""
        return [s.done == 0, s.size == 0, s.read == 0, s.back == 0, z3.Not(s.escaped), s.at(0) == 0]

    def special(self, c: Any) -> Formula:
        """The character is escaped: it is the separator, or the escape itself."""
        return z3.Or(c == self.SEPARATOR, c == self.ESCAPE)

    def stands(self, c: Any) -> Any:
        """What is written after the escape for a special character."""
        return z3.If(c == self.SEPARATOR, self.STANDS, c)

    @action()
    def write(self, s: View) -> Step:
        """The next character of the name is written."""
        c, special = s.raw(s.done), self.special(s.raw(s.done))
        size = s.size + z3.If(special, 2, 1)
        return Step(
            s.done < s.length, done=s.done + 1, size=size, at=put(s.at, s.done + 1, size),
            out=lambda p: z3.If(p == s.size, z3.If(special, self.ESCAPE, c), z3.If(
                z3.And(special, p == s.size + 1), self.stands(c), s.out(p))))

    @action()
    def take(self, s: View) -> Step:
        """The next character that was written is read."""
        c = s.out(s.read)
        opens = z3.And(z3.Not(s.escaped), c == self.ESCAPE)
        plain = z3.If(z3.And(s.escaped, c == self.STANDS), self.SEPARATOR, c)
        return Step(
            s.read < s.size, read=s.read + 1, escaped=opens, back=z3.If(opens, s.back, s.back + 1),
            name=lambda p: z3.If(z3.And(z3.Not(opens), p == s.back), plain, s.name(p)))

    def invariant(self, s: View) -> dict[str, Formula]:
        """Where each character was written, and how far the reader has come."""
        def placed(p: Any) -> Formula:
            c, special = s.raw(p), self.special(s.raw(p))
            return z3.And(
                s.at(p) >= 0, s.at(p + 1) == s.at(p) + z3.If(special, 2, 1), s.at(p + 1) <= s.size,
                s.out(s.at(p)) == z3.If(special, self.ESCAPE, c),
                z3.Implies(special, s.out(s.at(p) + 1) == self.stands(c)))

        return {
            "bounds": z3.And(0 <= s.back, s.back <= s.done, s.done <= s.length, s.size >= 0, s.at(0) == 0),
            "end": s.at(s.done) == s.size,
            "placed": forall(Int, lambda p: z3.Implies(within(0, p, s.done), placed(p))),
            "reader": z3.And(
                s.read == s.at(s.back) + z3.If(s.escaped, 1, 0), s.read <= s.size,
                z3.Implies(s.escaped, z3.And(s.back < s.done, self.special(s.raw(s.back))))),
            **self.safety(s),
        }

    def safety(self, s: View) -> dict[str, Formula]:
        """What is claimed of every reachable state."""
        return {
            "escaped": forall(Int, lambda p: z3.Implies(within(0, p, s.size), s.out(p) != self.SEPARATOR)),
            "unescaped": z3.And(
                forall(Int, lambda p: z3.Implies(within(0, p, s.back), s.name(p) == s.raw(p))),
                z3.Implies(s.read == s.size, z3.And(s.back == s.done, z3.Not(s.escaped)))),
        }


class AsItIs(Escape):
    """A name is written as it is."""

    def special(self, c: Any) -> Formula:
        """Escape nothing."""
        return z3.BoolVal(False)


class KeepsSeparator(Escape):
    """The escape is put before the separator, which is written all the same."""

    def stands(self, c: Any) -> Any:
        """The character itself."""
        return c


class EscapeItself(Escape):
    """The separator is escaped, and the escape itself is not."""

    def special(self, c: Any) -> Formula:
        """Escape the separator only."""
        return c == self.SEPARATOR


_TEXT = ((1, 8), (1, 9), (1, 10))


def _escape(name: str, claim: str, *mutants: Mutant) -> Always:
    return Always(
        id=f"keys.{name}", claim=claim, scope="names of any length, any characters", theory=Escape,
        fragment="UFLIA with quantifiers", safety=name, mutants=mutants, sizes=((1, 2), (1, 4)), depth=8,
        sometimes=lambda theory, s: z3.And(
            s.back == 2, s.done == 2, s.raw(0) == Escape.ESCAPE, s.raw(1) == Escape.SEPARATOR),
    )


KEY_TEXT: tuple[Obligation, ...] = (
    Fact(
        id="keys.distinct",
        claim="keys that are written the same have the same model, world size, worker, chunk, dtype, adapter and salt",
        scope="all values, written in any length; five mandatory and two optional fields", theory=Written,
        fragment="UFLIA with quantifiers", sizes=_TEXT[:2],
        goal=lambda theory, s: theory.same_values(s),
        interesting=lambda theory, s: [s.k_value(5) > 0, s.k_value(6) > 0],
        assumes=("two values of one field are written differently (numbers in decimal; names as keys.unescaped says)",),
        mutants=(
            Mutant("sixteen-bits", "16 bits of the chunk's identity are written", SixteenBits,
                   "two different chunks (images) have one key, and one is served for the other"),
            *(Mutant(f"no-{name}", f"the {name} is left out of the key", _without(name),
                     f"two that differ in their {name} share what is stored") for name in FIELDS),
        ),
    ),
    Fact(
        id="keys.parse", claim="a text is the text of at most one key, so parse(format(k)) = k",
        scope="five mandatory and two optional fields of any length; the separator ends each, a tag starts an optional "
        "one",
        theory=Text, fragment="UFLIA with quantifiers", sizes=_TEXT,
        assumes=("names are written as keys.escaped says, so that no field holds the separator",
                 "parse looks for the fields of a text; what is proved is that there is only one way to find them"),
        goal=lambda theory, s: theory.same(s),
        interesting=lambda theory, s: [s.k_has(0), s.k_has(1)],
        mutants=(
            Mutant("untagged", "optional fields are written without a tag", Untagged,
                   "an adapter without a salt, and a salt without an adapter, have one key"),
            Mutant("separator-in-name", "a name is written as it is, with the separator in it", NameUnescaped,
                   "the end of the name is read as the next field"),
        ),
    ),
    _escape(
        "escaped", "what is written of a name holds no separator",
        Mutant("as-it-is", "a name is written as it is", AsItIs, "its separator is read as the end of the field"),
        Mutant("keeps-separator", "the escape is put before the separator, which stays", KeepsSeparator,
               "who splits at the separator finds it there"),
    ),
    _escape(
        "unescaped", "what was written of a name is read back as the name",
        Mutant("escape-itself", "the escape is not escaped itself", EscapeItself,
               "an escape in a name is read together with what follows it, so two names are written the same"),
    ),
)
