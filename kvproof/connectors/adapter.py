"""What somebody writes to put a connector under test: one class, some 40 lines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from kvproof.models.chunks import ChunkKey

if TYPE_CHECKING:
    from kvproof.faults.gates import Gap


@dataclass(frozen=True, slots=True)
class Hit:
    """The chunk was found; a read that carries a payload has filled the whole buffer with it."""


@dataclass(frozen=True, slots=True)
class Miss:
    """The connector says that the chunk is not there (or, for a counted prefix, lies beyond it)."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The connector reported an error for this chunk; `reason` is its own words."""

    reason: str


Outcome = Hit | Miss | Failed
"""How one chunk of one call ended: a value of its own, never None, an exception or a length."""


@dataclass(frozen=True, slots=True)
class Cancelled:
    """A read was given up before it had an outcome; `words` are the connector's own, such as "CancelledError"."""

    words: str


@dataclass(frozen=True, slots=True)
class Read:
    """One of a connector's ways to read.

    payload: the read fills buffers (False: it only says what is present).
    batch: it takes several chunks in one call.
    sync: the calling thread blocks until the answer is there.
    """

    name: str
    payload: bool = True
    batch: bool = False
    sync: bool = True


@dataclass(frozen=True, slots=True)
class PayloadRange:
    """Chunk sizes that a connector can store, in bytes; `step` is the granularity (an element, a token)."""

    smallest: int = 0
    largest: int = 512 * 1024 * 1024
    step: int = 1


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a server or a proxy listens: always a loopback host, with the password if there is one."""

    host: str
    port: int
    password: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a connector instance lives and what it stores.

    rank, world_size: this worker among its peers. replicated: MLA, only worker 0 stores. chunk_bytes: bytes in a
    full chunk. connections: how many connections to hold, where a connector lets one choose. timeout: seconds that
    a call may take by the connector's own configuration. device: "cpu" or "cuda", where buffers live. salt: the
    tenant's, adapter: the LoRA adapter's; only adapters with the capability of that name have to look at them.
    directory: a private directory for a connector whose truth is "directory"; empty for others. chunks: how many chunks
    one call may have, for a connector that reserves memory for them.
    """

    endpoint: Endpoint
    chunk_bytes: int
    rank: int = 0
    world_size: int = 1
    replicated: bool = False
    model: str = "kvproof"
    dtype: str = "bfloat16"
    connections: int = 1
    timeout: float = 1.0
    device: str = "cpu"
    salt: str = ""
    adapter: str = ""
    directory: str = ""
    chunks: int = 12

    def key(self, chunk: str) -> ChunkKey:
        """Return the key that this worker would use for a chunk of its own; `chunk` is a hexadecimal hash."""
        return ChunkKey(self.model, self.world_size, self.rank, chunk, self.dtype)


Buffer = Any
"""Host memory (a writable ``memoryview`` of format "B") on "cpu", a flat uint8 ``torch.Tensor`` on "cuda"."""


CAPABILITIES = {
    "integrity": "a value with bits that nobody wrote is no hit",
    "salt": "chunks of two salts (`Place.salt`) are never taken for each other",
    "adapter": "chunks of two LoRA adapters (`Place.adapter`) are never taken for each other",
}
"""What a connector may promise, and what that means."""


class Adapter:
    """A connector under test.

    Subclasses state what they are as data and implement `put`, `read` and `close`. They are imported and called in
    a runner process only; every call has a deadline, so a method may block for ever without harm. A constructor
    that raises means that the connector could not be opened.
    """

    name: ClassVar[str]
    """The connector's name on the command line."""
    distribution: ClassVar[str]
    """The PyPI distribution whose version is reported."""
    reads: ClassVar[tuple[Read, ...]]
    """Every way to read that is to be tested."""
    capabilities: ClassVar[frozenset[str]] = frozenset()
    """What the connector promises beyond reading and writing, from `CAPABILITIES`."""
    truth: ClassVar[Literal["resp", "directory", "none"]] = "resp"
    """The second channel through which the truth is set and read."""
    payload: ClassVar[PayloadRange] = PayloadRange()
    devices: ClassVar[tuple[str, ...]] = ("cpu",)
    """Where the connector's own copy path can begin and end: "cpu", "cuda"."""
    abandons: ClassVar[Literal["cancel", "timeout", "never"]] = "never"
    """How a read that takes too long is given up: the caller cancels it, its own timeout ends it, or nothing does."""
    deadline: ClassVar[float | None] = None
    """Seconds in which every call ends, whatever happens; None: `Place.timeout`, which the connector is told."""
    recovery: ClassVar[float] = 2.0
    """Seconds within which the same connector works again once a fault is gone."""
    preload: ClassVar[tuple[str, ...]] = ()
    """Modules worth importing once, in the fork server, so that a new runner opens the connector at once."""
    masks: ClassVar[str] = ""
    """The known bug that `masked` hides, by its replay's id; empty when it hides none."""

    def __init__(self, place: Place) -> None:
        """Open the connector at `place`."""
        self.place = place

    def put(self, chunks: Sequence[tuple[ChunkKey, Buffer]]) -> list[Outcome]:
        """Store each chunk; return one outcome a chunk, `Hit` for stored, `Miss` for not accepted by design."""
        raise NotImplementedError

    def read(self, read: Read, chunks: Sequence[tuple[ChunkKey, Buffer]]) -> list[Outcome]:
        """Read each chunk into its buffer; return one outcome a chunk, in order.

        For a read without payload the buffers are empty. A read that is not `batch` gets exactly one chunk.
        """
        raise NotImplementedError

    def cancel_read(
        self, read: Read, chunks: Sequence[tuple[ChunkKey, Buffer]], when: Callable[[], None]
    ) -> Cancelled | list[Outcome]:
        """Begin a read, call `when` (it returns once the moment has come), cancel the read, and say how it ended.

        Only for adapters whose `abandons` is "cancel". Returns the outcomes when the read ended before it could be
        cancelled. Where some reads are not synchronous, only those can be cancelled.
        """
        raise NotImplementedError

    def gaps(self) -> Sequence[Gap]:
        """Return the places where a call has been handed over and has not begun to wait: see `faults.gates.Gap`."""
        return ()

    def masked(self) -> AbstractContextManager[object]:
        """Return a context in which the known bug named in `masks` cannot strike.

        Calls that are not about that bug run inside it, or its hangs would be taken for theirs.
        """
        return nullcontext()

    def lent(self) -> int:
        """Return how many buffers of its own pool the connector has given out and not taken back, if it has a pool.

        It is asked after `close`, when there should be none.
        """
        return 0

    def close(self) -> None:
        """Close the connector; every call still in flight ends."""
        raise NotImplementedError
