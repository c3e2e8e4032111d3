"""One entry of a fault schedule: where it strikes, and what the proxy offers it there.

A family of faults is one file in `kvproof.faults.families` with one frozen dataclass derived from `Fault`. Its fields
are its JSON, `check` says what each may be, and `strike` is called once the proxy has come to the place.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import translate
from typing import ClassVar, Protocol

from kvproof.errors import UsageError

ANY = "*"
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
    """The place where a fault strikes, as the proxy offers it: nothing at or after it has been forwarded yet."""

    def did(self, what: str, by: str = "") -> None:
        """Write into the wire log what the proxy did here, and on whose account."""

    async def until(self, until: Until) -> None:
        """Wait for the event; a request counts from now on, a release also when it was made before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A disturbance and its address, which is never a time or a chance.

    command, key: as `Pattern` has them. match: which of the matching requests, 1 for the first since the endpoint
    opened, in the order in which the proxy read them, whatever their connection. connection: only requests on the
    connection with this ordinal (1 for the first accepted) are counted; None for all.
    """

    kind: ClassVar[str]

    command: str = ANY
    key: str = ANY
    match: int = 1
    connection: int | None = None

    def __post_init__(self) -> None:
        """Raise UsageError, naming the field and what is allowed, when a field does not fit."""
        self.check()

    def check(self) -> None:
        """Check the fields; a family checks its own after these."""
        self.require("command", isinstance(self.command, str) and self.command.strip() == self.command != "",
                     'the name of a command, such as "GET", or "*" for any')
        self.require("key", isinstance(self.key, str), "a glob over the first key, such as \"model@*\"")
        self.require("match", _is_ordinal(self.match), "an integer from 1 on: which match strikes")
        self.require("connection", self.connection is None or _is_ordinal(self.connection),
                     "null, or an integer from 1 on: the connection's ordinal")

    def require(self, name: str, fits: bool, allowed: str) -> None:
        """Raise UsageError unless the field `name` fits."""
        if not fits:
            raise UsageError(f"{self.kind}, field {name}: got {getattr(self, name)!r}; allowed: {allowed}")

    def names(self) -> tuple[str, ...]:
        """Return the names that this fault waits to be released by."""
        return ()

    async def strike(self, moment: Moment) -> None:
        """Do it."""
        raise NotImplementedError


def _is_ordinal(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
