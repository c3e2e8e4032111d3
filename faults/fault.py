"""One entry of a fault schedule: where it strikes, and what it does to the frame there.

A family of faults is one file in `kvproof.faults.families` with one frozen dataclass derived from `Fault`. Its fields
are its JSON, `check` says what each may be, and `strike` passes the bytes of the struck frame on, changed, late, in
part or not at all.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from fnmatch import translate
from typing import ClassVar, Literal, NoReturn, Protocol, TypeGuard

from kvproof.errors import UsageError
from kvproof.faults.pieces import Pieces

ANY = "*"
BEFORE = "an integer from 0 on: bytes of the frame that pass before; a shorter frame is not struck"
"""What a field is that says how far a frame passes as it is."""
ACCEPT = "ACCEPT"
"""The command by which the accepting of a connection is addressed; `ANY` does not include it."""
KINDS: dict[str, str] = {
    "simple-string": "+", "error": "-!", "integer": ":", "bulk": "$", "array": "*", "map": "%", "set": "~",
    "double": ",", "boolean": "#", "big-number": "(", "verbatim": "=", "null": "", "push": ">",
}
"""The kinds of replies, by their type bytes; a null, of whichever type, is of the kind "null" and of no other."""

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


class Pattern:
    """Commands and keys: a command's name (any case) or ``*``, and a glob for the command's first key.

    The glob is that of `fnmatch`, case-sensitive, over the key as text with surrogateescape; of a key longer than 512
    bytes only those are looked at. A command without a key has the empty one, which ``*`` matches.
    """

    __slots__ = ("_key", "_matches", "command")

    def __init__(self, command: str, key: str = ANY) -> None:
        """Compile the pattern."""
        self.command = command.upper()
        self._key = key
        self._matches = re.compile(translate(key)).match

    @classmethod
    def parse(cls, text: str) -> Pattern:
        """Read ``COMMAND KEY-GLOB`` (the glob may be left out: any key); raises ValueError when there is no command."""
        command, _, key = text.strip().partition(" ")
        if not command:
            raise ValueError(f"{text!r} names no command")
        return cls(command, key.strip() or ANY)

    @property
    def literal(self) -> str:
        """What every key that fits begins with."""
        return re.split(r"[*?[]", self._key, maxsplit=1)[0]

    @property
    def exact(self) -> bool:
        """Whether one key fits, and no other."""
        return self.literal == self._key

    def matches(self, command: str, key: str) -> bool:
        """Whether this command (upper case) with this first key fits."""
        return self.command in (ANY, command) and self._matches(key) is not None

    def __str__(self) -> str:
        """Return the text that `parse` reads."""
        return f"{self.command} {self._key}"


@dataclass(frozen=True, slots=True)
class Until:
    """What ends a hold: a release by name, a request seen, or the client's close."""

    text: str
    name: str | None = None
    request: Pattern | None = None

    ALLOWED: ClassVar[str] = '"close", "request:COMMAND KEY-GLOB", or a name (letters, digits, - and _) to be released'

    @classmethod
    def parse(cls, text: str) -> Until:
        """Read what `ALLOWED` says; raises ValueError."""
        if text == "close":
            return cls(text)
        if text.startswith("request:"):
            return cls(text, request=Pattern.parse(text.removeprefix("request:")))
        if text == "request" or not _NAME.fullmatch(text):
            raise ValueError(f"{text!r} is not {cls.ALLOWED}")
        return cls(text, name=text)


class Moment(Protocol):
    """The place where a fault strikes: a frame, of which nothing has been passed on yet.

    owed: how many replies the client has still to get on this connection, the one at hand included.
    """

    @property
    def owed(self) -> int:
        """See above."""

    def did(self, what: str, by: str = "") -> None:
        """Write into the wire log what was done here; from now on the fault has struck."""

    async def until(self, until: Until) -> None:
        """Wait for the event; a request counts from now on, a release also when it was made before."""

    async def gone(self) -> None:
        """Wait until the client has closed."""

    async def wait(self, seconds: float) -> None:
        """Wait so long."""

    async def read(self) -> bool:
        """Wait until the other side has read all that was passed on to it; False when it has not after 5 seconds."""

    def passed(self) -> None:
        """Say that the frame has been passed on whole, before what is done after it."""

    def gather(self, frames: int) -> None:
        """Keep back what is passed on, until so many frames from this one on can be passed on at once."""

    async def swallow(self) -> None:
        """Pass nothing on any more on this connection, in either direction, also not that one side closes."""

    async def end(self, *, reset: bool = False) -> NoReturn:
        """Close the connection to both sides, after all that was passed on has gone out; or reset it, at once.

        Where a request is struck, this and `swallow` wait for the replies to those before it, 5 seconds at most.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A disturbance and its address, which is never a time or a chance.

    command, key: as `Pattern` has them; the command "ACCEPT" is the accepting of a connection, before anything is
    read from it. match: which of the matching requests, 1 for the first since the endpoint opened, in the order in
    which the proxy read them, whatever their connection. times: how many of them, from that one on; None for all.
    connection: only requests on the connection with this ordinal (1 for the first accepted) are counted; None for
    all. direction: whether the request itself is struck, on its way to the server, or its reply. reply: only requests
    whose reply is of this kind (of `KINDS`) are counted, in the order of the replies; a "push" answers no request, so
    it needs the command and key ``*``.
    """

    kind: ClassVar[str]
    directions: ClassVar[tuple[str, ...]] = ("reply", "request")
    """What this family can strike."""
    accepts: ClassVar[bool] = False
    """Whether this family can strike at the accepting of a connection."""
    listens: ClassVar[bool] = False
    """Whether it is the endpoint that does this, and no connection."""

    command: str = ANY
    key: str = ANY
    match: int = 1
    times: int | None = 1
    connection: int | None = None
    direction: Literal["reply", "request"] = "reply"
    reply: str | None = None

    def __post_init__(self) -> None:
        """Raise UsageError, naming the field and what is allowed, when a field does not fit."""
        self._check_address()
        self.check()

    def check(self) -> None:
        """Check the family's own fields, each with `require`."""

    def _check_address(self) -> None:
        self.require("command", is_text(self.command) and self.command.strip() == self.command != "",
                     'the name of a command, such as "GET", or "*" for any')
        self.require("command", self.accepts or self.command.upper() != ACCEPT,
                     "a command; this family cannot strike at the accepting of a connection")
        self.require("key", is_text(self.key), "a glob over the first key, such as \"model@*\"")
        self.require("match", is_count(self.match), "an integer from 1 on: which match strikes")
        self.require("times", self.times is None or is_count(self.times),
                     "an integer from 1 on: how many matches strike, or null for all from the first on")
        self.require("connection", self.connection is None or is_count(self.connection),
                     "null, or an integer from 1 on: the connection's ordinal")
        self.require("direction", isinstance(self.direction, str) and self.direction in self.directions,
                     " or ".join(f'"{direction}"' for direction in self.directions))
        fits = self.reply is None or (
            isinstance(self.reply, str) and self.reply in KINDS and self.direction == "reply")
        self.require("reply", fits, f"null, or for the direction \"reply\" one of {', '.join(KINDS)}")
        if self.command.upper() == ACCEPT:
            self.require("direction", self.direction == "reply", f'"reply" with the command "{ACCEPT}"')
            self.require("reply", self.reply is None, f'null with the command "{ACCEPT}", which has no reply')
        self.require("reply", self.reply != "push" or (self.command == self.key == ANY),
                     'with "push" the command and the key "*", since a push answers no request')

    def require(self, name: str, fits: bool, allowed: str) -> None:
        """Raise UsageError unless the field `name` fits."""
        if not fits:
            raise UsageError(f"{self.kind}, field {name}: got {shown(getattr(self, name))}; allowed: {allowed}")

    def due(self, seen: int) -> bool:
        """Whether the match number `seen` is one that is struck."""
        return seen >= self.match and (self.times is None or seen < self.match + self.times)

    def names(self) -> tuple[str, ...]:
        """Return the names that this fault waits to be released by."""
        return ()

    def strike(self, moment: Moment, pieces: Pieces) -> AsyncGenerator[bytes | memoryview]:
        """Yield what is to be passed on in place of the struck frame, whose bytes `pieces` has.

        A piece is good until the next one is asked for. What is not asked for is dropped. At the accepting of a
        connection there are no bytes.
        """
        raise NotImplementedError


def shown(value: object) -> str:
    """Return a value as it may stand in a message."""
    try:
        return f"{value!r:.80}"
    except ValueError:
        return "a number of very many digits"


def kind_of(head: bytes | memoryview) -> str | None:
    """Return the kind of the reply that begins with `head`; None when that is too short to tell."""
    first = chr(head[0])
    if first in "$*" and len(head) == 1:
        return None
    if first == "_" or (first in "$*" and head[1] == ord("-")):
        return "null"
    return next((kind for kind, types in KINDS.items() if first in types and types), "")


def is_count(value: object) -> bool:
    """Whether it is an integer from 1 on."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def is_offset(value: object) -> bool:
    """Whether it is an integer from 0 on."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def is_positive(value: object, most: float) -> bool:
    """Whether it is a number above 0 and at most `most`."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= most


def is_text(value: object) -> TypeGuard[str]:
    """Whether it is text that stands for bytes: UTF-8, with surrogateescape for what is none."""
    try:
        return isinstance(value, str) and value.encode("utf-8", "surrogateescape") is not None
    except UnicodeEncodeError:
        return False


def bulk_size(header: bytes) -> int | None:
    """Return how many bytes the payload of a bulk string has; None when it is no whole header of one."""
    whole = header[:1] == b"$" and header[1:2] != b"-" and header.endswith(b"\r\n")
    return int(header[1:-2]) if whole else None
