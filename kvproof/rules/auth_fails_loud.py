"""auth-fails-loud: a wrong password is told, and no password is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from kvproof.rig import NotOpened, Unsupported
from kvproof.rules.cell import Cell
from kvproof.rules.plan import Plan
from kvproof.rules.rule import Broken, Case, Rule

SECRET = "kvproof-Tr0ub4dor"
WRONG = "kvproof-wr0ng-Secret"


def cases(plan: Plan) -> Iterator[Case]:
    """Open with the right password, a wrong one and none, on a server that has one."""
    for read in plan.reads() if plan.described.truth == "resp" else ():
        for name in ("right", "wrong", "missing"):
            yield Case(f"none:password-{name}", read)


def check(cell: Cell) -> None:
    """A wrong or missing password is an error, not a miss; the right one works; none is ever in what is printed."""
    if cell.ground.server.kind != "valkey":
        raise Unsupported("the server's password cannot be set here")
    cell.own_server(password=SECRET)
    which = cell.case.fault.rpartition("-")[2]
    place = cell.place()
    password = {"right": SECRET, "wrong": WRONG, "missing": None}[which]
    place = replace(place, endpoint=replace(place.endpoint, password=password))
    try:
        rig = cell.open(place)
    except NotOpened as error:
        cell.steps.append(f"opening: {error}")
        _silent(cell, str(error))
        if which == "right":
            raise Broken(f"with the right password: {error}") from error
        return
    if which == "right":
        cell.put(rig, *((chunk, 1) for chunk in cell.victims))
        cell.misses(cell.ask(rig, cell.victims), "with the right password")
    else:
        stored = cell.store(rig, cell.victims[0], 1)
        found = cell.ask(rig, cell.victims)
        said = f"it opened, put said {stored[0].outcome}, {cell.read.name} said {found[0].outcome}"
        if stored[0].outcome == "hit" or found[0].outcome in ("hit", "miss"):
            raise Broken(f"with a {which} password nothing fails: {said}")
        _silent(cell, said)
    _silent(cell, rig.runner.output.text)


def _silent(cell: Cell, said: str) -> None:
    for secret in (SECRET, WRONG):
        if secret in said:
            hidden = said.replace(secret, "<password>")[-300:]
            raise Broken(f"the password stands in what it prints or raises: {hidden}")


RULE = Rule("auth-fails-loud", cases, check)
