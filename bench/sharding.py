"""What it takes W ranks to load a prompt: from one shared Valkey and from one a rank, and what the protocol adds.

Run it by itself: ``python -m bench.sharding``. It starts valkey-servers and ranks of its own, with nothing between
them, and prints ratios within this run, beside those of the source (facts: 1). Nothing is asserted: how many cores
there are decides most of it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from kvproof import connectors
from kvproof.connectors.rank_adapter import Load
from kvproof.ranks import inside
from kvproof.ranks.check import grounds
from kvproof.ranks.world import World
from kvproof.runner import Returned
from kvproof.runner.buffers import poisoned
from kvproof.runner.child import Session

CHUNK = 256 * 48_400
"""Bytes in one chunk: 256 tokens of 48.4 KB (facts: 1)."""
SOURCE = {"times one instance": 6.3, "fixed cost in seconds": 0.33}
"""What the source measured: eight ranks, eight instances (facts: 1)."""
SHARED, OWN = Load("shared", replicated=True), Load("own")


def gets(session: Session, chunks: Sequence[str], rounds: int, share: bool) -> list[float]:
    """Get this rank's part of the chunks, `rounds` times, together with all ranks; return the seconds of each."""
    rank: Any = inside.current()
    mine = [chunk for index, chunk in enumerate(chunks) if index % rank.place.place.world_size == rank.place.place.rank]
    took = []
    for _ in range(rounds):
        rank.group.exchange([0])
        begun = time.perf_counter()
        got = rank._fetched(mine if share else list(chunks))
        took.append(time.perf_counter() - begun)
        assert len(got) == len(mine if share else chunks), "a chunk did not come"
    return took


def loads(session: Session, chunks: Sequence[str], rounds: int) -> list[float]:
    """Load all of the chunks by the protocol, `rounds` times; return the seconds of each."""
    rank: Any = inside.current()
    took = []
    items = [(chunk, poisoned(rank.place.place.chunk_bytes, rank.place.place.device)) for chunk in chunks]
    for _ in range(rounds):
        rank.group.exchange([0])
        begun = time.perf_counter()
        assert rank.load(items) == len(chunks), "not all was loaded"
        took.append(time.perf_counter() - begun)
    return took


def exchanges(session: Session, rounds: int) -> list[float]:
    """Make an exchange of what a load exchanges, `rounds` times; return the seconds of each."""
    rank: Any = inside.current()
    took = []
    for _ in range(rounds):
        begun = time.perf_counter()
        rank.group.exchange([1, 2, 3, 4])
        took.append(time.perf_counter() - begun)
    return took


def slowest(world: World, function: str, **arguments: Any) -> list[float]:
    """Call a function of this file in every rank at once; return for each round how long the slowest rank took."""
    answers = world.each(function, 300.0, lambda rank: arguments, where="bench.sharding:")
    found = []
    for answer in answers:
        if not isinstance(answer, Returned):
            raise SystemExit(f"bench/sharding.py: a rank failed: {answer}")
        found.append(answer.value)
    return [max(each) for each in zip(*found, strict=True)]


def measure(ranks: int, chunks: int, rounds: int) -> dict[str, float]:
    """Return bytes a second from one instance and from one a rank, and seconds of loads, gets and exchanges.

    plain: every rank gets every chunk itself, from one instance. load: each gets its own from an instance of its own,
    and the ranks exchange and broadcast. All of it interleaved.
    """
    connector = connectors.find("sharded-reference")
    names = [f"{index:04x}" for index in range(chunks)]
    found: dict[str, list[float]] = {"shared": [], "own": [], "plain": [], "load": [], "exchange": []}
    with grounds(ranks, "cpu") as make:
        ground = make(connector, threading.Event())
        worlds = {how.name: World(ground, f"bench-{how.name}", how, chunk_bytes=CHUNK, direct=True)
                  for how in (SHARED, OWN)}
        with worlds["shared"] as shared, worlds["own"] as own:
            for world in (shared, own):
                answers = world.each("store", 60.0, lambda rank: {"chunks": [(name, 1) for name in names]})
                assert all(isinstance(answer, Returned) for answer in answers), answers
            for turn in range(rounds + 1):
                order = ["shared", "own", "plain", "load"]
                for what in order if turn % 2 else reversed(order):
                    if what == "load":
                        took = slowest(own, "loads", chunks=names, rounds=1)
                    else:
                        world = own if what == "own" else shared
                        took = slowest(world, "gets", chunks=names, rounds=1, share=what != "plain")
                    found[what] += took if turn else []
            found["exchange"] = slowest(own, "exchanges", rounds=50)[10:]
    medians = {name: statistics.median(those) for name, those in found.items()}
    total = chunks * CHUNK
    return {"shared": total / medians["shared"], "own": total / medians["own"], "gets": medians["own"],
            "plain": medians["plain"], "load": medians["load"], "exchange": medians["exchange"]}


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--chunks", type=int, default=8, help="chunks of 12.4 MB in the prompt")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    print(f"{options.chunks} chunks of {CHUNK} bytes, medians of {options.rounds}, {os.cpu_count()} cores", flush=True)
    print("ranks   one instance     one a rank  ratio  load/plain load  own gets/load  exchange/load")
    for ranks in (1, 2, 4):
        found = measure(ranks, options.chunks, options.rounds)
        print(f"{ranks:>5} {found['shared'] / 1e9:>9.2f} GB/s {found['own'] / 1e9:>9.2f} GB/s "
              f"{found['own'] / found['shared']:>6.2f} {found['load'] / found['plain']:>16.2f} "
              f"{found['gets'] / found['load']:>14.2f} {found['exchange'] / found['load']:>14.4f}", flush=True)
    print(f"the source: 8 ranks, 8 instances against 1: {SOURCE['times one instance']} times; a load's fixed cost "
          f"{SOURCE['fixed cost in seconds']} s, of an engine and its scheduler, which are not here")
    print("Servers and ranks share the cores of this machine: more of both than cores can show no more bandwidth, only "
          "that nobody waits for anybody else's instance. The network is the loopback interface.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
