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

CHANNEL, STACKS = 200, 201
"""Where the channel and the stacks file lie: above any descriptor that careless code closes or reuses."""

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
    found = getattr(importlib.import_module(module), name)
    if argument:
        found = found(argument)
    if not (isinstance(found, type) and issubclass(found, Adapter)):
        raise TypeError(f"{target} is not a kvproof.connectors.Adapter")
    return found


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
                text = f"the call returned what JSON cannot hold: {error}"
                messages.send(channel, {"raised": [type(error).__qualname__, text, ""]})
        except OSError:
            break
    os._exit(0)


def _answer(session: Session, message: dict[str, Any]) -> dict[str, Any]:
    try:
        # Found before the watchdog is armed: an import of ours is not the connector's time.
        function = _function(message["call"])
        faulthandler.dump_traceback_later(message["deadline"], file=STACKS)
        try:
            return {"returned": function(session, **message["arguments"])}
        finally:
            faulthandler.cancel_dump_traceback_later()
            for stream in (sys.stdout, sys.stderr):
                _flush(stream)
    except BaseException as error:
        return {"raised": [type(error).__qualname__, str(error)[:4000], traceback.format_exc()[-20000:]]}


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
