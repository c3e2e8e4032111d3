"""The reference connector's client: calls that wait, and futures, over a native-style driver."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, ClassVar

from kvproof.connectors.adapter import Place
from kvproof.connectors.reference_driver import CLOSED, Driver
from kvproof.faults.gates import Line
from kvproof.models.client import Connection, Outcome
from kvproof.models.pool import Pool
from kvproof.models.registry import Outcomes, Registry, Ticket

GRACE = 2.0
"""Seconds past an operation's deadline after which its caller believes that the driver itself is stuck."""

Operation = Ticket["Future[Outcomes]"]


class Client:
    """GET, SET and EXISTS on one server, for callers in any thread.

    Every operation ends within `place.timeout` seconds, with one outcome a key; a key that was not answered by then
    is `Failed` and the client stays usable. Buffers belong to the client from the call until the operation has
    ended, and never after. Constructing raises ConnectionError when the server cannot be reached or refuses the
    password.

    No completion is ever lost, because each is registered before its operation is handed over (`Registry.submit`):
    `registered(id)` is true from before the submission until the operation has ended.
    """

    connection: ClassVar[Callable[[], Connection]] = Connection
    """What makes the protocol object of each connection."""
    driver: ClassVar[Callable[..., Driver]] = Driver
    """What makes the driver."""
    registered: ClassVar[Callable[[Callable[[], Future[Outcomes]]], Registry[Future[Outcomes]]]] = Registry
    """What makes the registry of its operations."""

    def __init__(self, place: Place) -> None:
        """Open the connections that `place` asks for."""
        self.timeout = place.timeout
        self.registry = type(self).registered(Future)
        endpoint = place.endpoint
        pool = Pool(place.connections, password=endpoint.password, connection=type(self).connection)
        address = (endpoint.host, endpoint.port)
        self.native: Any = type(self).driver(address, pool, timeout=place.timeout, ready=self._drain)

    def get(self, key: str, buffer: memoryview) -> Outcome:
        """Read `key` into the whole of `buffer`."""
        return self._call(lambda identity: self.native.submit_get(identity, key, buffer))[0]

    def set(self, key: str, payload: memoryview) -> Outcome:
        """Store `payload` under `key`."""
        return self._call(lambda identity: self.native.submit_set(identity, key, payload))[0]

    def exists(self, key: str) -> Outcome:
        """Ask whether `key` is there."""
        return self._call(lambda identity: self.native.submit_exists(identity, key))[0]

    def batch_get(self, keys: Sequence[str], buffers: Sequence[memoryview]) -> Outcomes:
        """Read each key into its buffer."""
        return self._call(lambda identity: self.native.submit_batch_get(identity, keys, buffers), len(keys))

    def batch_set(self, keys: Sequence[str], payloads: Sequence[memoryview]) -> Outcomes:
        """Store each payload under its key."""
        return self._call(lambda identity: self.native.submit_batch_set(identity, keys, payloads), len(keys))

    def batch_exists(self, keys: Sequence[str]) -> Outcomes:
        """Ask for each key whether it is there."""
        return self._call(lambda identity: self.native.submit_batch_exists(identity, keys), len(keys))

    def begin_get(self, key: str, buffer: memoryview) -> Operation:
        """Begin to read `key` into the whole of `buffer`; the slot of the operation is a future."""
        return self.registry.submit(lambda identity: self.native.submit_get(identity, key, buffer))

    def begin_batch_get(self, keys: Sequence[str], buffers: Sequence[memoryview]) -> Operation:
        """Begin to read each key into its buffer."""
        return self.registry.submit(
            lambda identity: self.native.submit_batch_get(identity, keys, buffers), len(keys))

    def begin_batch_exists(self, keys: Sequence[str]) -> Operation:
        """Begin to ask for each key whether it is there."""
        return self.registry.submit(lambda identity: self.native.submit_batch_exists(identity, keys), len(keys))

    def wait(self, operation: Operation) -> Outcomes:
        """Wait for an operation to end."""
        try:
            return operation.slot.result(self.timeout + GRACE)
        except TimeoutError:
            self.registry.cancel(operation.identity, f"deadline exceeded: the driver is stuck for {GRACE} s")
            return operation.slot.result(0)

    def cancel(self, operation: Operation) -> Outcomes:
        """Give an operation up and return how it ended; it may have ended otherwise just before.

        Returns only once the driver has let go of its buffers.
        """
        self.native.cancel(operation.identity)
        return self.wait(operation)

    def close(self) -> None:
        """End everything that is in flight; later calls end at once as failed."""
        try:
            self.native.close()
        finally:
            self.registry.close(CLOSED)

    @classmethod
    def waiting(cls) -> Line:
        """Return the line of a call that begins to wait, after the operation was handed over."""
        return Line(cls._call, r"return self\.wait\(operation\)")

    def _call(self, hand_over: Callable[[int], object], keys: int = 1) -> Outcomes:
        operation = self.registry.submit(hand_over, keys)
        return self.wait(operation)

    def _drain(self) -> None:
        self.registry.drain(self.native.drain_completions())
