"""The choices of a seeded schedule, and the token that names them."""

from __future__ import annotations

import random
import re
import sys
import zlib

from kvproof.errors import UsageError

_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
_VERSION = "kvloop2"
_TOKEN = re.compile(
    r"(?P<body>(?P<version>kvloop\d+)-(?P<python>\d\.\d+)-(?P<order>free|rounds)-(?P<seed>\d+)"
    r"-(?P<count>\d+)-(?P<digest>[0-9a-f]{8})(-(?P<end>[0-9a-f]{8}))?)-(?P<check>[0-9a-f]{8})")


class NotReplayed(UsageError):
    """A token's run did not come about again: it made other choices, or the same and ended otherwise.

    Then the token belongs to another program, or this one has changed, or it depends on more than a schedule.
    What a schedule does not decide is when a socket or a thread has something, the order in a set of anything but
    tasks, and everything random; fix what can be fixed, or search again.
    """


class Choices:
    """Which of several is next, by a seed.

    The choices are a function of the seed and of how many there were to choose from each time, so that their number and
    a checksum over them are enough to know them again.
    """

    def __init__(self, seed: int, *, rounds: bool = False) -> None:
        """Begin; raises UsageError when the seed is no integer from 0 on. rounds: see `SeededLoop`."""
        if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
            raise UsageError(f"seed {seed!r}: a seed is an integer from 0 on")
        self.seed, self.rounds = seed, rounds
        self.count = 0
        self._digest = 0
        # Of all of random, only this one method is promised to be the same in every version of Python.
        self._draw = random.Random(seed).random

    def take(self, width: int) -> int:
        """Return one of the integers below `width`, which is at least 1; one of one is no choice."""
        if width == 1:
            return 0
        index = int(self._draw() * width)
        self.count += 1
        self._digest = zlib.crc32(b"%d:%d;" % (width, index), self._digest)
        return index

    def token(self, error: BaseException | None = None) -> str:
        """Name the choices that were made and how the run ended, for this version of Python.

        That is their seed, number and checksum, and one of the error's class, if the run ended in one. What the error
        says is left out, because it often has an address, a port or a time in it, and so is the class's module, because
        that of a script is another one when it is imported.
        """
        order = "rounds" if self.rounds else "free"
        body = f"{_VERSION}-{_PYTHON}-{order}-{self.seed}-{self.count}-{self._digest:08x}-{_check(_kind(error))}"
        return f"{body}-{_check(body)}"

    @classmethod
    def replay(cls, token: str) -> Choices:
        """Return the choices that a token names, to be made again.

        Raises UsageError for what is no token, and for one of another version of kvproof or of Python, whose asyncio
        has other steps.
        """
        match = _TOKEN.fullmatch(token) if isinstance(token, str) else None
        if match is None or match["check"] != _check(match["body"]):
            raise UsageError(f"{token!r} is not a whole replay token; copy it once more, from kvloop on to its end")
        if match["version"] != _VERSION:
            raise UsageError(f"{token!r} is a token of another version of kvproof, this one makes {_VERSION}")
        if match["python"] != _PYTHON:
            raise UsageError(f"{token!r} is a token of Python {match['python']}, this is {_PYTHON}; replay it there")
        return cls(int(match["seed"]), rounds=match["order"] == "rounds")


def same_choices(one: str, other: str) -> bool:
    """Say whether two tokens name the same choices, however their runs ended."""
    return one.split("-")[:-2] == other.split("-")[:-2]


def _kind(error: BaseException | None) -> str:
    if error is None:
        return ""
    inner = ",".join(map(_kind, error.exceptions)) if isinstance(error, BaseExceptionGroup) else ""
    return f"{type(error).__qualname__}({inner})"


def _check(body: str) -> str:
    return f"{zlib.crc32(body.encode()):08x}"
