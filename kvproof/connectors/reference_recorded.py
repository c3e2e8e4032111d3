"""The reference client, recording what it does: operations for the completion protocol, and requests for ownership.

It is also the example of where a connector records; see docs/validating-a-log.md.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any

from kvproof.connectors.adapter import Place
from kvproof.connectors.reference_client import Client
from kvproof.models.client import Chunk, Connection, Done, Request
from kvproof.models.registry import Completion, Outcomes, Registry, SlotT, Ticket
from kvproof.recorder import Recorder


class RecordedRegistry(Registry[SlotT]):
    """A registry that records; a lock makes one step of what happens to an operation and of its being recorded."""

    def __init__(self, slot: Callable[[], SlotT], record: Recorder) -> None:
        """Record with `record`."""
        super().__init__(slot)
        self._record = record
        self._lock = threading.RLock()
        self._recorded: set[int] = set()

    def register(self, identity: int, keys: int = 1) -> SlotT:
        """Record it, unless the registry is closed: then the operation never begins."""
        with self._lock:
            if self._closed is None:
                self._recorded.add(identity)
                self._record("register", operation=identity)
            return super().register(identity, keys)

    def submit(self, hand_over: Callable[[int], object], keys: int = 1) -> Ticket[SlotT]:
        """Record that it is handed over, unless its future has been resolved by then."""

        def recorded(identity: int) -> object:
            with self._lock:
                if self.registered(identity):
                    self._record("submit", operation=identity)
                else:
                    self._recorded.discard(identity)
            return hand_over(identity)

        return super().submit(recorded, keys)

    def drain(self, completions: Iterable[Completion]) -> int:
        """Record each completion, also one whose future was resolved before."""
        dropped = 0
        for identity, _, _, result in completions:
            with self._lock:
                dropped += not self.complete(identity, result)
                if identity in self._recorded:
                    self._recorded.discard(identity)
                    self._record("drain" if self._closed is None else "drain_unknown", operation=identity)
                elif self._closed is None:
                    self._record("drain_unknown", operation=identity)
        return dropped

    def cancel(self, identity: int, reason: str) -> bool:
        """Record it when it had not ended; what `close` resolves is recorded as the close."""
        with self._lock:
            done = super().cancel(identity, reason)
            if done and self._closed is None:
                self._record("cancel", operation=identity)
            return done

    def complete(self, identity: int, result: Outcomes) -> bool:
        """Resolve one operation, with the lock held."""
        with self._lock:
            return super().complete(identity, result)

    def close(self, reason: str) -> None:
        """Record it once."""
        with self._lock:
            if self._closed is None:
                self._record("close")
            super().close(reason)


class Recording(Connection):
    """A connection that records, as a step of its own; with one request at a time, each one borrows it anew."""

    record: Recorder
    number: int
    _sent = 0
    _dropped = False

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self._numbers: dict[Hashable, int] = {}

    def _note(self, event: str, **values: Any) -> None:
        self.record(event, step=self.number, **values)

    def drop(self) -> None:
        """Record that the connection is closed, once."""
        if not self._dropped:
            self._dropped = True
            self._note("drop")

    def begin(self, request: Request) -> list[Chunk]:
        """Record that the one before has given the connection back, and that a request is sent."""
        chunks = super().begin(request)
        if self._sent:
            self._note("give_back")
        self._note("send")
        self._numbers[request.identity] = self._sent
        self._sent += 1
        return chunks

    def lost(self, reason: str) -> list[Done]:
        """Record it, once."""
        self.drop()
        return super().lost(reason)

    def _reply(self, reply: Any) -> list[Done]:
        """Record which request is given the reply, or would be, had it not been given up."""
        receiving = [request for request, _ in self._waiting][:1]
        done = super()._reply(reply)
        for request in receiving:
            self._note("read", request=self._numbers.pop(request.identity))
        return done

    def _take_line(self, piece: bytes) -> list[Done]:
        before = self.pushes
        done = super()._take_line(piece)
        if self.pushes > before:
            self._note("read_push")
        return done

    def cancel(self, identity: Hashable, reason: str) -> list[Done]:
        """Record that the request was given up, if it had not ended."""
        return self._given_up(identity, super().cancel(identity, reason))

    def expire(self, identity: Hashable, reason: str) -> list[Done]:
        """Record that the request was given up, if it had not ended."""
        return self._given_up(identity, super().expire(identity, reason))

    def _given_up(self, identity: Hashable, done: list[Done]) -> list[Done]:
        """Record it; a connection that nobody waits on any more is dropped by the pool."""
        if done:
            self._note("give_up", request=self._numbers[identity])
        if self.useless:
            self.drop()
        return done


def recording(
    kind: Any, record: Recorder, numbers: Iterator[int], made: list[Recording] | None = None
) -> type[Recording]:
    """Return connections of that kind that record, each as the step of the next number; `made` takes in each."""

    class Recorded(Recording, kind):  # type: ignore[misc]  # a class that is given
        """A connection of the client's kind."""

        def __init__(self, **more: Any) -> None:
            super().__init__(**more)
            self.record, self.number = record, next(numbers)
            if made is not None:
                made.append(self)

    return Recorded


def recorded(place: Place, operations: Recorder, requests: Recorder, kind: type[Client] = Client) -> Client:
    """Return a client of that kind that records its operations and its requests, as two logs."""
    connections: list[Recording] = []
    made = recording(kind.connection, requests, itertools.count(), connections)

    class RecordedClient(kind):  # type: ignore[misc, valid-type]  # a class that is given
        """A client with such connections, and a registry that records."""

        connection = made

        @staticmethod
        def registered(slot: Callable[[], Any]) -> Registry[Any]:
            return RecordedRegistry(slot, operations)

        def close(self) -> None:
            """Record that what connections there are go with the client."""
            super().close()
            for connection in connections:
                connection.drop()

    return RecordedClient(place)
