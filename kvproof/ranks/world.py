"""A world: W ranks in processes of their own, each behind a proxy before its instance, called in lockstep."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from kvproof import faults
from kvproof.connectors import Connector
from kvproof.connectors.adapter import Endpoint, Place
from kvproof.connectors.rank_adapter import Load, RankPlace
from kvproof.errors import UsageError
from kvproof.faults.endpoint import Proxy
from kvproof.faults.raw_resp import RawResp
from kvproof.faults.schedule import Schedule
from kvproof.faults.servers import Server
from kvproof.ranks import collectives
from kvproof.ranks.evidence import RankEnd
from kvproof.ranks.story import standing
from kvproof.recorder import Recorder
from kvproof.rig import WRITES, NotOpened, briefly, innermost
from kvproof.runner import Answer, Died, Hung, Raised, Returned, Runner
from kvproof.runner.calls import AdapterMistake
from kvproof.runner.forks import Forks

_INSIDE = "kvproof.ranks.inside:"
OPEN_DEADLINE = 30.0
"""Seconds that a rank may take to import nothing more, connect and join its group."""
SLACK = 3.0
"""Seconds that a call may take beyond all that the rank was told to wait."""
TIMEOUT = 1.0
"""Seconds that a rank is told to wait for its instance."""
STEP_TIMEOUT = 3.0
"""Seconds that a rank is told to wait in a collective."""
_POLL = 0.01


@dataclass(frozen=True, slots=True)
class DescribedRanks:
    """What a rank adapter declares, as its runner reported it."""

    name: str
    distribution: str
    version: str | None
    loads: tuple[Load, ...]
    devices: tuple[str, ...]
    exchanges: bool
    rebuilds: bool
    layouts: bool
    records: bool
    memory: bool

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> DescribedRanks:
        """Read the value of `ranks.inside.describe`."""
        loads = tuple(Load(**load) for load in value["loads"])
        return cls(value["name"], value["distribution"], value["version"], loads, tuple(value["devices"]),
                   value["exchanges"], value["rebuilds"], value["layouts"], value["records"], value["memory"])


@dataclass
class Ground:
    """What worlds of one connector are made on: an instance for each rank, and the fork servers of the runners.

    backend: by which ranks talk to each other, "gloo", or "nccl" with a GPU for each.
    """

    connector: Connector
    described: DescribedRanks
    servers: Sequence[Server]
    forks: Forks
    device: str = "cpu"
    stopped: threading.Event = field(default_factory=threading.Event)
    backend: str = "gloo"

    @property
    def world_size(self) -> int:
        """How many ranks there are."""
        return len(self.servers)


class World:
    """Open ranks. Use it as a context manager; everything is closed at its end, whatever the ranks are doing.

    schedules: with what the proxy of a rank is armed. layouts: of which ranks the KV cache has another layout. direct:
    whether there are no proxies. fields: of every rank's place. Worlds of one name share what they store.
    """

    def __init__(self, ground: Ground, name: str, load: Load, *, schedules: Mapping[int, Schedule] | None = None,
                 layouts: Mapping[int, str] | None = None, chunk_bytes: int = 4096, direct: bool = False,
                 **fields: Any) -> None:
        """Open nothing yet."""
        self.ground, self.name, self.load_how = ground, name, load
        self.schedules, self.layouts = dict(schedules or {}), dict(layouts or {})
        self.chunk_bytes, self.direct, self.fields = chunk_bytes, direct, fields
        self.proxies: list[Proxy] = []
        self.runners: list[Runner] = []
        self.unanswered: tuple[str, ...] = ()
        self.keys: dict[str, set[tuple[int, str]]] = {}
        self.steps: list[str] = []
        self._stack = ExitStack()
        self._groups = 0
        self._struck: set[int] = set()

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self.ground.world_size

    @property
    def ranks(self) -> range:
        """The ranks."""
        return range(self.size)

    @property
    def log(self) -> Path:
        """The file to which the ranks of the current group record their steps."""
        return self.directory / f"steps-{self._groups}.jsonl"

    @property
    def entered(self) -> Path:
        """The file to which the current group's collectives are recorded."""
        return self.directory / f"collectives-{self._groups}.jsonl"

    @property
    def rendezvous(self) -> str:
        """The file on which the current group meets."""
        return str(self.directory / f"group-{self._groups}")

    @property
    def deadline(self) -> float:
        """Seconds in which a rank's load ends, whatever happens: what it was told to wait for, and some slack."""
        return TIMEOUT + 2 * self.step_timeout + SLACK

    @property
    def step_timeout(self) -> float:
        """Seconds that a rank waits in a collective."""
        return float(self.fields.get("step_timeout", STEP_TIMEOUT))

    def __enter__(self) -> World:
        """Open the proxies and the ranks; raises NotOpened when a rank cannot be opened."""
        try:
            self.directory = Path(self._stack.enter_context(TemporaryDirectory(prefix="kvproof-world-")))
            for rank in self.ranks:
                if not self.direct:
                    schedule = self.schedules.get(rank, ())
                    self.proxies.append(self._stack.enter_context(faults.proxy(self.server(rank).address, schedule)))
                self.runners.append(self._runner())
            answers = self.each("open", OPEN_DEADLINE, lambda rank: self._opening(rank))
            self._opened(answers)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """End every rank and close every proxy."""
        self._stack.close()

    def server(self, rank: int) -> Server:
        """Return the instance of a rank: worker 0's for all, where KV is replicated."""
        return self.ground.servers[0 if self.load_how.replicated else rank]

    def place(self, rank: int) -> RankPlace:
        """Return the place of a rank."""
        server = self.server(rank)
        between = server if self.direct else self.proxies[rank]
        endpoint = Endpoint(between.host, between.port, server.password)
        inner = Place(endpoint, self.chunk_bytes, rank=rank, world_size=self.size, replicated=self.load_how.replicated,
                      model=f"{server.prefix}kvproof-{self.name}", timeout=TIMEOUT, device=self.ground.device)
        given = {"backend": self.ground.backend, "step_timeout": STEP_TIMEOUT,
                 "layout": self.layouts.get(rank, "paged"), **self.fields}
        return RankPlace(inner, self.rendezvous, asynchronous=self.load_how.asynchronous,
                         log=self._log, load=self.load_how.name, **given)

    @property
    def exchanges(self) -> bool:
        """Whether the ranks agree by collectives; else the engine computes with the least that any has loaded."""
        return self.ground.described.exchanges and self.load_how.exchanges

    @property
    def records(self) -> bool:
        """Whether the ranks record their steps: with replicated KV there are none of the protocol that is proved."""
        return self.ground.described.records and not self.load_how.replicated

    @property
    def _log(self) -> str:
        return str(self.log) if self.records else ""

    def each(self, function: str, deadline: float, what: Callable[[int], Mapping[str, Any]] = lambda rank: {},
             only: Sequence[int] | None = None, meanwhile: Callable[[Sequence[Future[Answer]]], None] | None = None,
             where: str = _INSIDE) -> list[Answer]:
        """Call a function of `ranks.inside` in every rank at once, and return each answer once all have one.

        A rank that did not come back stays as it is, so that where the others are is not disturbed. meanwhile: what to
        do in the meantime, given the calls.
        """
        chosen = list(self.ranks if only is None else only)

        def call(rank: int) -> Answer:
            return self.runners[rank].call(where + function, deadline, ends=False, **what(rank))

        with ThreadPoolExecutor(max(1, len(chosen)), "rank") as pool:
            futures = [pool.submit(call, rank) for rank in chosen]
            if meanwhile is not None:
                meanwhile(futures)
            answers = [future.result() for future in futures]
        for rank, answer in zip(chosen, answers, strict=True):
            if any("struck" in note for note in answer.notes):
                self._struck.add(rank)
            if isinstance(answer, Raised) and answer.error == AdapterMistake.__name__:
                raise NotOpened(f"the adapter is wrong: {answer.text}")
        return answers

    def store(self, prompt: Sequence[str], version: int) -> None:
        """Store a prompt, chunk by chunk, so that the keys of each chunk are seen; raises NotOpened where it fails."""
        for count in range(1, len(prompt) + 1):
            answers = self.store_last(prompt[:count], version)
            outcomes = [answer.value if isinstance(answer, Returned) else None for answer in answers]
            last = [each[-1] for each in outcomes if each is not None]
            if any(each is None for each in outcomes) or not any(each == "hit" for each in last) or any(
                    each.startswith("failed") for each in last):
                said = "; ".join(f"rank {rank} {briefly(answer)}" for rank, answer in enumerate(answers))
                raise NotOpened(f"without any fault, storing {prompt[count - 1]}: {said}")
        self.steps.append(f"stored {len(prompt)} chunks")

    def store_last(self, prompt: Sequence[str], version: int) -> list[Answer]:
        """Store a prompt whose last chunk is new, take note of that one's keys, and return each rank's answer."""
        before = [len(proxy.log()) for proxy in self.proxies]
        answers = self.each("store", self.deadline, lambda rank: {
            "chunks": [(chunk, version) for chunk in prompt], "parts": self.load_how.parts})
        known = {key for keys in self.keys.values() for key in keys}
        new = {(rank, event.key) for rank, proxy in enumerate(self.proxies) for event in proxy.log(before[rank])
               if event.direction == "request" and event.command in WRITES}
        self.keys.setdefault(prompt[-1], set()).update(key for key in new if key not in known)
        return answers

    def prefix(self, prompt: Sequence[str]) -> int:
        """Return how many leading chunks have every key that they were stored under."""
        for index, chunk in enumerate(prompt):
            for rank, key in self.keys[chunk]:
                with self.connect(rank) as raw:
                    if raw.command("EXISTS", key) != 1:
                        return index
        return len(prompt)

    def connect(self, rank: int) -> RawResp:
        """Connect to a rank's instance, past its proxy."""
        server = self.server(rank)
        return RawResp.connect(server.host, server.port, password=server.password)

    def lookup(self, prompts: Mapping[int, Sequence[str]]) -> tuple[dict[int, int], int]:
        """Ask every rank what it promises; return that, and what the engine is promised (0 where a rank fails)."""
        deadline = TIMEOUT + float(self.fields.get("lookup_timeout", 1.0)) + SLACK
        answers = self.each("lookup", deadline, lambda rank: {"chunks": list(prompts[rank])})
        reports = {rank: answer.value for rank, answer in enumerate(answers)
                   if isinstance(answer, Returned) and answer.value is not None}
        failed = [f"rank {rank} {briefly(answer)}" for rank, answer in enumerate(answers)
                  if not isinstance(answer, Returned)]
        self.unanswered = tuple(f"rank {rank} {briefly(answer)}" for rank, answer in enumerate(answers)
                                if isinstance(answer, Hung))
        self.steps.append(f"looked up: {_told(reports)}{'; ' if failed else ''}{'; '.join(failed)}")
        if failed or not reports:
            return reports, 0
        answer = self.runners[0].call(_INSIDE + "schedule", SLACK, ends=False, reports=list(reports.values()))
        if not isinstance(answer, Returned) or not isinstance(answer.value, int):
            raise NotOpened(f"the scheduler, given {list(reports.values())}: {briefly(answer)}")
        return reports, answer.value

    def load(self, prompts: Mapping[int, Sequence[str]], version: int, release: str = "",
             only: Sequence[int] | None = None) -> list[RankEnd]:
        """Let every rank load its prompt, and return how each load ended; with `release`, once all peers wait."""
        known = [(chunk, version) for chunk in self.keys]
        chosen = list(self.ranks if only is None else only)

        def waiting(calls: Sequence[Future[Answer]]) -> None:
            [victim] = list(self.schedules)
            until = time.monotonic() + 0.8 * TIMEOUT
            while time.monotonic() < until:
                entered = collectives.read(self.entered)
                peers = [rank for rank in chosen if rank != victim]
                if all(calls[chosen.index(rank)].done() or entered.waiting(rank) for rank in peers):
                    break
                time.sleep(_POLL)
            self.proxies[victim].release(release)

        answers = self.each("load", self.deadline, lambda rank: {
            "chunks": list(prompts[rank]), "known": known, "parts": self.load_how.parts},
            only=chosen, meanwhile=waiting if release else None)
        ends = [self._end(rank, prompts[rank], answer) for rank, answer in zip(chosen, answers, strict=True)]
        ends = ends if self.exchanges else _least(ends)
        for end in ends:
            self.steps.append(f"rank {end.rank} {end.words}")
            if end.how == "crash":
                self._record_death(end.rank)
        return ends

    def arm(self, rank: int, seam: str, does: str, match: int) -> None:
        """Let a disturbance inside of a rank strike from now on."""
        self._struck.discard(rank)
        answer = self.runners[rank].call(_INSIDE + "arm", SLACK, seam=seam, does=does, match=match)
        if not isinstance(answer, Returned):
            raise NotOpened(f"arming rank {rank}: {briefly(answer)}")

    def struck(self, rank: int) -> bool:
        """Whether what was armed inside of a rank has struck."""
        if rank not in self._struck and self.runners[rank].usable:
            # What a thread of its own has told is read with the next answer.
            self.each("footprint", SLACK, only=[rank])
        return rank in self._struck

    def passed(self) -> dict[int, frozenset[str]]:
        """Return which seams each rank has passed since this was asked for the last time."""
        answers = self.each("passed", SLACK)
        return {rank: frozenset(answer.value if isinstance(answer, Returned) else ())
                for rank, answer in enumerate(answers)}

    def let_go(self, rank: int) -> None:
        """Let go on what is held inside of a rank."""
        self.each("release", SLACK, only=[rank])

    @property
    def usable(self) -> bool:
        """Whether every rank can be called."""
        return all(runner.usable for runner in self.runners)

    def rebuild(self) -> None:
        """Replace the ranks that are gone, and let all join a new group; raises NotOpened when that does not work.

        All are replaced where a rank cannot join another group.
        """
        anew = not self.ground.described.rebuilds
        gone = [rank for rank in self.ranks if anew or not self.runners[rank].usable]
        for rank in gone:
            self.runners[rank].close()
            self.runners[rank] = self._runner()
        self._groups += 1
        answers: dict[int, Answer] = {}

        def call(rank: int) -> Answer:
            if rank in gone:
                return self.runners[rank].call(_INSIDE + "open", OPEN_DEADLINE, ends=False, **self._opening(rank))
            return self.runners[rank].call(_INSIDE + "rebuild", OPEN_DEADLINE, ends=False, rendezvous=self.rendezvous,
                                           entered=self._entered, log=self._log)

        with ThreadPoolExecutor(self.size, "rank") as pool:
            answers = dict(zip(self.ranks, pool.map(call, self.ranks), strict=True))
        self._opened(list(answers.values()))
        self.steps.append(f"rebuilt the group{f', with rank {gone} anew' if gone else ''}")

    def close(self) -> list[dict[str, Any]]:
        """Close every rank; return what each leaves behind. Raises NotOpened when one does not close."""
        answers = self.each("close", self.deadline)
        self._opened(answers)
        return [answer.value for answer in answers if isinstance(answer, Returned)]

    def _runner(self) -> Runner:
        return self._stack.enter_context(self.ground.forks.runner(self.ground.connector))

    def _opening(self, rank: int) -> dict[str, Any]:
        return {"place": asdict(self.place(rank)), "entered": self._entered}

    @property
    def _entered(self) -> str:
        return str(self.entered) if self.exchanges else ""

    def _opened(self, answers: Sequence[Answer]) -> None:
        failed = [f"rank {rank} {briefly(answer)}" for rank, answer in enumerate(answers)
                  if not isinstance(answer, Returned)]
        if failed:
            raise NotOpened("; ".join(failed))

    def _end(self, rank: int, asked: Sequence[str], answer: Answer) -> RankEnd:
        if isinstance(answer, Returned):
            said = answer.value
            how = "aborted" if said["aborted"] else "returned"
            words = (f"gave the step up ({said['aborted']})" if said["aborted"]
                     else f"returned and computes with {said['uses']} chunks")
            return RankEnd(rank, how, tuple(asked), said["uses"], said["holds"], said["exact"], said["seconds"], words)
        stack = innermost(answer.stacks) if isinstance(answer, (Hung, Died)) else []
        how = "raised" if isinstance(answer, Raised) else "hang" if isinstance(answer, Hung) else "crash"
        return RankEnd(rank, how, tuple(asked), words=standing(how, briefly(answer), stack), stack=tuple(stack))

    def _record_death(self, rank: int) -> None:
        """Write into the ranks' own log that a rank has died, which it cannot do itself."""
        if not (self.records and self.log.exists()):
            return
        lines = [json.loads(line) for line in self.log.read_bytes().split(b"\n")[:-1]]
        mine = [line for line in lines if line["rank"] == rank]
        if mine:
            with Recorder(self.log, rank, first=len(mine)) as record:
                record("die", step=mine[-1]["step"])


def _least(ends: Sequence[RankEnd]) -> list[RankEnd]:
    """Return how loads ended of ranks that only say what they have: the engine computes with the least of it."""
    least = min((end.uses for end in ends if end.finished), default=0)
    return [replace(end, uses=least, words=f"{end.words.replace('computes with', 'has')}; the engine computes with "
                                           f"{least}") if end.finished else end for end in ends]


def _told(reports: Mapping[int, int]) -> str:
    return ", ".join(f"rank {rank} promises {count}" for rank, count in reports.items())


def described_ranks(connector: Connector, forks: Forks) -> DescribedRanks:
    """Ask a rank adapter, in a runner, what it declares; raises NotOpened when it cannot be asked."""
    with forks.runner(connector) as runner:
        answer = runner.call(_INSIDE + "describe", 10.0)
    if isinstance(answer, Raised) and answer.error == "TypeError":
        raise UsageError(f"{connector.name}: {answer.text}; leave --ranks out")
    if not isinstance(answer, Returned):
        raise NotOpened(f"describing {connector.name}: {briefly(answer)}")
    return DescribedRanks.of(answer.value)
