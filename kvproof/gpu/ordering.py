"""device-ordered: a store sees what a kernel before it wrote, and a load is there for the kernel after it.

Before and after are those of the stream that is current where the connector is called. A connector that copies on a
stream of its own has to make it wait for that one before a store, and that one wait for its own after a load. Neither
shows while copies are fast, so work that is still going on is put before both: kernels on another stream, whose end
the current stream waits for, before the store; long copies to the device, which keep its copy engine busy, before the
load.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from kvproof.connectors import Connector
from kvproof.errors import KvproofError
from kvproof.faults.raw_resp import RawResp
from kvproof.faults.servers import Server
from kvproof.models import payloads
from kvproof.replays.stage import Replay, Stage, stage_for
from kvproof.results import CellRow, Where
from kvproof.rig import NotOpened, Unsupported, briefly
from kvproof.rules.rule import NotFelt
from kvproof.runner import Returned, buffers, calls
from kvproof.runner.child import Session
from kvproof.runner.forks import Forks

RULE = "device-ordered"
BYTES = 1 << 20
"""In the chunk that is stored and loaded."""
_KERNELS = 400
"""Products of two square matrices of `_SIDE` that a store has to wait for: many milliseconds on any GPU."""
_SIDE = 4096
_COPIES = 64
"""Copies of `_COPIED` bytes that go to the device before a load."""
_COPIED = 64 << 20
_CHUNK = "0d0d"
_REPLAY = Replay(RULE, __doc__.splitlines()[0].partition(": ")[2], lambda stage: [])


def run(
    found: list[Connector], server: Server, device: str, progress: Callable[[CellRow], None], stopped: threading.Event
) -> list[CellRow]:
    """Try the rule on a store, and on every read that fills a buffer; return one cell for each."""
    rows: list[CellRow] = []
    with Forks(device) as forks:
        for connector in found:
            for row in () if stopped.is_set() else _connector(connector, server, forks, device):
                progress(row)
                rows.append(row)
    return rows


def _connector(connector: Connector, server: Server, forks: Forks, device: str) -> Iterator[CellRow]:
    def row(read: str, verdict: str, explain: str, seconds: float = 0.0) -> CellRow:
        where = Where(1, device, server.description)
        return CellRow(connector.name, connector.version, where, RULE, "none", read, verdict, seconds, explain)

    if device == "cpu":
        yield row("any", "unsupported", "buffers on the host are on no stream")
        return
    try:
        stage = stage_for(_REPLAY, connector, server, forks, device)
    except Unsupported as error:
        yield row("any", "unsupported", str(error))
        return
    except KvproofError as error:
        yield row("any", "error", str(error))
        return
    cases: dict[str, Callable[[Stage], tuple[str, str]]] = {"put": _stored}
    cases |= {read.name: partial(_loaded, read=read.name) for read in stage.described.payload_reads()}
    for name, case in cases.items():
        begun = time.monotonic()
        try:
            verdict, explain = case(stage)
        except NotFelt as error:
            verdict, explain = "not-felt", str(error)
        except NotOpened as error:
            verdict, explain = "fail", str(error)
        except KvproofError as error:
            verdict, explain = "error", str(error)
        yield row(name, verdict, explain, round(time.monotonic() - begun, 3))


def _stored(stage: Stage) -> tuple[str, str]:
    """Store a chunk that kernels are still to write, and look at what the server has then."""
    with stage.rig(stage.place("ordered put", chunk_bytes=BYTES)) as rig:
        answer = rig.run("kvproof.gpu.ordering:inside_store", chunk=_CHUNK)
        if not isinstance(answer, Returned):
            return "fail", f"put of a buffer that a kernel was still to write: {briefly(answer)}"
        _pending(answer.value["pending"])
        if answer.value["outcome"] != "hit":
            return "fail", f"put of a buffer that a kernel was still to write: {answer.value['outcome']}"
        with RawResp.connect(rig.direct.host, rig.direct.port, password=rig.direct.password) as raw:
            values = [raw.get(key) for key in rig.stored(_CHUNK)]
    wanted = payloads.encode(_CHUNK, 1, BYTES)
    if any(value is not None and wanted in value for value in values):
        return "pass", ""
    return "fail", ("put did not wait for what was before it on the current stream: what is stored is not what the "
                    "kernel before it wrote")


def _loaded(stage: Stage, read: str) -> tuple[str, str]:
    """Load a chunk while the copy engine is busy, and look at what a kernel after it saw."""
    with stage.rig(stage.place(f"ordered {read}", chunk_bytes=BYTES)) as rig:
        rig.put((_CHUNK, 1))
        answer = rig.run("kvproof.gpu.ordering:inside_load", read=read, chunk=_CHUNK)
    if not isinstance(answer, Returned):
        return "fail", f"{read} while the copy engine is busy: {briefly(answer)}"
    _pending(answer.value["pending"])
    if answer.value["outcome"] != "hit":
        return "fail", f"{read} while the copy engine is busy: {answer.value['outcome']}"
    if (answer.value["holds"], answer.value["exact"]) == (f"{_CHUNK} version 1", True):
        return "pass", ""
    return "fail", (f"{read} did not make the current stream wait for its copy: the kernel after it saw "
                    f"{answer.value['holds']}")


def _pending(pending: bool) -> None:
    if not pending:
        raise NotFelt("what was put before the call had ended before it began")


def inside_store(session: Session, chunk: str) -> dict[str, Any]:
    """Store a chunk whose bytes a kernel is still to write (in the runner)."""
    import torch

    connector = session.connector
    key, written = calls.payload_item(connector, chunk, 1)
    buffer = buffers.poisoned(len(written), connector.place.device)
    other: Any = torch.cuda.Stream()
    one, two = (torch.ones(_SIDE, _SIDE, device="cuda") for _ in range(2))
    torch.mm(one, one, out=two)
    torch.cuda.synchronize()
    with torch.cuda.stream(other):
        for _ in range(_KERNELS):
            torch.mm(one, one, out=two)
        buffer.copy_(written)
    torch.cuda.current_stream().wait_stream(other)
    pending = not other.query()
    [outcome] = connector.put([(key, buffer)])
    return {"outcome": calls.words(outcome), "pending": pending}


def inside_load(session: Session, read: str, chunk: str) -> dict[str, Any]:
    """Load a chunk while the device's copy engine is busy; say what a kernel after it saw (in the runner)."""
    import torch

    connector = session.connector
    how = calls.read_named(connector, read)
    items = calls.poisoned_items(connector, how, [chunk])
    other: Any = torch.cuda.Stream()
    host = torch.zeros(_COPIED, dtype=torch.uint8, pin_memory=True)
    there = torch.empty(_COPIED, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(other):
        for _ in range(_COPIES):
            there.copy_(host, non_blocking=True)
    pending = not other.query()
    [outcome] = connector.read(how, items)
    seen = items[0][1].clone()
    torch.cuda.synchronize()
    return {**calls.examined(outcome, seen, [(chunk, 1)], 0.0), "pending": pending}
