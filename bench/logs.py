"""How fast a log is written and judged: the recorder beside a bare write, and 100,000 events of each protocol.

Run it by itself: ``python bench/logs.py [EVENTS]``.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

from kvproof.models.load import Plan, World, round_robin
from kvproof.recorder import Recorder
from kvproof.validate import validate

ROUNDS, CALLS = 40, 2000
LINE = b'{"rank":0,"seq":1234,"step":12,"event":"enter_broadcast","values":{"chunk":3}}\n'


def recorded(directory: Path) -> tuple[float, float]:
    """Return the median seconds of a bare write and of a recorded event, interleaved."""
    bare, ours = [], []
    descriptor = os.open(directory / "bare", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with Recorder(directory / "ours") as record:
        for _ in range(ROUNDS):
            begun = time.perf_counter()
            for _ in range(CALLS):
                os.write(descriptor, LINE)
            bare.append((time.perf_counter() - begun) / CALLS)
            begun = time.perf_counter()
            for number in range(CALLS):
                record("enter_broadcast", step=number, chunk=3)
            ours.append((time.perf_counter() - begun) / CALLS)
    os.close(descriptor)
    return median(bare), median(ours)


def written(path: Path, events: int, choose: random.Random, ranks: int, chunks: int) -> None:
    """Record random load steps until there are so many events."""
    count = step = 0
    recorders = [Recorder(path, rank) for rank in range(ranks)]
    while count < events:
        world = World.begin((Plan(chunks),) * ranks, round_robin(chunks, ranks))
        for record in recorders:
            record("begin", step=step, world_size=ranks, length=chunks, owners=list(world.owners))
        count += ranks
        while now := list(world.events()):
            event = choose.choice(now)
            values = {"chunk": event.chunk} if event.chunk >= 0 else {}
            recorders[event.rank](event.name, step=step, **values)
            world, count = world.after(event), count + 1
        step += 1
    for record in recorders:
        record.close()


def connections(path: Path, events: int) -> None:
    """Record a connection for each request until there are so many events."""
    with Recorder(path) as record:
        for number in range(events // 4):
            for event in ("send", "read", "give_back", "drop"):
                record(event, step=number)


def operations(path: Path, events: int, flying: int) -> None:
    """Record operations, `flying` of which are in flight at once, until there are so many events."""
    with Recorder(path) as record:
        for number in range(events // 3 + flying):
            if number < events // 3:
                record("register", operation=number)
                record("submit", operation=number)
            if number >= flying:
                record("drain", operation=number - flying)


def main() -> int:
    """Print both."""
    events = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    with tempfile.TemporaryDirectory() as directory:
        bare, ours = recorded(Path(directory))
        print(f"an event recorded in {ours * 1e6:.2f} us, a bare write in {bare * 1e6:.2f} us (below 4 us wanted)")
        verdicts, log = set(), Path(directory, "log")
        cases: dict[str, tuple[str, Callable[[], None]]] = {
            f"load steps, {ranks} ranks x {chunks} chunks":
                ("load", partial(written, log, events, random.Random(0), ranks, chunks))
            for ranks, chunks in ((1, 0), (2, 0), (4, 8), (8, 256))}
        cases["a connection for each request"] = ("ownership", partial(connections, log, events))
        cases["20 operations in flight"] = ("completion", partial(operations, log, events, 20))
        for name, (protocol, record) in cases.items():
            log.unlink(missing_ok=True)
            record()
            begun = time.process_time()
            found = validate(log, protocol)
            took = (time.process_time() - begun) * 100_000 / found.events
            print(f"{name}: {found.events} events {found.verdict}, 100,000 in {took:.1f} s (less than 60 s wanted)")
            verdicts.add(found.verdict)
    return 0 if verdicts == {"accepted"} else 1


if __name__ == "__main__":
    sys.exit(main())
