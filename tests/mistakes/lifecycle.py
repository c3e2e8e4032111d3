"""Every mistake that spec.lifecycle names, made in the models of fetches and of blocks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvproof.models.lifecycle import DONE, Blocks, Fetch, Fetches


class EmptyWaits(Fetches):
    def at_once(self, fetch: Fetch) -> bool:
        return fetch.wanted > 0 and fetch.needed == 0


class FullHitWaits(Fetches):
    def at_once(self, fetch: Fetch) -> bool:
        return fetch.wanted == 0


class DeathUnnoticed(Fetches):
    def fails(self, fetch: Fetch) -> bool:
        return False


class ReportsTwice(Fetches):
    def fails(self, fetch: Fetch) -> bool:
        return fetch.begun and fetch.peer in self.dead and len(fetch.reports) < 2


class FailedIsDone(Fetches):
    def fail(self, o: int) -> Fetches:
        return self.report(o, DONE)


class TriesAgain(Fetches):
    """The peer is taken for alive."""

    def fail(self, o: int) -> Fetches:
        return replace(self.but(o, came=0), dead=self.dead - {self.fetches[o].peer})


class AbortFrees(Blocks):
    def frees_at_end(self, r: int) -> bool:
        return True


class FirstDeletes(Blocks):
    def frees_with(self, t: int) -> bool:
        return self.requests[self.transfers[t].request].ended


class AbortLeaks(Blocks):
    def frees_at_end(self, r: int) -> bool:
        return False


class FreedByBoth(FirstDeletes):
    def release(self, r: int) -> Blocks:
        return self.put_back(r)


MISTAKES: dict[str, Any] = {
    "lifecycle.one-report:empty-waits": EmptyWaits,
    "lifecycle.one-report:full-hit-waits": FullHitWaits,
    "lifecycle.one-report:reports-twice": ReportsTwice,
    "lifecycle.true-report:failed-is-done": FailedIsDone,
    "lifecycle.no-deadlock:empty-waits": EmptyWaits,
    "lifecycle.no-deadlock:full-hit-waits": FullHitWaits,
    "lifecycle.no-deadlock:dead-peer": DeathUnnoticed,
    "lifecycle.progress:tries-again": TriesAgain,
    "lifecycle.one-owner:freed-by-both": FreedByBoth,
    "lifecycle.last-writer:abort-frees": AbortFrees,
    "lifecycle.last-writer:first-deletes": FirstDeletes,
    "lifecycle.freed-once:freed-by-both": FreedByBoth,
    "lifecycle.no-leak:abort-leaks": AbortLeaks,
}
