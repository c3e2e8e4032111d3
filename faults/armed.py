"""An armed schedule: which frame each fault is waiting for, and what has happened since that a hold waits for."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import trio

from kvproof.errors import UsageError
from kvproof.faults.fault import ACCEPT, ANY, Fault, Pattern, Until


@dataclass(frozen=True, slots=True)
class Due:
    """A fault that is to strike now, and its place in the schedule, counted from 0."""

    place: int
    fault: Fault


@dataclass(slots=True)
class _Counter:
    index: int
    fault: Fault
    pattern: Pattern
    seen: int = 0

    def counts(self, connection: int) -> bool:
        """Count one match; return whether it is struck."""
        if self.fault.connection not in (None, connection):
            return False
        self.seen += 1
        return self.fault.due(self.seen)


class _Bucket:
    """The counters of one command: keys that are exact by name, and globs behind one test of how they begin."""

    def __init__(self, counters: Iterable[_Counter]) -> None:
        self._exact: defaultdict[str, list[_Counter]] = defaultdict(list)
        self._globs: list[_Counter] = []
        for counter in counters:
            pattern = counter.pattern
            if pattern.exact:
                self._exact[pattern.literal].append(counter)
            else:
                self._globs.append(counter)
        self._begins = re.compile("|".join(sorted({re.escape(c.pattern.literal) for c in self._globs}))).match

    def may(self, key: str) -> bool:
        """Whether a counter may fit the key; most keys are told apart here."""
        return key in self._exact or (bool(self._globs) and self._begins(key) is not None)

    def fitting(self, command: str, key: str) -> Iterator[_Counter]:
        yield from self._exact.get(key, ())
        yield from (counter for counter in self._globs if counter.pattern.matches(command, key))


class _Index:
    """Counters by the command that they are waiting for."""

    def __init__(self, counters: Iterable[_Counter]) -> None:
        by_command: defaultdict[str, list[_Counter]] = defaultdict(list)
        for counter in counters:
            by_command[counter.pattern.command].append(counter)
        self._buckets = {command: _Bucket(each) for command, each in by_command.items()}
        self.empty = not self._buckets

    def due(self, connection: int, command: str, key: str) -> list[Due]:
        """Count a match; return what strikes, in the order of the schedule."""
        found = []
        for name in (command,) if command in (ACCEPT, ANY) else (command, ANY):
            bucket = self._buckets.get(name)
            if bucket is None or not bucket.may(key):
                continue
            found += [Due(counter.index, counter.fault) for counter in bucket.fitting(command, key)
                      if counter.counts(connection)]
        return sorted(found, key=lambda due: due.place) if found else found


class Armed:
    """The schedule of one endpoint, counting from the moment it is made.

    strikes_requests: an entry strikes requests on their way, so each is to be known before any of it is passed on.
    reads_kinds: an entry is addressed by the kind of a reply.
    """

    def __init__(self, schedule: Sequence[Fault]) -> None:
        """Arm every entry."""
        self.schedule = tuple(schedule)
        self._struck = [False] * len(schedule)
        self._felt = [False] * len(schedule)
        self._unfelt: dict[int, set[int]] = {}
        counters = [_Counter(index, fault, Pattern(fault.command, fault.key)) for index, fault in enumerate(schedule)
                    if not fault.listens]
        self._by_request = _Index(counter for counter in counters if counter.fault.reply is None)
        self._by_reply = {
            kind: _Index(counter for counter in counters if counter.fault.reply == kind)
            for kind in {fault.reply for fault in schedule} - {None}}
        self.strikes_requests = any(fault.direction == "request" for fault in schedule)
        self.reads_kinds = bool(self._by_reply)
        self.reads_pushes = "push" in self._by_reply
        self._released = {name: trio.Event() for fault in schedule for name in fault.names()}
        self._awaited: list[tuple[Pattern, trio.Event]] = []

    def asked(self, connection: int, command: str, key: str) -> list[Due]:
        """Count a request, or the accepting of a connection; return the faults that strike it or its reply."""
        if self._awaited:
            for pattern, event in self._awaited:
                if pattern.matches(command, key):
                    event.set()
        return [] if self._by_request.empty else self._by_request.due(connection, command, key)

    def answered(self, connection: int, command: str, key: str, kind: str) -> list[Due]:
        """Count a reply by its kind; return the faults that strike it."""
        index = self._by_reply.get(kind)
        return index.due(connection, command, key) if index is not None else []

    def strike(self, index: int, connection: int) -> None:
        """Take note that an entry was done on that connection."""
        self._struck[index] = True
        if not self._felt[index]:
            self._unfelt.setdefault(index, set()).add(connection)

    def feel(self, connection: int | None) -> None:
        """Take note that the client did something on that connection; None: its call has ended, wherever."""
        if self._unfelt:
            for index in [index for index, where in self._unfelt.items() if connection is None or connection in where]:
                self._felt[index] = True
                del self._unfelt[index]

    @property
    def marks(self) -> list[dict[str, bool]]:
        """For each entry whether it was done, and whether the client did anything after that."""
        return [{"struck": struck, "felt": felt} for struck, felt in zip(self._struck, self._felt, strict=True)]

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
