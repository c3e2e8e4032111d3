"""keys: what a chunk is stored under and asked for by, on which instance, and what must never share a key."""

from __future__ import annotations

from typing import Any

import z3

from kvproof.spec.obligation import Fact, Mutant, Obligation
from kvproof.spec.theory import Bool, Formula, Int, Rank, Rigid, Theory, View, all_of, enum, exists, forall, within

Mode, REPLICATED, PER_WORKER, SHARDED = enum("Mode", "replicated", "per-worker", "sharded")
Read, *_reads = enum("Read", "get", "batched-get", "asynchronous-get", "exists", "prefetch", "unlock")
READ = dict(zip(("get", "batched-get", "asynchronous-get", "exists", "prefetch", "unlock"), _reads, strict=True))


class Worker(Theory):
    """The worker in a key. Whoever stores a chunk writes its own rank there; a read rewrites it to that rank.

    Replicated: every rank has the same KV, and only `zero` stores. Per worker: each rank stores its own. Sharded: every
    rank has the same KV, and chunk c is stored by `owner(c)`, any map.
    """

    mode = Rigid(Mode)
    zero = Rigid(Rank)
    owner = Rigid(Int, Rank)

    def stores(self, s: View, w: Any, r: Any, c: Any) -> Formula:
        """Rank w stores chunk c, and its copy is what rank r needs."""
        return z3.Or(z3.And(s.mode == REPLICATED, w == s.zero), z3.And(s.mode == PER_WORKER, w == r),
                     z3.And(s.mode == SHARDED, w == s.owner(c)))

    def asks(self, s: View, read: Any, r: Any, c: Any) -> Any:
        """The worker in the key by which rank r asks for chunk c."""
        return z3.If(s.mode == REPLICATED, s.zero, z3.If(s.mode == SHARDED, s.owner(c), r))

    def instance(self, s: View, read: Any, r: Any, c: Any) -> Any:
        """What {rank} in resp://valkey-{rank} stands for, when rank r reads chunk c: the worker in the key."""
        return self.asks(s, read, r, c)


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


class ReadersInstance(Worker):
    """{rank} is replaced by the rank that reads."""

    def instance(self, s: View, read: Any, r: Any, c: Any) -> Any:
        """The connection is the reader's own."""
        return r


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


class Fields(Theory):
    """The two lists of fields of two keys, k and l: all numbers and names stand for what they identify."""

    WRITTEN = ("model", "world", "worker", "chunk", "dtype", "adapter", "salt")

    k_model = Rigid(Int)
    k_world = Rigid(Int)
    k_worker = Rigid(Int)
    k_chunk = Rigid(Int)
    k_dtype = Rigid(Int)
    k_adapter = Rigid(Int)
    k_salt = Rigid(Int)
    l_model = Rigid(Int)
    l_world = Rigid(Int)
    l_worker = Rigid(Int)
    l_chunk = Rigid(Int)
    l_dtype = Rigid(Int)
    l_adapter = Rigid(Int)
    l_salt = Rigid(Int)

    def axioms(self, s: View) -> list[Formula]:
        """Everything is identified by a natural; 0 is "none" for an adapter or a salt."""
        return [getattr(s, f"{key}_{name}") >= 0 for key in "kl" for name in Fields.WRITTEN]

    def written(self, s: View, name: str, value: Any) -> Any:
        """What of a field is written into the key."""
        return value

    def same_key(self, s: View) -> Formula:
        """All that is written is the same."""
        return all_of(*(
            self.written(s, name, getattr(s, f"k_{name}")) == self.written(s, name, getattr(s, f"l_{name}"))
            for name in self.WRITTEN))

    def same(self, s: View) -> Formula:
        """The same chunk of the same thing."""
        return all_of(*(getattr(s, f"k_{name}") == getattr(s, f"l_{name}") for name in Fields.WRITTEN))


class SixteenBits(Fields):
    """16 bits of the chunk's identity are written."""

    def written(self, s: View, name: str, value: Any) -> Any:
        """Cut it."""
        return value % 2**16 if name == "chunk" else value


def _without(name: str) -> type[Fields]:
    written = tuple(each for each in Fields.WRITTEN if each != name)
    return type(f"Without{name.title()}", (Fields,), {
        "WRITTEN": written, "__doc__": f"The {name} is not in the key.", "__module__": __name__})


class Text(Theory):
    """One text, read as a key in two ways, `k` and `l`, which might be two different keys.

    A key is its mandatory fields, then those optional ones that it has, each as a tag and a value, and each field is
    followed by the separator. `k_start(i)` is where the i-th field starts; it has `k_fields` of them. `char` says what
    stands where, `k_has(i)` that the optional field i is there. So both ways are one key just when they have the same
    optional fields, and every field starts at the same place in both.
    """

    MANDATORY, OPTIONAL, SEPARATOR, TAG = 5, 2, 0, 1

    length = Rigid(Int)
    char = Rigid(Int, Int)
    k_fields = Rigid(Int)
    k_start = Rigid(Int, Int)
    k_has = Rigid(Int, Bool)
    l_fields = Rigid(Int)
    l_start = Rigid(Int, Int)
    l_has = Rigid(Int, Bool)

    def free(self, s: View, key: str, i: Any) -> Formula:
        """Field i of the key holds no separator, as names with one in them are escaped."""
        start = getattr(s, f"{key}_start")
        return forall(Int, lambda p: z3.Implies(within(start(i), p, start(i + 1) - 1), s.char(p) != self.SEPARATOR))

    def tagged(self, s: View, start: Any, number: int, place: Any) -> Formula:
        """The optional field of that number starts with its tag."""
        return s.char(start(place)) == self.TAG + number

    def place(self, has: Any, number: int) -> Any:
        """As which field of the text an optional field comes."""
        place: Any = z3.IntVal(self.MANDATORY)
        for earlier in range(number):
            place = place + z3.If(has(earlier), 1, 0)
        return place

    def read_as(self, s: View, key: str) -> list[Formula]:
        """The text is that of a key with these fields."""
        start, has, fields = (getattr(s, f"{key}_{name}") for name in ("start", "has", "fields"))
        most = self.MANDATORY + self.OPTIONAL
        parts = [start(0) == 0, fields == self.place(has, self.OPTIONAL)]
        for i in range(most):
            end = start(i + 1) - 1
            parts.append(z3.Implies(i < fields, z3.And(
                end >= start(i), s.char(end) == self.SEPARATOR, self.free(s, key, z3.IntVal(i)))))
        parts += [z3.Implies(fields == n, start(n) == s.length) for n in range(self.MANDATORY, most + 1)]
        for number in range(self.OPTIONAL):
            for at in range(self.MANDATORY, most):
                parts.append(z3.Implies(z3.And(has(number), self.place(has, number) == at), z3.And(
                    start(at + 1) - 1 > start(at), self.tagged(s, start, number, z3.IntVal(at)))))
        return parts

    def axioms(self, s: View) -> list[Formula]:
        """The text is read as a key in two ways."""
        return [*self.read_as(s, "k"), *self.read_as(s, "l")]

    def sized(self, s: View, size: int) -> list[Formula]:
        """A text of at most `size` characters, out of four."""
        return [s.length <= size, *(within(0, s.char(p), 4) for p in range(size + 1)),
                *(within(0, start(p), size + 1) for p in range(size + 1) for start in (s.k_start, s.l_start))]

    def same(self, s: View) -> Formula:
        """Both ways are the same."""
        options = [s.k_has(number) == s.l_has(number) for number in range(self.OPTIONAL)]
        starts = [z3.Implies(i <= s.k_fields, s.k_start(i) == s.l_start(i))
                  for i in range(self.MANDATORY + self.OPTIONAL + 1)]
        return z3.And(s.k_fields == s.l_fields, *options, *starts)


class Untagged(Text):
    """Optional fields are written without a tag."""

    def tagged(self, s: View, start: Any, number: int, place: Any) -> Formula:
        """Write the value alone."""
        return z3.BoolVal(True)


class NameUnescaped(Text):
    """A name is written as it is, although it may hold the separator."""

    def free(self, s: View, key: str, i: Any) -> Formula:
        """The adapter's and the model's names may hold anything."""
        return z3.Or(i == 0, i == self.MANDATORY, super().free(s, key, i))


_ASSUMES = ("a stored key carries the rank of whoever stores it, and is stored at that rank's instance",)
_ALL = "every mode, all W, every rank, read and chunk, any owner map (c mod W among them)"
_TEXT = ((1, 8), (1, 9), (1, 10))


def _every(s: View, body: Any) -> Formula:
    return forall(Rank, Int, lambda r, c: z3.And(*[body(read, r, c) for read in READ.values()]))


OBLIGATIONS: tuple[Obligation, ...] = (
    Fact(
        id="keys.read-is-written", claim="a read asks by the key under which the chunk was stored", scope=_ALL,
        theory=Worker, fragment="UFLIA with quantifiers, enumerations", assumes=_ASSUMES,
        goal=lambda theory, s: _every(s, lambda read, r, c: theory.stores(s, theory.asks(s, read, r, c), r, c)),
        interesting=lambda theory, s: [s.mode == SHARDED, exists(Rank, lambda r: r != s.owner(0))],
        mutants=(
            Mutant("not-rewritten", "the asynchronous get does not rewrite the worker in its key", NotRewritten,
                   "a rank other than worker 0 asks for a key that nobody stores, and waits or misses for ever"),
            Mutant("exists-own-rank", "the existence check asks by the reader's rank where chunks are sharded",
                   ExistsNotSharded, "the chunk is there, under its owner's key, and is said to be absent"),
        ),
    ),
    Fact(
        id="keys.instance", claim="resp://valkey-{rank} leads every read to the instance where the chunk was stored",
        scope=_ALL, theory=Worker, fragment="UFLIA with quantifiers, enumerations", assumes=(
            *_ASSUMES, "{rank} is replaced by the worker in the key"),
        goal=lambda theory, s: _every(
            s, lambda read, r, c: theory.stores(s, theory.instance(s, read, r, c), r, c)),
        interesting=lambda theory, s: [s.mode == SHARDED, exists(Rank, lambda r: r != s.owner(0))],
        mutants=(
            Mutant("readers-rank", "{rank} is replaced by the rank that reads", ReadersInstance,
                   "it asks an instance that the chunk was never stored on"),
            Mutant("not-rewritten", "the asynchronous get does not rewrite the worker in its key", NotRewritten,
                   "the key and the instance are the reader's own, where nothing is stored"),
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
    Fact(
        id="keys.distinct",
        claim="keys are equal only if model, world size, worker, chunk, dtype, adapter and salt are",
        scope="all values", theory=Fields, fragment="LIA", sizes=((1, 0), (1, 1)),
        hypotheses=lambda theory, s: [theory.same_key(s)], goal=lambda theory, s: theory.same(s),
        assumes=("two values of a field are written differently (numbers in decimal, names escaped, none as nothing)",),
        mutants=(
            Mutant("sixteen-bits", "16 bits of the chunk's identity are written", SixteenBits,
                   "two different chunks (images) have one key, and one is served for the other"),
            *(Mutant(f"no-{name}", f"the {name} is left out of the key", _without(name),
                     f"two that differ in their {name} share what is stored") for name in Fields.WRITTEN),
        ),
    ),
    Fact(
        id="keys.parse", claim="a text is the text of at most one key, so parse(format(k)) = k",
        scope="five mandatory and two optional fields of any length; the separator ends each, a tag starts an optional "
        "one",
        theory=Text, fragment="UFLIA with quantifiers", sizes=_TEXT,
        assumes=("names are escaped, so that no field as it is written holds the separator",
                 "parse looks for the fields of a text; what is proved is that there is only one way to find them"),
        goal=lambda theory, s: theory.same(s),
        interesting=lambda theory, s: [s.k_has(0), s.k_has(1)],
        mutants=(
            Mutant("untagged", "optional fields are written without a tag", Untagged,
                   "an adapter without a salt, and a salt without an adapter, have one key"),
            Mutant("separator-in-name", "a name is written as it is, with the separator in it", NameUnescaped,
                   "the end of the name is read as the next field"),
        ),
    ),
)
