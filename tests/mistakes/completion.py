"""Every mistake that spec.completion names, made in a registry or in its client; and the designs that are not ours."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from kvproof.models.client import Failed
from kvproof.models.completions import GONE, NEW, QUEUE, Answers, Client, Event
from kvproof.models.registry import Completion, Outcomes, Registry, Ticket, completion


@dataclass(frozen=True)
class Made:
    """A registry, and the client around it. overlap: calls may overlap; under one lock they cannot."""

    registry: type[Registry[Answers]] = Registry
    client: type[Client] = Client
    overlap: bool = True

    def run(self, history: tuple[Event, ...]) -> Client:
        """Return the client after a schedule, when all calls have returned."""
        client = self.client(self.registry, overlap=self.overlap)
        client.run(history)
        return client


class SubmitFirst(Registry[Answers]):
    """An operation is handed over, and then it is registered."""

    def submit(self, hand_over: Callable[[int], object], keys: int = 1) -> Ticket[Answers]:
        identity = self.reserve()
        hand_over(identity)
        return Ticket(identity, self.register(identity, keys))


class OneLock(Registry[Answers]):
    """One lock over `submit` and all that touches the table: what comes while it is held happens when it is let go."""

    def __init__(self, slot: Callable[[], Answers]) -> None:
        super().__init__(slot)
        self._held = False
        self._later: list[Callable[[], Any]] = []

    def locked(self, action: Callable[[], Any]) -> Any:
        if not self._held:
            return action()
        self._later.append(action)
        return False

    def submit(self, hand_over: Callable[[int], object], keys: int = 1) -> Ticket[Answers]:
        assert self._closed is None, "no schedule begins a call after close"
        identity, self._held = self.reserve(), True
        hand_over(identity)
        slot, self._held = self.register(identity, keys), False
        while self._later:
            self._later.pop(0)()
        return Ticket(identity, slot)

    def register(self, identity: int, keys: int = 1) -> Answers:
        """Register without a look at whether the client is closed: under the lock it is not."""
        self._sizes[identity], slot = keys, self._slot()
        self._slots[identity] = slot
        return slot

    def drain(self, completions: Iterable[Completion]) -> int:
        taken = list(completions)
        return int(self.locked(lambda: super(OneLock, self).drain(taken)))

    def cancel(self, identity: int, reason: str) -> bool:
        return bool(self.locked(lambda: super(OneLock, self).cancel(identity, reason)))

    def close(self, reason: str) -> None:
        self.locked(lambda: super(OneLock, self).close(reason))


class Kept(SubmitFirst):
    """No lock; what nobody is registered for is kept until somebody registers."""

    def __init__(self, slot: Callable[[], Answers]) -> None:
        super().__init__(slot)
        self._kept: dict[int, Outcomes] = {}

    def register(self, identity: int, keys: int = 1) -> Answers:
        self._sizes[identity], slot = keys, self._slot()
        self._slots[identity] = slot
        over = self.over(identity)
        if over is not None:
            self.complete(identity, over)
        return slot

    def over(self, identity: int) -> Outcomes | None:
        """Return how an operation has ended before it is registered, None when it has not."""
        kept = self._kept.pop(identity, None)
        return (Failed(self._closed),) if kept is None and self._closed is not None else kept

    def complete(self, identity: int, result: Outcomes) -> bool:
        found = super().complete(identity, result)
        if not found:
            self.unclaimed(identity, result)
        return found

    def unclaimed(self, identity: int, result: Outcomes) -> None:
        self._kept[identity] = result


class DrainWithoutLock(OneLock):
    def locked(self, action: Callable[[], Any]) -> Any:
        return action() if "drain" in action.__qualname__ else super().locked(action)


class CloseWithoutLock(OneLock):
    def close(self, reason: str) -> None:
        held, self._held = self._held, False
        super().close(reason)
        self._held = held


class DropsUnknown(Kept):
    def unclaimed(self, identity: int, result: Outcomes) -> None:
        pass


class IgnoresClose(Kept):
    def over(self, identity: int) -> Outcomes | None:
        return self._kept.pop(identity, None)


class CancelFreesId(Registry[Answers]):
    def __init__(self, slot: Callable[[], Answers]) -> None:
        super().__init__(slot)
        self._freed: list[int] = []

    def reserve(self) -> int:
        return self._freed.pop() if self._freed else super().reserve()

    def cancel(self, identity: int, reason: str) -> bool:
        done = super().cancel(identity, reason)
        if done:
            self._freed.append(identity)
        return done


class OneLockCancelFreesId(OneLock, CancelFreesId):
    pass


class TableFreesId(Kept):
    def reserve(self) -> int:
        return next(identity for identity in range(1, 100) if not self.registered(identity))


class QueueForgotten(Client):
    def reap(self, worker: int) -> None:
        for call in self.calls.values():
            if call.worker == worker and call.place == QUEUE:
                call.place = GONE
        super().reap(worker)


class FlightOnly(Client):
    def close(self) -> None:
        self.closed, self.registry._closed = True, "closed"
        for call in self.calls.values():
            if call.place != NEW:
                self.registry.cancel(call.identity, "closed")


class Requeues(Client):
    def drain(self, o: int) -> None:
        call = self.calls[o]
        if call.place == QUEUE:
            dropped = self.registry.drain([completion(call.identity, self.answer(o))])
            call.place = QUEUE if dropped else GONE


DESIGNS = {"register-first": Made(), "one-lock": Made(OneLock, overlap=False), "kept": Made(Kept)}
"""The right ones."""

MISTAKES = {
    "completion.register-first-once:submit-first": Made(SubmitFirst),
    "completion.register-first-resolved:flight-only": Made(client=FlightOnly),
    "completion.register-first-resolved:queue-forgotten": Made(client=QueueForgotten),
    "completion.register-first-ids:cancel-frees-id": Made(CancelFreesId),
    "completion.one-lock-once:drain-without-lock": Made(DrainWithoutLock, overlap=False),
    "completion.one-lock-resolved:close-without-lock": Made(CloseWithoutLock, overlap=False),
    "completion.one-lock-resolved:queue-forgotten": Made(OneLock, QueueForgotten, overlap=False),
    "completion.one-lock-ids:cancel-frees-id": Made(OneLockCancelFreesId, overlap=False),
    "completion.kept-once:drops-unknown": Made(DropsUnknown),
    "completion.kept-resolved:ignores-close": Made(IgnoresClose),
    "completion.kept-resolved:queue-forgotten": Made(Kept, QueueForgotten),
    "completion.kept-ids:table-frees-id": Made(TableFreesId),
    "completion.register-first-no-deadlock:submit-first": Made(SubmitFirst),
    "completion.register-first-no-deadlock:queue-forgotten": Made(client=QueueForgotten),
    "completion.one-lock-no-deadlock:queue-forgotten": Made(OneLock, QueueForgotten, overlap=False),
    "completion.kept-no-deadlock:drops-unknown": Made(DropsUnknown),
    "completion.register-first-progress:requeues": Made(client=Requeues),
    "completion.one-lock-progress:requeues": Made(OneLock, Requeues, overlap=False),
    "completion.kept-progress:requeues": Made(Kept, Requeues),
}
"""Each mistake, by the obligation's and the mutant's id."""


def once(client: Client) -> str:
    """Say which operation was delivered twice, or has ended and was not delivered."""
    for o, call in client.calls.items():
        given = call.slot.given if call.slot else ()
        if len(given) > 1:
            return f"operation {o} was delivered {len(given)} times"
        if call.place == GONE and not given:
            return f"operation {o} has ended, and its caller waits"
    return ""


def resolved(client: Client) -> str:
    """Say which caller waits although the client is closed, or has seen the worker dead."""
    for o, call in client.calls.items():
        if (client.closed or call.worker in client.reaped) and call.slot and len(call.slot.given) != 1:
            why = "the client is closed" if client.closed else f"worker {call.worker} is dead"
            return f"{why}, and the caller of operation {o} was answered {len(call.slot.given)} times"
    return ""


def ids(client: Client) -> str:
    """Say which operation was given the completion of another, or flies under the id of another."""
    for o, call in client.calls.items():
        for outcomes in call.slot.given if call.slot else ():
            reasons = [outcome.reason for outcome in outcomes if isinstance(outcome, Failed)]
            if any(reason.startswith("of ") for reason in reasons) and reasons != [f"of {o}"]:
                return f"operation {o} was given the completion {reasons[0]}"
        for p, other in client.calls.items():
            if p < o and call.identity == other.identity and {call.place, other.place} <= {"worker", QUEUE}:
                return f"operations {p} and {o} are in flight under one id"
    return ""


def no_deadlock(client: Client) -> str:
    """Say whose caller waits when nothing can happen any more."""
    client.finish()
    waiting = [o for o, call in client.calls.items() if call.slot and not call.slot.given]
    return f"nothing can happen, and the callers of {waiting} wait" if waiting else ""


def progress(client: Client) -> str:
    """Say that it goes on for ever."""
    most = 50
    return f"{most} steps, and no end" if client.finish(most) == most else ""


PROPERTIES: dict[str, Callable[[Client], str]] = {
    "once": once, "resolved": resolved, "ids": ids, "no-deadlock": no_deadlock, "progress": progress}
"""What each kind of obligation claims, of a client whose calls have all returned."""
