"""The process that runners are forked from: a connector's imports are done once, here, and then every runner is warm.

It is a spawner whose processes are forked instead of executed, unless an import has made forking useless; then a runner
is executed, and imports anew. Importing third-party code may crash or hang it; the host sees that by its stacks and its
end.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib
import os
import signal
import socket
import sys
import traceback
from collections.abc import Sequence

from kvproof.faults.spawner import Spawner, arrange, reset_signals
from kvproof.runner import child
from kvproof.runner.declared import InvalidAdapter
from kvproof.runner.watchdog import Watchdog

IMPORT_DEADLINE = 60.0
"""Seconds that the imports of one adapter may take, unless the host says otherwise."""


class CannotImport(Exception):
    """An adapter or what it stands on could not be imported."""


class ForkServer(Spawner):
    """Forks runners; each request names the adapter that the runner will use."""

    def __init__(self, control: socket.socket, stacks: int, import_deadline: float, modules: Sequence[str]) -> None:
        """Serve `control`; write the stacks of an import that crashes or exceeds its deadline to `stacks`."""
        super().__init__(control, os.getppid())
        self.stacks = stacks
        self.import_deadline = import_deadline
        self.modules = modules
        self.imported: dict[str, str | None] = {}

    def start(self, request: dict[str, object], fds: list[int]) -> int:
        """Fork a runner. Descriptors: its channel, its output, its stacks."""
        target = str(request["target"])
        if target not in self.imported:
            self.imported[target] = self._import(target)
        failure = self.imported[target]
        if failure is not None:
            raise CannotImport(f"{target.partition(':')[0]}: {failure}")
        channel, output, stacks = fds

        def serve() -> None:
            arrange({1: output, 2: output, child.CHANNEL: channel, child.STACKS: stacks})
            reset_signals()
            if _cuda_cannot_be_forked():
                os.execv(sys.executable, [sys.executable, "-m", child.__name__, target])
            # As in any Python process: a write to a closed socket is an error, and not the end.
            signal.signal(signal.SIGPIPE, signal.SIG_IGN)
            child.main(target)

        return self.fork(serve, "the runner failed", child.BROKEN)

    def _import(self, target: str) -> str | None:
        """Import what the target needs, once; return why it could not be imported, None when it was.

        A second try would meet what the first has left behind, and fail for another reason.
        """
        try:
            with Watchdog(self.import_deadline, self.stacks):
                for name in self.modules:
                    importlib.import_module(name)
                child.load(target)
        except InvalidAdapter as error:
            return f"{type(error).__name__}: {error}"
        except BaseException as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            return f"{type(error).__name__}: {error} ({place.filename}:{place.lineno})"
        else:
            return None
        finally:
            # Whatever the imports did to signals must not keep this process from seeing its children end.
            signal.signal(signal.SIGCHLD, lambda *_: None)
            signal.set_wakeup_fd(self.wake_write.fileno(), warn_on_full_buffer=False)
            # What was imported stays: a collection in a runner need not look at it, and so copies no page of it.
            gc.freeze()


def _cuda_cannot_be_forked() -> bool:
    """Whether an import has used CUDA in the process that this one was forked from, after which it fails here."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return bool(getattr(cuda, "_is_in_bad_fork", bool)())


def main() -> None:
    """Run a fork server on the descriptors that the host put at 3 (control) and 4 (stacks)."""
    faulthandler.enable(file=4)
    os.set_inheritable(3, False)
    os.set_inheritable(4, False)
    import_deadline, modules = float(sys.argv[1]), sys.argv[2:]
    sys.argv = ["kvproof-runner"]
    # Without it, asking whether there is a GPU, as LMCache does when it is imported, starts CUDA, which ends forking.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    ForkServer(socket.socket(fileno=3), 4, import_deadline, modules).run()


if __name__ == "__main__":
    # The module under its own name, or the children would meet two copies of it.
    importlib.import_module("kvproof.runner.forkserver").main()
