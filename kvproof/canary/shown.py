"""What a canary has seen, for a person and as data."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from kvproof.canary import stacks
from kvproof.canary.cause import Cause, signs
from kvproof.canary.factors import Effect, Levels
from kvproof.canary.setting import setting
from kvproof.canary.tree import Process, Tree
from kvproof.traces.text import printable

SCHEMA = "kvproof.canary/2"
_SHOWN = 40
_SIGNS = 3
"""Signs beside the cause that are shown."""
Run = tuple[Levels, int, Tree, Cause | None]
"""A combination of levels, the how-manieth time, what became of the command, and why it failed."""


def lines(runs: Sequence[Run], effects: Sequence[Effect]) -> list[str]:
    """Return what happened, the cause first; of several runs a line each, then which factor matters."""
    if len(runs) == 1:
        return [printable(line) for line in _one(runs[0])]
    out = []
    for levels, number, tree, why in runs:
        at = ", ".join(f"{name}={level}" for name, level in levels.items())
        told = f"starts in {tree.ready or tree.seconds:.1f} s" if why is None else f"FAILS: {why}"
        out.append(printable(f"{at}{f', run {number + 1}' if any(each[1] for each in runs) else ''}: {told}"))
    if effects:
        out += ["", ("which factor matters: by how much the share of starts that fail differs between its levels "
                     f"({len(runs)} starts)")]
        for effect in effects:
            rates = ", ".join(f"{' x '.join(levels)} {rate:.0%}" for levels, rate in effect.rates.items())
            out.append(printable(f"  {' x '.join(effect.factors):<24} {effect.size:>5.0%}   {rates}"))
    return out


def _one(run: Run) -> list[str]:
    _, _, tree, why = run
    out = [f"it starts: it serves after {tree.ready:.2f} s" if tree.ready is not None else "it ended with exit code 0"
           ] if why is None else [f"{'a hang' if why.kind == 'hang' else 'root cause'}: {why}"]
    if why is not None and tree.how == "hang" and why.kind != "hang":
        out.append("then: it neither served nor ended in time")
    out += [f"{'but' if why is None else 'then'}: {sign}" for sign in signs(tree) if str(sign) != str(why)][:_SIGNS]
    count = len(tree.processes)
    out += ["", f"{count} process{'es' if count > 1 else ''}, {tree.seconds:.1f} s:"]
    depth = {tree.first: 0}
    quiet = [process for process in tree.processes.values() if process is not tree.root and not process.size
             and process.status == 0]
    told = [process for process in tree.processes.values() if process not in quiet]
    for process in told[:_SHOWN]:
        # What lies between them may be left out.
        depth[process.pid] = depth.get(process.parent, 0) + (process.pid != tree.first)
        how = "ended by the canary" if process.stopped else process.how
        dropped = f", {process.dropped} more in the middle were not kept" if process.dropped else ""
        out.append(f"  {'  ' * depth[process.pid]}{process.pid} {process.command[:90]}: {how}, "
                   f"{len(process.text(tree.over).encode())} bytes of output{dropped}")
    if len(told) > _SHOWN:
        out.append(f"  and {len(told) - _SHOWN} more")
    if quiet:
        out.append(f"  and {len(quiet)} that printed nothing and ended with exit code 0")
    for path, text in tree.logs.items():
        out.append(f"  log {path}: {len(text)} characters")
    for pid in tree.stacks:
        where = stacks.places(tree.processes[pid]) or tree.stacks[pid]
        out.append(f"  {pid} was in {'; '.join(where[:4])}")
    if why is not None:
        last = [piece for process in tree.processes.values() for piece in process.output if piece.at <= tree.over]
        last.sort(key=lambda piece: piece.at)
        tail = b"".join(piece.data for piece in last[-20:]).decode(errors="replace").splitlines()[-12:]
        out += ["", "last lines of all:", *(f"  {line}" for line in tail)] if tail else ["", "nobody printed anything"]
    return out


def document(runs: Sequence[Run], effects: Sequence[Effect]) -> dict[str, Any]:
    """Return all of it as JSON data."""
    return {
        "schema": SCHEMA, "setting": setting(tree for _, _, tree, _ in runs), "runs": [
            {"levels": dict(levels), "number": number, "command": list(tree.command), "how": tree.how,
             "ready": tree.ready, "seconds": tree.seconds, "cause": asdict(why) if why is not None else None,
             "signs": [asdict(sign) for sign in signs(tree)], "over": tree.over if tree.over < math.inf else None,
             "processes": [_process(process, tree) for process in tree.processes.values()], "logs": tree.logs}
            for levels, number, tree, why in runs],
        "effects": [{"factors": list(effect.factors), "size": effect.size, "rates": [
            {"levels": list(levels), "failed": rate} for levels, rate in effect.rates.items()]} for effect in effects]}


def _process(process: Process, tree: Tree) -> dict[str, Any]:
    status = process.status
    code = os.WEXITSTATUS(status) if status is not None and os.WIFEXITED(status) else None
    return {
        "pid": process.pid, "parent": process.parent, "command": process.command, "began": round(process.began, 3),
        "ended": process.ended, "exit_code": code,
        "signal": os.WTERMSIG(status) if status is not None and os.WIFSIGNALED(status) else None,
        "stopped": process.stopped, "dropped": process.dropped, "kernel": tree.stacks.get(process.pid, []),
        "stacks": stacks.threads(process),
        "output": [{"at": piece.at, "stream": piece.stream, "text": piece.data.decode(errors="replace")}
                   for piece in process.output]}


def outputs(tree: Tree) -> dict[str, str]:
    """Return each process's output by the name of its file."""
    return {f"{process.pid}.txt": process.text(marked=True) for process in tree.processes.values() if process.output}
