"""Wrong about several chunks at once: which reply is whose (batch-aligned), and how many lead (prefix-count)."""

from __future__ import annotations

from collections.abc import Sequence

from kvproof.connectors.adapter import Failed, Hit, Miss, Outcome, Read
from kvproof.models.resp import ErrorReply, Null
from tests.zoo.connection import Call, Connection
from tests.zoo.honest import Chunk, Judge
from tests.zoo.wrong import Wrong


def failed(found: Sequence[Outcome]) -> bool:
    """Whether one of these outcomes is a failure."""
    return any(isinstance(outcome, Failed) for outcome in found)


class HolesCloseUp(Wrong):
    """E3: what is absent is filtered out of the replies, so that a later payload takes an earlier place."""

    rule = "batch-aligned"
    breaks = frozenset({"batch-aligned", "miss-is-miss", "lookup-coherent"})

    def answers(self, connection: Connection, call: Call, judges: Sequence[Judge], outcomes: list[Outcome]) -> None:
        """Move the holes to the end."""
        replies = [self.receive(connection, call) for _ in judges]
        replies.sort(key=lambda reply: reply is Null.BULK)
        outcomes.extend(judge(reply) for judge, reply in zip(judges, replies, strict=True))


class HitsLead(Wrong):
    """E2: a batch tells how many chunks it read, and so many buffers from the first on are taken to be filled."""

    rule = "batch-aligned"
    breaks = frozenset({"batch-aligned", "miss-is-miss", "no-stale-hit", "lookup-coherent"})

    def read_now(self, read: Read, chunks: Sequence[Chunk], call: Call) -> list[Outcome]:
        """Count."""
        found = super().read_now(read, chunks, call)
        if not read.payload or failed(found):
            return found
        return sorted(found, key=lambda outcome: outcome != Hit())


class ErrorIsNoReply(Wrong):
    """B8: an error within a batch is not counted as the reply to its own command."""

    rule = "batch-aligned"
    breaks = frozenset({"batch-aligned", "honest-error", "no-cross-talk"})

    def answers(self, connection: Connection, call: Call, judges: Sequence[Judge], outcomes: list[Outcome]) -> None:
        """Wait for a reply that is none."""
        for judge in judges:
            while isinstance(reply := self.receive(connection, call), ErrorReply):
                pass
            outcomes.append(judge(reply))


class CountsHits(Wrong):
    """C4: the number of chunks that are there is taken for the length of the prefix."""

    rule = "prefix-count"
    breaks = frozenset({"prefix-count", "batch-aligned", "miss-is-miss"})

    def prefix(self, found: list[Outcome]) -> list[Outcome]:
        """Count all."""
        return super().prefix(found) if failed(found) else sorted(found, key=lambda outcome: outcome != Hit())


class LastHitLeads(Wrong):
    """E3: what lies before the last chunk that is there is taken to be there as well."""

    rule = "prefix-count"
    breaks = frozenset({"prefix-count", "batch-aligned", "miss-is-miss"})

    def prefix(self, found: list[Outcome]) -> list[Outcome]:
        """Look for the last hit."""
        if failed(found):
            return super().prefix(found)
        count = max((index + 1 for index, outcome in enumerate(found) if outcome == Hit()), default=0)
        return [Hit() if index < count else Miss() for index in range(len(found))]


class HoleCounts(Wrong):
    """E7: the arithmetic of the prefix is off by one, so that the first chunk that is absent still counts."""

    rule = "prefix-count"
    breaks = frozenset({"prefix-count", "batch-aligned", "miss-is-miss"})

    def prefix(self, found: list[Outcome]) -> list[Outcome]:
        """Count one more."""
        leading = super().prefix(found)
        if Miss() in leading and not failed(leading):
            leading[leading.index(Miss())] = Hit()
        return leading
