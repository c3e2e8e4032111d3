"""What may not happen in a case, whatever its steps and faults: the rules of the contract, over what was done so far.

A miss is always allowed once something has disturbed the instance that asked; before that, what was stored is there.
What is in doubt (a store that was neither acknowledged nor refused) may have happened, or happen later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kvproof.campaigns.clients.case import CHUNKS
from kvproof.campaigns.target import Violation
from kvproof.connectors.adapter import Read
from kvproof.rig import Found


@dataclass
class _Stored:
    """What is known of a chunk: the newest version that was acknowledged, those in doubt, whether it was deleted."""

    newest: int = 0
    doubts: set[int] = field(default_factory=set)
    deleted: bool = False

    @property
    def certain(self) -> bool:
        """Whether it has to be there."""
        return bool(self.newest) and not self.doubts and not self.deleted


@dataclass
class Judge:
    """What the instances of a case have stored, as far as they were told.

    shared: whether they share their chunks: one rank, or replicated KV, of which only worker 0 stores. replicated: the
    latter. timeout: seconds that a connector is told to wait for an answer. disturbed: the instances on whose way a
    fault has struck.
    """

    shared: bool
    replicated: bool
    timeout: float = 1.0
    disturbed: set[int] = field(default_factory=set)
    versions: dict[int, int] = field(default_factory=dict)
    _stored: dict[tuple[int, int], _Stored] = field(default_factory=dict)

    def known(self) -> list[tuple[str, int]]:
        """Return every (chunk, version) that may be found in a buffer."""
        return [(CHUNKS[chunk], version) for chunk, most in self.versions.items() for version in range(1, most + 1)]

    def next_version(self, chunk: int) -> int:
        """Return a version that no store has had yet."""
        self.versions[chunk] = self.versions.get(chunk, 0) + 1
        return self.versions[chunk]

    def _of(self, by: int, chunk: int) -> _Stored:
        return self._stored.setdefault((0 if self.shared else by, chunk), _Stored())

    def put(self, by: int, chunk: int, version: int, outcome: str) -> None:
        """Take note of a store and its outcome; raises Violation."""
        stored = self._of(by, chunk)
        if outcome == "hit":
            stored.newest, stored.deleted = max(stored.newest, version), False
        elif outcome == "miss":
            # Not accepted, by design.
            if not (self.replicated and by) and by not in self.disturbed:
                raise Violation("round-trip", "fail", f"put of {CHUNKS[chunk]}, which nothing disturbed: not accepted")
        else:
            stored.doubts.add(version)
            if by not in self.disturbed:
                raise Violation("round-trip", "fail", f"put of {CHUNKS[chunk]}, which nothing disturbed: {outcome}")

    def acknowledged(self, by: int, chunk: int, there: bool) -> None:
        """Compare an acknowledged store with what is really there; raises Violation."""
        if not there:
            raise Violation("honest-error", "fail",
                            f"put of {CHUNKS[chunk]} was said to have worked, and nothing is stored for it")

    def evicted(self, by: int, chunk: int) -> None:
        """Take note that what is stored for a chunk was deleted; stores in doubt may still come."""
        self._of(by, chunk).deleted = True

    def read(self, by: int, read: Read, chunks: Sequence[int], found: Sequence[Found]) -> None:
        """Judge one read of chunks; raises Violation."""
        try:
            self._read(by, read, chunks, found)
        except Violation as violation:
            violation.read = read.name
            raise

    def _read(self, by: int, read: Read, chunks: Sequence[int], found: Sequence[Found]) -> None:
        # A batch that gives up because of one chunk that is not there has nothing to say of the others.
        for chunk, each in zip(chunks, found, strict=True):
            stored, late = self._of(by, chunk), (each.seconds or 0.0) > 0.9 * self.timeout
            if each.outcome != "hit" and by not in self.disturbed and not (stored.newest or stored.doubts) and (
                    late or each.outcome != "miss"):
                raise Violation("miss-is-miss", "fail", f"{read.name} of {CHUNKS[chunk]}, which nobody stored and "
                                f"nothing disturbed: {each.outcome}{', and only when it gave up' * late}")
        leading = True
        for chunk, each in zip(chunks, found, strict=True):
            stored, said = self._of(by, chunk), f"{read.name} of {CHUNKS[chunk]}"
            if each.outcome == "hit":
                self._hit(read, chunk, each, stored, by)
            elif by not in self.disturbed and stored.certain and leading:
                # A batch may end with its first miss.
                rule = "key-per-rank" if self.replicated and by else "round-trip"
                raise Violation(rule, "fail", f"{said}, which is stored and nothing disturbed: {each.outcome}")
            leading = leading and each.outcome == "hit"

    def call(self, by: int, what: str, outcome: str) -> None:
        """Judge a call of which only matters that it is answered; raises Violation."""
        if by not in self.disturbed and outcome not in ("hit", "miss"):
            raise Violation("round-trip", "fail", f"{what}, which nothing disturbed: {outcome}")

    def _hit(self, read: Read, chunk: int, found: Found, stored: _Stored, by: int) -> None:
        said = f"{read.name} of {CHUNKS[chunk]} was a hit"
        if not stored.newest and not stored.doubts:
            raise Violation("miss-is-miss", "fail", f"{said}, and nobody stored it (the buffer: {found.holds})"
                            if read.payload else f"{said}, and nobody stored it")
        if not read.payload:
            if stored.deleted and not stored.doubts and by not in self.disturbed:
                raise Violation("lookup-coherent", "fail", f"{said}, and it was deleted")
            return
        if found.exact and found.holds == "poison":
            raise Violation("no-stale-hit", "fail", f"{said}, and its buffer was never written")
        name, _, version = found.holds.partition(" version ")
        if not (found.exact and name == CHUNKS[chunk]):
            rule = "no-cross-talk" if name in CHUNKS and name != CHUNKS[chunk] else "no-stale-hit"
            whose = f"the value of {found.holds}" if found.exact else f"bytes that are not its own ({found.holds})"
            raise Violation(rule, "fail", f"{said}, and its buffer holds {whose}")
        if int(version) < stored.newest and int(version) not in stored.doubts:
            raise Violation("linearizable", "fail", f"{said} of version {version}, after version {stored.newest} was "
                                                    "stored and acknowledged")
