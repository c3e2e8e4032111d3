"""The wire log: what passed the proxy, in order, within a bound."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, Literal, NamedTuple

from kvproof.errors import UsageError
from kvproof.faults.fault import Pattern

LIMIT = 32768
"""Events that a log keeps; older ones are dropped and counted."""

HEAD = 64
"""Bytes of a frame that are kept at most."""

EVENTS = ('"open", "held", "released", "struck", "raw", "close", "request:COMMAND KEY-GLOB" or '
          '"reply:COMMAND KEY-GLOB"')
"""What can be waited for."""


Direction = Literal["open", "request", "reply", "push", "close", "call"]


class WireEvent(NamedTuple):
    """One thing that passed, or that the proxy did.

    direction: "open" and "close" of a connection; "request", a frame that was read from the client; "reply", a frame
    that was handed to the client's socket in full; "push", the same for a RESP3 push, which answers no request;
    "call", the end of a call of the client, as its caller told it. connection: ordinal, 1 for the first accepted, 0
    for none. sequence: from 0 on, without gaps, so the first event of a log tells how many were dropped before it.
    seconds: since the endpoint opened. command, key: of the request, or of the request that the reply answers; for a
    close, of the oldest request not yet answered in full; "" where there is none. size: bytes in the frame, as it was
    passed on; for a close the bytes of an unfinished reply that had been delivered. head: the frame's first bytes, 64
    at most, none where a password may stand. null: the frame is a null.

    did: "" for what merely passed. "held" and "released": the frame reached the proxy and waited there. Any other
    word: what a fault did to the frame. The frame's own event follows when it has been delivered, if it is. "raw": the
    stream is not RESP any more, and passes unread from here on. by: who closed first ("client", "server", "proxy"), or
    what released a hold. fault: the entry of the schedule that did it, counted from 0. detail: words for a person,
    never to be compared.
    """

    connection: int
    direction: Direction
    command: str = ""
    key: str = ""
    size: int = 0
    head: bytes = b""
    null: bool = False
    did: str = ""
    by: str = ""
    fault: int | None = None
    detail: str = ""
    sequence: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        """Say it on one line."""
        words = [f"connection {self.connection}" if self.connection else "", self.direction, self.command, self.key,
                 self.did]
        if self.by:
            words.append(f"by {self.by}")
        if self.size:
            words.append(f"{self.size} bytes")
        if self.null:
            words.append("null")
        if self.detail:
            words.append(f"({self.detail})")
        return " ".join(word for word in words if word)

    def to_json(self) -> dict[str, Any]:
        """Return the event as a JSON object; `head` is text with one character a byte."""
        return {**self._asdict(), "head": self.head.decode("latin-1"), "seconds": round(self.seconds, 6)}

    @classmethod
    def from_json(cls, entry: dict[str, Any]) -> WireEvent:
        """Read what `to_json` gave."""
        return cls(**{**entry, "head": entry["head"].encode("latin-1")})


def wanted(event: str) -> Callable[[WireEvent], bool]:
    """Return a predicate for what `EVENTS` lists; raises UsageError for anything else."""
    if event in ("open", "close"):
        return lambda seen: seen.direction == event and not seen.did
    if event in ("held", "released", "raw"):
        return lambda seen: seen.did == event
    if event == "struck":
        return lambda seen: bool(seen.did) and seen.fault is not None
    direction, colon, rest = event.partition(":")
    if colon and direction in ("request", "reply") and rest.strip():
        pattern = Pattern.parse(rest)
        return lambda seen: seen.direction == direction and not seen.did and pattern.matches(seen.command, seen.key)
    raise UsageError(f"event {event!r}: allowed: {EVENTS}")


class WireLog:
    """The events of one endpoint, the newest `LIMIT` of them."""

    def __init__(self, clock: Callable[[], float], limit: int = LIMIT) -> None:
        """Begin now; `clock` gives seconds."""
        self._events: deque[tuple[Any, ...]] = deque(maxlen=limit)
        self._clock = clock
        self._opened = clock()
        self._next = 0
        self._watchers: list[Callable[[WireEvent], None]] = []

    def note(self, connection: int, direction: Direction, command: str = "", key: str = "", size: int = 0,
             head: bytes = b"", null: bool = False, did: str = "", by: str = "", fault: int | None = None,
             detail: str = "") -> None:
        """Keep an event, with its number and time, and show it to those who watch."""
        event = (connection, direction, command, key, size, head, null, did, by, fault, detail, self._next,
                 self._clock() - self._opened)
        self._next += 1
        self._events.append(event)
        if self._watchers:
            for watcher in tuple(self._watchers):
                watcher(WireEvent(*event))

    def since(self, sequence: int = 0) -> list[WireEvent]:
        """Return the events that are kept, from this number on."""
        first = self._next - len(self._events)
        return [WireEvent(*event) for event in islice(self._events, max(0, sequence - first), None)]

    @contextmanager
    def watched(self, watcher: Callable[[WireEvent], None]) -> Iterator[None]:
        """Show every new event to `watcher`."""
        self._watchers.append(watcher)
        try:
            yield
        finally:
            self._watchers.remove(watcher)

    def summary(self, last: int = 8) -> str:
        """Say what was seen: the last events, and how many there were before them."""
        shown = [str(event) for event in self.since(self._next - last)]
        before = self._next - len(shown)
        return "; ".join(([f"{before} earlier events"] if before else []) + shown) or "nothing"
