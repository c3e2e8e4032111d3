"""A soak: engines of W ranks that share instances serve prompts with shared prefixes, for a given time, under faults.

What is random is drawn from a seed: prompts, evictions, which rank is struck by what. Nothing may hang, differ or be
left behind; whatever a disturbance costs, it costs a recompute and no more.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from hashlib import blake2b

from kvproof.connectors.rank_adapter import Load
from kvproof.faults.families.close import Close
from kvproof.faults.families.error import Error
from kvproof.faults.families.nil import Nil
from kvproof.faults.families.reset import Reset
from kvproof.faults.families.silence import Silence
from kvproof.faults.families.wrong_length import WrongLength
from kvproof.faults.fault import Fault
from kvproof.ranks.evidence import RankEnd
from kvproof.ranks.world import Ground, World
from kvproof.rig import NotOpened
from kvproof.runner import Returned

_STRIKES = (("get", "raise"), ("allocate", "no-memory"), ("collective", "raise"), ("collective", "kill"),
            ("get", "kill"))
_FAULTS: tuple[Callable[[int], Fault], ...] = (
    lambda match: Nil(command="GET", match=match),
    lambda match: Error(command="GET", match=match, code="LOADING"),
    lambda match: WrongLength(command="GET", match=match, by=-1),
    lambda match: Close(command="GET", match=match),
    lambda match: Reset(command="GET", match=match),
    lambda match: Silence(command="GET", match=match),
)
_WARM = 20
"""Requests after which what a rank has is looked at for the first time."""
_SPREAD = 2
"""Threads or descriptors by which a rank may have more at the end: of a connection that is being replaced."""


@dataclass
class Soaked:
    """What a soak has seen.

    counts: requests, chunks asked for, hits (chunks loaded), recomputes (chunks that were not), needles (chunks that
    were looked at byte by byte), aborted steps, rebuilt groups, evictions, struck ranks. wrong: everything that may not
    happen, in words.
    """

    seed: int
    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def __str__(self) -> str:
        """Return the counts on one line."""
        return f"seed {self.seed}, {self.seconds:.0f} s: " + ", ".join(
            f"{count} {name}" for name, count in sorted(self.counts.items()))


class _Engine:
    """One engine: a world, and the prompts that it serves."""

    def __init__(self, ground: Ground, number: int, soaked: Soaked, lock: threading.Lock) -> None:
        self._ground, self._soaked, self._lock = ground, soaked, lock
        self._choose = random.Random(f"{soaked.seed} {number}")
        self._first: dict[int, dict[str, int]] = {}

    def serve(self, until: float, progress: Callable[[Soaked], None]) -> None:
        """Serve prompts until the time has come, each by a lookup, a load, and storing what was recomputed."""
        load = Load("load", asynchronous=self._choose.random() < 0.5)
        schedules = {rank: self._schedule() for rank in range(self._ground.world_size)}
        with World(self._ground, f"soak-{self._soaked.seed}", load, schedules=schedules,
                   memory_bytes=16 * 4096, step_timeout=2.0) as world:
            served = 0
            while time.monotonic() < until and not self._ground.stopped.is_set():
                self._request(world)
                served += 1
                if served == _WARM:
                    self._first = self._footprints(world)
                progress(self._soaked)
            self._left(world, served)

    def _request(self, world: World) -> None:
        prompt = self._prompt()
        if self._choose.random() < 0.2:
            self._evict(world)
        struck = self._choose.random() < 0.1
        if struck:
            seam, does = self._choose.choice(_STRIKES)
            world.arm(self._choose.choice(world.ranks), seam, does, self._choose.randint(1, 2))
        world.keys = {chunk: set() for chunk in prompt}
        world.steps.clear()
        told = dict.fromkeys(world.ranks, prompt)
        _, found = world.lookup(told)
        usable = all(runner.usable for runner in world.runners)
        ends = world.load(dict.fromkeys(world.ranks, prompt[:found]), 1) if found and usable else []
        self._judge(world, prompt, ends)
        with self._lock:
            self._soaked.counts.update(requests=1, chunks=len(prompt), struck=struck)
            used = min((end.uses for end in ends if end.finished), default=0)
            self._soaked.counts.update(hits=used, recomputes=len(prompt) - used)
        if any(not end.finished for end in ends) or not all(runner.usable for runner in world.runners):
            with self._lock:
                self._soaked.counts.update(aborted=1, rebuilt=1)
            gone = [rank for rank in world.ranks if not world.runners[rank].usable]
            world.rebuild()
            for rank in gone:
                self._first.pop(rank, None)
            return
        chunks = [(chunk, 1) for chunk in prompt]
        stored = world.each("store", world.deadline, lambda rank: {"chunks": chunks})
        failed = [f"rank {rank} {answer}" for rank, answer in enumerate(stored) if not isinstance(answer, Returned)]
        if any("Hung" in each for each in failed):
            self._complain(f"storing did not come back: {failed}")
        if not all(runner.usable for runner in world.runners):
            world.rebuild()

    def _judge(self, world: World, prompt: Sequence[str], ends: Sequence[RankEnd]) -> None:
        if not ends:
            return
        for end in ends:
            if end.how == "hang":
                self._complain(f"rank {end.rank} hangs: {end.words}")
            if end.how == "raised":
                self._complain(f"rank {end.rank} {end.words}")
            if end.how == "crash" and not world.struck(end.rank):
                self._complain(f"rank {end.rank} {end.words}")
        finished = [end for end in ends if end.finished]
        if len({end.uses for end in finished}) > 1:
            self._complain(f"ranks compute with {[end.uses for end in finished]} chunks")
        for end in finished:
            for chunk in range(end.uses):
                if (end.holds[chunk], end.exact[chunk]) != (f"{prompt[chunk]} version 1", True):
                    self._complain(f"rank {end.rank} computes with chunk {chunk} and has {end.holds[chunk]}")
            with self._lock:
                self._soaked.counts.update(needles=end.uses)

    def _prompt(self) -> list[str]:
        """Return a prompt of 1 to 12 chunks; two prompts share a prefix more often than not."""
        prompt, path = [], ""
        for _ in range(self._choose.randint(1, 12)):
            path += str(min(self._choose.randrange(3), self._choose.randrange(3)))
            prompt.append(blake2b(f"{self._soaked.seed} {path}".encode(), digest_size=8).hexdigest())
        return prompt

    def _evict(self, world: World) -> None:
        """Delete one key of this soak's from one instance."""
        rank = self._choose.choice(world.ranks)
        with world.connect(rank) as raw:
            keys = sorted(raw.keys(world.place(rank).place.model))
            if keys:
                raw.command("DEL", self._choose.choice(keys))
                with self._lock:
                    self._soaked.counts.update(evictions=1)

    def _schedule(self) -> tuple[Fault, ...]:
        """Return faults at places of this engine's gets and lookups, each of which strikes once."""
        faults: list[Fault] = []
        match = 5
        for _ in range(60):
            match += self._choose.randint(5, 60)
            faults.append(self._choose.choice(_FAULTS)(match))
        return tuple(faults)

    def _footprints(self, world: World) -> dict[int, dict[str, int]]:
        answers = world.each("footprint", 5.0)
        return {rank: answer.value for rank, answer in enumerate(answers) if isinstance(answer, Returned)}

    def _left(self, world: World, served: int) -> None:
        last = self._footprints(world)
        for rank, first in self._first.items():
            for what, count in first.items():
                if last.get(rank, first)[what] > count + _SPREAD:
                    self._complain(f"after {served} requests rank {rank} has {last[rank][what]} {what}, and had "
                                   f"{count}")
        for rank, left in enumerate(world.close()):
            if left["processes"]:
                self._complain(f"rank {rank} leaves processes behind: {left['processes']}")

    def _complain(self, words: str) -> None:
        with self._lock:
            self._soaked.wrong.append(words)


def soak(ground: Ground, seconds: float, seed: int, engines: int = 2,
         progress: Callable[[Soaked], None] = lambda soaked: None) -> Soaked:
    """Serve prompts for so long; return what was seen. Raises NotOpened when a group cannot be built at all."""
    soaked, lock, begun = Soaked(seed), threading.Lock(), time.monotonic()
    until = begun + seconds
    with ThreadPoolExecutor(engines, "engine") as pool:
        futures = [pool.submit(_Engine(ground, number, soaked, lock).serve, until, progress)
                   for number in range(engines)]
        for future in futures:
            try:
                future.result()
            except NotOpened as error:
                soaked.wrong.append(f"an engine could not go on: {error}")
    soaked.seconds = time.monotonic() - begun
    return soaked
