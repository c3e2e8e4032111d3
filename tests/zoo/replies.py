"""Wrong about whose a reply is (no-cross-talk), and about replies that come late (cancel-safe)."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Sequence

from kvproof.connectors.adapter import Cancelled, Failed, Outcome, Read
from kvproof.models.resp import ErrorReply
from tests.zoo.connection import Call, Connection
from tests.zoo.honest import Chunk, Judge
from tests.zoo.wrong import Wrong

GLANCE = 0.01
"""Seconds after which a waiting call looks whether it was given up."""
NATIVE = 30.0
"""Seconds by which a native call outlives the deadline of its caller."""


class Careless(Wrong):
    """Takes every connection for a clean one."""

    def quiet(self, connection: Connection) -> bool:
        """Not look."""
        return True

    def release(self, connection: Connection) -> None:
        """Give it back, whatever is still to come on it."""
        connection.owed = 0
        with self.changed:
            if self.closed:
                self.drop(connection)
            else:
                self.idle.append(connection)
                self.changed.notify_all()


class KeptAfterTimeout(Careless):
    """B4: a connection is used again after a read that timed out, and gives the next call the late reply."""

    rule = "no-cross-talk"
    breaks = frozenset({"no-cross-talk", "cancel-safe", "recovers", "linearizable"})

    def spoilt(self, connection: Connection, error: OSError) -> None:
        """Keep it."""
        if isinstance(error, TimeoutError):
            self.release(connection)
        else:
            super().spoilt(connection, error)


class GivenUp(OSError):
    """A call was cancelled."""


class KeptAfterCancel(Careless):
    """B1: a cancelled command leaves its reply on the connection, for the next caller."""

    rule = "no-cross-talk"
    breaks = frozenset({"no-cross-talk", "cancel-safe", "recovers", "linearizable"})

    def cancel(self, call: Call) -> None:
        """Let the call see it, and its connection live."""
        with self.changed:
            call.cancelled = True
            self.changed.notify_all()

    def more(self, connection: Connection, call: Call) -> None:
        """Wait, but not for a call that was given up."""
        while call.left() and not select.select([connection.socket], [], [], GLANCE)[0]:
            if call.cancelled:
                raise GivenUp("cancelled")
        super().more(connection, call)

    def spoilt(self, connection: Connection, error: OSError) -> None:
        """Keep it."""
        if isinstance(error, GivenUp):
            self.release(connection)
        else:
            super().spoilt(connection, error)


class StopsAtError(Careless):
    """B8: one error ends a whole batch, whose other replies are left for the next call."""

    rule = "no-cross-talk"
    breaks = frozenset(
        {"no-cross-talk", "batch-aligned", "honest-error", "cancel-safe", "recovers", "linearizable"})

    def answers(self, connection: Connection, call: Call, judges: Sequence[Judge], outcomes: list[Outcome]) -> None:
        """Read up to the first error."""
        for judge in judges:
            reply = self.receive(connection, call)
            outcomes.append(judge(reply))
            if isinstance(reply, ErrorReply):
                outcomes += [Failed(reply.message)] * (len(judges) - len(outcomes))
                return


class WritesAfterCancel(Wrong):
    """F5 (LMCache #3609): a cancelled read is only not waited for; its thread still writes into the buffer."""

    rule = "cancel-safe"
    breaks = frozenset({"cancel-safe"})

    def cancel_read(
        self, read: Read, chunks: Sequence[Chunk], when: Callable[[], None]
    ) -> Cancelled | list[Outcome]:
        """Begin, and go away."""
        thread, outcomes = self.begin(read, chunks, self.call())
        when()
        return Cancelled("CancelledError") if thread.is_alive() else self.wait(thread, outcomes)


class WritesAfterTimeout(Wrong):
    """F5 (glide #6215): the caller's timeout ends the caller; the native call goes on and fills a recycled buffer."""

    rule = "cancel-safe"
    breaks = frozenset({"cancel-safe", "recovers"})

    def read(self, read: Read, chunks: Sequence[Chunk]) -> list[Outcome]:
        """Read in a thread that knows nothing of the caller's patience."""
        if not read.payload:
            return super().read(read, chunks)
        native = Call(time.monotonic() + self.place.timeout + NATIVE)
        thread, outcomes = self.begin(read, chunks, native)
        thread.join(self.place.timeout)
        return [Failed("timed out")] * len(chunks) if thread.is_alive() else self.wait(thread, outcomes)
