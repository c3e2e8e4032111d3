"""Where workers run: processes of this machine, or actors of a Ray cluster; all speak by `Worker.answer`."""

from __future__ import annotations

import json
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Protocol

from kvproof.campaigns.worker import Task
from kvproof.errors import KvproofError, NotInstalled, UsageError

_ANSWER = 60.0
"""Seconds within which a worker must answer; it only takes what has happened out of a list."""
_STARTED = 600.0
"""Seconds that a worker on a cluster has until its first answer: a machine may have to be started for it."""
_PATIENCE = 0.05
"""Seconds that the driver waits for an answer from a cluster before it turns to the next worker."""


class Gone(KvproofError):
    """A worker does not answer any more."""


class Host(Protocol):
    """One worker, wherever it is."""

    task: Task

    def exchange(
        self, acknowledged: Sequence[int], learned: Sequence[Mapping[str, Any]], closing: bool = False
    ) -> list[dict[str, Any]]:
        """See `Worker.exchange`; raises Gone."""

    def stop(self) -> None:
        """End it, with everything that it has begun."""


class Local:
    """A worker in a process of this machine, over its standard input and output."""

    def __init__(self, task: Task) -> None:
        """Start it."""
        self.task = task
        self._process = subprocess.Popen(
            [sys.executable, "-m", "kvproof.campaigns.worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            start_new_session=True)
        self._send(asdict(task))

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def exchange(
        self, acknowledged: Sequence[int], learned: Sequence[Mapping[str, Any]], closing: bool = False
    ) -> list[dict[str, Any]]:
        """See `Host`."""
        self._send({"acknowledged": list(acknowledged), "learned": list(learned), "closing": closing})
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], _ANSWER)
        line = self._process.stdout.readline() if ready else b""
        if not line.endswith(b"\n"):
            raise Gone(f"worker {self.task.number} (process {self.pid}) has ended")
        found: list[dict[str, Any]] = json.loads(line)
        return found

    def _send(self, message: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise Gone(f"worker {self.task.number} (process {self.pid}) has ended") from error

    def stop(self) -> None:
        """Close its input, upon which it ends what it has begun, and itself; kill it where it does not."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.close()
        except OSError:
            # It has gone already.
            pass
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


class Remote:
    """A worker as an actor of a Ray cluster. One that is slow to answer, or to start, keeps no other one waiting."""

    def __init__(self, task: Task, ray: Any) -> None:
        """Start it, on whichever machine has room."""
        from kvproof.campaigns.worker import Worker

        self.task, self._ray = task, ray
        self._actor = ray.remote(Worker).options(num_cpus=1, max_concurrency=2).remote(task)
        self._asked: Any = None
        self._until = time.monotonic() + _STARTED
        self._acknowledged: list[int] = []
        self._learned: list[Mapping[str, Any]] = []

    def exchange(
        self, acknowledged: Sequence[int], learned: Sequence[Mapping[str, Any]], closing: bool = False
    ) -> list[dict[str, Any]]:
        """See `Host`; what comes may be the answer to what was told before, or nothing yet."""
        self._acknowledged += acknowledged
        self._learned += learned
        if self._asked is None:
            asked = {"acknowledged": self._acknowledged, "learned": self._learned, "closing": closing}
            self._asked = self._actor.answer.remote(json.dumps(asked))
            self._acknowledged, self._learned = [], []
        try:
            if not self._ray.wait([self._asked], timeout=_PATIENCE)[0]:
                if time.monotonic() > self._until:
                    raise Gone(f"worker {self.task.number} on Ray does not answer")
                return []
            found: list[dict[str, Any]] = json.loads(self._ray.get(self._asked))
        except self._ray.exceptions.RayError as error:
            raise Gone(f"worker {self.task.number} on Ray has ended: {type(error).__name__}") from error
        self._asked, self._until = None, time.monotonic() + _ANSWER
        return found

    def stop(self) -> None:
        """See `Host`."""
        try:
            self._ray.get(self._actor.stop.remote(), timeout=20)
        except (self._ray.exceptions.RayError, TimeoutError):
            # It has gone already, or does not come back: it is ended either way.
            pass
        self._ray.kill(self._actor)


def maker(on: str | None) -> Any:
    """Return what starts a worker for a task: here, or on the cluster `on` ("ray", or "ray://HOST:PORT").

    Raises UsageError, and NotInstalled where Ray is not.
    """
    if on is None:
        return Local
    if on != "ray" and not on.startswith("ray://"):
        raise UsageError(f"--on {on}: expected ray for a cluster on this machine, or ray://HOST:PORT")
    try:
        import ray
    except ImportError:
        raise NotInstalled("--on ray needs Ray: pip install 'kvproof[ray]'") from None
    try:
        ray.init(address=None if on == "ray" else on, log_to_driver=False, logging_level="ERROR",
                 include_dashboard=False)
    except (ConnectionError, RuntimeError, OSError, ValueError) as error:
        raise UsageError(f"--on {on}: there is no cluster to be reached: {str(error).splitlines()[0]}") from error
    return lambda task: Remote(task, ray)
