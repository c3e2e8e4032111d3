"""What prefixes, stores, keys and costs promise: one property for each obligation, asked of any definition of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from random import Random
from typing import Any

from hypothesis import Phase, find, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

from kvproof.models import chunks, cost, placement, store, tokens
from kvproof.models.chunks import ChunkKey, Names, block_cyclic, replicated, round_robin
from kvproof.models.explore import explore
from kvproof.models.placement import Placement
from kvproof.models.store import Deal, Rank, World


@dataclass(frozen=True)
class Property:
    """A promise. right: the definition that keeps it. broken: what is wrong with a definition, "" when nothing is."""

    right: Any
    broken: Callable[[Any], str]


def searched(examples: st.SearchStrategy[Any], says: Callable[[Any, Any], str]) -> Callable[[Any], str]:
    """Return what a definition does wrong in an example, twice as many being tried as of a test."""
    def broken(definition: Any) -> str:
        profile = settings.get_profile(settings.get_current_profile_name())
        random = Random(0) if profile.derandomize else None
        try:
            example = find(examples, lambda each: says(definition, each) != "", random=random,
                           settings=settings(
                               profile, max_examples=2 * profile.max_examples, phases=[Phase.generate],
                               database=None, derandomize=False))
        except NoSuchExample:
            return ""
        return says(definition, example)

    return broken


def explored(starts: Callable[[Any], list[Any]], wrong: Callable[[Any], str]) -> Callable[[Any], str]:
    """Return what is wrong in some state that a definition reaches from one of these."""
    def broken(definition: Any) -> str:
        return next((why for start in starts(definition) if (why := explore(start, wrong=wrong).why)), "")

    return broken


@st.composite
def owner_maps(draw: st.DrawFn) -> tuple[tuple[int, ...], int]:
    """Return the owners of up to 64 chunks, by every rule and by none, and how many ranks there are."""
    ranks = draw(st.one_of(st.integers(1, 3), st.integers(1, 8)))
    length = draw(st.one_of(st.integers(0, 4), st.integers(0, 64)))
    owners = draw(st.one_of(
        st.just(round_robin(length, ranks)), st.just(replicated(length)),
        st.integers(1, 4).map(lambda block: block_cyclic(length, ranks, block)),
        st.lists(st.integers(0, ranks - 1), min_size=length, max_size=length).map(tuple)))
    return owners, ranks


def subsets(length: int) -> st.SearchStrategy[frozenset[int]]:
    """Return few chunks, or all but few."""
    whole = frozenset(range(length))
    few = st.frozensets(st.integers(0, length - 1), max_size=4) if length else st.just(whole)
    return st.one_of(few, few.map(lambda missing: whole - missing))


@st.composite
def contents(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[Rank, ...], frozenset[int]]:
    """Return a world's owners, ranks and remote store, with anything in each tier."""
    owners, ranks = draw(owner_maps())
    some = subsets(len(owners))
    memories = draw(st.lists(some, min_size=ranks, max_size=ranks))
    return owners, tuple(Rank(memory=memory) for memory in memories), draw(some)


@st.composite
def changes(draw: st.DrawFn) -> tuple[Any, int, int, tuple[str, ...]]:
    """Return a world's contents, with one chunk or more, and a rank, a chunk and tiers that are to change."""
    world = draw(contents().filter(lambda each: len(each[0]) > 0))
    owners, ranks, _ = world
    return (world, draw(st.integers(0, len(ranks) - 1)), draw(st.integers(0, len(owners) - 1)),
            draw(st.sampled_from(store.TIERS)))


def added(kind: type[World], change: Any) -> str:
    """Adding a chunk never shortens the prefix."""
    begun, r, chunk, tiers = change
    before = kind(*begun)
    after = before.put(r, chunk, tiers)
    return "" if after.prefix() >= before.prefix() else (
        f"adding chunk {chunk} shortens the prefix from {before.prefix()} to {after.prefix()}")


def evicted(kind: type[World], change: Any) -> str:
    """Evicting a chunk never lengthens the prefix."""
    begun, r, chunk, tiers = change
    before = kind(*begun)
    after = before.evict(r, chunk, tiers)
    return "" if after.prefix() <= before.prefix() else (
        f"evicting chunk {chunk} lengthens the prefix from {before.prefix()} to {after.prefix()}")


def reached(reach: Callable[[int, int, int, int], int], begun: tuple[int, int, frozenset[int]]) -> str:
    """So many hits in a row in a rank's own list mean that report."""
    length, ranks, remote = begun
    world = World(round_robin(length, ranks), (Rank(),) * ranks, remote)
    for r in range(ranks):
        own = range(r, length, ranks)
        hits = next((k for k, chunk in enumerate(own) if chunk not in remote), len(own))
        said, report = reach(hits, r, ranks, length), world.report(r)
        if said != report:
            return f"rank {r} of {ranks} has {hits} hits of {length} chunks, which is taken for {said}, not {report}"
    return ""


@st.composite
def hits(draw: st.DrawFn) -> tuple[int, int, int, int]:
    """Return prompt, block, the engine's own blocks, of which a token at least is left, and cached tokens."""
    prompt, block = draw(st.integers(1, 64)), draw(st.integers(1, 16))
    return prompt, block, draw(st.integers(0, (prompt - 1) // block)), draw(
        st.one_of(st.just(prompt), st.integers(0, prompt)))


def begun_stores(kind: type[World]) -> list[World]:
    """Return stores of up to 3 ranks, dealt in turn."""
    return [kind.begin(round_robin(length, ranks), ranks, dealt=True) for ranks, length in ((1, 2), (2, 2), (3, 3))]


def begun_replicas(kind: type[World]) -> list[World]:
    """Return stores of up to 3 ranks in which worker 0 owns everything."""
    return [kind.begin(replicated(2), ranks) for ranks in (1, 2, 3)]


def begun_deals(kind: type[Deal]) -> list[Deal]:
    """Return deals of 7 chunks to up to 4 ranks."""
    return [kind.begin(7, ranks) for ranks in (1, 2, 3, 4)]


@st.composite
def placements(draw: st.DrawFn) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
    """Return a mode, owners, and an instance for each rank, now and then one that ranks share."""
    owners, ranks = draw(owner_maps())
    hosts = draw(st.one_of(st.just(list(range(ranks))), st.lists(st.integers(0, 7), min_size=ranks, max_size=ranks)))
    return draw(st.sampled_from(placement.MODES)), owners[:6], tuple(hosts)


def names() -> st.SearchStrategy[str]:
    """Return names, many of them made of separators, escapes and tags."""
    return st.one_of(st.text("@%als", max_size=5), st.text(max_size=8))


def fields() -> dict[str, st.SearchStrategy[Any]]:
    """Return what may stand in each field of a key; chunks agree in their last 16 bits."""
    number = st.integers(0, 20)
    hashes = st.integers(0, 9).map(lambda high: f"{high << 16:064x}")
    return {"model": names(), "world_size": number, "worker": number, "chunk": hashes,
            "dtype": names(), "adapter": names(), "salt": names()}


def keys() -> st.SearchStrategy[dict[str, Any]]:
    """Return the fields of a key."""
    return st.fixed_dictionaries(fields())


@st.composite
def key_pairs(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return two keys: any two, or two that differ in one field or in two."""
    drawn = fields()
    fewer = st.sampled_from([[name] for name in drawn] * 4 + [["adapter", "salt"], ["model", "adapter"], list(drawn)])
    differ = draw(fewer)
    first = draw(keys())
    return first, {**first, **{name: draw(drawn[name]) for name in differ}}


def told_apart(kind: type[ChunkKey], pair: tuple[dict[str, Any], dict[str, Any]]) -> str:
    """Two keys have two texts."""
    first, second = kind(**pair[0]), kind(**pair[1])
    if first == second or first.format() != second.format():
        return ""
    return f"{first} and {second} are both written {first.format()!r}"


def parsed(kind: type[ChunkKey], key: dict[str, Any]) -> str:
    """parse(format(k)) = k."""
    text = kind(**key).format()
    try:
        back = kind.parse(text)
    except ValueError as error:
        return f"the text of a key is not read: {error}"
    return "" if back == kind(**key) else f"{kind(**key)} is written {text!r}, which is read as {back}"


def without_separator(kind: type[Names], name: str) -> str:
    """What is written holds no separator."""
    text = kind().write(name)
    return f"{name!r} is written {text!r}, with the separator in it" if Names.SEPARATOR in text else ""


def read_back(kind: type[Names], name: str) -> str:
    """What is written is read back."""
    text = kind().write(name)
    try:
        back = kind().read(text)
    except ValueError as error:
        return f"{name!r} is written {text!r}, which is not read: {error}"
    return "" if back == name else f"{name!r} is written {text!r}, which is read as {back!r}"


def same_owner(owner: Callable[[int, int], int], place: tuple[int, int]) -> str:
    """Another engine finds the same owner."""
    mine, other = chunks.owner(*place), owner(*place)
    return "" if mine == other else (
        f"of {place[1]} ranks, chunk {place[0]} is rank {mine}'s for one, {other}'s for another")


def figures(least: int = 1) -> st.SearchStrategy[Fraction]:
    """Return rationals, many of them small and whole so that they meet."""
    whole = st.integers(least, 4).map(Fraction)
    return st.one_of(whole, st.builds(Fraction, st.integers(least, 100), st.sampled_from((1, 2, 3, 8))))


def costs(fixed: st.SearchStrategy[Fraction]) -> st.SearchStrategy[Any]:
    """Return what loading and recomputing take, then how many tokens are hit."""
    return st.tuples(st.tuples(figures(), figures(), figures(), fixed), figures())


@st.composite
def estimates(draw: st.DrawFn) -> tuple[tuple[Fraction, ...], Fraction, Fraction]:
    """Return estimates and errors, then true times within them, which differ by about as much as they are off."""
    errors = draw(figures(0)), draw(figures(0))
    least, gap = draw(figures(0)), sum(errors) * draw(st.sampled_from([Fraction(1), Fraction(1, 2), Fraction(2)]))
    true = draw(st.sampled_from([(least + gap, least), (least, least + gap)]))
    off = draw(st.sampled_from([(-1, 1), (1, -1), (Fraction(1, 2), Fraction(-1, 2)), (0, 0)]))
    guessed = tuple(time + part * error for time, part, error in zip(true, off, errors, strict=True))
    return (*guessed, *errors), *true


def queued(kind: type[cost.Backlog], begun: tuple[tuple[Fraction, Fraction, Fraction], int]) -> str:
    """No arrival makes of the backlog what it should not be."""
    queue = kind.begin(*begun[0])
    for _ in range(begun[1]):
        [event] = queue.events()
        queue = queue.after(event)
        if why := cost.runaway(queue):
            return why
    return ""


_prefix = searched(contents(), lambda kind, begun: store.prefix_wrong(kind(*begun)))
_queues = st.tuples(st.tuples(figures(), figures(), figures(0)), st.integers(1, 8))

PROPERTIES: dict[str, Property] = {
    "prefix.minimum": Property(World, _prefix),
    "prefix.two-tiers": Property(World, _prefix),
    "prefix.round-robin": Property(store.reach, searched(
        st.integers(0, 64).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, 8), subsets(n))), reached)),
    "prefix.adding": Property(World, searched(changes(), added)),
    "prefix.evicting": Property(World, searched(changes(), evicted)),
    "prefix.tokens": Property(tokens.Hit, searched(hits(), lambda kind, hit: tokens.complaint(kind(*hit)))),
    "store.once": Property(World, explored(begun_stores, store.complaint)),
    "store.replicated": Property(World, explored(begun_replicas, store.complaint)),
    "store.even": Property(Deal, explored(begun_deals, store.uneven_shares)),
    "store.slice": Property(Deal, explored(begun_deals, store.overfull)),
    "keys.read-is-written": Property(Placement, searched(
        placements(), lambda kind, begun: placement.unserved(kind(*begun)))),
    "keys.instance": Property(Placement, searched(placements(), lambda kind, begun: placement.misled(kind(*begun)))),
    "keys.same-owner": Property(chunks.owner, searched(
        st.tuples(st.integers(0, 1000), st.integers(1, 64)), same_owner)),
    "keys.distinct": Property(ChunkKey, searched(key_pairs(), told_apart)),
    "keys.parse": Property(ChunkKey, searched(keys(), parsed)),
    "keys.escaped": Property(Names, searched(names(), without_separator)),
    "keys.unescaped": Property(Names, searched(names(), read_back)),
    "cost.break-even": Property(cost.Cost, searched(
        costs(st.just(Fraction(0))), lambda kind, at: cost.wrong_choice(kind(*at[0]), at[1]))),
    "cost.least-tokens": Property(cost.Cost, searched(
        costs(figures(0)), lambda kind, at: cost.wrong_choice(kind(*at[0]), at[1]))),
    "cost.floor": Property(cost.Cost, searched(
        costs(figures(0)), lambda kind, at: cost.below_floor(kind(*at[0]), at[1]))),
    "cost.regret": Property(cost.Choice, searched(
        estimates(), lambda kind, at: cost.regrets(kind(*at[0]), *at[1:]))),
    "cost.backlog": Property(cost.Backlog, searched(_queues, queued)),
    "cost.split": Property(cost.Split, searched(
        st.tuples(figures(), figures(), figures(), st.integers(1, 64)),
        lambda kind, figures: cost.badly_split(kind(*figures)))),
}
