"""Which operations are in flight and who waits for each: register, submit, drain, cancel, close."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from kvproof.models.client import Failed, Outcome

Outcomes = tuple[Outcome, ...]
"""How an operation ended, one outcome for each of its keys, in order."""

Completion = tuple[int, bool, str, Outcomes]
"""(id, ok, error, result): what a native client hands out for an operation that has ended. `error` is "" when ok."""


class Slot(Protocol):
    """What somebody waits on; a `concurrent.futures.Future` is one."""

    def set_result(self, result: Outcomes, /) -> None:
        """Take the result; called once."""


SlotT = TypeVar("SlotT", bound=Slot)


def completion(identity: int, result: Outcomes) -> Completion:
    """Return the completion that says what `result` says."""
    reasons = [outcome.reason for outcome in result if isinstance(outcome, Failed)]
    return identity, not reasons, reasons[0] if reasons else "", result


@dataclass(frozen=True, slots=True)
class Ticket(Generic[SlotT]):
    """An operation that was submitted, and the slot that will hold its result."""

    identity: int
    slot: SlotT


class Registry(Generic[SlotT]):
    """Operations by id, each with the slot of whoever waits for it; each slot is resolved exactly once.

    `submit` is the way in: it registers the slot before it hands the operation over, so a completion finds its slot
    however early it comes. A completion whose id is not registered therefore belongs to an operation that has ended
    already, by `cancel` or `close`, and is dropped.

    There is no lock: whoever removes an id from the dictionary, which is one atomic step, resolves its slot.
    """

    def __init__(self, slot: Callable[[], SlotT]) -> None:
        """Take the maker of slots."""
        self._slot = slot
        self._slots: dict[int, SlotT] = {}
        self._identities = itertools.count(1)
        self._sizes: dict[int, int] = {}
        self._closed: str | None = None

    def reserve(self) -> int:
        """Return an id that was never used."""
        return next(self._identities)

    def register(self, identity: int, keys: int = 1) -> SlotT:
        """Return the slot for an operation on `keys` keys; after `close` it is resolved already."""
        slot = self._slot()
        self._sizes[identity] = keys
        self._slots[identity] = slot
        # Read after the insertion: then either this sees `close`, or `close` sees the insertion.
        if self._closed is not None:
            self.cancel(identity, self._closed)
        return slot

    def submit(self, hand_over: Callable[[int], object], keys: int = 1) -> Ticket[SlotT]:
        """Register a new operation, then hand it over under its id; raises what `hand_over` raises."""
        identity = self.reserve()
        slot = self.register(identity, keys)
        try:
            hand_over(identity)
        except BaseException:
            self._slots.pop(identity, None)
            self._sizes.pop(identity, None)
            raise
        return Ticket(identity, slot)

    def registered(self, identity: int) -> bool:
        """Return whether somebody waits for this id."""
        return identity in self._slots

    def __len__(self) -> int:
        """Return how many operations are in flight."""
        return len(self._slots)

    def complete(self, identity: int, result: Outcomes) -> bool:
        """Resolve one operation; return False, and do nothing, when nobody is registered for it."""
        slot = self._slots.pop(identity, None)
        if slot is None:
            return False
        self._sizes.pop(identity, None)
        slot.set_result(result)
        return True

    def drain(self, completions: Iterable[Completion]) -> int:
        """Resolve what has ended; return how many completions found nobody and were dropped."""
        return sum(not self.complete(identity, result) for identity, _, _, result in completions)

    def cancel(self, identity: int, reason: str) -> bool:
        """Resolve an operation as failed before its completion has come; False when it has ended already."""
        return self.complete(identity, (Failed(reason),) * self._sizes.get(identity, 1))

    def close(self, reason: str) -> None:
        """Resolve everything that is in flight, and everything that is registered from now on, as failed."""
        self._closed = reason
        for identity in list(self._slots):
            self.cancel(identity, reason)
