"""An armed schedule: which request each fault is waiting for, and what has happened since that a hold waits for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import trio

from kvproof.errors import UsageError
from kvproof.faults.fault import ANY, Fault, Pattern, Until


@dataclass(slots=True)
class _Counter:
    index: int
    fault: Fault
    pattern: Pattern
    seen: int = 0


class Armed:
    """The schedule of one endpoint, counting from the moment it is made.

    struck: for each entry whether it was done.
    """

    def __init__(self, schedule: Sequence[Fault]) -> None:
        """Arm every entry."""
        self.struck = [False] * len(schedule)
        self._by_command: defaultdict[str, list[_Counter]] = defaultdict(list)
        for index, fault in enumerate(schedule):
            pattern = Pattern(fault.command, fault.key)
            self._by_command[pattern.command].append(_Counter(index, fault, pattern))
        self._released = {name: trio.Event() for fault in schedule for name in fault.names()}
        self._awaited: list[tuple[Pattern, trio.Event]] = []

    def asked(self, connection: int, command: str, key: str) -> list[tuple[int, Fault]]:
        """Count a request; return the faults, with their index, that strike at its reply."""
        for pattern, event in self._awaited:
            if pattern.matches(command, key):
                event.set()
        striking = []
        for bucket in (command, ANY) if command != ANY else (ANY,):
            for counter in self._by_command.get(bucket, ()):
                fault = counter.fault
                if fault.connection in (None, connection) and counter.pattern.matches(command, key):
                    counter.seen += 1
                    if counter.seen == fault.match:
                        striking.append((counter.index, fault))
        return sorted(striking, key=lambda entry: entry[0])

    def release(self, name: str) -> None:
        """End every hold that waits for `name`, now or later; raises UsageError when none does."""
        if name not in self._released:
            known = ", ".join(sorted(self._released)) or "(none)"
            raise UsageError(f"release {name!r}: no hold of the schedule waits for it; the names there: {known}")
        self._released[name].set()

    async def until(self, until: Until, client_gone: trio.Event) -> None:
        """Wait for the event; `client_gone` is that of the connection in question."""
        if until.name is not None:
            await self._released[until.name].wait()
        elif until.request is not None:
            with self._request(until.request) as event:
                await event.wait()
        else:
            await client_gone.wait()

    @contextmanager
    def _request(self, pattern: Pattern) -> Iterator[trio.Event]:
        entry = (pattern, trio.Event())
        self._awaited.append(entry)
        try:
            yield entry[1]
        finally:
            self._awaited.remove(entry)
