"""The disturbances of the wire that rules choose from, each with the places where it makes sense."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from kvproof.faults.families import (
    Bandwidth,
    Blank,
    Close,
    Coalesce,
    Delay,
    Drip,
    Duplicate,
    Empty,
    Error,
    Flip,
    HalfOpen,
    Hold,
    Huge,
    Insert,
    Nil,
    Reset,
    Silence,
    Split,
    Truncate,
    UnknownType,
    WrongLength,
    WrongType,
)
from kvproof.faults.fault import Fault

RELEASE = "go"
"""The name by which a rule releases what it holds."""

Group = Literal["harmless", "stall", "late", "cut", "garbage", "lie", "damage", "nil", "error", "refusal"]
GROUPS: dict[Group, str] = {
    "harmless": "the reply is right, and comes in pieces, a little late, or with something before it",
    "stall": "the reply, its end, or what the request asks for never comes, and the connection stays open",
    "late": "the reply is held until the rule lets it go",
    "cut": "the connection ends before, inside or after the reply",
    "garbage": "the reply is none, or not one that the command has",
    "lie": "the value has another length than the chunk",
    "damage": "the value has the chunk's length, and bits that nobody wrote",
    "nil": "the reply is a null",
    "error": "the reply is an error that a server gives to any command",
    "refusal": "the reply is an error that a server gives to a command that stores",
}
"""What the disturbances of each group do."""


@dataclass(frozen=True, slots=True)
class Spot:
    """A request of the undisturbed run, and its reply: where a disturbance may strike.

    name: for people, such as "GET" or "GET#3 metadata". command, key, match: as a fault is addressed. size, kind: of
    the reply, in bytes and by name. payload: it carries (most of) a chunk. chunk_bytes: of the chunk. first: whether
    it is about the first chunk of its call.
    """

    name: str
    command: str
    key: str
    match: int
    size: int
    kind: str
    payload: bool
    chunk_bytes: int
    first: bool = True

    @property
    def address(self) -> dict[str, Any]:
        """The fields with which a fault is addressed to it."""
        return {"command": self.command, "key": self.key, "match": self.match}

    @property
    def middle(self) -> int:
        """A byte inside the reply, behind its first."""
        return max(1, self.size // 2)


@dataclass(frozen=True, slots=True)
class Disturbance:
    """One entry of the menu: its id, its group, and the fault that it is at a spot (None where it makes no sense)."""

    id: str
    group: Group
    at: Callable[[Spot, float], Fault | None]

    @property
    def resp3(self) -> bool:
        """Whether only a client that has asked for RESP3 can meet it."""
        return self.id.startswith("insert:")


def _(identity: str, group: Group, family: Callable[..., Fault], fits: Callable[[Spot], bool] = lambda spot: True,
      **fields: Any) -> Disturbance:
    """Return an entry; a field that is a function is given the spot and the connector's timeout in seconds."""
    def at(spot: Spot, timeout: float) -> Fault | None:
        if not fits(spot):
            return None
        given = {name: value(spot, timeout) if callable(value) else value for name, value in fields.items()}
        return family(**spot.address, **given)
    return Disturbance(identity, group, at)


def _bulk(spot: Spot) -> bool:
    return spot.kind == "bulk" and spot.payload


def _any_bulk(spot: Spot) -> bool:
    return spot.kind == "bulk"


def _long(spot: Spot) -> bool:
    return spot.size > 8


def _array(spot: Spot) -> bool:
    return spot.kind == "array"


def _number(spot: Spot) -> bool:
    return spot.kind == "integer"


def _cuts(spot: Spot, timeout: float) -> tuple[int, ...]:
    """Return cuts at each of the reply's first and last bytes, where headers and terminators are."""
    near = {*range(1, min(spot.size, 13)), *range(max(1, spot.size - 4), spot.size), spot.middle}
    return tuple(sorted(cut for cut in near if 0 < cut < spot.size))


def _beyond(spot: Spot, timeout: float) -> float:
    return 1.5 * timeout + 0.5


def _little(spot: Spot, timeout: float) -> float:
    return 0.1 * timeout


MENU: tuple[Disturbance, ...] = (
    _("split", "harmless", Split, at=_cuts),
    _("delay:short", "harmless", Delay, seconds=_little),
    _("delay:short-inside", "harmless", Delay, _long, seconds=_little, at=lambda spot, timeout: spot.middle),
    _("drip:fast", "harmless", Drip, _long, seconds=lambda spot, timeout: 0.1 * timeout / 9,
      drop=lambda spot, timeout: max(1, spot.size // 8)),
    _("silence", "stall", Silence),
    _("silence:inside", "stall", Silence, at=lambda spot, timeout: spot.middle),
    _("silence:end", "stall", Silence, at=lambda spot, timeout: spot.size - 1),
    _("silence:request", "stall", Silence, direction="request"),
    _("half-open", "stall", HalfOpen),
    _("half-open:inside", "stall", HalfOpen, at=lambda spot, timeout: spot.middle),
    _("hold:close", "stall", Hold, until="close"),
    _("hold:close-request", "stall", Hold, until="close", direction="request"),
    _("drip:slow", "stall", Drip, _long, drop=lambda spot, timeout: max(1, spot.size // 60),
      seconds=lambda spot, timeout: 0.1 * timeout),
    _("bandwidth:slow", "stall", Bandwidth, _bulk, rate=lambda spot, timeout: max(1, int(spot.size / (8 * timeout)))),
    _("delay:long", "late", Delay, seconds=_beyond),
    _("hold", "late", Hold, until=RELEASE),
    _("hold:inside", "late", Hold, _long, until=RELEASE, at=lambda spot, timeout: spot.middle),
    _("close", "cut", Close),
    _("close:inside", "cut", Close, after=lambda spot, timeout: spot.middle),
    _("close:request", "cut", Close, direction="request"),
    _("reset", "cut", Reset),
    _("reset:inside", "cut", Reset, after=lambda spot, timeout: spot.middle),
    _("truncate", "cut", Truncate),
    _("unknown-type", "garbage", UnknownType),
    _("wrong-type:integer", "garbage", WrongType, lambda spot: not _number(spot), gives="integer"),
    _("wrong-type:array", "garbage", WrongType, lambda spot: not _array(spot), gives="array"),
    _("wrong-type:simple-string", "garbage", WrongType, lambda spot: spot.kind != "simple-string",
      gives="simple-string"),
    _("wrong-type:map", "garbage", WrongType, gives="map"),
    _("huge:bulk", "garbage", Huge),
    _("huge:array", "garbage", Huge, of="*", announces=2**32 - 1),
    _("insert:push", "garbage", Insert, frame="push"),
    _("insert:attribute", "garbage", Insert, frame="attribute"),
    _("wrong-length:header-short", "garbage", WrongLength, _any_bulk, by=-1, honest=False),
    _("wrong-length:header-long", "garbage", WrongLength, _any_bulk, by=1, honest=False),
    _("duplicate", "garbage", Duplicate),
    _("coalesce", "harmless", Coalesce, lambda spot: spot.match > 1),
    _("empty", "lie", Empty, _bulk),
    _("wrong-length:short", "lie", WrongLength, _bulk, by=-1),
    _("wrong-length:long", "lie", WrongLength, _bulk, by=1),
    _("wrong-length:half", "lie", WrongLength, _bulk, by=lambda spot, timeout: -(spot.chunk_bytes // 2)),
    _("blank", "damage", Blank, _bulk, at=lambda spot, timeout: spot.chunk_bytes // 2),
    _("flip", "damage", Flip, _bulk, byte=lambda spot, timeout: spot.chunk_bytes // 3, bit=5),
    _("nil", "nil", Nil, _any_bulk),
    _("nil:array", "nil", Nil, _any_bulk, null="*"),
    _("nil:resp3", "nil", Nil, _any_bulk, null="_"),
    *(_(f"error:{code}", "error", Error, code=code) for code in (
        "LOADING", "NOAUTH", "NOPERM", "MOVED", "ASK", "TRYAGAIN", "BUSY", "CLUSTERDOWN", "MASTERDOWN", "WRONGTYPE",
        "unknown")),
    *(_(f"error:{code}", "refusal", Error, code=code) for code in ("OOM", "READONLY", "MISCONF")),
)
"""Every disturbance of the wire, in the order in which they are tried."""
TYPICAL = Spot("GET", "GET", "*", 2, 4104, "bulk", True, 4096)
"""A spot at which most of the menu makes sense."""
