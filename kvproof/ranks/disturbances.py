"""What can go wrong in one rank of a world: on the way to its instance, in its own work, or in what it is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kvproof.faults.families.close import Close
from kvproof.faults.families.error import Error
from kvproof.faults.families.hold import Hold
from kvproof.faults.families.nil import Nil
from kvproof.faults.families.reset import Reset
from kvproof.faults.families.silence import Silence
from kvproof.faults.families.wrong_length import WrongLength
from kvproof.faults.fault import Fault

RELEASE = "peers-wait"
"""The name by which a slow rank is let go on."""


@dataclass(frozen=True, slots=True)
class Spot:
    """A request that one rank made in a step without disturbance: its command, and the how-manieth of them it was."""

    command: str
    match: int
    kind: str


@dataclass(frozen=True, slots=True)
class Disturbance:
    """One entry of the menu.

    wire: the fault that it is at the victim's first request of that step (None where it cannot be there); at: whether
    that is a request of the lookup or of the load. seam, does, match: what it is inside of the rank. told: how what the
    victim is told to load differs, "list", "empty-list" or "layout". evicts: which chunk of the victim's own is
    deleted, "first" before the lookup, "last" between the lookup and the load. whole: all that is on the instances is
    deleted before the lookup. waits: the load goes on once the peers wait.

    What is done to a rank's lookup server is followed by a lookup of another prompt, before anything is mended.
    """

    id: str
    says: str
    wire: Callable[[Spot], Fault | None] | None = None
    at: str = "load"
    seam: str = ""
    does: str = ""
    match: int = 1
    told: str = ""
    evicts: str = ""
    waits: bool = False
    whole: bool = False

    @property
    def kills(self) -> bool:
        """Whether it ends the victim's process."""
        return self.does == "kill"

    @property
    def serves(self) -> bool:
        """Whether it is done to the victim's lookup server."""
        return self.seam in ("lookup", "answer")


def _bulk(family: Callable[..., Fault], **fields: object) -> Callable[[Spot], Fault | None]:
    def at(spot: Spot) -> Fault | None:
        return family(command=spot.command, match=spot.match, **fields) if spot.kind == "bulk" else None
    return at


def _any(family: Callable[..., Fault], **fields: object) -> Callable[[Spot], Fault | None]:
    return lambda spot: family(command=spot.command, match=spot.match, **fields)


NONE = Disturbance("none", "nothing is disturbed")

MENU: tuple[Disturbance, ...] = (
    NONE,
    Disturbance("short-prompt", "the prompt has fewer chunks than there are ranks"),
    Disturbance("long-chunks", "chunks are of 1 MiB"),
    Disturbance("blocks", "neighbouring chunks belong to one rank"),
    Disturbance("in-memory", "what the instances had is lost, and memory has everything", whole=True),
    Disturbance("absent", "a chunk of the victim's is gone before the lookup, and later ones are there",
                evicts="first"),
    Disturbance("nil", "the get of an own chunk is answered by nil", _bulk(Nil)),
    Disturbance("error", "the get of an own chunk is answered by an error", _any(Error, code="LOADING")),
    Disturbance("short", "the get of an own chunk brings too few bytes", _bulk(WrongLength, by=-1)),
    Disturbance("silence", "the get of an own chunk is never answered", _any(Silence)),
    Disturbance("close", "the connection is closed in place of an answer to the get", _any(Close)),
    Disturbance("reset", "the connection is reset in place of an answer to the get", _any(Reset)),
    Disturbance("slow", "the answer to the get comes once all peers wait", _any(Hold, until=RELEASE), waits=True),
    Disturbance("lookup-error", "the lookup is answered by an error", _any(Error, code="LOADING"), at="lookup"),
    Disturbance("lookup-silence", "the lookup is never answered", _any(Silence), at="lookup"),
    Disturbance("lookup-server-gone", "the victim's lookup server ends and answers no more", seam="lookup", does="end"),
    Disturbance("lookup-late", "the victim's lookup server answers after the lookup's deadline", seam="answer",
                does="hold"),
    Disturbance("evicted", "a chunk of the victim's is evicted between the lookup and the load", evicts="last"),
    Disturbance("no-memory", "there is no memory for an own chunk", seam="allocate", does="no-memory"),
    Disturbance("exception", "the victim's own work raises what nobody expects", seam="get", does="raise"),
    Disturbance("exception-at-collective", "an exception comes between the own work and the first collective",
                seam="collective", does="raise"),
    Disturbance("killed", "the victim's process is killed in its own work", seam="get", does="kill"),
    Disturbance("killed-at-collective", "the victim's process is killed before the first collective",
                seam="collective", does="kill"),
    Disturbance("killed-at-broadcast", "the victim's process is killed before the second collective",
                seam="collective", does="kill", match=2),
    Disturbance("other-list", "the victim is told another list of the same length", told="list"),
    Disturbance("empty-list", "the victim is told an empty list", told="empty-list"),
    Disturbance("other-layout", "the victim's KV cache has another layout", told="layout"),
)
"""Every disturbance of a world, in the order in which they are tried."""
