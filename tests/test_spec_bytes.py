"""The obligations of framing and keys: proved, each mutant refuted; the table that is proved is the one that is run."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import z3

from kvproof.models.frames import RULES, STATES, FrameScanner, Malformed, Rule
from kvproof.spec import framing, key_text, keys
from kvproof.spec.grammar import CLASSES, GRAMMAR, SENDER
from kvproof.spec.obligation import Obligation, Query, inductive
from kvproof.spec.prover import MutantResult, Result, prove
from kvproof.spec.receiver import Framing, pairs
from kvproof.spec.search import Model, Run, solver
from kvproof.spec.system import Concrete

ALL: dict[str, Obligation] = {each.id: each for subject in (framing, keys) for each in subject.OBLIGATIONS}

TRACES = {
    # mutant: the bytes of its shortest run, and what its mistake or consequence must mention
    "framing.never-waits:header-11": (b"$-1\r\n", "11 bytes"),
    "framing.never-waits:header-expected": (b"$-1\r\n", "expected"),
    "framing.never-waits:null-two-more": (b"$-1\r\n", "two bytes"),
    "framing.exact:empty-leaves-end": (b"$0\r\n", "terminator"),
    "framing.exact:error-leaves-rest": (b"-", "text of the error"),
    "framing.exact:overflow": (b"%2147483648\r\n", "32 bits"),
    "framing.accepts:no-null-array": (b"*-", "null array"),
    "framing.accepts:limit-refused": (b"!1", "limit"),
    "framing.refuses:late": (b"!1", "digits"),
    "framing.refuses:overflow": (b"%2147483648\r\n", "32 bits"),
    "framing.memory:reserves": (b"$1\r\n", "reserve"),
    "framing.memory:reserves-elements": (b"%1\r\n", "reserve"),
    "framing.value:null-within": (b"*1\r\n_\r\n", "nil"),
    "framing.value:null-is-empty": (b"$-1\r\n", "nil"),
}
SIZES = {
    # mutant: (ranks, size, steps)
    "framing.split:whole-piece": (1, 2, 5),
    "framing.split:forgets-rest": (1, 2, 4),
    "framing.split:head-again": (1, 1, 5),
    "framing.split:starts-reply": (1, 1, 3),
    "keys.read-is-written:not-rewritten": (2, 0, 0),
    "keys.read-is-written:exists-own-rank": (2, 0, 0),
    "keys.read-is-written:all-as-zero": (2, 0, 0),
    "keys.instance:readers-rank": (2, 0, 0),
    "keys.instance:written-to-first": (2, 0, 0),
    "keys.instance:not-rewritten": (2, 0, 0),
    "keys.same-owner:from-one": (1, 1, 0),
    "keys.distinct:sixteen-bits": (1, 8, 0),
    **{f"keys.distinct:no-{name}": (1, 8, 0) for name in key_text.FIELDS},
    "keys.parse:untagged": (1, 8, 0),
    "keys.parse:separator-in-name": (1, 8, 0),
    "keys.escaped:as-it-is": (1, 2, 1),
    "keys.escaped:keeps-separator": (1, 2, 1),
    "keys.unescaped:escape-itself": (1, 2, 2),
}


@cache
def proved(name: str) -> Result:
    return prove(ALL[name])


def mutant(name: str) -> MutantResult:
    obligation, wanted = name.split(":")
    return next(each for each in proved(obligation).mutants if each.id == wanted)


@pytest.mark.parametrize("name", ALL)
def test_obligation(name: str) -> None:
    result = proved(name)
    survivors = [each.id for each in result.mutants if each.verdict != "refuted"]
    assert result.passes, f"{name}: {result.verdict}, {result.explain}"
    assert not survivors, f"{name}: {survivors} survived"
    assert result.witness is not None or ALL[name].limit


def test_every_mutant_is_pinned() -> None:
    assert {f"{each.id}:{m.id}" for each in ALL.values() for m in each.mutants} == set(TRACES) | set(SIZES)


@pytest.mark.parametrize("name", TRACES)
def test_shortest_reply(name: str) -> None:
    sent, word = TRACES[name]
    found = mutant(name)
    assert isinstance(found.trace, Run)
    said = [picks[0] for action, picks in found.trace.actions if action == "byte"]
    assert b"".join(CLASSES[each.removeprefix("byte ")][:1] for each in said) == sent
    assert word in f"{found.says}; {found.explain}"


@pytest.mark.parametrize("name", SIZES)
def test_smallest_first(name: str) -> None:
    trace = mutant(name).trace
    assert isinstance(trace, Model | Run)
    assert (trace.ranks, trace.size, len(getattr(trace, "actions", ()))) == SIZES[name]


def test_sixteen_bits_apart() -> None:
    trace = mutant("keys.distinct:sixteen-bits").trace
    assert isinstance(trace, Model)
    chunk = key_text.FIELDS.index("chunk")
    k, other = trace.meaning["k_value"][chunk,], trace.meaning["l_value"][chunk,]
    assert k != other
    assert (k - other) % 2**16 == 0


def test_other_world_is_a_limit() -> None:
    trace = proved("keys.other-world").trace
    assert isinstance(trace, Model)
    assert trace.meaning["world"] != trace.meaning["other"]


def queries(system: Framing) -> list[Query]:
    """Return all that `framing` asks about the table."""
    s = system.view()
    safe = [Query(name, (*system.axioms(s), *system.invariant(s).values(), z3.Not(claim)))
            for name, claim in system.safety(s).items()]
    return [*inductive(system), *safe]


def holds(system: Framing) -> bool:
    for query in queries(system):
        search = solver(20_000_000)
        search.add(*query.formulas)
        if search.check() != z3.unsat:
            return False
    return True


def flipped(row: Rule, *instead: Rule) -> Framing:
    rules = tuple(new for rule in RULES for new in (instead if rule == row else (rule,)))
    assert rules != RULES

    class Flipped(Framing):
        pass

    Flipped.rules = rules
    return Flipped()


def test_the_table_holds() -> None:
    assert holds(Framing())


@pytest.mark.parametrize(("row", "change"), [
    (Rule("value", b"$", "bulk", "open"), {"action": ""}),
    (Rule("bulk-lf", b"\n", "payload", "bulk"), {"to": "end"}),
    (Rule("map-lf", b"\n", "value", "pairs"), {"action": "count"}),
    (Rule("set-digits", b"0123456789", "set-digits", "length"), {"action": "positive"}),
    (Rule("end", b"\n", "value", "close"), {"action": ""}),
    (Rule("inf-n", b"f", "line-end"), {"to": "nan-a"}),
    (Rule("array-null", b"\r", "end", "null"), {"to": "array-lf"}),
    (Rule("payload", b"\r", "end"), {"to": "payload"}),
])
def test_a_flipped_row_breaks_a_proof(row: Rule, change: dict[str, Any]) -> None:
    assert not holds(flipped(row, row._replace(**change))), f"{row} with {change} is proved"


def test_a_missing_row_breaks_a_proof() -> None:
    assert not holds(flipped(Rule("double-whole", b".", "double-fraction")))


def test_every_row_is_used_and_needed() -> None:
    """No reply of the grammar does without a row, and no row takes what the grammar does not send."""
    met: dict[Rule, set[int]] = {}
    for at, state in pairs(RULES):
        for sends in (sends for sends in SENDER.sends if sends.at == at):
            rules = [rule for rule in RULES if rule.state == state]
            assert set(sends.on) <= {byte for rule in rules for byte in rule.on}, f"{state} refuses some of {sends}"
            for rule in rules:
                met.setdefault(rule, set()).update(set(sends.on) & set(rule.on))
    unused = [rule for rule in RULES if met.get(rule, set()) != set(rule.on)]
    assert not unused


def test_the_grammar_has_every_type() -> None:
    assert {form.what[0] for form in GRAMMAR if form.start == "value"} == set("+-:$*_#,(!=%|~>")


STREAMS = (
    b"+OK\r\n-ERR no\r\n:0\r\n:-12\r\n:+7\r\n$-1\r\n$0\r\n\r\n$3\r\na\r\n\r\n*-1\r\n*0\r\n_\r\n#t\r\n",
    b"*2\r\n$1\r\nx\r\n*2\r\n:1\r\n_\r\n%1\r\n+k\r\n~1\r\n#f\r\n>1\r\n$-1\r\n",
    b"|1\r\n+k\r\n,1.5e-3\r\n(-12345678901234567890\r\n,-inf\r\n,nan\r\n!2\r\nno\r\n=7\r\ntxt:abc\r\n",
    b":9223372036854775807\r\n:9223372036854775808\r\n",
    b":-9223372036854775808\r\n:-9223372036854775809\r\n",
    b"$11\r\n", b"*6\r\n",
    b"%6\r\n", b"|5\r\n", b"=3\r\n", b"*1\r\n*1\r\n*1\r\n*1\r\n", b"$-2\r\n", b"+a\rb", b"$01\r\n",
    b"*1\r\n*1\r\n*1\r\n*0\r\n",
)


@cache
def concrete() -> Concrete:
    return Concrete(Framing(), 1, 4)


def registers(scanner: FrameScanner) -> dict[str, Any]:
    return {
        "state": f"in {STATES[scanner._state]}", "number": scanner._number, "remaining": scanner._remaining,
        "line": scanner._line, "stack": list(scanner._stack),
    }


@pytest.mark.parametrize("stream", STREAMS)
def test_the_scanner_does_what_is_proved(stream: bytes) -> None:
    """After each byte the scanner's registers are those of the receiver, computed from the formulas."""
    system, world = concrete(), {"limit": 10, "line_limit": 2**16, "bound": 3}
    name_of = {byte: name for name, members in CLASSES.items() for byte in members}
    scanner = FrameScanner(limit=10, depth=3)
    state: dict[str, Any] = {
        **dict.fromkeys(("pending", "to_send", "announced", "spoken", "number", "remaining", "line", "depth"), 0),
        **dict.fromkeys(("kept", "received"), 0),
        **dict.fromkeys(("plain", "nil", "beyond", "closing", "null"), False),
        "position": "at value", "state": "in value",
        "stack": {(i,): 0 for i in range(5)}, "base": {(i,): 0 for i in range(5)}, "kind": "byte +", "refusal": "none",
    }
    for at, byte in enumerate(stream):
        if not scanner.inside:
            state = {**state, "received": 0}
        here = state["state"].removeprefix("in ")
        rule = next((rule for rule in RULES if rule.state == here and byte in rule.on), None)
        to, does = (rule.to, rule.action or "nothing") if rule else (here, "malformed")
        if here == "payload" and state["remaining"]:
            to, does = "payload", "skip"
        picks = (f"byte {name_of[byte]}", "at value", "send nothing", f"in {to}", f"do {does}")
        state = system.after("byte", picks, world, state)
        while state["closing"]:
            state = system.after("close", (), world, state)
        try:
            frames = scanner.feed(stream[at : at + 1])
        except Malformed:
            assert state["refusal"] != "none", f"only the scanner refuses byte {at} of {stream!r}"
            return
        where = f"byte {at} of {stream!r}"
        assert state["refusal"] == "none", f"only the proof's receiver refuses {where}"
        stack = [state["stack"][i,] for i in range(state["depth"])]
        shown = {name: state[name] for name in ("state", "number", "remaining", "line")}
        assert {**shown, "stack": stack} == registers(scanner), where
        complete = state["state"] == "in value" and state["depth"] == 0
        assert complete == bool(frames), where
        if frames:
            (frame,) = frames
            taken = (frame.null, frame.end - frame.start, len(frame.head))
            assert (state["null"], state["received"], state["kept"]) == taken, where
