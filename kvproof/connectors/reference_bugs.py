"""`reference+<bug>`: the reference connector with the code of one historic bug put back, and nothing else changed."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from concurrent.futures import Future

from kvproof.connectors.adapter import Adapter, Outcome
from kvproof.connectors.reference import Chunks, Reference, _outcome
from kvproof.connectors.reference_client import Client
from kvproof.errors import UsageError
from kvproof.faults.gates import Line
from kvproof.models.client import Connection, Done, Failed, Found
from kvproof.models.registry import Outcomes


class LateClient(Client):
    """Lost completion: a synchronous call submits first and registers then, and waits without a deadline.

    As in LMCache's RESPClient from 0.3.15 to 0.5.6 (facts: 1). What is drained in between finds nobody registered
    and is dropped, by the same line of `Registry.drain` that is harmless in the right order.
    """

    @classmethod
    def waiting(cls) -> Line:
        """Return the line that registers."""
        return Line(cls._call, r"= self\.registry\.register\(identity, keys\)")

    def _call(self, hand_over: Callable[[int], object], keys: int = 1) -> Outcomes:
        identity = self.registry.reserve()
        hand_over(identity)
        slot: Future[Outcomes] = self.registry.register(identity, keys)
        return slot.result()


class FixedHeaderConnection(Connection):
    r"""Nil GET: the header of a GET's reply is read as the len("$N\r\n") bytes that a hit of N bytes would have.

    As in LMCache's native client from 0.3.15 to 0.5.6 (facts: 1). A nil is 5 bytes, so for N of two digits it is
    taken for the whole header and the read is reported as done; from three digits on the connection waits for bytes
    that never come. Such a connection belongs to a worker that is stuck in its read: giving the call up does not
    free it, and nobody drops it.
    """

    def __init__(self) -> None:
        """Start on a fresh connection."""
        super().__init__()
        self._header = bytearray()

    @property
    def useless(self) -> bool:
        """Whether the connection is to be dropped; one that is stuck in a header is not."""
        return super().useless and (self.broken is not None or not self._header)

    def receive_into(self) -> memoryview:
        """Return where to receive: no more than the header while it is awaited."""
        wanted = self._wanted()
        return super().receive_into() if wanted is None else self._scratch[: wanted - len(self._header)]

    def received(self, count: int) -> list[Done]:
        """Take note of `count` bytes."""
        wanted = self._wanted()
        if wanted is None or count == 0 or self.broken is not None:
            return super().received(count)
        self._header += self._scratch[:count]
        if len(self._header) < wanted:
            return []
        header = bytes(self._header)
        self._header.clear()
        if header.startswith(b"$-1"):
            request, abandoned = self._waiting.popleft()
            self.replies += 1
            return [] if abandoned else [Done(request.identity, Found())]
        self._scratch[: len(header)] = header
        return super().received(len(header))

    def _wanted(self) -> int | None:
        """Return how long the header of the reply that is due is taken to be, None when none is awaited."""
        if self._scanner.inside or not self._waiting:
            return None
        request, _ = self._waiting[0]
        return None if request.into is None else len(b"$%d\r\n" % len(request.into))


class ForgetfulConnection(Connection):
    """Cancel cross-talk: a request that is cancelled is forgotten, although its reply is still to come.

    As in redis-py 4.5.3 (redis/redis-py #2624, #2665): the connection counts as free, and whoever uses it next gets
    that reply. A deadline is treated rightly, as there.
    """

    def cancel(self, identity: Hashable, reason: str) -> list[Done]:
        """Forget the request."""
        for entry in self._waiting:
            if entry[0].identity == identity:
                self._waiting.remove(entry)
                self._target = None
                return [Done(identity, Failed(reason))]
        return []


class FixedHeaderClient(Client):
    """A client whose connections read a fixed header."""

    connection = FixedHeaderConnection


class ForgetfulClient(Client):
    """A client whose connections forget what was cancelled."""

    connection = ForgetfulConnection


class LostCompletion(Reference):
    """`reference+lost-completion`."""

    name = "reference+lost-completion"
    client_class = LateClient


class NilGet(Reference):
    """`reference+nil-get`."""

    name = "reference+nil-get"
    client_class = FixedHeaderClient


class WorkerKey(Reference):
    """`reference+worker-key`: one read asks for its own worker's key, which only worker 0 has stored.

    As in LMCache's `batched_get_non_blocking` from 0.3.13 to 0.5.6 (facts: 1).
    """

    name = "reference+worker-key"

    def _batched_async_get(self, chunks: Chunks) -> list[Outcome]:
        keys, buffers = [key.format() for key, _ in chunks], [buffer for _, buffer in chunks]
        return [_outcome(outcome) for outcome in self.client.wait(self.client.begin_batch_get(keys, buffers))]


class CancelCrossTalk(Reference):
    """`reference+cancel-cross-talk`."""

    name = "reference+cancel-cross-talk"
    client_class = ForgetfulClient


BUGS: dict[str, type[Reference]] = {
    "lost-completion": LostCompletion,
    "nil-get": NilGet,
    "worker-key": WorkerKey,
    "cancel-cross-talk": CancelCrossTalk,
}
"""Each historic bug, and the reference connector that has it."""


def faulty(bug: str) -> type[Adapter]:
    """Return the reference connector with `bug` put back; raises UsageError for a bug that it cannot have."""
    try:
        return BUGS[bug]
    except KeyError:
        raise UsageError(f"reference+{bug}: no such bug; there are {', '.join(sorted(BUGS))}") from None
