"""Planning: each read is first made without a disturbance, and disturbances are planned at what passed then."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from glob import escape
from hashlib import blake2b
from typing import Any, Literal

from kvproof.connectors.adapter import Read
from kvproof.faults.fault import KINDS
from kvproof.faults.wire import WireEvent
from kvproof.rig import WRITES, Described
from kvproof.rules.menu import MENU, Disturbance, Group, Spot
from kvproof.rules.rule import PUT, Case

Shape = Literal["present", "absent", "put", "overwrite"]
"""What a disturbed call is about: chunks that are stored, that nobody stored, or the storing of one, first or again."""

VICTIMS = ("a0c1", "a1c2", "a2c3")
"""The chunks that a disturbed call asks for: the first by a read of one, all by a batch."""
OTHERS = ("b0d1", "b1d2")
"""Chunks that are stored and asked for before and after, undisturbed."""
NOBODYS = "e0f1"
"""A chunk that no cell stores."""
CHUNK_BYTES = 4096
"""The size of a chunk, where a rule does not say otherwise."""


UNADDRESSED = ("no request has the chunk's hash in its key, by which requests are found, so no disturbance of the wire "
               "was tried")
"""Why there are no cells on the wire where the client sends requests."""


def asked_for(read: Read) -> tuple[str, ...]:
    """Return the chunks that a disturbed call asks for."""
    return VICTIMS if read.batch else VICTIMS[:1]


@dataclass(frozen=True, slots=True)
class Recording:
    """What passed, without any disturbance, up to the end of a call; `begin` is the call's first event."""

    events: tuple[WireEvent, ...]
    begin: int

    def spots(self, chunk_bytes: int) -> list[Spot]:
        """Return the requests of the call that name one of its chunks: of each command, the first and the last chunk's.

        The key of a request stands for its chunk. Where an object has several keys, each has spots of its own. In
        which order a client sent them makes no difference: with several at once it is another one each time.
        """
        found: dict[tuple[str, str], list[tuple[int, int, Spot]]] = {}
        seen: dict[tuple[str, str], int] = {}
        replies = self._replies()
        roles = _roles({event.key for event in self.events if event.direction == "request"})
        for event in self.events:
            if event.direction != "request" or event.did:
                continue
            glob, chunk = _address(event.key)
            if chunk is None:
                continue
            seen[event.command, glob] = match = seen.get((event.command, glob), 0) + 1
            reply = replies.get(event.sequence)
            if event.sequence < self.begin or reply is None:
                continue
            index, role = VICTIMS.index(chunk) + 1, roles[event.key]
            name = f"{event.command}{f'#{index}' if index > 1 else ''}{f'.{role}' if role else ''}"
            kind = kind_of(reply)
            payload = kind == "bulk" and reply.size >= chunk_bytes
            spot = Spot(name, event.command, glob, match, reply.size, kind, payload, chunk_bytes, index == 1)
            found.setdefault((event.command, role), []).append((index, match, spot))
        chosen: list[Spot] = []
        for _, spots in sorted(found.items()):
            *others, (_, _, last) = sorted(spots, key=lambda each: each[:2])
            chosen += [*(spot for _, _, spot in others[:1]), last]
        return chosen

    @property
    def keyed(self) -> bool:
        """Whether the call made requests that have a key at all."""
        return any(event.direction == "request" and event.key and not event.did
                   for event in self.events if event.sequence >= self.begin)

    @property
    def resp3(self) -> bool:
        """Whether the client asked for RESP3, and got it."""
        hellos = (event for event in self.events if event.direction == "reply" and event.command == "HELLO")
        return any(event.head.startswith(b"%") for event in hellos)

    def _replies(self) -> dict[int, WireEvent]:
        """Return the reply to each request, by the request's number: they come in order on each connection."""
        waiting: dict[int, list[int]] = {}
        found: dict[int, WireEvent] = {}
        for event in self.events:
            if event.did:
                continue
            if event.direction == "request":
                waiting.setdefault(event.connection, []).append(event.sequence)
            elif event.direction == "reply" and waiting.get(event.connection):
                found[waiting[event.connection].pop(0)] = event
        return found


def _address(key: str) -> tuple[str, str | None]:
    """Return a glob for the key whatever comes before its chunk, and the chunk."""
    for chunk in VICTIMS:
        places = [found.start() for found in re.finditer(chunk, key, re.IGNORECASE)]
        if places:
            return f"*{escape(key[places[-1]:])}", chunk
    return "", None


def _roles(keys: Iterable[str]) -> dict[str, str]:
    """Return for each key of an object that has several the end in which it differs from the others; else nothing."""
    objects: dict[str | None, list[str]] = {}
    for key in keys:
        objects.setdefault(_address(key)[1], []).append(key)
    return {key: _plain(key[_common(those):]) if len(those) > 1 else "" for those in objects.values() for key in those}


def _plain(end: str) -> str:
    """Return the end of a key as it may stand in a name, whatever bytes it is made of."""
    plain = "".join(letter if letter.isprintable() and letter not in " []" else f"%{ord(letter):02x}" for letter in end)
    return plain if len(plain) <= 40 else f"{plain[:30]}~{blake2b(plain.encode(), digest_size=4).hexdigest()}"


def _common(words: Sequence[str]) -> int:
    """Return how many characters all of them begin with."""
    return next((at for at, letters in enumerate(zip(*words, strict=False)) if len({*letters}) > 1),
                min(map(len, words)))


def kind_of(reply: WireEvent) -> str:
    """Return the name of a reply's kind, as faults have it."""
    if reply.null:
        return "null"
    return next((name for name, types in KINDS.items() if reply.head[:1].decode("latin-1") in types), "?")


@dataclass(frozen=True, slots=True)
class Skipped:
    """A disturbance under which a rule is not tried, and why."""

    rule: str
    fault: str
    why: str


@dataclass
class Plan:
    """What is known of a connector when its cells are planned, and the making of cases.

    recordings: by the read's name and the shape. timeout: what the connector is told, in seconds. server: its kind.
    """

    described: Described
    timeout: float
    recordings: Mapping[tuple[str, Shape], Recording] = field(default_factory=dict)
    server: str = "valkey"

    @property
    def wired(self) -> bool:
        """Whether the connector's traffic passes the proxy at all."""
        return bool(self.recordings)

    def reads(self, *, payload: bool | None = None, batch: bool | None = None, sync: bool | None = None) -> list[Read]:
        """Return the declared reads of that kind."""
        return [
            read for read in self.described.reads
            if payload in (None, read.payload) and batch in (None, read.batch) and sync in (None, read.sync)
        ]

    def undisturbed(self, reads: Iterable[Read], name: str = "none", **given: Any) -> Iterator[Case]:
        """Return one case without a disturbance for each read."""
        for read in reads:
            yield Case(name, read, given=given)

    def disturbed(
        self, reads: Iterable[Read], shape: Shape, *groups: Group, but: Iterable[str] = (), **given: Any
    ) -> Iterator[Case]:
        """Return the cases for every disturbance of these groups at every spot of each read; `but` are left out."""
        chosen = [entry for entry in MENU if entry.group in groups and entry.id not in but]
        for read in reads:
            recording = self.recordings.get((read.name, shape))
            if recording is None:
                continue
            spots = recording.spots(CHUNK_BYTES)
            if not spots and recording.keyed:
                yield Case("wire", read, given={"untried": UNADDRESSED, "entry": "wire"})
            # A look-up may end with the first chunk that is absent, whatever comes for those after it.
            for spot in [spot for spot in spots if shape != "absent" or spot.first]:
                for entry in chosen:
                    if recording.resp3 or not entry.resp3:
                        yield from self._case(read, shape, entry, spot, given)

    def _case(
        self, read: Read, shape: Shape, entry: Disturbance, spot: Spot, given: Mapping[str, Any]
    ) -> Iterator[Case]:
        fault = entry.at(spot, self.timeout)
        if fault is not None:
            name = f"{entry.id}@{spot.name}"
            what = {"shape": shape, "group": entry.group, "entry": entry.id, **given}
            yield Case(name, read, (fault,), given=what)

    def cancellable(self) -> list[Read]:
        """Return the reads that the adapter can cancel: those that are not synchronous, or all where there are none."""
        return self.reads(sync=False) or self.reads()

    @property
    def keys(self) -> int:
        """Under how many keys the connector stores an object, as was seen on the wire; 1 where nothing was seen."""
        recording = self.recordings.get((PUT.name, "put"))
        events = recording.events if recording is not None else ()
        keys = {event.key for event in events if event.command in WRITES}
        return max(1, sum(VICTIMS[0] in key.lower() for key in keys))
