"""tokens: how many tokens of a prompt the engine is given from the cache; one of the claims of `prefix`."""

from __future__ import annotations

import z3

from kvproof.spec.obligation import Fact, Mutant
from kvproof.spec.theory import Formula, Int, Rigid, Theory, View, all_of, within


class Tokens(Theory):
    """The tokens to be loaded for the engine, all counts in tokens.

    The engine has computed `local` tokens of a prompt itself, the cache has `cached` of it, and both are whole blocks
    but for a last, partial one of the cache; `blocks` is what `usable` comes to in whole blocks. The engine has to
    compute one token itself, the last, or it has nothing to sample from.
    """

    prompt = Rigid(Int)
    block = Rigid(Int)
    local_blocks = Rigid(Int)
    cached = Rigid(Int)
    blocks = Rigid(Int)
    given_blocks = Rigid(Int)
    given_rest = Rigid(Int)

    def axioms(self, s: View) -> list[Formula]:
        """There is a prompt; the engine has left at least one token of it, and the cache holds no more than all."""
        return [
            s.prompt >= 1, s.block >= 1, s.local_blocks >= 0, self.local(s) <= s.prompt - 1,
            s.cached >= 0, s.cached <= s.prompt,
        ]

    def sized(self, s: View, size: int) -> list[Formula]:
        """Prompts of at most `size` tokens."""
        return [s.prompt <= size, s.block <= size, -size <= s.blocks, s.blocks <= size]

    def local(self, s: View) -> Formula:
        """What the engine has itself, in tokens."""
        return s.local_blocks * s.block

    def usable(self, s: View) -> Formula:
        """What is of use of the cached tokens, before it is cut to whole blocks."""
        return z3.If(s.cached < s.prompt, s.cached, s.prompt - 1)

    def aligned(self, s: View) -> Formula:
        """`blocks` is the number of whole blocks."""
        return within(s.blocks * s.block, self.usable(s), s.blocks * s.block + s.block)

    def tokens(self, s: View) -> Formula:
        """What is given to the engine: past what it has itself, and never less than nothing."""
        return z3.If(s.blocks > s.local_blocks, s.blocks * s.block - self.local(s), 0)

    def divided(self, s: View) -> list[Formula]:
        """`given_blocks` and `given_rest`: quotient and remainder of the given tokens by the block."""
        return [self.tokens(s) == s.given_blocks * s.block + s.given_rest, within(0, s.given_rest, s.block)]


class WholePrompt(Tokens):
    """A hit on the whole prompt is given to the engine whole."""

    def usable(self, s: View) -> Formula:
        """All that is cached."""
        return s.cached


class LocalAbove(Tokens):
    """Nobody asks whether the engine has more than the cache."""

    def tokens(self, s: View) -> Formula:
        """The difference, whatever its sign."""
        return s.blocks * s.block - self.local(s)


class LateMinusOne(Tokens):
    """The token that the engine must compute is taken off a whole-prompt hit after the cut to whole blocks."""

    def usable(self, s: View) -> Formula:
        """All that is cached."""
        return s.cached

    def tokens(self, s: View) -> Formula:
        """One token less when the hit is the whole prompt."""
        given = s.blocks * s.block - z3.If(s.blocks * s.block == s.prompt, 1, 0)
        return z3.If(given > self.local(s), given - self.local(s), 0)


class MinusOneAligned(Tokens):
    """The token is taken off the difference, and the result is cut down to whole blocks: -1 becomes -block."""

    def usable(self, s: View) -> Formula:
        """What is past the engine's own tokens, less one."""
        return s.cached - self.local(s) - 1

    def tokens(self, s: View) -> Formula:
        """Whole blocks of it, as floor division gives them."""
        return s.blocks * s.block


TOKENS = Fact(
    id="prefix.tokens", theory=Tokens, scope="all prompts, block sizes and hits of both caches", fragment="NIA",
    claim="the tokens given to the engine are block-aligned and within 0 .. prompt - 1 - local",
    hypotheses=lambda theory, s: [theory.aligned(s), *theory.divided(s)],
    goal=lambda theory, s: all_of(
        s.given_rest == 0, theory.tokens(s) >= 0, theory.tokens(s) <= s.prompt - 1 - theory.local(s)),
    interesting=lambda theory, s: [s.block == 2, s.local_blocks == 1, theory.tokens(s) == 2],
    sizes=((1, 0), (1, 1), (1, 2), (1, 3), (1, 4), (1, 5), (1, 6)),
    mutants=(
        Mutant("whole-prompt", "a hit on the whole prompt is given whole", WholePrompt,
               "the engine has no token to compute, and nothing to sample from"),
        Mutant("local-above", "the cache holds less than the engine itself, and nobody looks", LocalAbove,
               "the engine is given a negative number of tokens"),
        Mutant("late-minus-one", "one token is taken off after the cut to whole blocks", LateMinusOne,
               "the number of tokens is no multiple of the block"),
        Mutant("minus-one-aligned", "-1 is aligned down", MinusOneAligned,
               "the engine is given minus one block"),
    ),
)
