"""A sender of RESP by its grammar (`grammar.py`), and the receiver that the table in `models/frames.py` makes."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import z3

from kvproof.models.frames import HEAD, RULES, STATES, Rule
from kvproof.spec.grammar import CLASSES, SENDER, classes_of
from kvproof.spec.system import Point, Step, System, action
from kvproof.spec.theory import Bool, Formula, Int, Rigid, State, View, all_of, enum, forall, within

_DOES = ("skip", "malformed", *sorted({rule.action or "nothing" for rule in RULES}))
_EFFECTS = ("skip", *sorted({sends.effect or "nothing" for sends in SENDER.sends}))


def _named(sort: str, names: Sequence[str], prefix: str) -> tuple[Any, dict[str, Any]]:
    """Return an enumeration and its values by name.

    Prefixes keep apart what different sorts call by one name, and make z3 quote the names in SMT-LIB.
    """
    found, *values = enum(sort, *(prefix + name for name in names))
    return found, dict(zip(names, values, strict=True))


Byte, BYTE = _named("Byte", tuple(CLASSES), "byte ")
Receiver, STATE = _named("Receiver", STATES, "in ")
Does, DOES = _named("Does", _DOES, "do ")
Position, POSITION = _named("Position", SENDER.positions, "at ")
Effect, EFFECT = _named("Effect", _EFFECTS, "send ")
Refusal, NONE, MALFORMED, OVER, DEEP = enum("Refusal", "none", "malformed", "over", "deep")

_MOST_POSITIVE, _MOST_NEGATIVE = 2**63 - 1, 2**63


def one_of(value: Any, table: dict[str, Any], names: Sequence[str]) -> Formula:
    """Return that `value` is one of these."""
    return z3.Or(*[value == table[name] for name in names])


@functools.cache
def grammar_rows(at: Any, b: Any, to: Any, effect: Any) -> Formula:
    """Return that the grammar leads from the position `at` by the byte b to `to`."""
    sets = {sends.on: one_of(b, BYTE, classes_of(sends.on)) for sends in SENDER.sends}
    return z3.Or(*[
        z3.And(at == POSITION[sends.at], sets[sends.on], to == POSITION[sends.to],
               effect == EFFECT[sends.effect or "nothing"]) for sends in SENDER.sends])


@functools.cache
def table_rows(rules: tuple[Rule, ...], state: Any, b: Any, to: Any, does: Any) -> Formula:
    """Return that the table leads from a state by the byte b to `to`; bytes that no row names are malformed."""
    sets = {rule.on: one_of(b, BYTE, classes_of(rule.on)) for rule in rules}
    rows = [z3.And(state == STATE[rule.state], sets[rule.on], to == STATE[rule.to],
                   does == DOES[rule.action or "nothing"]) for rule in rules]
    for name, here in STATE.items():
        named = [sets[rule.on] for rule in rules if rule.state == name]
        rows.append(z3.And(state == here, z3.Not(z3.Or(*named)), to == here, does == DOES["malformed"]))
    return z3.Or(*rows)


def digit(b: Any) -> Any:
    """Return the value of a digit."""
    value: Any = z3.IntVal(9)
    for number in range(9):
        value = z3.If(b == BYTE[str(number)], number, value)
    return value


@functools.cache
def pairs(rules: tuple[Rule, ...]) -> list[tuple[str, str]]:
    """Return where the receiver stands for each position of the sender, as the grammar and the table lead there."""
    found = [("value", "value")]
    for at, state in found:
        for sends in (sends for sends in SENDER.sends if sends.at == at):
            for rule in (rule for rule in rules if rule.state == state):
                if (sends.to, rule.to) not in found and set(sends.on) & set(rule.on):
                    found.append((sends.to, rule.to))
    return found


class Framing(System):
    """A sender and a receiver, one byte at a time.

    The sender stands at a `position` of the grammar; `pending` counts the values still to be sent of the reply,
    `to_send` the bytes of the payload; `announced` and `spoken` are the number and the length of the line that it is
    sending. It has no stack. `beyond`: it has gone over a limit. `plain`: the reply is one value so far; `nil`: it is a
    null.

    The receiver stands in a `state` of the table, with the registers that `Rule` names; `stack(i)`, for i < `depth`, is
    how many values are to come in the i-th open aggregate. When a value has ended it is `closing`: it goes down its
    stack one level a step, and takes no byte meanwhile. `base(i)` is history: the sender's pending values at the end
    of the i-th aggregate. `kept` counts the bytes of memory that it has set aside for the reply, `received` its bytes.
    """

    limit = Rigid(Int)
    line_limit = Rigid(Int)
    bound = Rigid(Int)

    position = State(Position)
    pending = State(Int)
    to_send = State(Int)
    announced = State(Int)
    spoken = State(Int)
    plain = State(Bool)
    nil = State(Bool)
    beyond = State(Bool)

    state = State(Receiver)
    number = State(Int)
    remaining = State(Int)
    line = State(Int)
    depth = State(Int)
    stack = State(Int, Int)
    base = State(Int, Int)
    closing = State(Bool)
    kind = State(Byte)
    null = State(Bool)
    kept = State(Int)
    received = State(Int)
    refusal = State(Refusal)

    rules: tuple[Rule, ...] = RULES
    worlds: tuple[Point, ...] = tuple(
        {"limit": limit, "line_limit": min(limit, 1), "bound": min(limit, 2)} for limit in (0, 1, 2, 2**31, 2**32))
    """The limits for which runs are looked for; proofs hold for all."""
    types: str = "+-:$*_#,(!=%|~>"
    """The types of value that are tried in those runs."""

    def axioms(self, s: View) -> list[Formula]:
        """Limits are naturals."""
        return [s.limit >= 0, s.line_limit >= 0, s.bound >= 0]

    def sized(self, s: View, size: int) -> list[Formula]:
        """At most `size` aggregates may be open."""
        return [s.bound <= size]

    def init(self, s: View) -> list[Formula]:
        """Nothing was sent."""
        zero = (s.pending, s.to_send, s.announced, s.spoken, s.number, s.remaining, s.line, s.depth, s.kept, s.received)
        return [
            s.position == POSITION["value"], s.state == STATE["value"], s.refusal == NONE, s.kind == BYTE["+"],
            z3.Not(z3.Or(s.plain, s.nil, s.beyond, s.closing, s.null)), *[each == 0 for each in zero],
            forall(Int, lambda i: z3.And(s.stack(i) == 0, s.base(i) == 0)),
        ]

    # What the sender may do.

    def sends(self, s: View, b: Any, position: Any, effect: Any) -> Formula:
        """The grammar: the byte b may come next, and then the sender stands at `position`."""
        inside = z3.And(s.position == POSITION["payload"], s.to_send > 0)
        skip = z3.And(inside, position == POSITION["payload"], effect == EFFECT["skip"])
        return z3.Or(skip, z3.And(z3.Not(inside), grammar_rows(s.position, b, position, effect)))

    def sent(self, s: View, b: Any, position: Any, effect: Any) -> dict[str, Any]:
        """What becomes of the sender."""
        def has(*names: str) -> Formula:
            return one_of(effect, EFFECT, names)

        value = z3.If(has("open"), 0, z3.If(
            has("length", "positive", "negative"), 10 * s.announced + digit(b), s.announced))
        spoken = z3.If(has("open"), 0, z3.If(has("text"), s.spoken + 1, s.spoken))
        grown = z3.If(has("count"), value, z3.If(has("pairs"), 2 * value, 2 * value + 1))
        aggregate = has("count", "pairs", "attribute")
        beyond = z3.Or(
            z3.And(has("length"), value > s.limit), z3.And(has("positive"), value > _MOST_POSITIVE),
            z3.And(has("negative"), value > _MOST_NEGATIVE), z3.And(has("text"), spoken > s.line_limit),
            z3.And(aggregate, grown > s.limit), z3.And(has("format"), value < 4))
        return {
            "position": position, "announced": value, "spoken": spoken, "beyond": beyond,
            "pending": z3.If(aggregate, s.pending - 1 + grown, z3.If(has("ends", "null"), s.pending - 1, s.pending)),
            "to_send": z3.If(has("payload"), z3.If(s.position == POSITION["format ? ? ?"], s.to_send, value), z3.If(
                has("format"), value - 4, z3.If(has("skip"), s.to_send - 1, s.to_send))),
            "plain": z3.And(s.plain, z3.Not(aggregate)), "nil": z3.Or(s.nil, z3.And(has("null"), s.plain)),
        }

    # What the receiver does.

    def table(self, s: View, b: Any, to: Any, does: Any) -> Formula:
        """The table that the scanner runs: in this state the byte b leads to the state `to` and does `does`."""
        inside = z3.And(s.state == STATE["payload"], s.remaining > 0)
        skip = z3.And(inside, to == STATE["payload"], does == DOES["skip"])
        return z3.Or(skip, z3.And(z3.Not(inside), table_rows(self.rules, s.state, b, to, does)))

    def elements(self, does: Any, number: Any) -> Any:
        """How many values follow the header of an aggregate."""
        return z3.If(does == DOES["count"], number, z3.If(does == DOES["pairs"], 2 * number, 2 * number + 1))

    def too_long(self, s: View, does: Any, number: Any, line: Any, elements: Any) -> Formula:
        """A limit is exceeded."""
        return z3.Or(
            z3.And(does == DOES["length"], number > s.limit),
            z3.And(does == DOES["positive"], number > _MOST_POSITIVE),
            z3.And(does == DOES["negative"], number > _MOST_NEGATIVE),
            z3.And(does == DOES["text"], line > s.line_limit),
            z3.And(self.aggregate(does), elements > s.limit),
            z3.And(does == DOES["format"], number < 4))

    def aggregate(self, does: Any) -> Formula:
        """The header of an aggregate is complete."""
        return one_of(does, DOES, ("count", "pairs", "attribute"))

    def ended(self, does: Any, number: Any) -> Formula:
        """A value that is no aggregate has ended."""
        return does == DOES["close"]

    def is_null(self, s: View) -> Formula:
        """A null is the whole reply, and no part of one."""
        return s.depth == 0

    def memory(self, s: View, does: Any, number: Any) -> Any:
        """How many bytes of memory are set aside: the reply's first ones, as they come."""
        return z3.If(s.received == 0, 1, z3.If(s.kept < HEAD, s.kept + 1, s.kept))

    def takes(self, s: View, b: Any, to: Any, does: Any) -> dict[str, Any]:
        """What becomes of the receiver."""
        value = z3.If(does == DOES["open"], 0, z3.If(
            one_of(does, DOES, ("length", "positive", "negative")), 10 * s.number + digit(b), s.number))
        line = z3.If(does == DOES["open"], 0, z3.If(does == DOES["text"], s.line + 1, s.line))
        elements = self.elements(does, value)
        refusal = z3.If(does == DOES["malformed"], MALFORMED, z3.If(
            self.too_long(s, does, value, line, elements), OVER, z3.If(
                z3.And(self.aggregate(does), s.depth >= s.bound), DEEP, NONE)))
        grows = z3.And(self.aggregate(does), refusal == NONE, elements != 0)
        empty = z3.And(self.aggregate(does), refusal == NONE, elements == 0)
        return {
            "state": to, "number": value, "line": line, "refusal": refusal,
            "remaining": z3.If(one_of(does, DOES, ("bulk", "size")), value, z3.If(
                does == DOES["format"], value - 4, z3.If(does == DOES["skip"], s.remaining - 1, s.remaining))),
            "depth": z3.If(grows, s.depth + 1, s.depth),
            "stack": lambda i: z3.If(z3.And(grows, i == s.depth), elements, s.stack(i)),
            "base": lambda i: z3.If(z3.And(grows, i == s.depth), s.pending - 1, s.base(i)),
            "closing": z3.Or(empty, z3.And(self.ended(does, value), refusal == NONE)),
            "kind": z3.If(s.received == 0, b, s.kind),
            "null": z3.If(does == DOES["null"], self.is_null(s), z3.And(s.null, s.received > 0)),
            "kept": self.memory(s, does, value), "received": s.received + 1,
        }

    @action()
    def begin(self, s: View) -> Step:
        """The sender has a further reply to send."""
        ready = z3.And(s.pending == 0, s.refusal == NONE, z3.Not(s.closing))
        return Step(ready, pending=z3.IntVal(1), plain=z3.BoolVal(True), nil=z3.BoolVal(False), received=z3.IntVal(0))

    @action(b=Byte, position=Position, effect=Effect, to=Receiver, does=Does)
    def byte(self, s: View, b: Any, position: Any, effect: Any, to: Any, does: Any) -> Step:
        """One byte is sent and taken."""
        ready = z3.And(s.pending > 0, z3.Not(s.beyond), s.refusal == NONE, z3.Not(s.closing))
        guard = z3.And(ready, self.sends(s, b, position, effect), self.table(s, b, to, does))
        return Step(guard, **self.sent(s, b, position, effect), **self.takes(s, b, to, does))

    @action()
    def close(self, s: View) -> Step:
        """A value has ended: one level of the stack, and the next one too when it was the last value there."""
        top = s.depth - 1
        left = s.stack(top) - 1
        inside = s.depth > 0
        return Step(
            s.closing, closing=z3.And(inside, left == 0), depth=z3.If(z3.And(inside, left == 0), top, s.depth),
            stack=lambda i: z3.If(z3.And(inside, i == top), left, s.stack(i)))

    # What is claimed.

    def boundary(self, s: View) -> Formula:
        """The receiver takes the reply for complete."""
        return z3.And(s.state == STATE["value"], s.depth == 0)

    def settled(self, s: View) -> Formula:
        """The receiver has done all that the last byte asked for, and has refused nothing."""
        return z3.And(s.refusal == NONE, z3.Not(s.closing))

    def safety(self, s: View) -> dict[str, Formula]:
        """What is claimed of every reachable state."""
        settled = self.settled(s)
        sending = z3.And(s.position == POSITION["payload"], s.to_send > 0)
        taking = z3.And(s.state == STATE["payload"], s.remaining > 0)
        return {
            "never-waits": z3.Implies(z3.And(settled, s.pending == 0), self.boundary(s)),
            "exact": z3.Implies(z3.And(settled, s.received > 0, self.boundary(s)), s.pending == 0),
            "accepts": z3.And(s.refusal != MALFORMED, z3.Implies(s.refusal == OVER, s.beyond),
                              z3.Implies(s.refusal == DEEP, s.depth == s.bound)),
            "refuses": z3.Implies(s.beyond, s.refusal == OVER),
            "memory": z3.Implies(s.received > 0, z3.And(
                s.kept <= s.received, s.kept <= HEAD, s.depth <= s.received, s.depth <= s.bound)),
            "value": z3.Implies(settled, z3.And(
                sending == taking, z3.Implies(sending, s.to_send == s.remaining),
                z3.Implies(z3.And(s.pending == 0, s.received > 0), s.nil == s.null))),
        }

    def invariant(self, s: View) -> dict[str, Formula]:
        """All of it at once, which is several times faster here than one conjunct at a time."""
        return {"in step": all_of(*self.in_step(s).values())}

    def in_step(self, s: View) -> dict[str, Formula]:
        """The receiver expects what the sender has still to send."""
        settled, ok, top = self.settled(s), s.refusal == NONE, s.depth - 1
        where = [z3.And(s.position == POSITION[at], s.state == STATE[state]) for at, state in pairs(self.rules)]
        at_value, fresh = s.position == POSITION["value"], s.received == 0
        of_null = one_of(s.position, POSITION, SENDER.ending("null"))
        return {
            "where": z3.Implies(ok, z3.Or(*where)),
            "verdict": z3.And(z3.Implies(s.closing, ok), s.refusal != MALFORMED, s.beyond == (s.refusal == OVER),
                              z3.Implies(s.refusal == DEEP, s.depth == s.bound)),
            "same": z3.Implies(ok, z3.And(s.number == s.announced, s.line == s.spoken, s.remaining == s.to_send)),
            "naturals": z3.And(s.number >= 0, s.pending >= 0, s.received >= 0, s.kept >= 0, within(
                0, s.depth, s.bound + 1), z3.Implies(ok, s.remaining >= 0)),
            "open": forall(Int, lambda i: z3.Implies(
                within(0, i, z3.If(s.closing, top, s.depth)), z3.And(s.stack(i) >= 1, s.base(i) >= 0))),
            "closed level": z3.Implies(z3.And(s.closing, s.depth > 0), z3.And(s.stack(top) >= 1, s.base(top) >= 0)),
            "first": z3.Implies(s.depth > 0, s.base(0) == 0),
            "chain": forall(Int, lambda i: z3.Implies(
                within(1, i, s.depth), s.base(i) == s.base(i - 1) + s.stack(i - 1) - 1)),
            "pending": z3.Implies(ok, s.pending == z3.If(
                s.depth > 0, s.base(top) + s.stack(top) - z3.If(s.closing, 1, 0),
                z3.If(z3.And(z3.Not(s.closing), z3.Or(z3.Not(at_value), z3.And(fresh, s.pending == 1))), 1, 0))),
            "between": z3.Implies(z3.Or(s.closing, z3.And(ok, s.pending == 0)), at_value),
            "plain": z3.And(
                z3.Implies(s.depth > 0, z3.Not(s.plain)), z3.Implies(z3.And(ok, s.pending > 0), z3.Not(s.nil)),
                z3.Implies(z3.And(settled, s.pending > 0), s.plain == (s.depth == 0))),
            "null": z3.Implies(z3.And(ok, z3.Not(fresh)), s.null == z3.If(of_null, s.plain, s.nil)),
            "fresh": z3.Implies(z3.And(fresh, s.pending > 0), z3.And(at_value, z3.Not(s.nil), s.depth == 0)),
            "memory": z3.And(s.kept <= HEAD, s.depth <= s.received, z3.Implies(s.received > 0, s.kept <= s.received)),
        }
