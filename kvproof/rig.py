"""A connector in a fresh runner behind a fresh proxy, on one server: what replays and cells are made on."""

from __future__ import annotations

import re
import sysconfig
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from kvproof import faults
from kvproof.connectors import Connector
from kvproof.connectors.adapter import Endpoint, Place, Read
from kvproof.errors import KvproofError, UsageError
from kvproof.faults.endpoint import Proxy
from kvproof.faults.raw_resp import RawResp
from kvproof.faults.schedule import Schedule
from kvproof.faults.servers import Server
from kvproof.runner import Answer, Died, Grew, Hung, Raised, Returned, Runner
from kvproof.runner.calls import AdapterMistake, HasRanks
from kvproof.runner.forks import Forks
from kvproof.runner.host import Turns

_DESCRIBE = 10.0
WRITES = frozenset({"SET", "SETEX", "PSETEX", "SETNX", "MSET", "HSET", "HMSET", "APPEND", "SETRANGE", "GETSET"})
"""The commands that store a value."""
CALL_SLACK = 1.5
"""Seconds that a call may take beyond the connector's own timeout before it is called a hang."""


class Unsupported(KvproofError):
    """The connector has nothing that the replay could strike; the message says what is missing."""


class NotOpened(KvproofError):
    """The connector could not be opened, or did not work before any fault was done to it."""


@dataclass(frozen=True, slots=True)
class Described:
    """What an adapter declares, as its runner reported it; version is that of its distribution there."""

    name: str
    distribution: str
    version: str | None
    reads: tuple[Read, ...]
    devices: tuple[str, ...]
    abandons: str
    masks: str
    smallest: int
    largest: int
    step: int
    capabilities: frozenset[str]
    truth: str
    deadline: float | None
    recovery: float

    @classmethod
    def of(cls, value: dict[str, Any]) -> Described:
        """Read the value of `runner.calls.describe`."""
        smallest, largest, step = value["payload"]
        return cls(
            value["name"],
            value["distribution"],
            value["version"],
            tuple(Read(**read) for read in value["reads"]),
            tuple(value["devices"]),
            value["abandons"],
            value["masks"],
            smallest,
            largest,
            step,
            frozenset(value["capabilities"]),
            value["truth"],
            value["deadline"],
            value["recovery"],
        )

    def holds(self, size: int) -> bool:
        """Whether a chunk of so many bytes is within the declared payload range."""
        return self.smallest <= size <= self.largest and size % self.step == 0

    def payload_reads(self) -> tuple[Read, ...]:
        """Return the reads that fill buffers."""
        return tuple(read for read in self.reads if read.payload)


@dataclass(frozen=True, slots=True)
class Found:
    """How the read of one chunk ended.

    outcome: "hit", "miss" or "failed: reason" when the read returned, else how the call ended. holds: whose bytes the
    buffer has ("poison" when untouched); exact: every one of them. seconds: None when it did not return.
    trouble: stacks, output or the place of an exception, where there is something to explain.
    """

    chunk: str
    answer: Answer | None
    outcome: str
    holds: str = "?"
    exact: bool = False
    seconds: float | None = None
    trouble: dict[str, Any] = field(default_factory=dict)

    @property
    def returned(self) -> bool:
        """Whether the read came back with an outcome or an exception."""
        return isinstance(self.answer, (Returned, Raised))

    @property
    def mistaken(self) -> bool:
        """Whether the adapter itself was wrong, so that nothing can be said about the connector."""
        return isinstance(self.answer, Raised) and self.answer.error == AdapterMistake.__name__

    @property
    def ended_the_runner(self) -> bool:
        """Whether the read hung, crashed or grew without end."""
        return isinstance(self.answer, (Hung, Died, Grew))

    @property
    def whose(self) -> str:
        """What was found instead of the own value, in words."""
        return f"the value of {self.holds}" if self.exact else f"bytes that are not its own: {self.holds}"

    @property
    def words(self) -> str:
        """The outcome for a person, with what the buffer holds if it was a hit."""
        took = f" after {self.seconds} s" if self.seconds is not None and self.seconds >= 0.1 else ""
        return f"{self.outcome}{took}, {self.holds}" if self.outcome == "hit" else f"{self.outcome}{took}"

    def own(self, known: Sequence[tuple[str, int]]) -> bool:
        """Whether it was a hit with every byte of the chunk's own newest value (or without a payload to look at)."""
        version = max((version for chunk, version in known if chunk == self.chunk), default=None)
        return self.outcome == "hit" and self.exact and self.holds == f"{self.chunk} version {version}"


@dataclass
class Rig:
    """The fresh proxy and runner of one case."""

    proxy: Proxy
    runner: Runner
    place: Place
    direct: Endpoint
    deadline: float | None = None

    def run(self, function: str, slack: float = CALL_SLACK, **arguments: Any) -> Answer:
        """Call ``module:function`` in the runner, within the connector's own deadline and `slack` seconds."""
        return self.runner.call(function, (self.deadline or self.place.timeout) + slack, **arguments)

    def put(self, *chunks: tuple[str, int]) -> None:
        """Store chunks; raises NotOpened when the connector does not store them all."""
        answer = self.run("kvproof.runner.calls:put", chunks=chunks)
        if not isinstance(answer, Returned) or any(outcome != "hit" for outcome in answer.value):
            raise NotOpened(f"without any fault, storing {len(chunks)} chunks: {briefly(answer)}")

    def read(self, read: str, chunk: str, known: Sequence[tuple[str, int]]) -> Found:
        """Read one chunk and say how that ended, whatever it was."""
        return self.ask(chunk, "kvproof.runner.calls:read", read=read, chunks=[chunk], known=known)

    def batch(
        self, read: str, chunks: Sequence[str], known: Sequence[tuple[str, int]], begins: str = ""
    ) -> list[Found]:
        """Read several chunks in one call and say how each ended; begins: what every payload begins with."""
        return self._ask(chunks, "kvproof.runner.calls:read", read=read, chunks=chunks, known=known, begins=begins)

    def ask(self, chunk: str, function: str, **arguments: Any) -> Found:
        """Make a call that examines one chunk, and say how that ended."""
        return self._ask([chunk], function, **arguments)[0]

    def _ask(self, asked: Sequence[str], function: str, **arguments: Any) -> list[Found]:
        if not self.runner.usable:
            return [Found(chunk, None, "not asked, the connector is gone") for chunk in asked]
        answer = self.run(function, **arguments)
        if not isinstance(answer, Returned):
            why = trouble(answer, self.runner)
            return [Found(chunk, answer, briefly(answer), trouble=why) for chunk in asked]
        return [
            Found(chunk, answer, said["outcome"], said["holds"], said["exact"], said["seconds"])
            for chunk, said in zip(asked, answer.value, strict=True)
        ]

    def control(self, read: str, chunk: str, known: Sequence[tuple[str, int]]) -> Found:
        """Read a chunk that is there, before any fault; raises NotOpened unless its own value comes."""
        found = self.read(read, chunk, known)
        if not found.own(known):
            raise NotOpened(f"without any fault, {read} of a chunk that was just stored: {found.words}")
        return found

    def stored(self, chunk: str) -> list[str]:
        """Return the keys under which the connector stored a chunk, learned from the wire."""
        events = self.proxy.log()
        return sorted({event.key for event in events if event.command in WRITES and chunk in event.key.lower()})

    def trustworthy(self, ground: Ground, stored: str | None) -> bool:
        """Whether what happened can be the connector's doing: everything of ours lives, and nobody has stopped us.

        With `stored`, every key of that chunk must still be on the server.
        """
        if ground.stopped.is_set() or not ground.forks.alive(ground.connector):
            return False
        try:
            self.proxy.log()
            with RawResp.connect(self.direct.host, self.direct.port, password=self.direct.password) as raw:
                raw.command("PING")
                return all(raw.command("EXISTS", key) == 1 for key in (self.stored(stored) if stored else ()))
        except (OSError, EOFError, KvproofError):
            return False


@dataclass
class Ground:
    """One connector on one server, and the fork servers from which its runners come.

    turns: what bounds how many of its runners work at once, where something does.
    """

    connector: Connector
    described: Described
    server: Server
    forks: Forks
    device: str = "cpu"
    stopped: threading.Event = field(default_factory=threading.Event)
    turns: Turns | None = None

    @property
    def version(self) -> str:
        """The version under test: of the installed connector, or of the distribution that an adapter names."""
        if self.connector.version == "unknown" and self.described.version is not None:
            return self.described.version
        return self.connector.version

    @property
    def masked(self) -> str:
        """The connector's known bug that is kept from striking, if it has one."""
        return self.described.masks

    def at(self, name: str, **fields: Any) -> Place:
        """Return a place on the server itself, under a model name made of `name`, which nobody else may have."""
        endpoint = Endpoint(self.server.host, self.server.port, self.server.password)
        model = self.server.prefix + re.sub(r"[^A-Za-z0-9.]+", "-", f"kvproof {name}")
        return replace(Place(endpoint, 4096, model=model, device=self.device), **fields)

    @contextmanager
    def rig(self, place: Place, schedule: Schedule = (), *, before: Mapping[str, Mapping[str, Any]] | None = None
            ) -> Iterator[Rig]:
        """Open a fresh proxy before the server, and a fresh runner with the connector behind it.

        before: what is called in the runner before that, as module:function, and with which arguments.
        """
        if self.stopped.is_set():
            raise NotOpened("the run was interrupted")
        with faults.proxy((place.endpoint.host, place.endpoint.port), schedule) as between:
            behind = replace(place, endpoint=replace(place.endpoint, host=between.host, port=between.port))
            with self.forks.runner(self.connector) as runner:
                runner.turns = self.turns
                for function, arguments in (before or {}).items():
                    runner.call(function, CALL_SLACK, **arguments)
                opened = runner.open(behind, masked=bool(self.masked))
                if not isinstance(opened, Returned):
                    raise NotOpened(f"opening {self.connector.name}: {briefly(opened)}")
                yield Rig(between, runner, behind, place.endpoint, self.described.deadline)


def described(connector: Connector, forks: Forks, device: str = "cpu") -> Described:
    """Ask the connector's adapter, in a runner, what it declares.

    Raises Unsupported when it does not know the device, NotOpened when it cannot be asked, and what
    `runner.ForkServer.runner` raises when it cannot be imported.
    """
    with forks.runner(connector) as runner:
        answer = runner.call("kvproof.runner.calls:describe", _DESCRIBE)
    if isinstance(answer, Raised) and answer.error == HasRanks.__name__:
        raise UsageError(f"{connector.name}: {answer.text}")
    if not isinstance(answer, Returned):
        raise NotOpened(f"describing {connector.name}: {briefly(answer)}")
    found = Described.of(answer.value)
    if device == "cuda":
        _require_cuda(forks, connector)
    if device not in found.devices:
        raise Unsupported(f"{connector.name} only knows buffers on {', '.join(found.devices)}")
    return found


def briefly(answer: Answer) -> str:
    """Say in a few words how a call ended."""
    match answer:
        case Returned(value=value):
            return f"returned {value!r}"[:200]
        case Raised(error=error, text=text):
            return f"raised {error}: {text}"[:300] + _raised_at(answer.traceback)
        case Hung(deadline=deadline):
            return f"hang: not back after {deadline:g} s"
        case Died(end=end):
            return f"crash: the process {end}"
        case Grew(resident=resident):
            return f"leak: grew to {resident >> 20} MiB"


def _raised_at(traceback: str) -> str:
    """Return where an exception was raised, in the connector's or the adapter's own code."""
    places = re.findall(r'File "(?:.*/)?([^/"]+)", line (\d+), in (\w+)', traceback)
    return f" ({places[-1][2]} in {places[-1][0]}:{places[-1][1]})" if places else ""


def trouble(answer: Answer, runner: Runner) -> dict[str, Any]:
    """Return what explains a call that did not return: stacks, a traceback, and the end of what was printed."""
    found: dict[str, Any] = {}
    if isinstance(answer, (Hung, Died, Grew)):
        found["stack"] = innermost(answer.stacks) or answer.stacks.splitlines()[:40]
    if isinstance(answer, Raised):
        found["traceback"] = answer.traceback.splitlines()[-12:]
    if runner.output.total:
        found["output"] = runner.output.text[-1000:]
    return found


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
    found = re.match(r'"(?:.*/)?([^/"]+)", line (\d+) in (\S+)', (theirs or list(frames) or ["?"])[0])
    return f"{found[3]} ({found[1]}:{found[2]})" if found else "an unknown place"


def _require_cuda(forks: Forks, connector: Connector) -> None:
    with forks.runner(connector) as runner:
        answer = runner.call("kvproof.runner.calls:cuda", _DESCRIBE)
    if not (isinstance(answer, Returned) and answer.value == "yes"):
        raise UsageError(f"--device cuda: there is no CUDA device that PyTorch can use here ({briefly(answer)})")
