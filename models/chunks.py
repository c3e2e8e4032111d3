"""Chunks: how a list of tokens is cut into them, which rank owns each, and the key under which one is stored."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

TOKENS = 256
"""How many tokens a chunk has by default."""


def chunk_hashes(tokens: Sequence[int], size: int = TOKENS, root: bytes = b"") -> list[str]:
    """Return the identity of each full chunk of so many tokens, hexadecimal; what is left over is no chunk.

    Each stands for all tokens up to and including its chunk, so lists have as many identities in common as they have
    whole chunks in common from the start. root: what else the KV depends on. The same in every process.
    """
    if size < 1:
        raise ValueError(f"a chunk has one token or more, got {size}")
    hashes, last = [], hashlib.sha256(root).digest()
    for start in range(0, len(tokens) - size + 1, size):
        text = ",".join(str(token) for token in tokens[start : start + size])
        last = hashlib.sha256(last + text.encode()).digest()
        hashes.append(last.hex())
    return hashes


def owner(chunk: int, world_size: int) -> int:
    """Return the rank that owns a chunk when chunks are dealt out in turn, by itself: c mod W."""
    return chunk % world_size


def round_robin(chunks: int, world_size: int) -> tuple[int, ...]:
    """Return the owner of each chunk when they are dealt out in turn."""
    return tuple(owner(chunk, world_size) for chunk in range(chunks))


def block_cyclic(chunks: int, world_size: int, block: int) -> tuple[int, ...]:
    """Return the owner of each chunk when they are dealt out in turn, so many neighbours at a time."""
    return tuple(owner(chunk // block, world_size) for chunk in range(chunks))


def replicated(chunks: int) -> tuple[int, ...]:
    """Return the owner of each chunk when every rank has the same KV and worker 0 stores all of it."""
    return (0,) * chunks


class Names:
    """How a field is written in a key: its separator and the escape as two characters each, all else as it is.

    The separator is not among what is written, so that a key's text can be split at it.
    """

    SEPARATOR, ESCAPE, STANDS = "@", "%", "a"

    def special(self, character: str) -> bool:
        """Whether the character is escaped: it is the separator, or the escape itself."""
        return character in (self.SEPARATOR, self.ESCAPE)

    def stands(self, character: str) -> str:
        """Return what is written after the escape for a special character."""
        return self.STANDS if character == self.SEPARATOR else character

    def write(self, name: str) -> str:
        """Return what is written of a name."""
        return "".join(self.ESCAPE + self.stands(each) if self.special(each) else each for each in name)

    def read(self, text: str) -> str:
        """Return the name of which the text was written; raises ValueError where none was."""
        name, characters = [], iter(text)
        for character in characters:
            if character == self.ESCAPE:
                escaped = next(characters, "")
                if escaped not in (self.STANDS, self.ESCAPE):
                    raise ValueError(f"{self.ESCAPE}{escaped} stands for nothing in {text!r}")
                character = self.SEPARATOR if escaped == self.STANDS else escaped
            name.append(character)
        return "".join(name)


@dataclass(frozen=True, slots=True)
class ChunkKey:
    """The identity of one stored chunk.

    The fields are those of the field's own caches: the model's name, the world size, the worker (rank) that stores
    the chunk, the hash of the tokens up to and including the chunk (hexadecimal) and the element type; then, where
    they are not empty, the adapter (LoRA) and the salt that keeps tenants apart.
    """

    model: str
    world_size: int
    worker: int
    chunk: str
    dtype: str
    adapter: str = ""
    salt: str = ""

    MANDATORY: ClassVar = ("model", "world_size", "worker", "chunk", "dtype")
    TAGS: ClassVar = {"adapter": "l", "salt": "s"}
    """With which character an optional field begins."""
    NAMES: ClassVar = Names()

    def field(self, name: str) -> str:
        """Return what of a field goes into the key."""
        return str(getattr(self, name))

    def format(self) -> str:
        """Return the key as text: its fields, kept apart by ``@``; the optional ones that are there have a tag each."""
        fields = [self.NAMES.write(self.field(name)) for name in self.MANDATORY]
        fields += [tag + self.NAMES.write(self.field(name)) for name, tag in self.TAGS.items() if self.field(name)]
        return self.NAMES.SEPARATOR.join(fields)

    @classmethod
    def parse(cls, text: str) -> ChunkKey:
        """Return the key whose text it is; raises ValueError where it is that of none."""
        parts = text.split(cls.NAMES.SEPARATOR)
        if len(parts) < len(cls.MANDATORY):
            raise ValueError(f"a key has {len(cls.MANDATORY)} fields or more, got {len(parts)} in {text!r}")
        model, world_size, worker, chunk, dtype = (cls.NAMES.read(part) for part in parts[: len(cls.MANDATORY)])
        rest = parts[len(cls.MANDATORY) :]
        options = dict.fromkeys(cls.TAGS, "")
        for name, tag in cls.TAGS.items():
            if rest and rest[0].startswith(tag):
                options[name] = cls.NAMES.read(rest.pop(0)[len(tag) :])
        key = cls(model, int(world_size), int(worker), chunk, dtype, **options)
        if key.format() != text:
            raise ValueError(f"no key is written {text!r}")
        return key

    def stored(self, *, replicated: bool) -> ChunkKey:
        """Return the key under which this chunk is really stored.

        With a replicated latent KV (MLA) only worker 0 stores (facts: 1), so every worker must ask for worker 0's
        key; otherwise a worker asks for its own.
        """
        return replace(self, worker=0) if replicated else self
