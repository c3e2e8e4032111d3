"""A pool that lends its one connection: requests that wait for it, those on it, and its end, as a value.

The pool and its connection are the real ones; around them are the callers and the server of `exchanges`. One event may
be several things at once: a reply is read, the connection is given back, and the next request is written.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field

from kvproof.models.client import Connection, Done, get
from kvproof.models.exchanges import PUSH, Event, Exchange, World, pieces, reply
from kvproof.models.pool import Action, Drop, Pool, Send
from kvproof.models.resp import Decoder

LINK = 1
FAR = 10.0
"""Seconds to every deadline; callers give up before."""


class Lending(Exchange):
    """One connection and its pool, in the middle of it all; `pool` and `kind` make them.

    A caller names its request as it submits it, and the key on the wire is that name; the number is for the order of
    writing. did: what happened to the connection by the last event, in the words of `exchanges`.
    """

    def __init__(
        self, errors: tuple[bool, ...], kind: type[Connection], pool: type[Pool] = Pool, depth: int = 1
    ) -> None:
        """Begin with the one connection open."""
        super().__init__(errors, kind)
        self.pool = pool(1, depth=depth, connection=lambda: self.connection)
        self.pool.start()
        self.pool.connected(LINK, FAR)
        self.did: list[Event] = []
        self.waiting: list[int] = []
        self.numbers: dict[int, int] = {}
        self.submitted = 0
        self._server = Decoder()

    def happen(self, event: Event) -> None:
        """Do what the event says."""
        self.did = [Event("push")] if event.name == "push" else []
        super().happen(event)

    def send(self) -> None:
        """Submit the next request: it is written at once, or waits."""
        name, buffer = self.submitted, bytearray(2)
        self.submitted, self._buffers[name] = name + 1, buffer
        self.waiting.append(name)
        self._follow(self.pool.submit(get(name, str(name), memoryview(buffer)), FAR))

    def give_up(self, request: int, how: str) -> None:
        """Let the caller of a request, by its name, cancel."""
        if request in self.numbers:
            self.did.append(Event("give_up", self.numbers[request]))
        self._follow(self.pool.cancel(request, how))

    def receive(self, size: int) -> None:
        """Let `size` more bytes of the frame arrive."""
        name, data = "read_push" if self.pushed else "read", self.piece(size)
        if not self.arrived:
            self.did.append(Event(name))
        while data and (into := self.pool.receive_into(LINK)) is not None:
            count = min(len(into), len(data))
            into[:count] = data[:count]
            self._follow(self.pool.received(LINK, count))
            data = data[count:]

    def drop(self, how: str) -> None:
        """Lose the connection."""
        self._follow(self.pool.received(LINK, 0) if how == "end of file" else self.pool.lost(LINK, how))

    def number(self, name: Hashable) -> int:
        """Return the number under which the request was written."""
        assert isinstance(name, int)
        return self.numbers[name]

    def _follow(self, actions: Sequence[Action]) -> None:
        sends = [action for action in actions if isinstance(action, Send)]
        dropped = any(isinstance(action, Drop) for action in actions)
        if self.lent and not dropped and self.connection.outstanding == len(sends):
            self.did.append(Event("give_back"))
            self.lent = False
        for action in actions:
            if isinstance(action, Done):
                if action.identity in self.numbers:
                    self._end([action])
                else:
                    self.waiting = [name for name in self.waiting if name != action.identity]
        for send in sends:
            self._written(send)
        if dropped:
            self.did.append(Event("drop"))
            self.open = self.lent = False

    def _written(self, send: Send) -> None:
        [words] = self._server.feed(b"".join(send.chunks))
        assert isinstance(words, tuple)
        assert isinstance(words[1], bytes)
        name = int(words[1])
        self.waiting.remove(name)
        self.numbers[name] = self.sent
        self.wanted.add(self.sent)
        self.sent, self.lent = self.sent + 1, True
        self.did.append(Event("send"))


@dataclass(frozen=True, slots=True)
class Lent(World):
    """Where a schedule has led; `after` runs it again, with one more event.

    depth: how many requests may be on the connection. submitted: how many there were. wanting: the names of those that
    have not ended, in the pool or on the connection. did: what the last event was to the connection.
    """

    depth: int = 1
    submitted: int = 0
    wanting: frozenset[int] = frozenset()
    did: tuple[Event, ...] = field(default=(), compare=False)
    pool: type[Pool] = field(default=Pool, compare=False)

    def events(self) -> Iterator[Event]:
        """Return everything that can happen until the connection is dropped."""
        if not self.open:
            return
        if self.submitted < len(self.errors):
            yield Event("send")
        if not self.pushed and not self.arrived:
            yield Event("push")
        if self.pushed or self.turn < self.sent:
            frame = PUSH if self.pushed else reply(self.taken, self.errors[self.taken])
            left = len(frame) - self.arrived
            yield from (Event("receive", size=size) for size in pieces(left))
            yield Event("read_push" if self.pushed else "read", size=left)
        yield from (Event("give_up", name, how="cancelled") for name in sorted(self.wanting))
        yield from (Event("drop", how=how) for how in ("end of file", "reset"))

    def after(self, event: Event) -> Lent:
        """Return what the event makes of this world; it must be one of `events`."""
        history = (*self.history, event)
        run = Lending(self.errors, self.kind, self.pool, self.depth)
        for each in history:
            run.happen(each)
        wanting = {*run.waiting, *(name for name in run.numbers if run.numbers[name] in run.wanted)}
        return Lent(**run.shown(), history=history, kind=self.kind, depth=self.depth, submitted=run.submitted,
                    wanting=frozenset(wanting), did=tuple(run.did), pool=self.pool)
