"""The connections of a client without I/O: which one serves which request, and when one is dropped or opened."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from kvproof.models.client import Chunk, Connection, Done, Failed, Outcome, Request, auth


@dataclass(frozen=True, slots=True)
class Connect:
    """Open a connection; report it under `link` to `connected`, `refused` or `lost`."""

    link: int


@dataclass(frozen=True, slots=True)
class Send:
    """Send these chunks on `link`, after what was to be sent before."""

    link: int
    chunks: list[Chunk]


@dataclass(frozen=True, slots=True)
class Drop:
    """Close `link` at once and send nothing more on it, not even the rest of what was begun."""

    link: int


Action = Connect | Send | Drop | Done
"""What the driver is to do. A `Drop` comes before the `Done` of the operations it takes down: a buffer is given back
only once nothing can be written to it or read from it any more."""


@dataclass(frozen=True, slots=True)
class Greeting:
    """Names the AUTH of one link."""

    link: int


class Pool:
    """Spreads requests over at most `size` connections, `depth` at a time on each.

    With the default depth of 1, a request that is given up takes nobody down with it. Requests that find no room
    wait in order. A connection that served and is lost is opened anew at once, any other when a request needs it.
    While no connection is open or being opened, a refusal fails the requests that wait: better soon than at their
    deadline. Every request is reported as `Done` exactly once.

    Times are seconds on any one clock; the pool never reads it.
    """

    def __init__(
        self,
        size: int,
        *,
        depth: int = 1,
        password: str | None = None,
        connection: Callable[[], Connection] = Connection,
    ) -> None:
        """Start with no connection open."""
        self._size, self._depth, self._password, self._make = size, depth, password, connection
        self._links = itertools.count(1)
        self._opening: set[int] = set()
        self._open: dict[int, Connection] = {}
        self._greeting: set[int] = set()
        self._waiting: deque[Request] = deque()
        self._where: dict[Hashable, int | None] = {}
        self._payloads: set[Hashable] = set()
        self._deadlines: list[tuple[float, int, Hashable]] = []
        self._order = itertools.count()
        self._closed: str | None = None
        self.refusal: str | None = None

    @property
    def settled(self) -> bool:
        """Whether the first attempts to connect have led anywhere: one connection is ready, or all were refused."""
        return self.ready > 0 or not (self._opening or self._greeting)

    @property
    def ready(self) -> int:
        """How many connections are open and authenticated."""
        return len(self._open) - len(self._greeting)

    def start(self) -> list[Action]:
        """Open all connections."""
        return [self._connect() for _ in range(self._size)]

    def submit(self, request: Request, deadline: float) -> list[Action]:
        """Take a request that is to end by `deadline`."""
        if self._closed is not None:
            return [Done(request.identity, Failed(self._closed))]
        self._where[request.identity] = None
        self._watch(request.identity, deadline)
        self._waiting.append(request)
        return self._assign()

    def connected(self, link: int, deadline: float) -> list[Action]:
        """Take note that `link` is open; `deadline` is for its AUTH, where there is a password."""
        if link not in self._opening:
            return [Drop(link)]
        self._opening.discard(link)
        self._open[link] = self._make()
        if self._password is None:
            return self._assign()
        greeting = Greeting(link)
        self._greeting.add(link)
        self._where[greeting] = link
        self._watch(greeting, deadline)
        return [Send(link, self._open[link].begin(auth(greeting, self._password)))]

    def refused(self, link: int, reason: str) -> list[Action]:
        """Take note that `link` could not be opened; `refusal` keeps the last reason."""
        self.refusal = reason
        self._opening.discard(link)
        if self.ready or self._opening or self._greeting:
            return []
        doomed = [request.identity for request in self._waiting]
        self._waiting.clear()
        return [self._end(identity, Failed(reason)) for identity in doomed]

    def receive_into(self, link: int) -> memoryview | None:
        """Return where the next bytes of `link` are to be received, None when it is dropped: then stop reading."""
        connection = self._open.get(link)
        return None if connection is None else connection.receive_into()

    def received(self, link: int, count: int) -> list[Action]:
        """Take note that `count` bytes arrived on `link`; 0 means that the peer closed."""
        connection = self._open.get(link)
        return [] if connection is None else self._settle(link, connection, connection.received(count))

    def lost(self, link: int, reason: str) -> list[Action]:
        """Take note that `link` failed."""
        connection = self._open.get(link)
        return [] if connection is None else self._settle(link, connection, connection.lost(reason))

    def cancel(self, identity: Hashable, reason: str = "cancelled") -> list[Action]:
        """Give up a request; nothing happens when it has ended."""
        return self._give_up(identity, reason, lambda connection: connection.cancel(identity, reason))

    def next_deadline(self) -> float | None:
        """Return when `expire` has something to do, None when nothing is in flight."""
        while self._deadlines and self._deadlines[0][2] not in self._where:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def expire(self, now: float, reason: str = "deadline exceeded") -> list[Action]:
        """Give up every request whose deadline has passed."""
        actions: list[Action] = []
        while (deadline := self.next_deadline()) is not None and deadline <= now:
            actions += self._expire(heapq.heappop(self._deadlines)[2], reason)
        return actions

    def close(self, reason: str) -> list[Action]:
        """Drop every connection and end every request; later requests end at once."""
        self._closed = reason
        links = [*self._open, *self._opening]
        self._open.clear()
        self._opening.clear()
        self._greeting.clear()
        self._waiting.clear()
        ended = [self._end(identity, Failed(reason)) for identity in list(self._where)]
        return [*(Drop(link) for link in links), *self._public(ended)]

    def _expire(self, identity: Hashable, reason: str) -> list[Action]:
        return self._give_up(identity, reason, lambda connection: connection.expire(identity, reason))

    def _give_up(self, identity: Hashable, reason: str, how: Callable[[Connection], list[Done]]) -> list[Action]:
        if identity not in self._where:
            return []
        link = self._where[identity]
        if link is None:
            self._waiting = deque(request for request in self._waiting if request.identity != identity)
            return [self._end(identity, Failed(reason))]
        connection = self._open[link]
        ended = how(connection)
        if identity in self._payloads:
            # The rest of its payload cannot be sent (the memory goes back to the caller) and cannot be left out.
            ended += connection.lost(f"the connection was dropped, because a SET on it ended early: {reason}")
        return self._settle(link, connection, ended)

    def _connect(self) -> Connect:
        link = next(self._links)
        self._opening.add(link)
        return Connect(link)

    def _watch(self, identity: Hashable, deadline: float) -> None:
        heapq.heappush(self._deadlines, (deadline, next(self._order), identity))

    def _assign(self) -> list[Action]:
        """Give requests that wait to connections with room; open one where they are all taken."""
        actions: list[Action] = []
        free = [link for link, connection in self._open.items() if self._room(link, connection)]
        while self._waiting and free:
            link = min(free, key=lambda link: self._open[link].outstanding)
            connection = self._open[link]
            request = self._waiting.popleft()
            self._where[request.identity] = link
            if request.payload is not None:
                self._payloads.add(request.identity)
            actions.append(Send(link, connection.begin(request)))
            if not self._room(link, connection):
                free.remove(link)
        wanted = len(self._waiting) - len(self._opening) - len(self._greeting)
        for _ in range(min(wanted, self._size - len(self._open) - len(self._opening))):
            actions.append(self._connect())
        return actions

    def _room(self, link: int, connection: Connection) -> bool:
        return link not in self._greeting and not connection.tainted and connection.outstanding < self._depth

    def _settle(self, link: int, connection: Connection, done: list[Done]) -> list[Action]:
        """Note what has ended on a connection, and drop it if it is of no further use."""
        ended = [self._end(item.identity, item.outcome) for item in done]
        actions: list[Action] = []
        greeted = [item for item in ended if item.identity == Greeting(link)]
        if greeted:
            self._greeting.discard(link)
        refusal = greeted[0].outcome if greeted else None
        if connection.useless or isinstance(refusal, Failed):
            del self._open[link]
            self._greeting.discard(link)
            actions.append(Drop(link))
            # A peer that closes before it ever answered would have us connect in a circle; then requests pay for it.
            if connection.replies and not isinstance(refusal, Failed):
                actions.append(self._connect())
        actions += self._public(ended)
        if isinstance(refusal, Failed):
            actions += self.refused(link, refusal.reason)
        return actions + self._assign() if self._closed is None else actions

    def _public(self, ended: list[Done]) -> list[Done]:
        return [item for item in ended if not isinstance(item.identity, Greeting)]

    def _end(self, identity: Hashable, outcome: Outcome) -> Done:
        del self._where[identity]
        self._payloads.discard(identity)
        return Done(identity, outcome)
