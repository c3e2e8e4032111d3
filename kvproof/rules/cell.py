"""A cell while it is tried: what a rule's function opens, asks and requires, and the evidence that it leaves."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from kvproof.connectors.adapter import Place, Read
from kvproof.errors import DeadlineExceeded
from kvproof.faults.servers import valkey
from kvproof.rig import Found, Ground, NotOpened, Rig, Unsupported, briefly
from kvproof.rules.plan import CHUNK_BYTES, NOBODYS, OTHERS, asked_for
from kvproof.rules.rule import PUT, Broken, Case, NotFelt
from kvproof.runner import Answer, Died, Grew, Hung, Raised, Returned, calls, verdict_of
from kvproof.runner.forks import Forks

TIMEOUT = 1.0
"""Seconds that a connector is told to wait for an answer."""
_PAUSE = 0.02


@dataclass
class Cell:
    """One rule on one connector by one read under one disturbance.

    Rigs that are opened here are closed at the cell's end. steps: what was done and what came of it, in order.
    reads: how many calls that read were made so far.
    """

    ground: Ground
    rule: str
    case: Case
    stack: ExitStack
    limit: float = 5.0
    steps: list[str] = field(default_factory=list)
    trouble: dict[str, Any] = field(default_factory=dict)
    rigs: list[Rig] = field(default_factory=list)
    known: list[tuple[str, int]] = field(default_factory=list)
    reads: int = 0

    @property
    def read(self) -> Read:
        """The read that meets the disturbance."""
        return self.case.read

    @property
    def victims(self) -> tuple[str, ...]:
        """The chunks that the disturbed call asks for."""
        return asked_for(self.read)

    @property
    def shape(self) -> str:
        """What the disturbed call is about."""
        return str(self.case.given.get("shape", "present"))

    def place(self, **fields: Any) -> Place:
        """Return this cell's place: a model of its own, and what its case asks for."""
        name = f"{self.ground.connector.name} {self.rule} {self.case.fault} {self.read.name}"
        usual = {"chunk_bytes": CHUNK_BYTES, "timeout": TIMEOUT}
        return self.ground.at(name, **{**usual, **self.case.place, **fields})

    def open(self, place: Place | None = None, *, elsewhere: bool = False) -> Rig:
        """Open the connector behind a proxy that is armed with the case's disturbance.

        elsewhere: in a process that was not forked from the one from which the others were.
        """
        ground = replace(self.ground, forks=self.stack.enter_context(Forks(self.ground.device))) if elsewhere else (
            self.ground)
        rig = self.stack.enter_context(ground.rig(place or self.place(), self.case.schedule))
        if rig.deadline is not None:
            # What is declared beyond the limit is a finding of its own, and nothing to wait for.
            rig.deadline = min(rig.deadline, self.limit)
        self.rigs.append(rig)
        return rig

    def own_server(self, password: str | None = None) -> None:
        """Take a server of this cell's own, which may be disturbed; raises Unsupported where it cannot be ours."""
        if self.ground.server.kind != "valkey":
            raise Unsupported("only a valkey-server of kvproof's own is disturbed (--server valkey)")
        self.ground = replace(self.ground, server=self.stack.enter_context(valkey(password=password)))

    @property
    def asks(self) -> Read:
        """The read with which to ask afterwards: the disturbed one, or one with a payload where storing is."""
        reads = self.ground.described.reads
        return self.read if self.read != PUT else next((read for read in reads if read.payload), reads[0])

    def put(self, rig: Rig, *chunks: tuple[str, int], begins: str = "", judged: bool = False) -> None:
        """Store chunks, one call each, undisturbed.

        Raises NotOpened when that does not work on a connector that was never read with, and Broken afterwards, or
        where it is judged: the plan has seen that storing works, so it is what is stored here that it does not take.
        """
        for chunk, version in chunks:
            answer = rig.run("kvproof.runner.calls:put", chunks=[(chunk, version)], begins=begins)
            if not isinstance(answer, Returned) or answer.value != ["hit"]:
                said = f"without any fault, storing {chunk}"
                if self.reads or judged:
                    self.ended(answer, said)
                    after = f" after {self.steps[-1]}" if self.reads else ""
                    raise Broken(f"{said}{after}: {briefly(answer)}")
                raise NotOpened(f"{said}: {briefly(answer)}")
            self.known.append((chunk, version))
            self.steps.append(f"put {chunk} version {version}: stored")

    def prepare(self) -> Rig:
        """Open the connector with what the disturbed call needs: the others stored, and the victims if present."""
        rig = self.open()
        self.put(rig, *((chunk, 1) for chunk in OTHERS))
        if self.shape == "present":
            self.put(rig, *((chunk, 1) for chunk in self.victims))
        return rig

    def ask(self, rig: Rig, chunks: Sequence[str], read: Read | None = None, begins: str = "") -> list[Found]:
        """Read chunks, one call for a batch, else one each; a call that does not come back breaks any rule."""
        how = read or self.read
        found: list[Found] = []
        for call in [list(chunks)] if how.batch else [[chunk] for chunk in chunks]:
            these = rig.batch(how.name, call, self.known, begins)
            self.reads += 1
            self.steps += [f"{how.name} {each.chunk}: {each.words}" for each in these]
            self._came_back(these, how)
            found += these
        return found

    def strike(self, rig: Rig, begins: str = "") -> list[Found]:
        """Make the disturbed call; raises NotFelt when the disturbance was not done or nobody felt it."""
        found = self.store(rig, self.victims[0], 1) if self.read == PUT else self._struck(rig, begins)
        self.felt(rig)
        return found

    def _struck(self, rig: Rig, begins: str) -> list[Found]:
        try:
            return self.ask(rig, self.victims, begins=begins)
        except Broken:
            # What did not come back has felt it, if it was done at all; if it was not, that stands beside the verdict.
            self.felt(rig)
            raise

    def store(self, rig: Rig, chunk: str, version: int) -> list[Found]:
        """Store one chunk under a disturbance and say how that ended: "hit" is stored, whatever else is not."""
        answer = rig.run("kvproof.runner.calls:put", chunks=[(chunk, version)])
        outcome = answer.value[0] if isinstance(answer, Returned) else briefly(answer)
        found = [Found(chunk, answer, outcome)]
        self.steps.append(f"put {chunk} version {version}: {outcome}")
        if outcome == "hit":
            self.known.append((chunk, version))
        self._came_back(found, PUT)
        return found

    def felt(self, rig: Rig) -> None:
        """Tell the proxy that the call has ended; raises NotFelt when its disturbance was not done, or not felt."""
        if not self.case.schedule:
            return
        rig.proxy.ended("returned")
        marks = rig.proxy.marks()
        if not all(mark.felt for mark in marks):
            raise NotFelt(f"the disturbance was {', '.join(map(str, marks))}")

    def _came_back(self, found: Sequence[Found], how: Read) -> None:
        for each in found:
            if each.mistaken:
                raise NotOpened(f"the adapter is wrong: {each.words}")
            if each.ended_the_runner:
                assert each.answer is not None
                self.trouble = each.trouble
                self.ended(each.answer, f"{how.name} of {each.chunk}")

    def ended(self, answer: Answer, what: str) -> None:
        """Raise Broken for a call that hung, crashed or grew without end."""
        if isinstance(answer, (Hung, Died, Grew)):
            said = {"hang": "did not come back", "crash": "ended the process", "leak": "took memory without end"}
            verdict = verdict_of(answer)
            raise Broken(f"{what} {said.get(verdict, 'failed')} ({briefly(answer)})", verdict)

    def call(self, rig: Rig, function: str, what: str, **arguments: Any) -> Any:
        """Make a call of ours in the runner and return its value; raises Broken when it does not come back.

        Raises NotOpened with what it raised.
        """
        slack = arguments.pop("slack", None)
        answer = rig.run(function, **({"slack": slack} if slack is not None else {}), **arguments)
        self.ended(answer, what)
        if not isinstance(answer, Returned):
            if isinstance(answer, Raised):
                self.trouble = {"traceback": answer.traceback.splitlines()[-12:]}
            raise NotOpened(f"{what}: {briefly(answer)}")
        return answer.value

    def right(self, found: Found, read: Read | None = None) -> bool:
        """Whether it was a hit of what is stored, with every byte of the newest version where there are bytes."""
        if not (read or self.read).payload or self.case.place.get("chunk_bytes") == 0:
            return found.outcome == "hit" and found.chunk in dict(self.known)
        return found.own(self.known)

    def no_lies(self, found: Sequence[Found], when: str, read: Read | None = None) -> None:
        """Raise Broken for a hit that is not of the chunk's own newest value."""
        how = read or self.read
        for each in found:
            if how != PUT and each.outcome == "hit" and not self.right(each, how):
                raise Broken(f"{when}, {how.name} of {each.chunk} was a hit, {self.instead(each, how)}")

    def nobody_elses(self, found: Sequence[Found], when: str, read: Read | None = None) -> None:
        """Raise Broken for a hit whose buffer holds what belongs to another chunk."""
        how = read or self.read
        others = {chunk for chunk, _ in self.known}
        for each in found:
            owner = each.holds.partition(" ")[0]
            if how.payload and each.outcome == "hit" and owner != each.chunk and owner in others:
                raise Broken(f"{when}, {how.name} of {each.chunk} was a hit, {self.instead(each, how)}")

    def instead(self, found: Found, read: Read | None = None) -> str:
        """Say what a wrong hit is."""
        if not (read or self.read).payload:
            return "and nobody stored that chunk"
        if found.holds == "poison":
            return "and its buffer was never written"
        return f"and its buffer holds {found.whose if found.exact else found.holds}"

    def knows_absence(self, *reads: Read, place: Place | None = None) -> str:
        """Return "" if each read says soon, of a chunk that nobody stored, that it is a miss; else what it says.

        Where it does not, which is for miss-is-miss to tell, nothing follows from a hit or a wait elsewhere. It is
        asked of an instance of its own, since asking may leave one that is wrong unusable.
        """
        rig = self.open(place)
        for read in reads or (self.read,):
            [found] = self.ask(rig, [NOBODYS], read)
            if found.outcome != "miss" or (found.seconds or 0.0) > rig.place.timeout / 2:
                return f"{read.name} of {NOBODYS}, which nobody stored: {found.words}"
        return ""

    def require_absence(self, *reads: Read, place: Place | None = None) -> None:
        """Raise Unsupported where `knows_absence` says that the rule cannot tell anything."""
        said = self.knows_absence(*reads, place=place)
        if said:
            raise Unsupported(f"what is not there is no miss, so a hit tells nothing here (see miss-is-miss): {said}")

    def misses(self, found: Sequence[Found], when: str) -> None:
        """Raise Broken unless each is a hit of its own value."""
        for each in found:
            if not self.right(each):
                wrong = self.instead(each) if each.outcome == "hit" else "instead of a hit"
                raise Broken(f"{when}, {self.read.name} of {each.chunk} was {each.outcome}, {wrong}")

    def until_works(self, rig: Rig, seconds: float) -> None:
        """Ask for a stored chunk, and store another, until both work.

        Raises Broken when they do not in a try that begins after so many seconds.
        """
        until = time.monotonic() + seconds
        how = self.asks
        for attempt in range(2, 10_000):
            # On a busy machine a try that waits for its turn ends late.
            late = time.monotonic() > until
            [found] = self.ask(rig, OTHERS[:1], how)
            self.no_lies([found], "after the disturbance", how)
            if self.right(found, how):
                stored = self.store(rig, "c0e1", attempt)
                if stored[0].outcome == "hit":
                    return
                said = f"put of c0e1: {stored[0].outcome}"
            else:
                said = f"{how.name} of {found.chunk}: {found.words}"
            if late:
                raise Broken(f"{seconds:g} s after the disturbance was gone the connector still does not work ({said})")
            self.ground.stopped.wait(_PAUSE)

    def release(self, rig: Rig, name: str) -> None:
        """Let go of what the case's disturbance holds under that name, if it holds anything."""
        if any(name in fault.names() for fault in self.case.schedule):
            rig.proxy.release(name)

    def cancel(self, rig: Rig) -> list[Found]:
        """Begin the read, cancel it once its reply is held, and say how it ended; raises NotFelt if it was not."""
        with ThreadPoolExecutor(1) as pool:
            call = pool.submit(self._keep, rig, cancel=True)
            try:
                rig.proxy.wait("held", deadline=TIMEOUT)
                held = True
            except DeadlineExceeded:
                held = False
            rig.runner.tell("cancel")
            found = call.result()
        if not held:
            raise NotFelt("the reply was never held")
        if not any(each.outcome.startswith(f"failed: {calls.CANCELLED}") for each in found):
            raise NotFelt(f"the read ended before it could be cancelled: {found[0].outcome}")
        self.felt(rig)
        return found

    def keeping(self, rig: Rig) -> list[Found]:
        """Make the disturbed read, and keep its buffers for `kept`."""
        return self._keep(rig, cancel=False)

    def _keep(self, rig: Rig, *, cancel: bool) -> list[Found]:
        said = self.call(
            rig, "kvproof.runner.inside:keep", f"{self.read.name} of {self.victims[0]}", read=self.read.name,
            chunks=self.victims, known=self.known, cancel=cancel)
        found = [Found(chunk, None, each["outcome"], each["holds"], each["exact"], each["seconds"])
                 for chunk, each in zip(self.victims, said, strict=True)]
        self.steps += [f"{self.read.name} {each.chunk}: {each.words}" for each in found]
        return found

    def kept(self, rig: Rig) -> list[str]:
        """Return for each kept buffer "" if it is as it was when its call ended, else what it holds now."""
        return list(self.call(rig, "kvproof.runner.inside:kept", "looking at buffers", known=self.known))

    def connections(self, rig: Rig) -> int:
        """Return how many connections a proxy has open."""
        events = [event for event in rig.proxy.log() if event.direction in ("open", "close") and not event.did]
        return sum(1 if event.direction == "open" else -1 for event in events)

    @staticmethod
    def stacks(answer: Answer) -> dict[str, Any]:
        """Return the stacks of a call that did not come back."""
        return {"stack": answer.stacks.splitlines()[:60]} if isinstance(answer, (Hung, Died, Grew)) else {}
