"""The suite's side of a runner: a deadline on every call, and an answer whatever the connector does."""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any

from kvproof.connectors.adapter import Place
from kvproof.errors import RunnerFailed
from kvproof.faults.supervisor import End, Process
from kvproof.runner import messages
from kvproof.runner.child import BROKEN
from kvproof.runner.evidence import Output, Stacks, kernel_view, resident_bytes, state_of

STACKS = 6.0
"""Seconds after a deadline within which the watchdog's stacks must have been written; most take a hundredth of one."""
MEMORY_LIMIT = 4 << 30
"""Resident bytes that a runner may reach before it is ended."""
_SAMPLE = 0.02
_FROZEN = 1.0
"""Seconds without a sample after which we take ourselves to have been stopped, and not the runner to be slow."""
_BEGINNING = 5.0
"""Seconds within which a runner must have found what it is to call; then the call's own deadline begins."""
DYING = 1.0
"""Seconds within which a process that has closed its socket must be seen to have ended."""


@dataclass(frozen=True, slots=True)
class Returned:
    """The call returned `value`; `notes` are what the runner told meanwhile."""

    value: Any
    notes: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Raised:
    """The call raised; name and text of the exception, and its traceback."""

    error: str
    text: str
    traceback: str
    notes: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Hung:
    """The call did not end within its deadline; `stacks` shows where every thread was, or says why it cannot."""

    deadline: float
    stacks: str
    notes: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Died:
    """The process ended during the call; `stacks` is what the crash handler wrote, or says why there is nothing."""

    end: End
    stacks: str
    notes: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Grew:
    """The process was ended because it held `resident` bytes, more than `limit`."""

    resident: int
    limit: int
    stacks: str
    notes: tuple[dict[str, Any], ...] = ()


Answer = Returned | Raised | Hung | Died | Grew
"""How a call ended. `Hung`, `Died` and `Grew` leave no runner behind that could be used again."""


def verdict_of(answer: Answer) -> str:
    """Return the verdict of a cell whose last call ended so: pass, fail, hang, crash, leak, or error (ours)."""
    match answer:
        case Hung():
            return "hang"
        case Grew():
            return "leak"
        case Died(end=end):
            if end.exit == BROKEN:
                return "error"
            return "leak" if end.orphans and end.exit == 0 else "crash"
        case Raised():
            return "fail"
        case Returned():
            return "pass"


PATIENCE = 0.3
"""Seconds after which a call that has not come back is taken to wait rather than to work."""


class Turns:
    """How many calls may be at work at once: one that has waited for a while lets another begin in its place.

    A connector that waits for an answer costs no processor time, so any number may wait.
    """

    def __init__(self, count: int) -> None:
        """Let so many work at once."""
        self._free = threading.Semaphore(count)

    def __enter__(self) -> Turns:
        """Wait for a turn."""
        self._free.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        """Give the turn back."""
        self._free.release()


class Runner:
    """A process with one connector in it. Use it from one thread at a time; close it, or let a ``with`` do it.

    turns: given up by a call that only waits, and taken again before the call returns.
    """

    def __init__(self, process: Process, channel: socket.socket, output: int, stacks: Stacks) -> None:
        """Take over a process that was just forked; `ForkServer.runner` makes them."""
        self.process = process
        self.output = Output()
        self.memory_limit = MEMORY_LIMIT
        self._channel = channel
        self._reader = messages.Reader(channel)
        self._pipe = output
        self._stacks = stacks
        self._notes: list[dict[str, Any]] = []
        self._number = 0
        self._until = 0.0
        self._usable = True
        self.turns: Turns | None = None
        channel.setblocking(False)
        os.set_blocking(output, False)

    @property
    def usable(self) -> bool:
        """Whether another call can be made: not after one that hung, died or grew."""
        return self._usable

    def open(self, place: Place, deadline: float = 10.0, *, masked: bool = False) -> Answer:
        """Open the connector at `place`; with `masked`, its known bug is kept from striking (Adapter.masked)."""
        return self.call("kvproof.runner.calls:open", deadline, place=asdict(place), masked=masked)

    def call(self, function: str, deadline: float, *, ends: bool = True, **arguments: Any) -> Answer:
        """Call ``module:function`` in the runner and wait at most `deadline` seconds (and STACKS for the stacks).

        ends: whether a runner whose call did not come back is ended at once; else it stays as it is until `close`.
        """
        if not self._usable:
            raise RunnerFailed("this runner has ended; take a fresh one")
        self._notes = []
        self._number += 1
        message = {"number": self._number, "call": function, "arguments": arguments, "deadline": deadline}
        try:
            self._channel.setblocking(True)
            messages.send(self._channel, message)
            self._channel.setblocking(False)
        except OSError:
            return self._died()
        with ExitStack() as resting:
            answer = self._wait(deadline, resting)
        self._drain()
        if not isinstance(answer, (Returned, Raised)):
            self._usable = False
            if ends:
                self.close()
        return answer

    def tell(self, event: str) -> None:
        """Tell a call that is in progress that something has happened (`Session.told` waits for it).

        May be called from another thread than `call`.
        """
        try:
            messages.send(self._channel, {"event": event})
        except OSError:
            # The runner is gone, which the call itself will report.
            return

    def _rest(self, resting: ExitStack) -> None:
        """Give the turn up until `resting` ends."""
        if self.turns is not None:
            self.turns.__exit__()
            resting.callback(self.turns.__enter__)

    def _wait(self, deadline: float, resting: ExitStack) -> Answer:
        self._until = time.monotonic() + _BEGINNING
        rests = time.monotonic() + PATIENCE
        poller = select.poll()
        for source in (self._channel.fileno(), self._pipe, self.process.fileno()):
            poller.register(source, select.POLLIN)
        last = time.monotonic()
        while True:
            now = time.monotonic()
            if now - last > _FROZEN:
                # This process itself did not run, so the runner may not have run either.
                self._until += now - last
            last = now
            ready = dict(poller.poll(1000 * max(0.0, min(_SAMPLE, self._until - time.monotonic()))))
            if self._pipe in ready and not self._drain():
                poller.unregister(self._pipe)
            if self._channel.fileno() in ready:
                self._reader.receive()
                try:
                    answer = self._next_answer(deadline)
                except (ValueError, TypeError, KeyError) as error:
                    return Died(self.process.close(), f"no stacks: it wrote nonsense into its channel ({error})"[:500])
                if answer is not None:
                    return answer
            if self._reader.closed or self.process.fileno() in ready:
                return self._died()
            resident = resident_bytes(self.process.pid)
            if resident > self.memory_limit:
                return Grew(resident, self.memory_limit, self._no_stacks("it was ended while it grew"), self._told())
            if time.monotonic() >= rests:
                rests = float("inf")
                self._rest(resting)
            if time.monotonic() >= self._until:
                return Hung(deadline, self._stacks_of_hung(), self._told())

    def _next_answer(self, deadline: float) -> Answer | None:
        while (message := self._reader.next()) is not None:
            if "note" in message:
                self._notes.append(dict(message["note"]))
            elif message.get("began") == self._number:
                self._until = time.monotonic() + deadline
            elif message["number"] != self._number:
                raise ValueError(f"an answer to call {message['number']}, in call {self._number}")
            elif "raised" in message:
                error, text, trace = (str(part) for part in message["raised"])
                return Raised(error, text, trace, self._told())
            else:
                return Returned(message["returned"], self._told())
        return None

    def _told(self) -> tuple[dict[str, Any], ...]:
        return tuple(self._notes)

    def _died(self) -> Died:
        self._usable = False
        end = self.process.wait(DYING)
        if end is None:
            # It closed its channel and lives on: that is no way to end a call either.
            end = self.process.close()
        written = self._stacks.fresh()
        return Died(end, written or self._no_stacks(f"the process {end}"), self._told())

    def _stacks_of_hung(self) -> str:
        stopped = state_of(self.process.pid) == "T"
        written = self._stacks.fresh() if stopped else self._stacks.wait(STACKS)
        native = "".join(f"  {line}\n" for line in kernel_view(self.process.pid))
        if written:
            return f"{written}\nThreads as the kernel sees them:\n{native}"
        silent = f"its watchdog wrote nothing (state {state_of(self.process.pid)})"
        why = "it is stopped by a signal" if stopped else silent
        return f"{self._no_stacks(why)}\nThreads as the kernel sees them:\n{native}"

    @staticmethod
    def _no_stacks(why: str) -> str:
        return f"no stacks: {why}"

    def _drain(self) -> bool:
        """Take in what was printed; False at the end of the stream."""
        while True:
            try:
                data = os.read(self._pipe, 1 << 16)
            except BlockingIOError:
                return True
            if not data:
                return False
            self.output.add(data)

    def close(self) -> End:
        """End the process and everything below it; return how it ended. Closing twice is fine."""
        if self._pipe < 0:
            return self.process.close()
        self._usable = False
        self._channel.close()
        end = self.process.close()
        self._drain()
        os.close(self._pipe)
        self._pipe = -1
        self._stacks.close()
        return end

    def __enter__(self) -> Runner:
        """Return the runner itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """End the process."""
        self.close()
