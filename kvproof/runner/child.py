"""The loop inside a runner: one connector, one call at a time, a watchdog on each."""

from __future__ import annotations

import faulthandler
import importlib
import os
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from kvproof.connectors.adapter import Adapter
from kvproof.faults.spawner import PR_SET_CHILD_SUBREAPER, prctl
from kvproof.runner import messages
from kvproof.runner.declared import InvalidAdapter, declared
from kvproof.runner.watchdog import Watchdog

CHANNEL, STACKS = 200, 201
"""Where the channel and the stacks file lie: above any descriptor that careless code closes or reuses."""


_CALLED = ("kvproof.runner.calls", "kvproof.runner.inside")
"""Where most calls lie: imported once, and not by every runner anew."""
BROKEN = 86
"""Exit code of a runner that failed for a reason of ours."""


@dataclass
class Session:
    """What a call in a runner works with: the adapter's class, the open connector, and a way to tell the host."""

    adapter_class: type[Adapter]
    channel: socket.socket
    reader: messages.Reader
    adapter: Adapter | None = None
    mask: ExitStack = field(default_factory=ExitStack)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def connector(self) -> Adapter:
        """The open connector."""
        if self.adapter is None:
            raise RuntimeError("no connector is open in this runner")
        return self.adapter

    def note(self, **facts: Any) -> None:
        """Tell the host something now, so that it is known even if this call never ends."""
        with self._lock:
            messages.send(self.channel, {"note": facts})

    def told(self, event: str) -> None:
        """Wait until the host tells that `event` has come; the call's own deadline bounds the wait."""
        while (message := self.reader.wait()) is not None:
            if message.get("event") == event:
                return
        raise EOFError("the host is gone")


def adapter_class(target: str) -> type[Adapter]:
    """Return the class that ``module:Class`` or ``module:function(argument)`` names."""
    module, _, name = target.partition(":")
    name, _, argument = name.rstrip(")").partition("(")
    found = getattr(importlib.import_module(module), name, None)
    if found is None:
        raise InvalidAdapter(f"{target}: the module {module} has no {name}")
    if argument:
        found = found(argument)
    return declared(target, found)


def load(target: str) -> None:
    """Import an adapter, what it says it needs and what is called; raises InvalidAdapter and whatever they raise."""
    for name in (*_CALLED, *adapter_class(target).preload):
        importlib.import_module(name)


def main(target: str) -> None:
    """Serve calls until the host closes the channel; never returns."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    faulthandler.enable(file=STACKS)
    channel = socket.socket(fileno=CHANNEL)
    session = Session(adapter_class(target), channel, messages.Reader(channel))
    while (message := session.reader.wait()) is not None:
        if "call" not in message:
            # An event that nobody waits for any more.
            continue
        try:
            try:
                messages.send(channel, _answer(session, message))
            except (TypeError, ValueError) as error:
                text = f"the call returned what JSON cannot hold: {text_of(error)}"
                raised = [type(error).__qualname__, text, ""]
                messages.send(channel, {"number": message["number"], "raised": raised})
        except OSError:
            break
    os._exit(0)


def _answer(session: Session, message: dict[str, Any]) -> dict[str, Any]:
    number = message["number"]
    try:
        # Found before the deadline and its watchdog begin: an import of ours is not the connector's time.
        function = _function(message["call"])
        messages.send(session.channel, {"began": number})
        try:
            with Watchdog(message["deadline"], STACKS):
                return {"number": number, "returned": function(session, **message["arguments"])}
        finally:
            for stream in (sys.stdout, sys.stderr):
                _flush(stream)
    except BaseException as error:
        return {"number": number, "raised": [type(error).__qualname__, text_of(error), trace_of(error)]}


def text_of(error: BaseException) -> str:
    """Return what an exception says, however badly it says it."""
    try:
        return str(error)[:4000]
    except Exception:
        return "(its text cannot be had: __str__ raises)"


def trace_of(error: BaseException) -> str:
    """Return an exception's traceback, without its text where that raises."""
    try:
        return "".join(traceback.format_exception(error))[-20000:]
    except Exception:
        return "".join(traceback.format_tb(error.__traceback__))[-20000:]


def _function(name: str) -> Callable[..., Any]:
    module, _, function = name.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return found


def _flush(stream: Any) -> None:
    try:
        stream.flush()
    except Exception:
        # Somebody closed or replaced it: what it held is lost, which is theirs to explain.
        return


if __name__ == "__main__":
    # The module under its own name, or adapters would meet two copies of it.
    _self = importlib.import_module("kvproof.runner.child")
    _self.load(sys.argv[1])
    _self.main(sys.argv[1])
