"""How fast a log is written and judged: the recorder beside a bare write, and 100,000 events of load steps.

Run it by itself: ``python bench/logs.py [EVENTS]``.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import time
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


def written(path: Path, events: int, choose: random.Random) -> int:
    """Record random load steps of 4 ranks and 8 chunks until there are so many events; return how many."""
    count = step = 0
    recorders = [Recorder(path, rank) for rank in range(4)]
    while count < events:
        world = World.begin((Plan(8),) * 4, round_robin(8, 4))
        for record in recorders:
            record("begin", step=step, world_size=4, length=8, owners=list(world.owners))
        count += 4
        while now := list(world.events()):
            event = choose.choice(now)
            values = {"chunk": event.chunk} if event.chunk >= 0 else {}
            recorders[event.rank](event.name, step=step, **values)
            world, count = world.after(event), count + 1
        step += 1
    for record in recorders:
        record.close()
    return count


def main() -> int:
    """Print both."""
    events = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    with tempfile.TemporaryDirectory() as directory:
        bare, ours = recorded(Path(directory))
        print(f"an event recorded in {ours * 1e6:.2f} us, a bare write in {bare * 1e6:.2f} us (below 4 us wanted)")
        count = written(Path(directory, "log"), events, random.Random(0))
        begun = time.perf_counter()
        found = validate(Path(directory, "log"))
        took = time.perf_counter() - begun
        print(f"{count} events {found.verdict} in {took:.1f} s (100,000 in less than 60 s wanted)")
    return 0 if found.verdict == "accepted" else 1


if __name__ == "__main__":
    sys.exit(main())
