"""Logs of a system of somebody's own: what `begin` has to say, and the events of one that was made of `Load`."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvproof.errors import UsageError
from tests.logs import Lines, a_step, judged, line, numbered

TURNS = str(Path(__file__).parent / "protocols" / "turns.py")
WORLD = {"ranks": 2, "next": 1, "served": 1}

FILE = """
import z3
from kvproof.spec import load
from kvproof.spec.load_failures import FailingLoad
from kvproof.spec.obligation import Always
from kvproof.spec.system import Step, System, action
from kvproof.spec.theory import Bool, Int, Rank, Rigid, State, forall, put, within
"""
BLOCKS = FILE + """
class Blocks(load.Load):
    def axioms(self, s):
        def together(block, c, d):
            inside = z3.And(within(4 * block, c, 4 * block + 4), within(4 * block, d, 4 * block + 4))
            return z3.Implies(inside, s.owner(c) == s.owner(d))
        return [*super().axioms(s), forall(Int, Int, Int, together)]
"""
BROADCASTS = FILE + """
class Broadcasts(load.Load):
    blocks = Rigid(Int, Int)
    def collectives(self, s, r):
        return 1 + s.blocks(s.agreed(r))
"""
DROPPING = FILE + """
class Dropping(load.Load):
    dropped = State(Rank, Int)
    @action(r=Rank, c=Int)
    def drop(self, s, r, c):
        return Step(z3.And(s.loaded(r, c), s.entered(r) == 0, s.failure(r) <= c), dropped=put(
            s.dropped, r, s.dropped(r) + 1), loaded=put(s.loaded, (r, c), False))
    def init(self, s):
        return [*super().init(s), forall(Rank, lambda r: s.dropped(r) == 0)]
"""
QUOTAS = FILE + """
class Quotas(System):
    quota = Rigid(Rank, Int)
    used = State(Rank, Int)
    open = State(Bool)
    def init(self, s): return [s.open, forall(Rank, lambda r: s.used(r) == 0)]
    @action(r=Rank)
    def take(self, s, r): return Step(z3.And(s.open, s.used(r) < s.quota(r)), used=put(s.used, r, s.used(r) + 1))
    def invariant(self, s): return self.safety(s)
    def safety(self, s): return {"kept": forall(Rank, lambda r: z3.Implies(s.quota(r) >= 0, s.used(r) <= s.quota(r)))}
"""


def of(directory: Path, text: str) -> str:
    (directory / "mine.py").write_text(text)
    return str(directory / "mine.py")


def misused(directory: Path, lines: Lines, protocol: str) -> str:
    with pytest.raises(UsageError) as raised:
        judged(directory / "log", numbered(lines), protocol)
    return str(raised.value)


def test_a_begin_that_is_missing_or_says_too_little_or_something_else_is_told(tmp_path: Path) -> None:
    assert "there is no `begin` event; expected one that says ranks" in misused(tmp_path, [line(0, "draw")], TURNS)
    for given, expected in (
        ({"next": 1, "served": 1}, "log:1: begin needs 'ranks'; it takes ranks, size (optional), drawn (optional), "),
        (WORLD | {"serving": 1}, "log:1: begin takes no 'serving'; it takes ranks, "),
        (WORLD | {"next": True}, "`begin` has true for next; expected a whole number"),
        (WORLD | {"drawn": 0}, "`begin` has drawn = 0; expected a list, one value for each argument from 0 on (2)"),
        (WORLD | {"drawn": [0]}, "`begin` has drawn = [0]; expected a list, one value for each argument from 0 on (2)"),
    ):
        assert expected in misused(tmp_path, [line(0, "begin", **given), line(0, "draw")], TURNS)
    begin = line(0, "begin", **WORLD)
    said = misused(tmp_path, [begin, line(1, "begin", **WORLD | {"next": 2}), line(0, "draw")], TURNS)
    assert "`begin` of rank 1 has next = 2, and that of rank 0 has 1; expected one world for all ranks" in said
    assert "there is no event 'fly'; there are begin, draw, leave" in misused(tmp_path, [begin, line(0, "fly")], TURNS)
    said = misused(tmp_path, [begin, line(0, "draw", lane=1)], TURNS)
    assert "draw takes no 'lane'; it takes r (optional), drawn (optional), next (optional), served (optional)" in said
    assert "rank 4 has recorded events in a world of 2 ranks" in misused(tmp_path, [begin, line(4, "draw")], TURNS)


def test_a_rigid_symbol_has_to_be_given(tmp_path: Path) -> None:
    mine = of(tmp_path, QUOTAS)
    assert "begin needs 'quota'" in misused(tmp_path, [line(0, "begin", ranks=2), line(0, "take")], mine)
    lines = [line(0, "begin", ranks=2, quota=[1, 0], open=True), line(0, "take"), line(1, "take")]
    found = judged(tmp_path / "log", numbered(lines), mine)
    assert found.verdict == "rejected"
    assert found.why == "`used(r) < quota(r)` is false, where used(r) = 0 and quota(r) = 0"


def test_a_system_made_of_load_takes_the_events_of_load_steps(tmp_path: Path) -> None:
    mine = of(tmp_path, BLOCKS)
    lines = a_step(2, 3)
    for each in lines[:2]:
        each["values"]["owners"] = [1, 1, 1]
    assert judged(tmp_path / "log", numbered(lines), mine, complete=True).verdict == "accepted"
    assert judged(tmp_path / "log", numbered(lines[:-3]), mine).unfinished == (
        "step 0: rank 0 waits in broadcast 3 of 3; rank 1 has left broadcast 2 of 3 and not entered the next",)
    for each in lines[:2]:
        each["values"]["owners"] = [1, 0, 1]
    found = judged(tmp_path / "log", numbered(lines), mine)
    assert found.verdict == "rejected"
    assert found.why.startswith("no run begins so: ")
    for each in lines[:2]:
        each["values"]["owners"] = [1, 1, 1]
    assert "there is no event 'expire'" in misused(tmp_path, [*lines, line(0, "expire")], mine)


def test_a_system_made_of_load_with_other_collectives_has_its_own_count(tmp_path: Path) -> None:
    mine = of(tmp_path, BROADCASTS)
    lines = a_step(2, 3)
    shorter = [each for each in lines if "broadcast" not in each["event"]] + a_step(2, 1)[-4:]
    assert "`begin` says nothing of blocks, which Broadcasts declares as Rigid" in misused(tmp_path, shorter, mine)
    for each in lines[:2]:
        each["values"]["blocks"] = [0, 1, 1, 1]
    assert judged(tmp_path / "log", numbered(shorter), mine, complete=True).verdict == "accepted"
    found = judged(tmp_path / "log", numbered(shorter[:-1]), mine)
    assert found.unfinished == ("step 0: rank 0 is through; rank 1 waits in broadcast 1 of 1",)
    said = misused(tmp_path, [*shorter, line(0, "enter_broadcast", chunk=1)], mine)
    assert "enter_broadcast takes no 'chunk'; it takes nothing" in said


def test_a_system_made_of_load_may_have_events_and_states_besides(tmp_path: Path) -> None:
    mine = of(tmp_path, DROPPING)
    begin = a_step(1, 1)[:1]
    came = [line(0, "arrive", chunk=0), line(0, "drop", c=0, dropped=1)]
    end = [line(0, "enter_exchange", failure=0), line(0, "leave_exchange", agreed=0)]
    assert judged(tmp_path / "log", numbered(begin + came + end), mine, complete=True).verdict == "accepted"
    found = judged(tmp_path / "log", numbered(begin + came[1:] + came[:1] + end), mine)
    assert (found.verdict, found.line and found.line.event) == ("rejected", "drop")
