"""What a replay works on: one connector, one server, and for each case a fresh proxy and a fresh runner."""

from __future__ import annotations

import re
import sysconfig
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from kvproof.connectors import Connector
from kvproof.connectors.adapter import Endpoint, Place, Read
from kvproof.errors import KvproofError
from kvproof.faults import proxy
from kvproof.faults.schedule import Schedule
from kvproof.faults.servers import Server
from kvproof.runner import Answer, Died, Grew, Hung, Raised, Returned, Runner
from kvproof.runner.forks import Forks

TIMEOUT = 2.0
"""Seconds that a connector is told to wait for an answer: long for a server on this machine, even under load."""
_DESCRIBE = 10.0
CALL_SLACK = 1.5
"""Seconds that a call may take beyond the connector's own timeout before it is called a hang."""


@dataclass(frozen=True, slots=True)
class Case:
    """One case of a replay: what was done, its verdict, and the evidence in words and data."""

    name: str
    verdict: str
    explain: str
    evidence: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Replay:
    """A historic bug: its name, what it is in one sentence, and how it is replayed.

    plan: prepares whatever all cases share and returns them, each ready to be run, in any order and all at once.
    masked: a known bug of the connector that could show instead of this one is kept from striking (Adapter.masked).
    """

    bug: str
    summary: str
    plan: Callable[[Stage], Sequence[Callable[[], Case]]]
    masked: bool = True


class Unsupported(KvproofError):
    """The connector has nothing that the replay could strike; the message says what is missing."""


class NotOpened(KvproofError):
    """The connector could not be opened at all."""


@dataclass(frozen=True, slots=True)
class Described:
    """What an adapter declares, as its runner reported it."""

    name: str
    distribution: str
    reads: tuple[Read, ...]
    devices: tuple[str, ...]
    abandons: str
    masks: str
    smallest: int
    largest: int
    step: int

    @classmethod
    def of(cls, value: dict[str, Any]) -> Described:
        """Read the value of `runner.calls.describe`."""
        smallest, largest, step = value["payload"]
        return cls(
            value["name"],
            value["distribution"],
            tuple(Read(**read) for read in value["reads"]),
            tuple(value["devices"]),
            value["abandons"],
            value["masks"],
            smallest,
            largest,
            step,
        )

    def payload_reads(self) -> tuple[Read, ...]:
        """Return the reads that fill buffers."""
        return tuple(read for read in self.reads if read.payload)


@dataclass
class Rig:
    """The fresh proxy and runner of one case."""

    proxy: proxy.Proxy
    runner: Runner
    place: Place

    def call(self, name: str, **arguments: Any) -> Answer:
        """Call one of `runner.calls`, within the connector's own timeout and some slack."""
        return self.run(f"kvproof.runner.calls:{name}", **arguments)

    def run(self, function: str, slack: float = CALL_SLACK, **arguments: Any) -> Answer:
        """Call ``module:function`` in the runner, within the connector's own timeout and `slack` seconds."""
        return self.runner.call(function, self.place.timeout + slack, **arguments)

    def put(self, *chunks: tuple[str, int]) -> list[str]:
        """Store chunks; raises NotOpened when the connector does not store them all."""
        answer = self.call("put", chunks=chunks)
        if not isinstance(answer, Returned) or any(outcome != "hit" for outcome in answer.value):
            raise NotOpened(f"storing {len(chunks)} chunks: {briefly(answer)}")
        return list(answer.value)

    def read(self, read: str, chunk: str, known: Sequence[tuple[str, int]] = ()) -> tuple[Answer, dict[str, Any]]:
        """Read one chunk; return the answer, and its outcome as data (what ended it, when it did not return)."""
        answer = self.call("read", read=read, chunks=[chunk], known=known)
        if isinstance(answer, Returned):
            return answer, dict(answer.value[0])
        return answer, {"outcome": briefly(answer), "holds": "?", "exact": False, "seconds": None}


@dataclass
class Stage:
    """One connector on one server, ready for replays."""

    replay: Replay
    connector: Connector
    described: Described
    server: Server
    forks: Forks
    device: str = "cpu"
    stopped: threading.Event = field(default_factory=threading.Event)

    def place(self, case: str, **fields: Any) -> Place:
        """Return a place on the server itself, under a model name that no other case has."""
        endpoint = Endpoint(self.server.host, self.server.port, self.server.password)
        name = f"kvproof {self.replay.bug} {self.connector.name} {case}"
        model = self.server.prefix + re.sub(r"[^A-Za-z0-9.]+", "-", name)
        return replace(Place(endpoint, 4096, model=model, timeout=TIMEOUT, device=self.device), **fields)

    @contextmanager
    def rig(self, place: Place, schedule: Schedule = ()) -> Iterator[Rig]:
        """Open a fresh proxy before the server, and a fresh runner with the connector behind it."""
        if self.stopped.is_set():
            raise NotOpened("the run was interrupted")
        with proxy.start((place.endpoint.host, place.endpoint.port), schedule) as between:
            behind = replace(place, endpoint=replace(place.endpoint, host=between.host, port=between.port))
            with self.forks.runner(self.connector) as runner:
                opened = runner.open(behind, masked=self.replay.masked)
                if not isinstance(opened, Returned):
                    raise NotOpened(f"opening {self.connector.name}: {briefly(opened)}")
                yield Rig(between, runner, behind)


def briefly(answer: Answer) -> str:
    """Say in a few words how a call ended."""
    match answer:
        case Returned(value=value):
            return f"returned {value!r}"[:200]
        case Raised(error=error, text=text):
            return f"raised {error}: {text}"[:300]
        case Hung(deadline=deadline):
            return f"hang: not back after {deadline:g} s"
        case Died(end=end):
            return f"crash: the process {end}"
        case Grew(resident=resident):
            return f"leak: grew to {resident >> 20} MiB"


def innermost(stacks: str) -> list[str]:
    """Return the frames of the thread that made the call, innermost first, without ours around it."""
    frames: list[str] = []
    for block in stacks.split("\n\n"):
        if "kvproof/runner/child.py" in block:
            frames = [line.strip().removeprefix("File ") for line in block.splitlines() if line.startswith("  File ")]
    ours = [index for index, frame in enumerate(frames) if "kvproof/runner/" in frame]
    return frames[: ours[0]] if ours else frames


def blocked_at(frames: Sequence[str]) -> str:
    """Return the innermost frame that is not of Python's own library, for a sentence."""
    library = sysconfig.get_path("stdlib")
    theirs = [frame for frame in frames if "site-packages" in frame or library not in frame]
    found = re.match(r'"(?:.*/)?([^/"]+)", line (\d+) in (\w+)', (theirs or list(frames) or ["?"])[0])
    return f"{found[3]} ({found[1]}:{found[2]})" if found else "an unknown place"


def stage_for(
    replay: Replay,
    connector: Connector,
    server: Server,
    forks: Forks,
    device: str = "cpu",
    stopped: threading.Event | None = None,
) -> Stage:
    """Ask the connector's adapter, in a runner, what it declares, and return the stage for it.

    Raises Unsupported when it does not know the device, NotOpened when it cannot be asked, and what
    `runner.ForkServer.runner` raises when it cannot be imported.
    """
    with forks.runner(connector) as runner:
        answer = runner.call("kvproof.runner.calls:describe", _DESCRIBE)
    if not isinstance(answer, Returned):
        raise NotOpened(f"describing {connector.name}: {briefly(answer)}")
    described = Described.of(answer.value)
    if device not in described.devices:
        raise Unsupported(f"{connector.name} only knows buffers on {', '.join(described.devices)}")
    return Stage(replay, connector, described, server, forks, device, stopped or threading.Event())
