"""RESP as its specification writes it: what a sender may have still to send, and the bytes that it can send next.

Nothing here is taken from the receiver's table (`models/frames.py`), which is proved against this in `framing`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from kvproof.models.frames import RULES


class Form(NamedTuple):
    """From the position `start`, these bytes, and what is then true.

    what: tokens of `SETS`, or a byte that stands for itself; ``?`` none or one, ``*`` any number, ``+`` at least one;
    N is a number without leading zeros. digits: what a digit counts towards: a "length", a "positive" or "negative"
    integer, a line ("text"). then: "ends" or "null", the value is complete; "payload" or "format", as many bytes as
    the length says follow (the first four of "format" name it); "count", "pairs", "attribute", that many values follow.
    """

    start: str
    what: str
    then: str
    digits: str = "length"


SETS: dict[str, bytes] = {
    "CR": b"\r", "LF": b"\n", "any": bytes(range(256)), "digit": b"0123456789", "nonzero": b"123456789",
    "text": bytes(byte for byte in range(256) if byte not in b"\r\n"), "sign": b"+-", "e": b"eE", "tf": b"tf",
}

_FRACTION, _EXPONENT = ". digit*", "e sign? digit+"

GRAMMAR: tuple[Form, ...] = (
    Form("value", "+ text* CR LF", "ends", "text"),
    Form("value", "- text* CR LF", "ends", "text"),
    Form("value", ": N CR LF", "ends", "positive"),
    Form("value", ": + N CR LF", "ends", "positive"),
    Form("value", ": - nonzero digit* CR LF", "ends", "negative"),
    Form("value", "_ CR LF", "null"),
    Form("value", "# tf CR LF", "ends"),
    Form("value", "( sign? digit+ CR LF", "ends", "text"),
    Form("value", ", sign? digit+ CR LF", "ends", "text"),
    Form("value", f", sign? digit+ {_FRACTION} CR LF", "ends", "text"),
    Form("value", f", sign? digit+ {_EXPONENT} CR LF", "ends", "text"),
    Form("value", f", sign? digit+ {_FRACTION} {_EXPONENT} CR LF", "ends", "text"),
    Form("value", ", sign? i n f CR LF", "ends"),
    Form("value", ", sign? n a n CR LF", "ends"),
    Form("value", "$ N CR LF", "payload"),
    Form("value", "$ - 1 CR LF", "null"),
    Form("value", "! N CR LF", "payload"),
    Form("value", "= N CR LF", "format"),
    Form("format", "any any any :", "payload"),
    Form("payload", "CR LF", "ends"),
    Form("value", "* N CR LF", "count"),
    Form("value", "* - 1 CR LF", "null"),
    Form("value", "~ N CR LF", "count"),
    Form("value", "> N CR LF", "count"),
    Form("value", "% N CR LF", "pairs"),
    Form("value", "| N CR LF", "attribute"),
)

class Place(NamedTuple):
    """What is still to be sent of a form: tokens, what a digit or character among them counts towards, what then."""

    kind: str
    tokens: tuple[str, ...]
    digits: str
    then: str


class Sends(NamedTuple):
    """At the position `at` a byte of `on` may come next; it has an effect, and leads to the position `to`."""

    at: str
    on: bytes
    to: str
    effect: str


@dataclass(frozen=True)
class Sender:
    """The grammar as positions, each named by a shortest way to it, and the bytes that lead on."""

    positions: tuple[str, ...]
    sends: tuple[Sends, ...]

    def ending(self, then: str) -> list[str]:
        """Return the positions at which one byte is left of a form that ends so."""
        return [sends.at for sends in self.sends if sends.effect == then]


def _bytes(token: str) -> bytes:
    return SETS[token] if token in SETS else token.encode()


def _place(form: Form, tokens: tuple[str, ...]) -> Place:
    counts = any(token.rstrip("*") in _COUNTED for token in tokens)
    return Place(form.what[0], tokens, form.digits if counts else "", form.then)


_COUNTED = ("digit", "nonzero", "text")


def _places(form: Form) -> Iterable[Place]:
    for number in ("0", "nonzero digit*") if " N " in form.what else ("",):
        tokens: list[str] = []
        for token in form.what.replace(" N ", f" {number} ").split():
            tokens += [token[:-1], f"{token[:-1]}*"] if token.endswith("+") and token != "+" else [token]
        yield _place(form, tuple(tokens))


def _steps(place: Place, byte: int) -> Iterable[tuple[Place, str]]:
    """Return where a byte leads from one place, passing over tokens that need not come, and its effect."""
    for index, token in enumerate(place.tokens):
        optional = len(token) > 1 and token[-1] in "?*"
        plain = token[:-1] if optional else token
        if byte in _bytes(plain):
            rest = place.tokens[index + (not token.endswith("*") or not optional) :]
            counts = any(each.rstrip("*") in _COUNTED for each in rest)
            after = place._replace(tokens=rest, digits=place.digits if counts else "")
            yield after, place.then if not rest else place.digits if plain in _COUNTED else ""
        if not optional:
            return


def _sender() -> Sender:
    starts = ("value", "format", "payload")
    names = {frozenset(place for form in GRAMMAR if form.start == start for place in _places(form)): start
             for start in starts}
    waiting, found = list(names), []
    for places in waiting:
        here = names[places]
        rows: dict[tuple[frozenset[Place], str], list[int]] = {}
        for byte in range(256):
            steps = [step for place in places for step in _steps(place, byte)]
            if steps:
                (effect,) = {"open"} if here == "value" else {effect for _, effect in steps}
                rows.setdefault((frozenset(place for place, _ in steps), effect), []).append(byte)
        for (after, effect), on in rows.items():
            if any(not place.tokens for place in after):
                to = effect if effect in starts else "value"
            else:
                said = _said(on[0]) if len(on) < 12 else "?"
                to = names.setdefault(after, said if here == "value" else f"{here} {said}")
                if after not in waiting:
                    waiting.append(after)
            found.append(Sends(here, bytes(on), to, effect))
    return Sender(tuple(names.values()), tuple(found))


def _said(byte: int) -> str:
    # No name in SMT-LIB may hold a vertical bar.
    return {"\r": "CR", "\n": "LF", "|": "bar"}.get(chr(byte), chr(byte))


SENDER = _sender()


def _classes() -> dict[str, bytes]:
    """Return the coarsest sets of bytes that neither the table nor the grammar tells apart, by name."""
    asked = [frozenset(rule.on) for rule in RULES] + [frozenset(sends.on) for sends in SENDER.sends]
    asked += [frozenset((digit,)) for digit in b"0123456789"]
    alike: dict[tuple[bool, ...], list[int]] = {}
    for byte in range(256):
        alike.setdefault(tuple(byte in each for each in asked), []).append(byte)
    return {"other" if len(on) > 4 else "".join(map(_said, on)): bytes(on) for on in alike.values()}


CLASSES = _classes()
"""Every byte is in one of these."""


@functools.cache
def classes_of(on: bytes) -> tuple[str, ...]:
    """Return the classes that make up a set of bytes."""
    found = [name for name, members in CLASSES.items() if set(members) <= set(on)]
    if sum(len(CLASSES[name]) for name in found) != len(set(on)):
        raise ValueError(f"{on!r} cuts a class of bytes in two")
    return tuple(found)
