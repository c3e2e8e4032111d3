"""Connectors that do the worst to the process they live in, each in one way."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence

from kvproof.connectors.adapter import Adapter, Hit, Miss, Outcome, Place, Read


class Polite(Adapter):
    """Does nothing, well: every read is a miss."""

    name = "polite"
    distribution = "kvproof"
    reads = (Read("get"),)

    def put(self, chunks: Sequence[object]) -> list[Outcome]:  # type: ignore[override]  # it looks at none of them
        """Accept everything."""
        return [Hit() for _ in chunks]

    def read(self, read: Read, chunks: Sequence[object]) -> list[Outcome]:  # type: ignore[override]  # nor here
        """Misbehave, then miss."""
        self.misbehave()
        return [Miss() for _ in chunks]

    def misbehave(self) -> None:
        """Do what the class is named for."""

    def close(self) -> None:
        """Close."""


class Segfault(Polite):
    """Reads through a wild pointer."""

    def misbehave(self) -> None:
        ctypes.string_at(8)


class Exits(Polite):
    """Leaves without a word."""

    def misbehave(self) -> None:
        os._exit(3)


class HoldsTheInterpreter(Polite):
    """A native call that never returns and never lets go of the interpreter lock."""

    def misbehave(self) -> None:
        ctypes.PyDLL(None).pause()


class Spins(Polite):
    """An endless loop of Python."""

    def misbehave(self) -> None:
        while True:
            pass


class IgnoresTermination(Spins):
    """An endless loop that no polite signal ends."""

    def misbehave(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGALRM):
            signal.signal(number, signal.SIG_IGN)
        super().misbehave()


class Stops(Polite):
    """Stops its own process."""

    def misbehave(self) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)


class Prints(Polite):
    """Prints 100 MB."""

    def misbehave(self) -> None:
        for index in range(1000):
            os.write(1 + index % 2, b"x" * 99_999 + b"\n")


class Grows(Polite):
    """Takes memory without end."""

    def misbehave(self) -> None:
        kept = []
        while True:
            kept.append(bytearray(1 << 22))


class LeavesAChild(Polite):
    """Leaves a daemon behind and returns as if nothing had happened."""

    def misbehave(self) -> None:
        subprocess.run(["sh", "-c", "setsid sleep 2001 </dev/null >/dev/null 2>&1 &"], check=True)


class LeavesAChildAndExits(LeavesAChild):
    """Leaves a daemon behind and ends."""

    def misbehave(self) -> None:
        super().misbehave()
        os._exit(0)


class RaisesInDel(Polite):
    """Raises where nobody can catch it."""

    def misbehave(self) -> None:
        class Dying:
            def __del__(self) -> None:
                raise RuntimeError("raised in __del__")

        Dying()


class ChangesSignals(Polite):
    """Takes over signals, the alarm clock and the wake-up descriptor."""

    def misbehave(self) -> None:
        for number in (signal.SIGCHLD, signal.SIGALRM, signal.SIGUSR1, signal.SIGPIPE, signal.SIGTERM):
            signal.signal(number, lambda *_: os._exit(9))
        signal.setitimer(signal.ITIMER_REAL, 1000)
        signal.set_wakeup_fd(-1)


class ClosesDescriptors(Polite):
    """Closes what everybody takes for granted."""

    def misbehave(self) -> None:
        for descriptor in (0, 1, 2):
            os.close(descriptor)


class ReplacesStreams(Polite):
    """Puts something useless where the standard streams were."""

    def misbehave(self) -> None:
        sys.stdout = sys.stderr = None  # type: ignore[assignment]  # that is what it does


class Raises(Polite):
    """Raises something that is not even an Exception."""

    def misbehave(self) -> None:
        raise SystemExit("the connector wants to leave")


class CrashesLater(Polite):
    """Crashes from a thread of its own while the call waits."""

    def misbehave(self) -> None:
        threading.Thread(target=os.abort).start()
        threading.Event().wait()


class HangsWhileOpening(Polite):
    """Never finishes opening."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        threading.Event().wait()


class StartsCuda(Polite):
    """Stands on a library that uses CUDA when it is imported, so that what is forked from there cannot."""

    name = "starts-cuda"
    preload = ("tests.hostile_cuda",)

    def misbehave(self) -> None:
        from tests import hostile_cuda

        hostile_cuda.use()
