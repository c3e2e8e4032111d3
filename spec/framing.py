"""framing: the receiver's table of bytes against every reply, every cut, and the mistakes that readers make."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import z3

from kvproof.models.frames import HEAD, RULES, WORD, Rule
from kvproof.spec.obligation import Always, Mutant, Obligation
from kvproof.spec.receiver import BYTE, DOES, OVER, STATE, Framing, Receiver, one_of
from kvproof.spec.replies import Replies
from kvproof.spec.system import Step, System, action
from kvproof.spec.theory import Formula, Int, Rigid, State, View, all_of, within


def with_rows(change: Callable[[Rule], Sequence[Rule]]) -> tuple[Rule, ...]:
    """Return the table with each row replaced by what `change` makes of it."""
    return tuple(new for rule in RULES for new in change(rule))


class FixedHeader(Framing):
    """The header of a bulk string is read as 11 bytes, whatever it is."""

    def boundary(self, s: View) -> Formula:
        """No reply is complete before 11 bytes of it have come."""
        return z3.And(super().boundary(s), z3.Implies(s.kind == BYTE["$"], s.received >= 11))


class ExpectedHeader(Framing):
    """The header of a bulk string is read as long as the header of the size that is expected."""

    digits = Rigid(Int)
    worlds = tuple({**world, "digits": 8} for world in Framing.worlds)

    def axioms(self, s: View) -> list[Formula]:
        """The size expected has this many digits."""
        return [*super().axioms(s), s.digits >= 1]

    def boundary(self, s: View) -> Formula:
        """No reply is complete before that header has come: a type, the digits, a line's end."""
        return z3.And(super().boundary(s), z3.Implies(s.kind == BYTE["$"], s.received >= s.digits + 3))


class NullTakesTwo(Framing):
    """After any header of a bulk string comes a line's end, after that of a null too."""

    rules = with_rows(lambda rule: [rule._replace(to="bulk-lf") if rule.state == "bulk-null" else rule])


class EmptyLeavesEnd(Framing):
    """An empty bulk string is complete with its header."""

    def ended(self, does: Any, number: Any) -> Formula:
        """Also when the length is 0."""
        return z3.Or(super().ended(does, number), z3.And(does == DOES["bulk"], number == 0))

    def takes(self, s: View, b: Any, to: Any, does: Any) -> dict[str, Any]:
        """Go on with the next value then."""
        now = super().takes(s, b, to, does)
        return {**now, "state": z3.If(now["closing"], STATE["value"], to)}


class ErrorLeavesRest(Framing):
    """An error is raised as soon as its type byte is seen."""

    rules = with_rows(lambda rule: [Rule("value", b"+", "text", "open"), Rule("value", b"-", "value", "close")]
                      if rule == Rule("value", b"+-", "text", "open") else [rule])


class Wraps(Framing):
    """Count times size is computed in 32 bits."""

    worlds = Framing.worlds[3:]
    types = "%"

    def elements(self, does: Any, number: Any) -> Any:
        """Keep 32 bits of it."""
        return super().elements(does, number) % 2**32


class LateCheck(Framing):
    """A length is compared with its limit when the header is complete, and accumulated without bound until then."""

    def too_long(self, s: View, does: Any, number: Any, line: Any, elements: Any) -> Formula:
        """Look at lengths in complete headers only."""
        header = one_of(does, DOES, ("bulk", "size", "format"))
        return z3.If(does == DOES["length"], False, z3.Or(
            super().too_long(s, does, number, line, elements), z3.And(header, number > s.limit)))


class OffByOne(Framing):
    """The limit itself is refused."""

    def too_long(self, s: View, does: Any, number: Any, line: Any, elements: Any) -> Formula:
        """Compare with "at least"."""
        return z3.Or(super().too_long(s, does, number, line, elements),
                     z3.And(does == DOES["length"], number >= s.limit))


class NoNullArray(Framing):
    """The null array is not known."""

    rules = with_rows(lambda rule: [] if (rule.state, rule.on) == ("array", b"-") else [rule])


class Reserves(Framing):
    """The payload's memory is reserved when its length is announced."""

    def memory(self, s: View, does: Any, number: Any) -> Any:
        """Add what was announced."""
        return super().memory(s, does, number) + z3.If(does == DOES["bulk"], number, 0)


class ReservesElements(Framing):
    """An array's elements have their memory reserved when their count is announced."""

    def memory(self, s: View, does: Any, number: Any) -> Any:
        """Add what was announced."""
        return super().memory(s, does, number) + z3.If(self.aggregate(does), number, 0)


class NullWithin(Framing):
    """A null anywhere in a reply makes the reply a null."""

    def is_null(self, s: View) -> Formula:
        """Look at no depth."""
        return z3.BoolVal(True)


class NullIsEmpty(Framing):
    """A null bulk string is not told from an empty one."""

    rules = with_rows(lambda rule: [rule._replace(action="") if rule.state == "bulk-null" else rule])


class Cut(System):
    """Two receivers of one stream: one takes every byte by itself, the other pieces, and skips payload in jumps.

    The stream is cut anywhere: `piece` bytes are left of the piece that is being fed. Outside of a payload both take
    a byte by the table; what the table makes of it is a function of state, registers and byte, so it is one pick
    here. Inside, the second is up to `behind` bytes ahead, until the first has come after it. Of a reply's first
    bytes and of a bulk string's both keep some (`head`, `word`): how many says which.
    """

    piece = State(Int)
    behind = State(Int)
    state = State(Receiver)
    remaining = State(Int)
    head = State(Int)
    word = State(Int)
    jumping_state = State(Receiver)
    jumping_remaining = State(Int)
    jumping_head = State(Int)
    jumping_word = State(Int)

    def init(self, s: View) -> list[Formula]:
        """Nothing has come."""
        numbers = (s.piece, s.behind, s.remaining, s.head, s.word)
        return [*[each == 0 for each in numbers], s.state == STATE["value"], self.together(s)]

    def together(self, s: View) -> Formula:
        """Both are the same."""
        return all_of(*[getattr(s, name) == getattr(s, f"jumping_{name}") for name in (
            "state", "remaining", "head", "word")])

    def skipping(self, state: Any, remaining: Any) -> Formula:
        """The next byte is one of payload."""
        return z3.And(state == STATE["payload"], remaining > 0)

    def count(self, s: View) -> Any:
        """How many bytes are skipped at once."""
        return least(s.jumping_remaining, s.piece)

    def rest(self, s: View, count: Any) -> Any:
        """What remains of the payload after a jump."""
        return s.jumping_remaining - count

    def first_bytes(self, s: View, count: Any) -> Any:
        """How many of the reply's first bytes are kept after a jump."""
        return least(HEAD, s.jumping_head + count)

    def at_cut(self, s: View) -> Any:
        """Where the second receiver stands when a piece begins: where it stood."""
        return s.jumping_state

    @action(fair=False, n=Int)
    def cut(self, s: View, n: Any) -> Step:
        """The next piece begins; it has n bytes."""
        return Step(z3.And(s.piece == 0, s.behind == 0, n >= 1), piece=n, jumping_state=self.at_cut(s))

    @action(to=Receiver, n=Int)
    def byte(self, s: View, to: Any, n: Any) -> Step:
        """A byte outside of a payload: the table leads to a state, and after a header n bytes of payload follow."""
        outside = z3.Not(self.skipping(s.jumping_state, s.jumping_remaining))
        ready = z3.And(s.behind == 0, s.piece >= 1, outside, n >= 0)
        return Step(
            ready, piece=s.piece - 1, state=to, jumping_state=to, remaining=n, jumping_remaining=n, word=z3.IntVal(0),
            jumping_word=z3.IntVal(0), head=least(HEAD, s.head + 1), jumping_head=least(HEAD, s.jumping_head + 1))

    @action()
    def jump(self, s: View) -> Step:
        """The second receiver skips what the piece has of the payload."""
        count = self.count(s)
        ready = z3.And(s.behind == 0, s.piece >= 1, self.skipping(s.jumping_state, s.jumping_remaining))
        return Step(
            ready, behind=count, piece=s.piece - count, jumping_remaining=self.rest(s, count),
            jumping_head=self.first_bytes(s, count), jumping_word=least(WORD, s.jumping_word + count))

    @action()
    def follow(self, s: View) -> Step:
        """The first receiver takes one of those bytes."""
        ready = z3.And(s.behind >= 1, self.skipping(s.state, s.remaining))
        return Step(ready, behind=s.behind - 1, remaining=s.remaining - 1, head=least(HEAD, s.head + 1),
                    word=least(WORD, s.word + 1))

    def safety(self, s: View) -> dict[str, Formula]:
        """After the same bytes both are the same; and the second has skipped nothing but payload."""
        return {"split": z3.And(z3.Implies(s.behind == 0, self.together(s)), z3.Implies(
            s.behind > 0, self.skipping(s.state, s.remaining)))}

    def invariant(self, s: View) -> dict[str, Formula]:
        """The second receiver is `behind` bytes ahead, all of them payload."""
        return {"ahead": z3.And(
            s.piece >= 0, s.behind >= 0, s.state == s.jumping_state, s.remaining == s.jumping_remaining + s.behind,
            s.jumping_remaining >= 0, z3.Implies(s.behind > 0, s.state == STATE["payload"]),
            within(0, s.head, HEAD + 1), s.jumping_head == least(HEAD, s.head + s.behind),
            within(0, s.word, WORD + 1), s.jumping_word == least(WORD, s.word + s.behind))}


def least(left: Any, right: Any) -> Any:
    """Return the lesser of two numbers."""
    return z3.If(left <= right, left, right)


class JumpsPiece(Cut):
    """All that has come is skipped, whatever remains of the payload."""

    def count(self, s: View) -> Any:
        """Take the whole piece."""
        return s.piece


class ForgetsRest(Cut):
    """What remains of a payload is forgotten with the piece in which it began."""

    def rest(self, s: View, count: Any) -> Any:
        """Expect the terminator next."""
        return z3.IntVal(0)


class HeadAgain(Cut):
    """Each piece's first bytes are kept as if they were the reply's."""

    def first_bytes(self, s: View, count: Any) -> Any:
        """Start over."""
        return least(HEAD, count)


class PieceStartsReply(Cut):
    """A piece is taken to begin with a reply."""

    def at_cut(self, s: View) -> Any:
        """Start over."""
        return STATE["value"]


_SCOPE = (
    "every reply of RESP2 and RESP3 but streamed strings and aggregates; payloads, lines and aggregates of any size, "
    "nested to any bound; any limits; byte by byte, one reply after another"
)
_FRAGMENT = "UFLIA with quantifiers, enumerations"
_OVERFLOW = "a map of 2^31 pairs is taken for an empty one"


def _whole(theory: Any, s: View) -> Formula:
    """A reply with a payload has come whole."""
    return z3.And(theory.settled(s), s.pending == 0, s.received == len(b"*1\r\n$1\r\nx\r\n"))


def _replies(name: str, claim: str, *mutants: Mutant, sometimes: Any = _whole, shows: str = "*$") -> Replies:
    return Replies(
        id=f"framing.{name}", claim=claim, scope=_SCOPE, theory=Framing, fragment=_FRAGMENT,
        safety=name, sometimes=sometimes, shows=shows, mutants=mutants,
        assumes=("the sender's lengths are those that it announces (its payload has as many bytes)",),
    )
_COMPLETE = "when a reply is complete for the receiver, since that is what such a reader decides otherwise"


OBLIGATIONS: tuple[Obligation, ...] = (
    _replies(
        "never-waits", "when the last byte of a reply has come, the receiver waits for no other",
        Mutant("header-11", "the header of a bulk string is read as 11 bytes", FixedHeader,
               "the nil is complete with 5 bytes, and the reader waits for 6 more, which never come", _COMPLETE),
        Mutant("header-expected", "the header is read as long as that of the size expected", ExpectedHeader,
               "the nil is shorter than the header of the size expected, and the reader waits for ever", _COMPLETE),
        Mutant("null-two-more", "a line's end is read after a null bulk string, too", NullTakesTwo,
               "the reader waits for two bytes, and will swallow those of the following reply"),
    ),
    _replies(
        "exact", "the receiver takes a reply for complete only with its last byte, so it leaves none to the next one",
        Mutant("empty-leaves-end", "an empty bulk string is complete with its header", EmptyLeavesEnd,
               "its terminator is still to come, and is taken for the next reply"),
        Mutant("error-leaves-rest", "an error is raised at its type byte", ErrorLeavesRest,
               "the text of the error is still to come, and is taken for the next reply"),
        Mutant("overflow", "count times size is computed in 32 bits", Wraps,
               f"{_OVERFLOW}: all of its pairs are still to come"),
    ),
    _replies(
        "accepts", "no byte of a right reply within the limits is refused",
        Mutant("no-null-array", "the null array is not known", NoNullArray, "its minus sign is refused"),
        Mutant("limit-refused", "a length is compared with its limit by >=", OffByOne,
               "a length equal to the limit is refused"),
    ),
    _replies(
        "refuses", "a length, number, line or count over its limit is refused at the byte that exceeds it",
        Mutant("late", "the length is compared with its limit when its header is complete", LateCheck,
               "the digits go on for as long as the sender likes"),
        Mutant("overflow", "count times size is computed in 32 bits", Wraps, f"{_OVERFLOW}, and not refused"),
        sometimes=lambda theory, s: z3.And(s.refusal == OVER, s.depth == 1),
    ),
    _replies(
        "memory", f"whatever was announced, at most {HEAD} bytes of a reply are kept, and one count for each open "
        "aggregate, of which there are no more than the nesting bound; and no more of either than bytes have come",
        Mutant("reserves", "the payload's memory is reserved when its length is announced", Reserves,
               "a header of a few bytes reserves as much as it likes"),
        Mutant("reserves-elements", "room for an array's elements is reserved when their count is announced",
               ReservesElements, "a header of a few bytes reserves as much as it likes"),
    ),
    _replies(
        "value", "the receiver takes for payload just the bytes of the payload, and for a nil just a nil",
        Mutant("null-within", "a null anywhere in a reply makes the reply a null", NullWithin,
               "an array with a nil in it is taken for a nil"),
        Mutant("null-is-empty", "a null bulk string is not told from an empty one", NullIsEmpty,
               "the reply was a nil, and is not taken for one"),
    ),
    Always(
        id="framing.split",
        claim="however the stream is cut, and however payload is skipped in jumps, the receiver stands after the same "
        "bytes where it stands when they come one by one; so a piece ab leaves it as a and then b do",
        scope="every stream and every cut of it; payloads of any size", theory=Cut, fragment="LIA, enumerations",
        safety="split", sizes=((1, 1), (1, 2)), witness_sizes=((1, 2),),
        assumes=("what the table does is a function of the receiver's state and registers and of the byte",),
        sometimes=lambda theory, s: z3.And(s.behind == 2, s.remaining == 2),
        mutants=(
            Mutant("whole-piece", "all that has come is skipped, whatever remains of the payload", JumpsPiece,
                   "bytes of the next reply are gone"),
            Mutant("forgets-rest", "what remains of a payload is forgotten with its piece", ForgetsRest,
                   "payload is taken for the terminator and for replies"),
            Mutant("head-again", "each piece's first bytes are kept as if they were the reply's", HeadAgain,
                   "what is kept depends on where the stream was cut"),
            Mutant("starts-reply", "a piece is taken to begin with a reply", PieceStartsReply,
                   "a header that was cut in two is refused, or taken for something else"),
        ),
    ),
)
