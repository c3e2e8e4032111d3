"""A registry at work: callers, workers and their queues of completions, in any order of what can happen, as a value.

The registry is the real one. What is around it is as dumb as can be: a worker holds operations, and ends any of them; a
completion waits until it is drained, in any order. One call on the registry is one step, and `Registry.submit` two: the
rest of the schedule happens within its `hand_over`, so the worker may get the operation at any later time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kvproof.models.client import Failed
from kvproof.models.registry import Outcomes, Registry, completion

RETURN = "return"
"""An event by which the call that is within `hand_over`, the one that began last, returns."""
NEW, WORKER, QUEUE, GONE = "new", "worker", "queue", "gone"


class Event(NamedTuple):
    """One thing that happens, to an operation or to a worker."""

    name: str
    operation: int = -1
    worker: int = -1


class Answers:
    """A slot that keeps everything it is given."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.given: tuple[Outcomes, ...] = ()

    def set_result(self, result: Outcomes, /) -> None:
        """Take one more."""
        self.given += (result,)


@dataclass(frozen=True, slots=True)
class Operation:
    """What there is to see of an operation that has begun.

    place: where it, then its completion, is. registered: by the registry's own word. given: all that its slot was
    given, None where the caller has no slot yet. over: it had ended before the client was closed.
    """

    worker: int
    identity: int
    place: str
    registered: bool
    given: tuple[Outcomes, ...] | None
    cancelled: bool
    over: bool


@dataclass(slots=True)
class Call:
    """One operation, as the client and its worker keep it."""

    worker: int
    identity: int = 0
    slot: Answers | None = None
    place: str = NEW
    cancelled: bool = False
    over: bool = False


class Client:
    """A client of one registry; `kind` makes the registry. It runs one schedule, at whose end all calls return.

    overlap: a call may begin while another is within `hand_over`; otherwise that one returns first.
    """

    def __init__(self, kind: type[Registry[Answers]], *, overlap: bool = True) -> None:
        """Begin with nothing in flight."""
        self._made: list[Answers] = []
        self.registry: Registry[Answers] = kind(self._slot)
        self.calls: dict[int, Call] = {}
        self.dead: frozenset[int] = frozenset()
        self.reaped: frozenset[int] = frozenset()
        self.closed = False
        self._overlap = overlap
        self._left: list[Event] = []
        self._shown: dict[int, Operation] | None = None

    def run(self, history: tuple[Event, ...]) -> dict[int, Operation]:
        """Do everything in the schedule; return the operations as they are when no call has returned."""
        self._left, self._shown = list(history[::-1]), None
        self._go()
        return self._shown or {}

    def _go(self, *, within: bool = False) -> None:
        while self._left:
            if within and not self._overlap and self._left[-1].name == "register":
                return
            event = self._left.pop()
            if event.name == RETURN:
                if within:
                    return
                continue
            getattr(self, event.name)(*[place for place in event[1:] if place >= 0])
        if self._shown is None:
            self._shown = self.shown()

    def shown(self) -> dict[int, Operation]:
        """Return the operations that have begun."""
        return {
            o: Operation(call.worker, call.identity, call.place, self.registry.registered(call.identity),
                         None if call.slot is None else call.slot.given, call.cancelled, self._over(call))
            for o, call in self.calls.items()}

    def _slot(self) -> Answers:
        self._made.append(Answers())
        return self._made[-1]

    def _over(self, call: Call) -> bool:
        return call.over if self.closed else call.place == GONE or call.worker in self.reaped

    def answer(self, o: int) -> Outcomes:
        """Return what the worker answers to o: a failure that tells whose it is."""
        return (Failed(f"of {o}"),)

    def register(self, o: int, worker: int) -> None:
        """Call `submit`; the rest of the schedule happens before the worker gets the operation."""
        call = self.calls[o] = Call(worker)

        def hand_over(identity: int) -> None:
            call.identity, call.slot = identity, self._made.pop() if self._made else None
            self._go(within=True)

        ticket = self.registry.submit(hand_over)
        self._made.clear()
        call.slot = ticket.slot

    def submit(self, o: int) -> None:
        """Let the worker have the operation; one that is closed or was reaped takes nothing."""
        call = self.calls[o]
        if call.place == NEW and not self.closed and call.worker not in self.reaped:
            call.place = WORKER

    def complete(self, o: int) -> None:
        """Let the worker put its answer into its queue."""
        if self.calls[o].place == WORKER:
            self.calls[o].place = QUEUE

    def drain(self, o: int) -> None:
        """Take the completion of o from its queue."""
        call = self.calls[o]
        if call.place == QUEUE:
            call.place = GONE
            self.registry.drain([completion(call.identity, self.answer(o))])

    def cancel(self, o: int) -> None:
        """Let the caller cancel what it holds a slot for."""
        call = self.calls[o]
        if call.slot is not None:
            call.cancelled |= self.registry.cancel(call.identity, "cancelled")

    def die(self, worker: int) -> None:
        """Let a worker die: it completes nothing any more."""
        self.dead |= {worker}

    def reap(self, worker: int) -> None:
        """See that a worker is dead: drain its queue, and cancel what else is there."""
        self.reaped |= {worker}
        for o, call in self.calls.items():
            if call.worker == worker and call.place != GONE:
                self.drain(o)
                if call.place != GONE:
                    self.registry.cancel(call.identity, "the worker is dead")
                    call.place = GONE if call.place == WORKER else call.place

    def close(self) -> None:
        """Close the registry."""
        for call in self.calls.values():
            call.over = self._over(call)
        self.closed = True
        self.registry.close("closed")

    def finish(self, most: int = 100) -> int:
        """Go on with what nobody can put off for ever; return how many steps that took, `most` when it does not end."""
        for steps in range(most):
            fair = [(name, o) for o, call in self.calls.items() for name, ready in (
                ("submit", call.place == NEW and not self.closed and call.worker not in self.reaped),
                ("complete", call.place == WORKER and call.worker not in self.dead),
                ("drain", call.place == QUEUE)) if ready]
            fair += [("reap", worker) for worker in self.dead - self.reaped]
            if not fair:
                return steps
            getattr(self, fair[0][0])(fair[0][1])
        return most


@dataclass(frozen=True, slots=True)
class World:
    """Where a schedule has led: a value; `after` runs the schedule again, with one more event."""

    operations: tuple[Operation | None, ...]
    workers: int
    dead: frozenset[int] = frozenset()
    reaped: frozenset[int] = frozenset()
    closed: bool = False
    history: tuple[Event, ...] = field(default=(), compare=False)
    kind: type[Registry[Any]] = field(default=Registry, compare=False)

    @classmethod
    def begin(cls, operations: int, workers: int, kind: type[Registry[Any]] = Registry) -> World:
        """Return a client before anybody has called it."""
        return cls((None,) * operations, workers, kind=kind)

    def takes(self, o: int) -> bool:
        """Return whether o has begun, and its worker takes it if it has not got it yet."""
        operation = self.operations[o]
        return operation is not None and not self.closed and operation.worker not in self.reaped

    def events(self) -> Iterator[Event]:
        """Return everything that can happen now."""
        for o, operation in enumerate(self.operations):
            if operation is None:
                if not self.closed:
                    yield from (Event("register", o, w) for w in range(self.workers) if w not in self.reaped)
                continue
            if operation.place == NEW and self.takes(o):
                yield Event("submit", o)
            if operation.place == WORKER and operation.worker not in self.dead:
                yield Event("complete", o)
            if operation.place == QUEUE:
                yield Event("drain", o)
            if operation.given == ():
                yield Event("cancel", o)
        for worker in range(self.workers):
            if worker not in self.dead:
                yield Event("die", worker=worker)
            elif worker not in self.reaped:
                yield Event("reap", worker=worker)
        if not self.closed:
            yield Event("close")

    def after(self, event: Event) -> World:
        """Return what the event makes of this world; it must be one of `events`."""
        client, history = Client(self.kind), (*self.history, event)
        shown = client.run(history)
        return World(tuple(shown.get(o) for o in range(len(self.operations))), self.workers, client.dead,
                     client.reaped, client.closed, history, self.kind)
