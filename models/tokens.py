"""How many tokens of a prompt the engine is given from the cache: whole blocks, and never the last token (facts: 1)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Hit:
    """What is there of one prompt, in tokens; the engine has computed `local_blocks` blocks of it itself."""

    prompt: int
    block: int
    local_blocks: int
    cached: int

    @property
    def local(self) -> int:
        """What the engine has itself."""
        return self.local_blocks * self.block

    def usable(self) -> int:
        """Return what of the cached tokens is of use: the engine has to compute the last token, to sample from it."""
        return min(self.cached, self.prompt - 1)

    def given(self) -> int:
        """Return what the engine is given: whole blocks past what it has itself, and never less than nothing."""
        return max(0, self.usable() // self.block * self.block - self.local)


def complaint(hit: Hit) -> str:
    """Say what is wrong with the tokens that the engine is given; "" when nothing is."""
    given = hit.given()
    if given < 0:
        return f"the engine is given {given} tokens"
    if given % hit.block:
        return f"the engine is given {given} tokens, which is no multiple of the block of {hit.block}"
    if given > hit.prompt - 1 - hit.local:
        return f"the engine has {hit.local} of {hit.prompt} tokens, is given {given}, and has none left to compute"
    return ""
