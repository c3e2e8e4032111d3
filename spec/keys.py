"""keys: what a chunk is stored under and asked for by, on which instance, and what must never share a key."""

from __future__ import annotations

from typing import Any

import z3

from kvproof.spec.key_text import KEY_TEXT
from kvproof.spec.obligation import Fact, Mutant, Obligation
from kvproof.spec.theory import Formula, Int, Rank, Rigid, Theory, View, enum, exists, forall, within

Mode, REPLICATED, PER_WORKER, SHARDED = enum("Mode", "replicated", "per-worker", "sharded")
Read, *_reads = enum("Read", "get", "batched-get", "asynchronous-get", "exists", "prefetch", "unlock")
READ = dict(zip(("get", "batched-get", "asynchronous-get", "exists", "prefetch", "unlock"), _reads, strict=True))


class Worker(Theory):
    """Who stores a chunk under which worker's key and on which instance, and which key and instance a read asks.

    Replicated: every rank has the same KV, and only `zero` stores. Per worker: each rank stores its own. Sharded: every
    rank has the same KV, and chunk c is stored by `owner(c)`, any map. `host(w)` is the instance that valkey-{rank}
    stands for when {rank} is w: any map, the same for all ranks.
    """

    mode = Rigid(Mode)
    zero = Rigid(Rank)
    owner = Rigid(Int, Rank)
    host = Rigid(Rank, Int)

    def writes(self, s: View, w: Any, c: Any) -> Formula:
        """Rank w stores chunk c."""
        return z3.Or(z3.And(s.mode == REPLICATED, w == s.zero), s.mode == PER_WORKER,
                     z3.And(s.mode == SHARDED, w == s.owner(c)))

    def serves(self, s: View, w: Any, r: Any) -> Formula:
        """What rank w has of a chunk is what rank r needs of it."""
        return z3.Or(s.mode != PER_WORKER, w == r)

    def named(self, s: View, w: Any) -> Any:
        """The worker in the keys that rank w writes: itself."""
        return w

    def placed(self, s: View, w: Any) -> Any:
        """The instance that rank w writes to."""
        return s.host(w)

    def asks(self, s: View, read: Any, r: Any, c: Any) -> Any:
        """The worker in the key by which rank r asks for chunk c."""
        return z3.If(s.mode == REPLICATED, s.zero, z3.If(s.mode == SHARDED, s.owner(c), r))

    def instance(self, s: View, read: Any, r: Any, c: Any) -> Any:
        """The instance that rank r asks for chunk c: {rank} is the worker in the key."""
        return s.host(self.asks(s, read, r, c))

    def stored(self, s: View, read: Any, r: Any, c: Any) -> Formula:
        """Somebody stores the chunk under the key that is asked for, and whoever does stores what r needs."""
        key = self.asks(s, read, r, c)
        return z3.And(
            exists(Rank, lambda w: z3.And(self.writes(s, w, c), self.named(s, w) == key)),
            forall(Rank, lambda w: z3.Implies(
                z3.And(self.writes(s, w, c), self.named(s, w) == key), self.serves(s, w, r))))

    def there(self, s: View, read: Any, r: Any, c: Any) -> Formula:
        """Somebody stores the chunk under the key that is asked for, on the instance that is asked."""
        key, instance = self.asks(s, read, r, c), self.instance(s, read, r, c)
        return exists(Rank, lambda w: z3.And(
            self.writes(s, w, c), self.named(s, w) == key, self.placed(s, w) == instance))


class NotRewritten(Worker):
    """The asynchronous get asks by the reader's own rank."""

    def asks(self, s: View, read: Any, r: Any, c: Any) -> Any:
        """Rewrite in all other reads."""
        return z3.If(read == READ["asynchronous-get"], r, super().asks(s, read, r, c))


class ExistsNotSharded(Worker):
    """The existence check knows the replicated mode and not the sharded one."""

    def asks(self, s: View, read: Any, r: Any, c: Any) -> Any:
        """Leave the owner out."""
        return z3.If(z3.And(read == READ["exists"], s.mode == SHARDED), r, super().asks(s, read, r, c))


class AllAsZero(Worker):
    """Every rank writes and asks by worker 0's key, in every mode."""

    def named(self, s: View, w: Any) -> Any:
        """Always worker 0."""
        return s.zero

    def asks(self, s: View, read: Any, r: Any, c: Any) -> Any:
        """Always worker 0."""
        return s.zero


class ReadersInstance(Worker):
    """{rank} is replaced by the rank that reads."""

    def instance(self, s: View, read: Any, r: Any, c: Any) -> Any:
        """The connection is the reader's own."""
        return s.host(r)


class WrittenToFirst(Worker):
    """{rank} is replaced once, by worker 0's process, and the address given to all that store."""

    def placed(self, s: View, w: Any) -> Any:
        """The instance of worker 0."""
        return s.host(s.zero)


class Division(Theory):
    """Two engines compute the owner of chunk c as c mod W, each by its own division; `other` is the second one's W."""

    chunk = Rigid(Int)
    world = Rigid(Int)
    other = Rigid(Int)
    quotient = Rigid(Int)
    index = Rigid(Int)
    other_quotient = Rigid(Int)
    other_index = Rigid(Int)

    def axioms(self, s: View) -> list[Formula]:
        """With quotient and remainder: c = q W + r, 0 <= r < W, in both."""
        return [
            s.chunk >= 0, s.world >= 1, s.other >= 1, s.chunk == s.quotient * s.world + s.index,
            within(0, s.index, s.world), self.second(s), s.quotient >= 0, s.other_quotient >= 0,
        ]

    def second(self, s: View) -> Formula:
        """What the second engine computes."""
        exact = s.chunk == s.other_quotient * s.other + s.other_index
        return z3.And(exact, within(0, s.other_index, s.other))

    def sized(self, s: View, size: int) -> list[Formula]:
        """Chunks and worlds up to `size`."""
        return [s.chunk <= size, s.world <= size, s.other <= size, s.other_quotient <= size]


class FromOne(Division):
    """One engine numbers its instances from 1."""

    def second(self, s: View) -> Formula:
        """Take a remainder from 1 to W."""
        exact = s.chunk == s.other_quotient * s.other + s.other_index - 1
        return z3.And(exact, within(1, s.other_index, s.other + 1))


_ASSUMES = ("there is one W; every rank knows the mode and the owner map",)
_ALL = "every mode, all W, every rank, read and chunk, any owner map (c mod W among them)"


def _every(s: View, body: Any) -> Formula:
    return forall(Rank, Int, lambda r, c: z3.And(*[body(read, r, c) for read in READ.values()]))


OBLIGATIONS: tuple[Obligation, ...] = (
    Fact(
        id="keys.read-is-written", scope=_ALL, theory=Worker, fragment="UFLIA with quantifiers, enumerations",
        claim="a read asks by a key under which the chunk is stored, by nobody whose KV is another's than the reader's",
        assumes=_ASSUMES,
        goal=lambda theory, s: _every(s, lambda read, r, c: theory.stored(s, read, r, c)),
        interesting=lambda theory, s: [s.mode == SHARDED, exists(Rank, lambda r: r != s.owner(0))],
        mutants=(
            Mutant("not-rewritten", "the asynchronous get does not rewrite the worker in its key", NotRewritten,
                   "a rank other than worker 0 asks for a key that nobody stores, and waits or misses for ever"),
            Mutant("exists-own-rank", "the existence check asks by the reader's rank where chunks are sharded",
                   ExistsNotSharded, "the chunk is there, under its owner's key, and is said to be absent"),
            Mutant("all-as-zero", "all ranks store and ask under worker 0, whatever the mode", AllAsZero,
                   "each rank has a part of the heads, and reads what another has stored over its own"),
        ),
    ),
    Fact(
        id="keys.instance", claim="resp://valkey-{rank} leads every read to the instance where the chunk was stored",
        scope=f"{_ALL}, any instance for each rank", theory=Worker, fragment="UFLIA with quantifiers, enumerations",
        assumes=_ASSUMES,
        goal=lambda theory, s: _every(s, lambda read, r, c: theory.there(s, read, r, c)),
        interesting=lambda theory, s: [
            s.mode == SHARDED, exists(Rank, lambda r: s.host(r) != s.host(s.owner(0)))],
        mutants=(
            Mutant("readers-rank", "{rank} is replaced by the rank that reads", ReadersInstance,
                   "the client asks an instance that the chunk was never stored on"),
            Mutant("not-rewritten", "the asynchronous get does not rewrite the worker in its key", NotRewritten,
                   "the key and the instance are the reader's own, where nothing is stored"),
            Mutant("written-to-first", "{rank} is replaced once, for all that store", WrittenToFirst,
                   "everything is on one instance, and is looked for on others"),
        ),
    ),
    Fact(
        id="keys.same-owner", claim="two engines with the same W compute the same owner, c mod W, for every chunk",
        scope="all W, all c, two engines that share nothing but the instances", theory=Division, fragment="NIA",
        hypotheses=lambda theory, s: [s.world == s.other],
        goal=lambda theory, s: s.index == s.other_index,
        interesting=lambda theory, s: [s.index >= 1, s.quotient >= 1], sizes=((1, 1), (1, 2), (1, 3)),
        mutants=(Mutant("from-one", "one engine numbers its instances from 1", FromOne,
                        "what one stores at one instance, the other looks for at the next"),),
    ),
    Fact(
        id="keys.other-world", claim="engines with different W find each other's chunks (they do not)", limit=True,
        scope="two engines, W and W' different", theory=Division, fragment="NIA",
        hypotheses=lambda theory, s: [s.world != s.other],
        goal=lambda theory, s: s.index == s.other_index, sizes=((1, 1), (1, 2), (1, 3)),
    ),
    *KEY_TEXT,
)
