"""Every mistake that spec.ownership names, made in a connection."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable

from kvproof.models.client import BulkString, Connection, Done, Failed
from kvproof.models.exchanges import World
from kvproof.models.resp import ErrorReply, Push, Value


class ReturnedEarly(Connection):
    """A request that is given up is forgotten, although its reply is to come; so the connection counts as free."""

    def _abandon(self, identity: Hashable, reason: str) -> list[Done]:
        done = super()._abandon(identity, reason)
        self._waiting = deque(entry for entry in self._waiting if not entry[1])
        return done


class StopsAtError(Connection):
    """An error is raised for all that waits: the rest of the pipeline counts as read."""

    def _reply(self, reply: Value | BulkString) -> list[Done]:
        done = super()._reply(reply)
        if isinstance(reply, ErrorReply):
            failed = Failed(f"the server answered: {reply.message}")
            done += [Done(request.identity, failed) for request, abandoned in self._waiting if not abandoned]
            self._waiting.clear()
        return done


class PushIsReply(Connection):
    """A push is given to the oldest request."""

    def _take_line(self, piece: bytes) -> list[Done]:
        before = self.pushes
        done = super()._take_line(piece)
        if self.pushes > before and self._waiting:
            done += self._reply(Push(()))
        return done


MISTAKES: dict[str, type[Connection]] = {
    f"ownership.{claim}:{mutant}": kind
    for claim in ("own-reply", "in-turn", "clean-return")
    for mutant, kind in (
        ("returned-early", ReturnedEarly), ("stops-at-error", StopsAtError), ("push-is-reply", PushIsReply))
}
"""Each mistake, by the obligation's and the mutant's id."""


def own_reply(world: World) -> str:
    """Say which request was given what is not its own reply."""
    for k, got in enumerate(world.got):
        if got not in (-1, k):
            return f"request {k} was given reply {got}"
    return ""


def in_turn(world: World) -> str:
    """Say whose reply was read, and went elsewhere, though it was not given up."""
    for k, got in enumerate(world.got[: world.taken]):
        if got != k and k not in world.cancelled:
            return f"reply {k} was read, and its request was given {got}"
    return ""


def clean_return(world: World) -> str:
    """Say what is still to come on a connection that is in the pool."""
    if world.open and not world.lent and world.taken < world.sent:
        return f"the pool holds a connection on which {world.sent - world.taken} replies are to come"
    return ""


PROPERTIES: dict[str, Callable[[World], str]] = {
    "own-reply": own_reply, "in-turn": in_turn, "clean-return": clean_return}
"""What each obligation claims, of any state of a connection."""
