"""A loop over keys that takes a lock, a pin and bytes of the budget for each, and on every way out gives all back.

Callers (ranks, threads) go over the same keys. For each key a caller takes the lock, reserves the key's bytes and pins
it, lets the lock go and steps on; it may fail at every place. After success as after failure it undoes what it has
taken, the last key first, and returns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

BEFORE, LOOP, HOLDING, UNDO, OVER = "before", "loop", "holding", "undo", "over"
"""Where a caller is: holding is in the loop, with the lock of its next key; undo is on its way back."""


class Event(NamedTuple):
    """One thing that one caller does."""

    name: str
    caller: int


@dataclass(frozen=True, slots=True)
class Lock:
    """The lock of one key; last: who took it last."""

    held: bool = False
    last: int = 0


@dataclass(frozen=True, slots=True)
class Caller:
    """One caller.

    step: how many keys it has taken and not undone. pins: how often it has pinned each key. used: what it has of the
    budget, in bytes.
    """

    pins: tuple[int, ...]
    phase: str = BEFORE
    step: int = 0
    used: int = 0


@dataclass(frozen=True, slots=True)
class World:
    """All callers and keys: a value; `after` gives the next one. sizes: the bytes of each key."""

    sizes: tuple[int, ...]
    callers: tuple[Caller, ...]
    locks: tuple[Lock, ...]

    @classmethod
    def begin(cls, sizes: tuple[int, ...], callers: int) -> World:
        """Return the world before anybody has begun."""
        keys = len(sizes)
        return cls(sizes, (Caller((0,) * keys),) * callers, (Lock(),) * keys)

    def events(self) -> Iterator[Event]:
        """Return everything that can happen now."""
        for c, caller in enumerate(self.callers):
            match caller.phase:
                case "before":
                    yield Event("begin", c)
                case "loop" if caller.step == len(self.sizes):
                    yield Event("finish", c)
                case "loop" if self.gets(caller.step):
                    yield Event("lock", c)
                case "holding":
                    yield Event("take", c)
                case "undo":
                    yield Event("undo" if caller.step else "leave", c)
            if self.fails(c):
                yield Event("fail", c)

    def gets(self, key: int) -> bool:
        """Whether somebody who asks for the lock gets it."""
        return not self.locks[key].held

    def fails(self, c: int) -> bool:
        """Whether something may fail for c: anywhere in the loop."""
        return self.callers[c].phase in (LOOP, HOLDING)

    def after(self, event: Event) -> World:
        """Return what the event makes of this world; it must be one of `events`."""
        c, caller = event.caller, self.callers[event.caller]
        match event.name:
            case "begin":
                return self.but(c, phase=LOOP)
            case "lock":
                return self.but(c, phase=HOLDING).turn(caller.step, Lock(True, c))
            case "take":
                return self.book(c, caller.step, 1).but(c, phase=LOOP, step=caller.step + 1).unlock(caller.step)
            case "finish":
                return self.but(c, phase=UNDO)
            case "fail":
                return self.fail(c)
            case "undo":
                return self.undo(c)
            case "leave":
                return self.but(c, phase=OVER)
            case name:
                raise ValueError(f"a caller has no event {name!r}")

    def fail(self, c: int) -> World:
        """Return the world in which c goes back, and lets go of the lock if it holds one."""
        caller = self.callers[c]
        back = self.but(c, phase=UNDO)
        return back.unlock(caller.step) if caller.phase == HOLDING else back

    def undo(self, c: int) -> World:
        """Return the world in which c has undone the last key that it took."""
        key = self.callers[c].step - 1
        return self.book(c, key, -1).but(c, step=key)

    def book(self, c: int, key: int, times: int) -> World:
        """Return the world in which c has pinned the key so many times more, and uses its bytes as often."""
        caller = self.callers[c]
        pins = tuple(count + times * (k == key) for k, count in enumerate(caller.pins))
        return self.but(c, pins=pins, used=caller.used + times * self.sizes[key])

    def unlock(self, key: int) -> World:
        """Return the world in which nobody holds the lock of the key."""
        return self.turn(key, replace(self.locks[key], held=False))

    def turn(self, key: int, lock: Lock) -> World:
        """Return the world with this lock of the key."""
        return replace(self, locks=(*self.locks[:key], lock, *self.locks[key + 1 :]))

    def but(self, c: int, **changes: object) -> World:
        """Return the world in which this is different with c."""
        changed = replace(self.callers[c], **changes)  # type: ignore[arg-type]  # typed in Caller
        return replace(self, callers=(*self.callers[:c], changed, *self.callers[c + 1 :]))


def not_restored(world: World) -> str:
    """Say what somebody still has who has returned; "" when nothing."""
    for c, caller in enumerate(world.callers):
        if caller.phase != OVER:
            continue
        if any(caller.pins):
            return f"caller {c} has returned, and its pins are {list(caller.pins)}"
        if caller.used:
            return f"caller {c} has returned, and uses {caller.used} bytes"
        for key, lock in enumerate(world.locks):
            if lock.held and lock.last == c:
                return f"caller {c} has returned, and holds the lock of key {key}"
    return ""


def negative(world: World) -> str:
    """Say which pins are fewer than none; "" when none are."""
    return next((f"caller {c} has {count} pins on key {key}" for c, caller in enumerate(world.callers)
                 for key, count in enumerate(caller.pins) if count < 0), "")


def held_twice(world: World) -> str:
    """Say which two callers hold the lock of one key; "" when no two do."""
    for d, second in enumerate(world.callers):
        for c, first in enumerate(world.callers[:d]):
            if first.phase == second.phase == HOLDING and first.step == second.step:
                return f"callers {c} and {d} hold the lock of key {first.step}"
    return ""


def stuck(world: World) -> str:
    """Say who has not returned when nobody can go on, but by failing; "" when somebody can or all have."""
    left = [c for c, caller in enumerate(world.callers) if caller.phase != OVER]
    if left and not any(event.name != "fail" for event in world.events()):
        return f"callers {left} have not returned, and nobody can go on"
    return ""
