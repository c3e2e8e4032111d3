"""The scanner beside the receiver of the framing proofs, byte by byte, on streams that the grammar allows."""

from __future__ import annotations

import random
from collections.abc import Iterable
from functools import cache
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproof.models.frames import RULES, STATES, FrameScanner, Malformed, Rule
from kvproof.spec.grammar import CLASSES, SENDER
from kvproof.spec.receiver import Framing
from kvproof.spec.system import Concrete, Point
from tests.mistakes.framing import MISTAKES

LIMITS: Point = {"limit": 12, "line_limit": 2**16, "bound": 3}
CLASS_OF = {byte: name for name, members in CLASSES.items() for byte in members}
_ZERO = ("pending", "to_send", "announced", "spoken", "number", "remaining", "line", "depth", "kept", "received")
FIRST: Point = {
    **dict.fromkeys(_ZERO, 0), **dict.fromkeys(("plain", "nil", "beyond", "closing", "null"), False),
    "position": "at value", "state": "in value", "kind": "byte +", "refusal": "none",
    "stack": {(i,): 0 for i in range(4)}, "base": {(i,): 0 for i in range(4)},
}


@cache
def concrete(kind: type[Framing] = Framing) -> Concrete:
    return Concrete(kind(), 1, 3)


def taken(state: str, remaining: int, byte: int) -> tuple[str, str, Rule | None]:
    """Return where the model's own table leads, what it does there, and by which row."""
    if state == "payload" and remaining:
        return "payload", "skip", None
    row = next((rule for rule in RULES if rule.state == state and byte in rule.on), None)
    return (row.to, row.action or "nothing", row) if row else (state, "malformed", None)


class Both:
    """The scanner and the spec's state, which takes the same bytes as steps that it must allow."""

    used: ClassVar[set[Rule]] = set()
    refused: ClassVar[set[str]] = set()

    def __init__(self, system: Concrete, kind: type[FrameScanner] = FrameScanner) -> None:
        self.system, self.state, self.scanner, self.sent = system, FIRST, kind(limit=12, depth=3), b""

    def step(self, name: str, *picks: str) -> None:
        assert self.system.enabled(name, picks, LIMITS, self.state), (
            f"after {self.sent!r} the spec does not allow {name} with {picks}")
        self.state = self.system.after(name, picks, LIMITS, self.state)

    def send(self, byte: int, position: str, effect: str) -> bool:
        """Send a byte; return whether it was taken."""
        if not self.scanner.inside:
            self.step("begin")
        to, does, row = taken(STATES[self.scanner._state], self.scanner._remaining, byte)
        self.used.update([row] if row else [])
        self.sent += bytes([byte])
        self.step("byte", f"byte {CLASS_OF[byte]}", f"at {position}", f"send {effect}", f"in {to}", f"do {does}")
        while self.state["closing"]:
            self.step("close")
        try:
            frames = self.scanner.feed(bytes([byte]))
        except Malformed:
            assert self.state["refusal"] != "none", f"only the scanner refuses the last byte of {self.sent!r}"
            self.refused.add(self.state["refusal"])
            return False
        assert self.state["refusal"] == "none", f"only the spec refuses the last byte of {self.sent!r}"
        names = ("state", "number", "remaining", "line")
        spec = {**{name: self.state[name] for name in names},
                "stack": [self.state["stack"][i,] for i in range(self.state["depth"])]}
        scanner = {**{name: getattr(self.scanner, f"_{name}") for name in names}, "stack": list(self.scanner._stack)}
        scanner["state"] = f"in {STATES[scanner['state']]}"
        assert spec == scanner, f"after {self.sent!r}"
        assert bool(frames) == (self.state["pending"] == 0), f"after {self.sent!r}"
        for frame in frames:
            shown = (frame.end - frame.start, len(frame.head), frame.null)
            assert shown == (self.state["received"], self.state["kept"], self.state["null"]), f"after {self.sent!r}"
        return True


def walk(choose: random.Random, both: Both, length: int = 60) -> None:
    """Send what the grammar allows next, any of it, until there are `length` bytes or a limit is exceeded."""
    for _ in range(length):
        position = both.state["position"].removeprefix("at ")
        if position == "payload" and both.state["to_send"]:
            going_on = both.send(choose.randrange(256), "payload", "skip")
        else:
            sends = choose.choice([sends for sends in SENDER.sends if sends.at == position])
            going_on = both.send(choose.choice(sends.on), sends.to, sends.effect or "nothing")
        if not going_on:
            return


@given(st.randoms(use_true_random=False))
def _walks(choose: random.Random) -> None:
    walk(choose, Both(concrete()))


def test_after_every_byte_of_a_random_stream_scanner_and_spec_stand_alike() -> None:
    Both.used.clear()
    Both.refused.clear()
    _walks()
    unused = {rule.state for rule in RULES} - {rule.state for rule in Both.used}
    assert not unused, f"no stream went through {unused}"
    assert Both.refused == {"over", "deep"}, "the streams exceed limits, and are not malformed"


def seen(seeds: Iterable[int], kind: type[Framing] = Framing, scanner: type[FrameScanner] = FrameScanner) -> bool:
    for seed in seeds:
        try:
            walk(random.Random(seed), Both(concrete(kind), scanner))
        except AssertionError:
            return True
    return False


FLIPPED: dict[Rule, dict[str, Any]] = {
    Rule("value", b"$", "bulk", "open"): {"action": ""},
    Rule("value", b"_", "null", "open"): {"to": "boolean"},
    Rule("bulk-lf", b"\n", "payload", "bulk"): {"to": "end"},
    Rule("bulk-null", b"\r", "end", "null"): {"to": "bulk-lf"},
    Rule("map-lf", b"\n", "value", "pairs"): {"action": "count"},
    Rule("attribute-lf", b"\n", "value", "attribute"): {"action": "pairs"},
    Rule("array-digits", b"\r", "array-lf"): {"to": "set-lf"},
    Rule("verbatim-lf", b"\n", "format-1", "format"): {"action": "size"},
    Rule("end", b"\n", "value", "close"): {"action": ""},
    Rule("text", b"\r", "end"): {"on": b"\n"},
    Rule("payload", b"\r", "end"): {"to": "payload"},
    Rule("inf-n", b"f", "line-end"): {"to": "nan-a"},
}


@pytest.mark.parametrize("row", FLIPPED, ids=str)
def test_flipping_one_row_of_the_spec_only_is_seen(row: Rule) -> None:
    assert row in RULES

    class Flipped(Framing):
        rules = tuple(rule._replace(**FLIPPED[row]) if rule == row else rule for rule in RULES)

    assert not seen(range(30))
    assert seen(range(300), Flipped), f"{row} with {FLIPPED[row]} in the spec only is not seen"


CANNOT_SEE = {
    "framing.exact:overflow": "counts here are at most 12",
    "framing.refuses:overflow": "counts here are at most 12",
    "framing.memory:reserves": "the memory of a scanner is not looked at",
    "framing.memory:reserves-elements": "the memory of a scanner is not looked at",
    "framing.split:whole-piece": "every piece has one byte here",
}
"""Mistakes of a scanner that do not show byte by byte, and why."""


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_of_the_scanner_only_is_seen(mistake: str) -> None:
    assert seen(range(300), scanner=MISTAKES[mistake]) == (mistake not in CANNOT_SEE)
