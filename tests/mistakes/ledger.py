"""Every mistake that spec.ledger names, made in the model of callers that go over keys."""

from __future__ import annotations

from typing import Any

from kvproof.models.ledger import HOLDING, LOOP, OVER, UNDO, World


class ReturnsInLoop(World):
    def fails(self, c: int) -> bool:
        return self.callers[c].phase == HOLDING

    def fail(self, c: int) -> World:
        return self.but(c, phase=OVER)


class LosesPins(World):
    def fail(self, c: int) -> World:
        return World.fail(self, c).but(c, phase=OVER)


class UndoneTwice(World):
    def undo(self, c: int) -> World:
        return World.undo(self.book(c, self.callers[c].step - 1, -1), c)


class NoLock(World):
    def gets(self, key: int) -> bool:
        return True


class UnlocksAlways(World):
    def fail(self, c: int) -> World:
        key = self.callers[c].step
        return World.fail(self, c).unlock(key) if key < len(self.sizes) else World.fail(self, c)


class AsksAgain(World):
    def fails(self, c: int) -> bool:
        return self.callers[c].phase == UNDO and self.callers[c].step == 0

    def fail(self, c: int) -> World:
        return self.but(c, phase=LOOP)


MISTAKES: dict[str, Any] = {
    "ledger.restored:return-in-loop": ReturnsInLoop,
    "ledger.restored:loses-pins": LosesPins,
    "ledger.restored:undone-twice": UndoneTwice,
    "ledger.never-negative:undone-twice": UndoneTwice,
    "ledger.exclusive:no-lock": NoLock,
    "ledger.exclusive:unlocks-always": UnlocksAlways,
    "ledger.no-deadlock:return-in-loop": ReturnsInLoop,
    "ledger.progress:asks-again": AsksAgain,
}
