"""Every mistake that spec.keys and spec.key_text name, made in the models of placement and of keys."""

from __future__ import annotations

from typing import Any, ClassVar

from kvproof.models import chunks
from kvproof.models.chunks import ChunkKey, Names
from kvproof.models.placement import SHARDED, Placement
from kvproof.spec.key_text import FIELDS


class NotRewritten(Placement):
    def asks(self, read: str, r: int, chunk: int) -> int:
        return r if read == "asynchronous-get" else Placement.asks(self, read, r, chunk)


class ExistsNotSharded(Placement):
    def asks(self, read: str, r: int, chunk: int) -> int:
        return r if read == "exists" and self.mode == SHARDED else Placement.asks(self, read, r, chunk)


class AllAsZero(Placement):
    def named(self, w: int) -> int:
        return 0

    def asks(self, read: str, r: int, chunk: int) -> int:
        return 0


class ReadersInstance(Placement):
    def instance(self, read: str, r: int, chunk: int) -> int:
        return self.hosts[r]


class WrittenToFirst(Placement):
    def placed(self, w: int) -> int:
        return self.hosts[0]


def from_one(chunk: int, world_size: int) -> int:
    return chunks.owner(chunk, world_size) + 1


class SixteenBits(ChunkKey):
    def field(self, name: str) -> str:
        return ChunkKey.field(self, name)[-4:] if name == "chunk" else ChunkKey.field(self, name)


def without(left_out: str) -> type[ChunkKey]:
    """Return the key in which one field is not written."""
    class Without(ChunkKey):
        def field(self, name: str) -> str:
            return "" if name == left_out else ChunkKey.field(self, name)

    return Without


class Untagged(ChunkKey):
    TAGS: ClassVar = dict.fromkeys(ChunkKey.TAGS, "")


class AsItIs(Names):
    def special(self, character: str) -> bool:
        return False


class NameUnescaped(ChunkKey):
    NAMES: ClassVar = AsItIs()


class KeepsSeparator(Names):
    def stands(self, character: str) -> str:
        return character


class EscapeItself(Names):
    def special(self, character: str) -> bool:
        return character == self.SEPARATOR


MISTAKES: dict[str, Any] = {
    "keys.read-is-written:not-rewritten": NotRewritten,
    "keys.read-is-written:exists-own-rank": ExistsNotSharded,
    "keys.read-is-written:all-as-zero": AllAsZero,
    "keys.instance:readers-rank": ReadersInstance,
    "keys.instance:not-rewritten": NotRewritten,
    "keys.instance:written-to-first": WrittenToFirst,
    "keys.same-owner:from-one": from_one,
    "keys.distinct:sixteen-bits": SixteenBits,
    **{f"keys.distinct:no-{name}": without("world_size" if name == "world" else name) for name in FIELDS},
    "keys.parse:untagged": Untagged,
    "keys.parse:separator-in-name": NameUnescaped,
    "keys.escaped:as-it-is": AsItIs,
    "keys.escaped:keeps-separator": KeepsSeparator,
    "keys.unescaped:escape-itself": EscapeItself,
}
