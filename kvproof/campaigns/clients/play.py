"""Playing a case: fresh instances behind fresh proxies do its steps in order, and are judged after each."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from kvproof.campaigns.clients.case import CHUNKS, Case, Step
from kvproof.campaigns.clients.judge import Judge
from kvproof.campaigns.target import Played, Violation
from kvproof.causes import alike, frame_of
from kvproof.connectors.adapter import Read
from kvproof.errors import KvproofError, UsageError
from kvproof.rig import CALL_SLACK, Found, Ground, NotOpened, Rig, briefly, trouble
from kvproof.rules.cell import TIMEOUT
from kvproof.rules.menu import RELEASE
from kvproof.rules.plan import kind_of
from kvproof.rules.truth import truth
from kvproof.runner import Answer, Died, Grew, Hung, Raised, Returned, verdict_of
from kvproof.runner.gaps import WAYS

SPARE = "d0e1"
"""The chunk by which is seen whether an instance works again."""
EARLY = "e0f1"
"""The chunk of calls whose completion comes early; some of them store what their buffer happens to hold."""
CLOSING = 10.0
"""Seconds that closing may take beyond the connector's timeout."""
LIMIT = 5.0
"""Seconds that a connector's declared deadline may have; what is declared beyond is checked by bounded-time."""
_EARLY = "a call whose completion comes before it waits"
_TIMES = 3
"""Reads of each thread."""
_PAUSE = 0.02
_LASTS = 3 * TIMEOUT
"""Seconds for which what has struck may go on: a reply that drips, or comes late."""
_ARRIVING = 5.0
"""Seconds that a call whose completion is awaited may take beyond the connector's timeout: it may not come at all."""


@dataclass(kw_only=True)
class Playground(Ground):
    """The ground of a campaign, on which each case says whether the connector's known bug is kept from striking."""

    mask: bool = False

    @property
    def masked(self) -> str:
        """The known bug, where the case wants it kept away."""
        return self.described.masks if self.mask else ""


def play(ground: Playground, case: Case, name: str, *, closes: bool = True) -> Played:
    """Play a case under a name that no other has; every way in which that can go wrong is in the result.

    closes: whether each instance is closed at the end, and looked at then.
    """
    begun = time.monotonic()
    played, ground = Played(), replace(ground, mask=case.masked)
    with ExitStack() as stack:
        if ground.turns is not None:
            stack.enter_context(ground.turns)
        stage = _Stage(ground, case, name, stack, played)
        try:
            stage.run(closes)
        except Violation as violation:
            played.violation = violation
        except (NotOpened, KvproofError) as error:
            played.error = str(error)
        if ground.stopped.is_set() or (played.violation is not None and not stage.trustworthy()):
            # What ends because something of ours has ended says nothing about the connector.
            played.violation, played.error = None, "interrupted, or something of ours did not survive it"
        stage.look()
    played.seconds = round(time.monotonic() - begun, 3)
    return played


class _Stage:
    """The instances of one case while it is played."""

    def __init__(self, ground: Ground, case: Case, name: str, stack: ExitStack, played: Played) -> None:
        self.ground, self.case, self.played = ground, case, played
        self._name, self._stack = name, stack
        self._rigs: list[Rig] = []
        self._reads = {read.name: read for read in ground.described.reads}
        world = int(case.place.get("world_size", 1))
        replicated = bool(case.place.get("replicated", False))
        self._judge = Judge(shared=world == 1 or replicated, replicated=world > 1 and replicated, timeout=TIMEOUT)
        self._struck = [0] * case.instances

    def run(self, closes: bool) -> None:
        """Do it all; raises Violation, and NotOpened where nothing can be opened, or the case does not fit."""
        missing = {step.how for step in self.case.steps if step.do in ("read", "threads")} - set(self._reads)
        if missing:
            raise NotOpened(f"the case does not fit the connector: it has no read {', '.join(sorted(missing))}")
        size = self.case.place.get("chunk_bytes")
        if size is not None and not self.ground.described.holds(int(size)):
            raise NotOpened(f"the case does not fit the connector: it holds no chunks of {size} bytes")
        world = int(self.case.place.get("world_size", 1))
        for number, schedule in enumerate(self.case.schedules):
            place = self.ground.at(self._name, **{"timeout": TIMEOUT, **self.case.place,
                                                  "rank": number if world > 1 else 0})
            before: dict[str, dict[str, Any]] = {"kvproof.runner.signals:follow": {}}
            if self.case.loops:
                before["kvproof.runner.signals:shuffle"] = {"seed": self.case.loops}
            rig = self._stack.enter_context(self.ground.rig(place, schedule, before=before))
            if rig.deadline is not None:
                rig.deadline = min(rig.deadline, LIMIT)
            self._rigs.append(rig)
        for step in self.case.steps:
            self._do(step)
        self._release()
        for number in range(len(self._rigs)):
            self._works_again(number)
        for number in range(len(self._rigs) if closes else 0):
            self._close(number)

    def trustworthy(self) -> bool:
        """Whether all of ours lives."""
        return all(rig.trustworthy(self.ground, None) for rig in self._rigs)

    # Steps

    def _do(self, step: Step) -> None:
        rig = self._rigs[step.by]
        if step.do == "put":
            for chunk in step.chunks:
                self._put(step.by, rig, chunk)
        elif step.do == "evict":
            for chunk in step.chunks:
                self._evict(step.by, rig, chunk)
        elif step.do == "read":
            self._read(step.by, rig, self._reads[step.how], step.chunks)
        elif step.do == "threads":
            self._threads(step.by, rig, self._reads[step.how], step.chunks)
        elif step.do == "early":
            self._early(step, rig)
        elif step.do == "release":
            self._release()

    def _put(self, by: int, rig: Rig, chunk: int) -> None:
        version = self._judge.next_version(chunk)
        answer = rig.run("kvproof.runner.calls:put", chunks=[(CHUNKS[chunk], version)])
        outcome = self._outcome(answer)
        struck = self._note(by, f"put {CHUNKS[chunk]} version {version}", "put", outcome)
        self._came_back(answer, rig, f"put of {CHUNKS[chunk]}")
        self._judge.put(by, chunk, version, outcome)
        if outcome == "hit" and struck:
            self._judge.acknowledged(by, chunk, self._there(rig, chunk))

    def _there(self, rig: Rig, chunk: int) -> bool:
        channel = truth(self.ground, rig)
        names = channel.names(CHUNKS[chunk])
        return not names or any(channel.get(name) is not None for name in names)

    def _evict(self, by: int, rig: Rig, chunk: int) -> None:
        channel = truth(self.ground, rig)
        gone = channel.delete(channel.names(CHUNKS[chunk]))
        for other in self._rigs if self._judge.shared else ():
            gone += channel.delete(truth(self.ground, other).names(CHUNKS[chunk]))
        self.played.steps.append(f"{by}: evicted {CHUNKS[chunk]}: {gone} keys were there")
        self._judge.evicted(by, chunk)

    def _read(self, by: int, rig: Rig, read: Read, chunks: Sequence[int]) -> None:
        for call in [tuple(chunks)] if read.batch else [(chunk,) for chunk in chunks]:
            answer = rig.run("kvproof.runner.calls:read", read=read.name, chunks=[CHUNKS[chunk] for chunk in call],
                             known=self._judge.known())
            if isinstance(answer, Returned):
                found = [Found(CHUNKS[chunk], answer, said["outcome"], said["holds"], said["exact"], said["seconds"])
                         for chunk, said in zip(call, answer.value, strict=True)]
            else:
                found = [Found(CHUNKS[chunk], answer, self._outcome(answer)) for chunk in call]
            for each in found:
                self._note(by, f"{read.name} {each.chunk}", read.name, each.words if read.payload else each.outcome)
            self._came_back(answer, rig, f"{read.name} of {', '.join(CHUNKS[chunk] for chunk in call)}")
            self._judge.read(by, read, call, found)

    def _threads(self, by: int, rig: Rig, read: Read, chunks: Sequence[int]) -> None:
        answer = rig.run("kvproof.runner.inside:from_threads", reads=[read.name], chunks=[CHUNKS[c] for c in chunks],
                         known=self._judge.known(), threads=2, times=_TIMES, slack=_TIMES * TIMEOUT + CALL_SLACK)
        self._note(by, f"{read.name} from two threads", f"threads {read.name}", self._outcome(answer))
        self._came_back(answer, rig, f"{read.name} from two threads")
        for said in answer.value if isinstance(answer, Returned) else ():
            found = Found(said["chunk"], answer, said["outcome"], said["holds"], said["exact"])
            self._note(by, f"{read.name} {said['chunk']} from a thread", read.name, found.words)
            self._judge.read(by, read, [CHUNKS.index(said["chunk"])], [found])

    def _early(self, step: Step, rig: Rig) -> None:
        """Make a call whose completion comes before the caller waits for it."""
        way = step.how if step.how in WAYS else WAYS[0]
        answer = rig.run("kvproof.runner.gaps:strike", slack=_ARRIVING, index=step.gap, way=way,
                         chunk=EARLY)
        self._note(step.by, f"gap {step.gap}, {way}", f"gap {step.gap}", self._outcome(answer))
        # Whichever call it is, and wherever it waits then: it is one mistake to miss what comes early.
        self._came_back(answer, rig, f"a call whose completion came early ({way})", place=_EARLY)
        self._judge.call(step.by, "a call whose completion came early", self._outcome(answer))

    def _release(self) -> None:
        for rig, schedule in zip(self._rigs, self.case.schedules, strict=True):
            if any(RELEASE in fault.names() for fault in schedule):
                rig.proxy.release(RELEASE)

    # Afterwards

    def _works_again(self, by: int) -> None:
        """Ask until everything works; faults that have not struck yet may strike meanwhile.

        It does not where it fails although nothing has struck for as long as its recovery, and what lasts, may take.
        """
        rig, described = self._rigs[by], self.ground.described
        if self._judge.replicated and by:
            return
        how = next((read for read in described.reads if read.payload), described.reads[0])
        settled, strikes, quiet = described.recovery + _LASTS, self._strikes(rig), time.monotonic()
        for version in range(1, 10_000):
            # What counts is when a try begins: on a busy machine one that waits for its turn ends late.
            began = time.monotonic()
            said = self._serves(rig, how, version)
            if not said:
                self._note(by, "works again", "works again", "hit")
                return
            now = self._strikes(rig)
            if now != strikes:
                strikes, quiet = now, time.monotonic()
            elif began > quiet + settled:
                self._note(by, "works again", "works again", said)
                when = "although nothing disturbed it" if by not in self._judge.disturbed else (
                    f"{described.recovery:g} s after the disturbance was gone")
                raise Violation("recovers", "fail", f"{when} the connector does not work ({how.name} or put of "
                                                    f"{SPARE}: {said})")
            self.ground.stopped.wait(_PAUSE)

    def _serves(self, rig: Rig, how: Read, version: int) -> str:
        """Store and read once more; return "" where both work, and else what one of them said."""
        answer = rig.run("kvproof.runner.calls:put", chunks=[(SPARE, version)])
        self._came_back(answer, rig, f"put of {SPARE}, afterwards")
        said = self._outcome(answer)
        if said == "hit":
            answer = rig.run("kvproof.runner.calls:read", read=how.name, chunks=[SPARE], known=[(SPARE, version)])
            self._came_back(answer, rig, f"{how.name} of {SPARE}, afterwards")
            said = self._outcome(answer)
            if isinstance(answer, Returned):
                found = answer.value[0]
                right = found["exact"] and found["holds"] == f"{SPARE} version {version}"
                if said == "hit" and (right or not how.payload):
                    return ""
        return said

    @staticmethod
    def _strikes(rig: Rig) -> int:
        """Return how often anything has struck."""
        return sum(event.fault is not None for event in rig.proxy.log())

    def _close(self, by: int) -> None:
        rig = self._rigs[by]
        answer = rig.run("kvproof.runner.calls:close", slack=CLOSING)
        self._note(by, "close", "close", self._outcome(answer))
        if isinstance(answer, (Hung, Died, Grew)):
            self._came_back(answer, rig, "close", "close-resolves")
        if isinstance(answer, Returned) and answer.value["processes"]:
            raise Violation("leak-free", "leak", f"close leaves processes behind: {answer.value['processes']}")

    # What was seen

    def _outcome(self, answer: Answer) -> str:
        if not isinstance(answer, Returned):
            return briefly(answer)
        value = answer.value
        first = value[0] if isinstance(value, list) and value else value
        return str(first["outcome"] if isinstance(first, dict) and "outcome" in first else first)

    def _note(self, by: int, what: str, kind: str, outcome: str) -> bool:
        """Take note of a call and of what has struck during it; return whether anything has."""
        rig = self._rigs[by]
        struck: list[str] = []
        if self.case.schedules[by]:
            marks = rig.proxy.marks()
            now = [fault.kind for fault, mark in zip(self.case.schedules[by], marks, strict=True) if mark.struck]
            struck = now[self._struck[by]:] if len(now) > self._struck[by] else []
            self._struck[by] = len(now)
            if now:
                self._judge.disturbed.add(by)
                if self._judge.shared:
                    # What one has stored in doubt, another reads.
                    self._judge.disturbed.update(range(len(self._rigs)))
        done = f" ({', '.join(struck)} struck)" if struck else ""
        self.played.steps.append(f"{by}: {what}: {outcome}{done}")
        self.played.behaviour.add(f"{kind}:{'+'.join(struck)}:{alike(outcome)[:80]}")
        return bool(struck) or by in self._judge.disturbed

    def _came_back(self, answer: Answer, rig: Rig, what: str, rule: str = "bounded-time", place: str = "") -> None:
        """Raise Violation for a call that did not come back, and NotOpened for an adapter that is wrong.

        place: what the cause is to be known by, where that is not the frame in which the call is.
        """
        if isinstance(answer, Raised) and answer.error == "AdapterMistake":
            raise NotOpened(f"the adapter is wrong: {briefly(answer)}")
        if isinstance(answer, Raised) and answer.error == UsageError.__name__:
            raise NotOpened(f"the case does not fit the connector: {answer.text}")
        if isinstance(answer, (Hung, Died, Grew)):
            self.played.evidence |= trouble(answer, rig.runner)
            said = {"hang": "did not come back", "crash": "ended the process", "leak": "took memory without end"}
            verdict = verdict_of(answer)
            where = frame_of(self.played.evidence.get("stack") or [])
            raise Violation(rule, verdict, f"{what} {said.get(verdict, 'failed')} ({briefly(answer)})"
                            + (f", in {where}" if where else ""), place or where)

    def look(self) -> None:
        """Take note of what passed on the wire, of which faults were felt, and of the adapter's lines that ran."""
        wire: list[str] = []
        for rig, schedule in zip(self._rigs, self.case.schedules, strict=False):
            ran = rig.run("kvproof.runner.signals:seen") if rig.runner.usable else None
            if isinstance(ran, Returned):
                self.played.behaviour.update(f"line {number} of {name}" for name, number in ran.value)
            try:
                events = rig.proxy.log()
                self.played.felt += [fault.kind for fault, mark in zip(schedule, rig.proxy.marks(), strict=True)
                                     if mark.felt]
            except KvproofError:
                continue
            wire += [str(event) for event in events[-40:]]
            last: dict[int, str] = {}
            for event in events:
                kind = kind_of(event) if event.direction == "reply" else ""
                said = f"{event.direction} {event.command} {event.did or kind}"
                self.played.behaviour.add(f"wire:{last.get(event.connection, '')}>{said}")
                last[event.connection] = said
        self.played.evidence["wire"] = wire[-60:]
