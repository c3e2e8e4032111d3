"""round-trip: what was stored is read back, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kvproof.rules.cell import Cell
from kvproof.rules.plan import Plan
from kvproof.rules.rule import Case, Rule

SIZES = (0, 1, 2, 15, 16, 17, 127, 128, 129, 255, 256, 257, 1023, 1024, 1025, 4095, 4096, 4097, 16383, 16384, 16385,
         65535, 65536, 65537, 131071, 131072, 131073, 1048575, 1048576, 1048577, 12_390_400)
"""Chunk sizes in bytes: around powers of two, where buffers end, and one chunk of 256 tokens of 48.4 KB (facts: 1)."""
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp8": "float8_e4m3fn"}
LOOKS = {
    "nil": "$-1\r\n", "error": "-ERR no\r\n", "array": "*2\r\n$1\r\na\r\n", "map": "%1\r\n+a\r\n+b\r\n",
    "bulk": "$4096\r\n", "push": ">2\r\n+invalidate\r\n_\r\n", "line-ends": "\r\n\r\n\r\n\r\n", "zeros": "\0" * 64,
}
"""What a payload begins with that could be taken for something else."""


LARGE = 65_536
"""Bytes of a chunk that no reply buffer holds whole (valkey-glide issue 6937: typed by its first byte over 16 KB)."""


def sized(size: int) -> dict[str, Any]:
    """Return the place of a chunk of so many bytes, with a timeout that a slow client needs for large ones."""
    return {"chunk_bytes": size} | ({"timeout": 5.0} if size > 2**20 else {})


def cases(plan: Plan) -> Iterator[Case]:
    """Try each size, element type and look, and what does no more than cut a right reply into pieces."""
    for read in plan.reads():
        sizes = SIZES if read.payload else (4096,)
        for size in sizes:
            if plan.described.holds(size):
                yield Case(f"none:{size}B", read, place=sized(size))
        for name, dtype in DTYPES.items() if read.payload else ():
            yield Case(f"none:{name}", read, place={"dtype": dtype})
        for look, begins in LOOKS.items() if read.payload else ():
            yield Case(f"none:looks-like-{look}", read, given={"begins": begins})
            yield Case(f"none:looks-like-{look}:{LARGE}B", read, place=sized(LARGE), given={"begins": begins})
    yield from plan.disturbed(plan.reads(), "present", "harmless")


def check(cell: Cell) -> None:
    """What was stored is read back bit for bit, whatever its size, type and look, and however the reply is cut."""
    begins = str(cell.case.given.get("begins", ""))
    rig = cell.open()
    cell.put(rig, *((chunk, 1) for chunk in cell.victims), begins=begins, judged=True)
    cell.misses(cell.strike(rig, begins), "after it was stored")


RULE = Rule("round-trip", cases, check)
