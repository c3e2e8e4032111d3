"""One scenario: a world stores a prompt, one rank is disturbed, all look up and load, and do so again afterwards."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any

from kvproof import validate
from kvproof.connectors.rank_adapter import Load
from kvproof.errors import UsageError
from kvproof.faults.fault import Fault
from kvproof.faults.wire import WireEvent
from kvproof.models.chunks import block_cyclic, round_robin
from kvproof.ranks import collectives
from kvproof.ranks.disturbances import MENU, NONE, RELEASE, Disturbance, Spot
from kvproof.ranks.evidence import Evidence, Step
from kvproof.ranks.story import stall
from kvproof.ranks.world import Ground, World
from kvproof.rig import WRITES
from kvproof.rules.plan import kind_of
from kvproof.rules.rule import NotFelt

TRIES = 3
"""How often a world may load again after a disturbance until it has everything: a miss right after it is no lie."""
_ANSWERED = 3.0
"""Seconds that a rank may take to answer a lookup, beyond those that others have waited for it."""
_POLL = 0.02
_LARGE = 1024 * 1024
_VALIDATING = threading.Lock()
"""Held while a log is validated: what compiles the spec, Z3, may be used by one thread at a time."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A way to load, a disturbance, its victim, and the fault that it is on the victim's way to its instance."""

    load: Load
    disturbance: Disturbance
    victim: int
    fault: Fault | None = None

    @property
    def id(self) -> str:
        """Its name as a fault, such as "nil@first", of the first rank, or the last; of no rank, as "none"."""
        plain = (NONE.id, "short-prompt", "long-chunks", "blocks", "in-memory")
        if self.disturbance.id in plain:
            return self.disturbance.id
        return f"{self.disturbance.id}@{'last' if self.victim else 'first'}"


@dataclass(frozen=True, slots=True)
class Seen:
    """What a rank did in a step without disturbance: what it asked its instance for in the lookup, and in the load.

    seams: what it passed of those that its adapter names, and "collective". collectives: how many it went through.
    """

    lookup: tuple[Spot, ...] = ()
    load: tuple[Spot, ...] = ()
    seams: frozenset[str] = frozenset()
    collectives: int = 0


@dataclass
class Planned:
    """The scenarios of one way to load, and those that are left out, each with the reason."""

    scenarios: list[Scenario] = field(default_factory=list)
    left_out: list[tuple[Scenario, str]] = field(default_factory=list)


def observe(ground: Ground, load: Load) -> dict[int, Seen]:
    """Return what each rank does in a step without disturbance."""
    with World(ground, _name(ground, load, "plan"), load) as world:
        prompt = chunks(world.name, world.size + 2)
        world.store(prompt, 1)
        world.passed()
        marks = [[len(proxy.log()) for proxy in world.proxies]]
        told = dict.fromkeys(world.ranks, prompt)
        _, found = world.lookup(told)
        marks.append([len(proxy.log()) for proxy in world.proxies])
        world.load(dict.fromkeys(world.ranks, prompt[:found]), 1)
        keys = {key for keys in world.keys.values() for key in keys}
        entered, passed = collectives.read(world.entered), _passed(world)
        return {
            rank: replace(_seen(proxy.log(), marks[0][rank], marks[1][rank], {key for _, key in keys}),
                          seams=passed[rank], collectives=len(entered.of(rank)))
            for rank, proxy in enumerate(world.proxies)}


def _passed(world: World) -> dict[int, frozenset[str]]:
    """Return the seams that each rank has passed; the answer to a lookup may come after the load that did without."""
    passed, until = world.passed(), time.monotonic() + _ANSWERED
    while any("lookup" in seams and "answer" not in seams for seams in passed.values()) and time.monotonic() < until:
        time.sleep(_POLL)
        more = world.passed()
        passed = {rank: seams | more[rank] for rank, seams in passed.items()}
    return passed


def plan(ground: Ground, load: Load) -> Planned:
    """Return the scenarios of one way to load."""
    seen = observe(ground, load)
    found = Planned()
    for disturbance in MENU:
        plain = Scenario(load, disturbance, 0)
        victims = [0] if "@" not in plain.id else sorted({0, ground.world_size - 1})
        for victim in victims:
            scenario = Scenario(load, disturbance, victim)
            fault, why = _planned(ground, load, disturbance, seen[victim])
            if why:
                found.left_out.append((scenario, why))
            else:
                found.scenarios.append(Scenario(load, disturbance, victim, fault))
    return found


def _planned(
    ground: Ground, load: Load, disturbance: Disturbance, seen: Seen
) -> tuple[Fault | None, str]:
    """Return the fault that a disturbance is on the way to the instance, if it is one, and why it is left out."""
    exchanges = ground.described.exchanges and load.exchanges
    if disturbance.wire is not None:
        spots = (seen.load or seen.lookup) if disturbance.at == "load" else seen.lookup if seen.load else ()
        fault = next((fault for spot in spots if (fault := disturbance.wire(spot)) is not None), None)
        if fault is None:
            return None, f"the {disturbance.at} asks the instance for nothing that this could be done to"
        if disturbance.waits and not seen.load:
            return None, "the load does not wait for the instance"
        return fault, ""
    if disturbance.seam and disturbance.seam not in seen.seams:
        return None, f"the victim passes no seam {disturbance.seam!r} that its adapter names"
    if disturbance.kills and disturbance.seam != "collective" and not seen.load:
        return None, "it would strike in the lookup, after which there is no load"
    if disturbance.seam == "collective" and disturbance.match > seen.collectives:
        return None, "there is only one collective"
    if disturbance.evicts and not seen.load and not seen.lookup:
        return None, "the victim asks the instance for nothing"
    if disturbance.evicts == "last" and not seen.load:
        return None, "the load asks the instance for nothing: the bytes have come before"
    if disturbance.told and not exchanges:
        return None, "the ranks exchange nothing by which they could see it"
    if disturbance.told == "layout" and not ground.described.layouts:
        return None, "the ranks have KV caches of one layout only"
    if disturbance.whole and not ground.described.memory:
        return None, "the ranks keep nothing in memory"
    if disturbance.whole and load.replicated:
        return None, "only worker 0 has it in memory"
    if disturbance.id == "blocks" and (not exchanges or load.replicated or load.parts or ground.world_size == 1):
        return None, "chunks have no owners to choose"
    return None, ""


def chunks(name: str, count: int) -> list[str]:
    """Return names of chunks that no other scenario has."""
    return [blake2b(f"{name} {index}".encode(), digest_size=8).hexdigest() for index in range(count)]


def _name(ground: Ground, load: Load, what: str) -> str:
    plain = "".join(letter if letter.isalnum() else "-" for letter in f"{ground.connector.name}-{load.name}-{what}")
    return f"{plain}-{ground.world_size}"


def _seen(events: Sequence[WireEvent], lookup: int, load: int, keys: set[str]) -> Seen:
    """Return the requests of a lookup and of a load that are for one of these keys; `lookup`, `load`: their begins."""
    counts: dict[str, int] = {}
    waiting: dict[int, list[tuple[int, str, int]]] = {}
    found: dict[str, list[tuple[int, Spot]]] = {"lookup": [], "load": []}
    for index, event in enumerate(events):
        if event.direction == "request":
            counts[event.command] = counts.get(event.command, 0) + 1
            waiting.setdefault(event.connection, []).append(
                (index if event.key in keys else -1, event.command, counts[event.command]))
        elif event.direction == "reply" and waiting.get(event.connection):
            asked, command, match = waiting[event.connection].pop(0)
            if asked >= lookup:
                phase = "load" if asked >= load else "lookup"
                found[phase].append((asked, Spot(command, match, kind_of(event))))
    told = {phase: tuple(spot for _, spot in sorted(spots, key=lambda each: each[0])) for phase, spots in found.items()}
    return Seen(told["lookup"], told["load"])


class Played:
    """A scenario that is played: the world it is played in, and what was done to it."""

    def __init__(self, ground: Ground, scenario: Scenario, stack: ExitStack, name: str) -> None:
        """Open the world."""
        self.ground, self.scenario = ground, scenario
        disturbance, victim = scenario.disturbance, scenario.victim
        count = 1 if disturbance.id == "short-prompt" else ground.world_size + 2
        self.prompt = chunks(name, count)
        owners = block_cyclic(count, ground.world_size, 2) if disturbance.id == "blocks" else ()
        self.owners = owners or round_robin(count, ground.world_size)
        size = _LARGE if disturbance.id == "long-chunks" else 4096
        self.world = stack.enter_context(World(
            ground, name, scenario.load, chunk_bytes=size,
            schedules={victim: (scenario.fault,)} if scenario.fault is not None else {},
            layouts={victim: "contiguous"} if disturbance.told == "layout" else {},
            owners=owners, memory_bytes=count * size if disturbance.whole else 0))
        self._struck = False
        self._lost: list[tuple[int, str, bytes]] = []

    def evidence(self) -> Evidence:
        """Play it, and return what happened; raises NotFelt when the disturbance did not strike, or was not felt."""
        world, scenario, disturbance = self.world, self.scenario, self.scenario.disturbance
        world.store(self.prompt, 1)
        stores = self._counted(WRITES)
        if disturbance.whole:
            self._lose([(rank, key) for keys in world.keys.values() for rank, key in keys])
        if disturbance.seam and disturbance.seam != "collective":
            world.arm(scenario.victim, disturbance.seam, disturbance.does, disturbance.match)
        if disturbance.evicts == "first":
            self._evict(0)
        prefix = len(self.prompt) if disturbance.whole else world.prefix(self.prompt)
        before = [len(proxy.log()) for proxy in world.proxies]
        reports, found = world.lookup(dict.fromkeys(world.ranks, self.prompt))
        if disturbance.seam == "collective":
            world.arm(scenario.victim, disturbance.seam, disturbance.does, disturbance.match)
        if disturbance.evicts == "last":
            self._evict(-1)
        told = self._told(self.prompt[:found])
        # Where nothing is promised the engine has nothing to load.
        ends = world.load(told, 1, RELEASE if disturbance.waits else "") if found and world.usable else []
        step = Step(reports, found, ends, collectives.read(world.entered), world.unanswered)
        gets = self._counted(set(), before)
        trouble = self._trouble(step)
        self._felt(step)
        following = self._following() if disturbance.serves and world.usable else None
        after, log = self._after(step), self._log(step)
        self._restore()
        again, tries = self._again(step)
        log = log or (self._log(again) if again is not None else None)
        return Evidence(
            world.size, scenario.load, disturbance, scenario.victim, self.prompt, 1, self.owners, prefix, step,
            after, again, stores, gets, world.deadline, log, world.exchanges, tries, following, trouble)

    def _following(self) -> tuple[int, int]:
        """Look up another prompt, of which only the first chunk is there, once nothing is held any more."""
        world = self.world
        world.let_go(self.scenario.victim)
        other = [self.prompt[0], *chunks("following " + self.prompt[0], len(self.prompt) - 1)]
        _, found = world.lookup(dict.fromkeys(world.ranks, other))
        return found, 1

    def _told(self, prompt: Sequence[str]) -> dict[int, Sequence[str]]:
        """Return what each rank is told to load."""
        told: dict[int, Sequence[str]] = dict.fromkeys(self.world.ranks, prompt)
        kind = self.scenario.disturbance.told
        if kind == "list":
            told[self.scenario.victim] = [*prompt[:1], *chunks("other " + self.prompt[0], len(prompt) - 1)]
        if kind == "empty-list":
            told[self.scenario.victim] = []
        return told

    def _evict(self, which: int) -> None:
        """Delete a chunk of the victim's own: the first (0) or the last (-1)."""
        victim, parts = self.scenario.victim, self.scenario.load.parts
        mine = [chunk for chunk, owner in zip(self.prompt, self.owners, strict=True) if owner == victim]
        # Of parts every rank has some of each chunk, and the first chunk is left, so that something is promised.
        chunk = (self.prompt[1:] if parts else mine)[which]
        self._lose(sorted(each for each in self.world.keys[chunk] if not parts or each[0] == victim))
        self.world.steps.append(f"evicted chunk {self.prompt.index(chunk)}")

    def _lose(self, keys: Sequence[tuple[int, str]]) -> None:
        for rank, key in keys:
            with self.world.connect(rank) as raw:
                value = raw.get(key)
                if value is not None:
                    self._lost.append((rank, key, value))
                    self._struck = raw.command("DEL", key) == 1

    def _restore(self) -> None:
        for rank, key, value in self._lost:
            with self.world.connect(rank) as raw:
                raw.command("SET", key, value)

    def _felt(self, step: Step) -> None:
        """Raise NotFelt when the disturbance was not done, or nobody felt it."""
        disturbance, victim = self.scenario.disturbance, self.scenario.victim
        if self.scenario.fault is not None:
            self.world.proxies[victim].ended("returned")
            [mark] = self.world.proxies[victim].marks()
            if not mark.felt:
                raise NotFelt(f"the disturbance was {mark}")
        if (disturbance.evicts or disturbance.whole) and not self._struck:
            raise NotFelt("there was nothing that could be evicted")
        if disturbance.seam and not self.world.struck(victim):
            raise NotFelt(f"the rank never passed {disturbance.seam}")

    def _after(self, step: Step) -> Step | None:
        """Load once more with the same group, after a step that somebody has not finished, with those that are left."""
        if not step.unfinished or not self.world.exchanges:
            return None
        gone = {end.rank for end in step.ends if end.how in ("hang", "crash")}
        left = [rank for rank in self.world.ranks if rank not in gone and self.world.runners[rank].usable]
        if not left:
            return None
        self.world.steps.append("loaded once more, without rebuilding the group")
        ends = self.world.load(dict.fromkeys(self.world.ranks, self.prompt), 1, only=left)
        return Step({}, len(self.prompt), ends, collectives.read(self.world.entered))

    def _again(self, step: Step) -> tuple[Step | None, int]:
        """Load again, with a group that was rebuilt where somebody did not finish; return the last try."""
        world = self.world
        if step.unfinished or not world.usable or self.scenario.disturbance.does == "end":
            world.rebuild()
        again: Step | None = None
        for tries in range(1, TRIES + 1):
            reports, found = world.lookup(dict.fromkeys(world.ranks, self.prompt))
            ends = world.load(dict.fromkeys(world.ranks, self.prompt[:found]), 1) if found and world.usable else []
            again = Step(reports, found, ends, collectives.read(world.entered), world.unanswered)
            if not world.usable or again.unfinished or (ends and all(end.uses == len(self.prompt) for end in ends)):
                return again, tries
            if self.scenario.disturbance.told == "layout":
                break
        return again, TRIES

    def _counted(self, commands: set[str] | frozenset[str], since: Sequence[int] | None = None) -> dict[int, int]:
        """Return of how many chunks each rank made a request of these commands; of any but lookups, when none given."""
        chunk_of = {key: chunk for chunk, keys in self.world.keys.items() for _, key in keys}
        counted: dict[int, int] = {}
        for rank, proxy in enumerate(self.world.proxies):
            events = proxy.log(since[rank]) if since is not None else proxy.log()
            wanted = {chunk_of[event.key] for event in events if event.direction == "request" and event.key in chunk_of
                      and (event.command in commands if commands else event.command != "EXISTS")}
            counted[rank] = len(wanted)
        return counted

    def _log(self, step: Step) -> str | None:
        """Return what is wrong with the ranks' own log of the group, if they have written one."""
        log = self.world.log
        if not self.world.records or not log.exists() or not log.stat().st_size:
            return None
        ended = all(end.ended for end in step.ends)
        try:
            with _VALIDATING:
                judged = validate.validate(log, "load", complete=ended)
        except UsageError as error:
            return str(error).replace(str(log), log.name)
        return "" if judged.exit_code == 0 else f"{judged.verdict}: {judged.why or '; '.join(judged.unfinished)}"

    def _trouble(self, step: Step) -> Mapping[str, Any]:
        told = stall(step.entered, {end.rank: end.words for end in step.ends})
        victim = self.scenario.victim
        found: dict[str, Any] = {
            "wire": [str(event) for event in self.world.proxies[victim].log()[-40:]],
            "collectives": [f"rank {rank} {'waits in' if each.waits else 'raised in' if each.error else 'left'} "
                            f"{each.words}" for rank, those in sorted(step.entered.ranks.items()) for each in those],
        }
        if told:
            found["stall"] = told
        for end in step.ends:
            if end.stack:
                found.setdefault("stack", []).extend([f"rank {end.rank}:", *end.stack[:20]])
        return found


def play(ground: Ground, scenario: Scenario, attempt: int = 0) -> tuple[Evidence, list[str]]:
    """Play a scenario in a world of its own; return what happened, and the steps in words.

    attempt: which one it is; each has chunks of its own. Raises NotFelt, and NotOpened where the world does not work
    without any disturbance.
    """
    name = _name(ground, scenario.load, f"{scenario.id}-{attempt}")
    with ExitStack() as stack:
        played = Played(ground, scenario, stack, name)
        return played.evidence(), played.world.steps
