"""The second channel: what is really stored under a chunk, past the connector."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from kvproof.faults.raw_resp import ReplyError
from kvproof.rig import Ground, Rig, Unsupported

UNNAMED = "no key or file that the connector wrote can be read as a value and has the chunk's hash in its name"
"""Why what is stored for a chunk cannot be found."""


class Truth(Protocol):
    """What a chunk is stored as: names (keys or files), each with a value."""

    def names(self, chunk: str) -> list[str]:
        """Return the names under which the connector stored a chunk, learned from what it did."""

    def get(self, name: str) -> bytes | None:
        """Return a value; None where there is none, or what there is is no string."""

    def set(self, name: str, value: bytes) -> None:
        """Replace a value."""

    def delete(self, names: Sequence[str]) -> int:
        """Delete names; return how many were there."""


@dataclass(frozen=True)
class RespTruth:
    """Keys on the server, which were set on the wire."""

    ground: Ground
    rig: Rig

    def names(self, chunk: str) -> list[str]:
        """See `Truth`."""
        return self.rig.stored(chunk)

    def get(self, name: str) -> bytes | None:
        """See `Truth`."""
        with self.ground.server.connect() as raw, suppress(ReplyError):
            return raw.get(name)
        return None

    def set(self, name: str, value: bytes) -> None:
        """See `Truth`."""
        with self.ground.server.connect() as raw:
            raw.command("SET", name, value)

    def delete(self, names: Sequence[str]) -> int:
        """See `Truth`."""
        with self.ground.server.connect() as raw:
            return sum(raw.command("DEL", name) == 1 for name in names)


@dataclass(frozen=True)
class DirectoryTruth:
    """Files in the connector's directory whose path has the chunk in it."""

    directory: Path

    def names(self, chunk: str) -> list[str]:
        """See `Truth`."""
        found = (path for path in self.directory.rglob("*") if path.is_file())
        return sorted(str(path) for path in found if chunk in str(path.relative_to(self.directory)))

    def get(self, name: str) -> bytes | None:
        """See `Truth`."""
        path = Path(name)
        return path.read_bytes() if path.exists() else None

    def set(self, name: str, value: bytes) -> None:
        """See `Truth`."""
        Path(name).write_bytes(value)

    def delete(self, names: Sequence[str]) -> int:
        """See `Truth`."""
        there = [path for path in map(Path, names) if path.exists()]
        for path in there:
            path.unlink()
        return len(there)


def truth(ground: Ground, rig: Rig) -> Truth:
    """Return the second channel that the adapter names; raises Unsupported when there is none."""
    if ground.described.truth == "resp":
        return RespTruth(ground, rig)
    if ground.described.truth == "directory":
        return DirectoryTruth(Path(rig.place.directory))
    raise Unsupported("the adapter names no second channel through which the truth can be changed")
