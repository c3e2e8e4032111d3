"""Round trips of real chunk sizes and element types: what is read is what was stored, on the host or on a GPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from kvproof.connectors import Connector
from kvproof.errors import KvproofError
from kvproof.faults.servers import Server
from kvproof.replays.stage import Replay, Stage, stage_for
from kvproof.results import CellRow, Where
from kvproof.rig import NotOpened, Unsupported
from kvproof.runner import verdict_of
from kvproof.runner.forks import Forks

SIZES = (4096, 1 << 20, 12_390_400)
"""Bytes in a chunk; the last is 256 tokens of 48.4 KB (facts: 1)."""
DTYPES = ("bfloat16", "float8_e4m3fn")
_RULE = Replay("round-trip", "what is read is what was stored", lambda stage: [])
_KNOWN = [("ab12", 7)]
_CHUNK = "ab12"


def run(connectors: list[Connector], server: Server, device: str, progress: Callable[[CellRow], None]) -> list[CellRow]:
    """Store and read every size and element type by every read that fills a buffer; return one cell for each."""
    rows: list[CellRow] = []
    with Forks(device) as forks:
        for connector in connectors:
            for row in _connector(connector, server, forks, device):
                progress(row)
                rows.append(row)
    return rows


def _connector(connector: Connector, server: Server, forks: Forks, device: str) -> Iterator[CellRow]:
    def row(read: str, fault: str, verdict: str, explain: str, seconds: float = 0.0) -> CellRow:
        where = Where(1, device, server.description)
        return CellRow(connector.name, connector.version, where, "round-trip", fault, read, verdict, seconds, explain)

    try:
        stage = stage_for(_RULE, connector, server, forks, device)
    except Unsupported as error:
        yield row("any", "none", "unsupported", str(error))
        return
    except KvproofError as error:
        yield row("any", "none", "error", str(error))
        return
    for dtype in DTYPES:
        for size in SIZES:
            for read in stage.described.payload_reads():
                begun = time.monotonic()
                verdict, explain = _round_trip(stage, read.name, dtype, size)
                seconds = round(time.monotonic() - begun, 3)
                yield row(read.name, "none", verdict, f"{size} bytes of {dtype}: {explain}", seconds)


def _round_trip(stage: Stage, read: str, dtype: str, size: int) -> tuple[str, str]:
    place = stage.place(f"{read} {dtype} {size}", chunk_bytes=size, dtype=dtype)
    try:
        with stage.rig(place) as rig:
            rig.put(*_KNOWN)
            found = rig.read(read, _CHUNK, _KNOWN)
    except NotOpened as error:
        return "fail", str(error)
    except KvproofError as error:
        return "error", str(error)
    if found.own(_KNOWN):
        return "pass", f"came back whole in {found.seconds} s"
    verdict = verdict_of(found.answer) if found.ended_the_runner and found.answer is not None else "fail"
    return verdict, f"{found.outcome}, and the buffer holds {found.holds}"
