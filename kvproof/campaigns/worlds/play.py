"""Playing a case of a world: fresh ranks serve its prompts while things are done to them, judged after each step.

What may not happen is what the rules over worlds say (`ranks.rules`), over what was done so far, and besides: nothing
is promised that nobody has stored; a closed rank leaves no process behind.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from hashlib import blake2b
from itertools import takewhile

from kvproof.campaigns.target import Played, Violation
from kvproof.campaigns.worlds.case import Case, Step
from kvproof.causes import alike
from kvproof.connectors.rank_adapter import Load
from kvproof.errors import KvproofError
from kvproof.models.chunks import round_robin
from kvproof.ranks import collectives
from kvproof.ranks.disturbances import NONE, Disturbance
from kvproof.ranks.evidence import Evidence
from kvproof.ranks.evidence import Step as Stepped
from kvproof.ranks.rules import RULES
from kvproof.ranks.scenario import TRIES
from kvproof.ranks.world import Ground, World
from kvproof.rig import Unsupported, briefly
from kvproof.rules.plan import kind_of
from kvproof.rules.rule import Broken
from kvproof.runner import Hung, Returned

_RULES = ("bounded-step", "no-skip", "same-prefix", "all-or-nothing", "no-stale-hit")
_SPARE = 9
"""The first number of the path by which is seen whether a world works again."""
_WAITING = ("lookup", "answer")
"""Seams at which what strikes is over only when all ranks were replaced."""


def play(ground: Ground, case: Case, name: str) -> Played:
    """Play a case under a name that no other has; every way in which that can go wrong is in the result."""
    begun, played = time.monotonic(), Played()
    load = next((each for each in ground.described.loads if each.name == case.load), None)
    if load is None or case.ranks != ground.world_size:
        played.error = (f"the case is of {case.ranks} ranks that load by {case.load}; here are {ground.world_size}, "
                        f"which load by {', '.join(each.name for each in ground.described.loads)}")
        return played
    with ExitStack() as stack:
        stage: _Stage | None = None
        try:
            stage = _Stage(ground, case, load, name, stack, played)
            stage.run()
        except Violation as violation:
            played.violation = violation
        except KvproofError as error:
            played.error = str(error)
        if ground.stopped.is_set():
            # What ends because something of ours has ended says nothing about the connector.
            played.violation, played.error = None, "interrupted"
        if stage is not None:
            stage.look()
    played.seconds = round(time.monotonic() - begun, 3)
    return played


class _Stage:
    """The world of one case while it is played."""

    def __init__(
        self, ground: Ground, case: Case, load: Load, name: str, stack: ExitStack, played: Played
    ) -> None:
        self.case, self.played, self._name = case, played, name
        plain = "".join(letter if letter.isalnum() else "-" for letter in name)
        self.world = stack.enter_context(World(
            ground, plain, load, schedules=dict(enumerate(case.schedules)), **case.place))
        self._stored: set[str] = set()
        self._armed: tuple[int, str] | None = None
        self._killed = -1
        self._seen: set[str] = set()
        self._exact = not case.place.get("memory_bytes")

    def run(self) -> None:
        """Do it all; raises Violation, and NotOpened where the world cannot be opened, or built again."""
        for step in self.case.steps:
            if step.do == "evict":
                self._evict(step)
            elif step.do == "strike":
                self._strike(step)
            else:
                self._serve(step.path, step)
        self._works_again()
        for rank, left in enumerate(self.world.close()):
            if left["processes"]:
                raise Violation("leak-free", "leak", f"rank {rank} leaves processes behind: {left['processes']}")

    # Steps

    def _chunks(self, path: Sequence[int]) -> list[str]:
        return [blake2b(f"{self._name} {tuple(path[:count])}".encode(), digest_size=8).hexdigest()
                for count in range(1, len(path) + 1)]

    def _evict(self, step: Step) -> None:
        chunk = self._chunks(step.path)[-1] if step.path else ""
        keys = [key for rank, key in sorted(self.world.keys.get(chunk, ())) if rank == step.rank]
        gone = 0
        if keys:
            with self.world.connect(step.rank) as raw:
                gone = sum(raw.command("DEL", key) == 1 for key in keys)
            self._exact = False
        self.played.steps.append(f"{step}: {gone} keys were there")

    def _strike(self, step: Step) -> None:
        """Arm a rank; one is armed at a time, so that it is known who was to die."""
        if self._armed is not None and not self.world.struck(self._armed[0]):
            return
        seam, does = step.how.split()
        self.world.arm(step.rank, seam, does, step.match)
        self._armed, self._exact = (step.rank, step.how), False
        if does == "kill":
            self._killed = step.rank
        self.played.steps.append(str(step))

    def _serve(self, path: Sequence[int], step: Step) -> int:
        """Serve a prompt, and judge it; return with how many leading chunks all ranks compute, 0 where one does not."""
        world, prompt = self.world, self._chunks(path)
        told: dict[int, list[str]] = dict.fromkeys(world.ranks, prompt)
        there = len(list(takewhile(self._stored.__contains__, prompt)))
        for chunk in prompt:
            world.keys.setdefault(chunk, set())
        begun = len(world.steps)
        reports, found = world.lookup(told)
        if step.how:
            other = [blake2b(f"other {chunk}".encode(), digest_size=8).hexdigest() for chunk in prompt]
            told[step.rank] = [*prompt[:1], *other[1:]] if step.how == "list" else []
            self._exact = False
        ends = world.load({rank: mine[:found] for rank, mine in told.items()}, 1) if found and world.usable else []
        struck = self._struck()
        self._exact &= not struck
        stepped = Stepped(reports, found, ends, collectives.read(world.entered), world.unanswered)
        done = f" ({', '.join(struck)} struck)" if struck else ""
        self.played.steps += [f"{step}{done}", *(f"  {line}" for line in world.steps[begun:])]
        for end in ends:
            self.played.behaviour.add(f"{self.case.load}:{'+'.join(struck)}:{end.how}:{alike(end.words)[:80]}")
        self.played.behaviour.add(f"{self.case.load}:{'+'.join(struck)}:promised {min(found, 3)} of {min(there, 3)}")
        self._judge(prompt, there, stepped)
        whole = bool(ends) and all(end.finished for end in ends)
        if self._rebuilt(stepped):
            return 0
        self._store(prompt)
        return min((end.uses for end in ends), default=0) if whole else 0

    def _judge(self, prompt: Sequence[str], there: int, stepped: Stepped) -> None:
        world = self.world
        disturbance = NONE if self._exact else Disturbance(
            "campaign", "what the case says", does="kill" if self._killed >= 0 else "")
        evidence = Evidence(
            world.size, world.load_how, disturbance, max(0, self._killed), prompt, 1,
            round_robin(len(prompt), world.size), there, stepped, None, None, {}, {}, world.deadline,
            exchanges=world.exchanges)
        for name in _RULES:
            rule = RULES[name]
            if not rule.applies(disturbance, world.exchanges, world.load_how.replicated):
                continue
            try:
                rule.check(evidence)
            except Unsupported:
                continue
            except Broken as error:
                for end in stepped.ends:
                    if end.stack:
                        self.played.evidence.setdefault("stack", []).extend([f"rank {end.rank}:", *end.stack[:20]])
                raise Violation(name, error.verdict, error.explain) from error

    def _rebuilt(self, stepped: Stepped) -> bool:
        """Build the group anew where somebody has not finished the step, or what was struck has to be replaced."""
        world = self.world
        seam = self._armed[1].split()[0] if self._armed is not None and world.struck(self._armed[0]) else ""
        if seam in _WAITING and self._armed is not None and world.runners[self._armed[0]].usable:
            world.let_go(self._armed[0])
        if world.usable and not stepped.unfinished and seam not in _WAITING:
            return False
        world.rebuild()
        self._armed, self._killed = None, -1
        self.played.steps.append(world.steps[-1])
        return True

    def _store(self, prompt: Sequence[str]) -> None:
        """Store what is not there yet, chunk by chunk."""
        world = self.world
        for count in range(1, len(prompt) + 1):
            if prompt[count - 1] in self._stored and self._exact:
                continue
            answers = world.store_last(prompt[:count], 1)
            self._stored.add(prompt[count - 1])
            said = [briefly(answer) if not isinstance(answer, Returned) else str(answer.value[-1])
                    for answer in answers]
            struck = self._struck()
            self._exact &= not struck
            self.played.behaviour.add(f"{self.case.load}:store:{'+'.join(struck)}:{alike(' '.join(sorted(said)))[:80]}")
            hung = [f"rank {rank} {told}" for rank, (answer, told) in enumerate(zip(answers, said, strict=True))
                    if isinstance(answer, Hung)]
            if hung:
                raise Violation("bounded-step", "hang", f"storing did not come back: {'; '.join(hung)}")
            if self._exact and not (all(isinstance(answer, Returned) for answer in answers) and "hit" in said):
                raise Violation("same-prefix", "fail", f"nothing is disturbed, and storing a chunk: {'; '.join(said)}")
            if not world.usable:
                world.rebuild()
                self._armed, self._killed = None, -1
                return

    def _works_again(self) -> None:
        """Serve one prompt more until all of it is loaded; faults that have not struck yet may, each once."""
        world, path = self.world, [_SPARE] * (self.case.ranks + 1)
        if self._armed is not None and world.runners[self._armed[0]].usable and not world.struck(self._armed[0]):
            # What was armed and has not struck is no part of what comes after.
            world.arm(self._armed[0], "none", "raise", 1)
        left = sum(not mark.struck for proxy in world.proxies for mark in proxy.marks())
        last = Step("serve", tuple(path))  # a prompt that no step has served
        used = 0
        for _ in range(1 + TRIES + left):
            used = self._serve(path, last)
            if used == len(path):
                self.played.behaviour.add(f"{self.case.load}:works again")
                return
        raise Violation("recovers", "fail", f"once nothing is disturbed any more, {used} of {len(path)} chunks are "
                                            f"loaded in try {1 + TRIES + left}")

    # What was seen

    def _struck(self) -> list[str]:
        """Return the kinds of what has struck by now that had not when this was asked last."""
        now = [f"{rank} {fault.kind}" for rank, each in enumerate(self.case.schedules)
               for fault, mark in zip(each, self.world.proxies[rank].marks(), strict=True) if mark.struck]
        if self._armed is not None and self.world.struck(self._armed[0]):
            now.append(f"{self._armed[0]} {self._armed[1]}")
        new = [each.partition(" ")[2] for each in now if each not in self._seen]
        self._seen.update(now)
        self.played.felt += [each for each in new if each not in self.played.felt]
        return new

    def look(self) -> None:
        """Take note of what passed on the wire."""
        wire: list[str] = []
        for rank, proxy in enumerate(self.world.proxies):
            try:
                events = proxy.log()
            except KvproofError:
                continue
            wire += [f"rank {rank}: {event}" for event in events[-20:]]
            last = ""
            for event in events:
                kind = kind_of(event) if event.direction == "reply" else ""
                said = f"{event.direction} {event.command} {event.did or kind}"
                self.played.behaviour.add(f"wire:{last}>{said}")
                last = said
        self.played.evidence["wire"] = wire[-60:]
