"""What `begin` says of a world: once for each rank, before its events, in numbers that can be followed."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvproof.errors import UsageError
from tests.logs import Lines, a_step, begins, everybody, judged, line, numbered

FILE = """
import z3
from kvproof.spec.obligation import Always
from kvproof.spec.system import Step, System, action
from kvproof.spec.theory import Bool, Int, Rank, Rigid, State, put, enum
"""


def told(rank: int, **values: Any) -> dict[str, Any]:
    """Return a `begin` of two ranks and two chunks, with other values besides."""
    return line(rank, "begin", **{"world_size": 2, "length": 2} | values)


def misused(directory: Path, lines: Lines, protocol: str = "load") -> str:
    with pytest.raises(UsageError) as raised:
        judged(directory / "log", numbered(lines), protocol)
    assert "\n" not in str(raised.value)
    return str(raised.value)


@pytest.mark.parametrize(("one", "other", "expected"), [
    ({"owners": [0, 0]}, {"owners": [0, 1]}, "rank 1 has owners = [0, 1], and that of rank 0 has [0, 0]"),
    ({"owners": [1, 1]}, {}, "rank 1 has no owners, and that of rank 0 has [1, 1]"),
    ({}, {"owners": [1, 1]}, "rank 1 has owners = [1, 1], and that of rank 0 has none"),
    ({"world_size": 2}, {"world_size": 3}, "rank 1 has world_size = 3, and that of rank 0 has 2"),
])
def test_ranks_that_are_told_different_worlds_are_told_apart(
    one: dict[str, Any], other: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    lines = [told(0, **one), told(1, **other), *a_step(2, 2)[2:]]
    assert f"`begin` of {expected}; expected one world for all ranks" in misused(tmp_path, lines)


def test_a_begin_comes_before_what_its_rank_records(tmp_path: Path) -> None:
    first, second, *rest = a_step(2, 1)
    late = [first, rest[0], rest[1], second, *rest[2:]]
    assert "log:3: rank 1 has recorded no `begin` of step 0 before this" in misused(tmp_path, late)
    assert "log:3: rank 1 has recorded no `begin` of step 0 before this" in misused(tmp_path, [first, *rest])
    for place in (4, len(rest)):
        again = [first, second, *rest[:place], told(1, length=0), *rest[place:]]
        assert f"log:{place + 3}: rank 1 begins step 0 twice" in misused(tmp_path, again)
    assert judged(tmp_path / "log", numbered([first, rest[0], second, *rest[1:]])).verdict == "accepted"


def test_a_begin_with_no_other_event_of_its_step_is_looked_at(tmp_path: Path) -> None:
    step = a_step(1, 1)
    for values, expected in (
        ({"length": "nonsense", "world_size": -4}, "begin has length = 'nonsense'; expected a natural number"),
        ({"length": 1, "world_size": 0}, "in a world of 0 ranks"),
        ({"length": 1, "world_size": 1, "owner": [0]}, "begin takes no 'owner'"),
        ({"length": 1, "world_size": 1, "owners": [3]}, "owners is [3]; expected the rank that owns each of 1 chunks"),
        ({"length": 1, "world_size": 1, "fingerprint": None}, "begin has fingerprint = None; expected a number or a"),
    ):
        assert expected in misused(tmp_path, [*step, line(0, "begin", 1, **values)])


def test_how_many_ranks_there_are_is_said_and_never_guessed(tmp_path: Path) -> None:
    assert "log:1: begin needs 'world_size'" in misused(tmp_path, [line(0, "begin", length=1), line(0, "look")])
    alone = [begins(3, 1)[0], line(0, "enter_exchange", failure=0)]
    found = judged(tmp_path / "log", numbered(alone))
    assert found.unfinished == ("step 0: rank 0 waits in the exchange; ranks 1, 2 have not entered the exchange",)
    found = judged(tmp_path / "log", numbered([*alone, line(0, "leave_exchange")]))
    assert (found.verdict, found.means) == ("rejected", "ranks 1, 2 have not entered the exchange")


def test_the_begin_of_a_client_comes_first(tmp_path: Path) -> None:
    lines = [line(0, "register", operation=1), line(0, "begin", workers=2), line(0, "submit", operation=1)]
    assert "log:2: `begin` comes after what was recorded of step 0" in misused(tmp_path, lines, "completion")
    lines = [line(0, "begin", workers=2), line(1, "begin", workers=3), line(0, "register", operation=1)]
    assert "`begin` of rank 1 has workers = 3, and that of rank 0 has 2" in misused(tmp_path, lines, "completion")


@pytest.mark.parametrize(("values", "protocol", "expected"), [
    ({"world_size": 10**9, "length": 1}, "load", "1000000000 ranks are too many to be followed; there may be 1024"),
    ({"world_size": 2, "length": 10**9}, "load", "integers up to 1000000000 are too many to be followed"),
    ({"world_size": 2, "length": 200_000}, "load", "values of a state, which are too many to be followed"),
    ({"world_size": 1024, "length": 4096}, "load", "values of a state, which are too many to be followed"),
    ({"world_size": 10**400, "length": 1}, "load", "ranks are too many to be followed"),
    ({"workers": 10**9}, "completion", "1000000000 ranks are too many to be followed"),
    ({"workers": 0}, "completion", "there are 0 ranks; expected one at least"),
    ({"size": 10**10}, "own", "integers up to 10000000000 are too many to be followed"),
    ({"size": 10**10}, "picked", "integers up to 10000000000 are too many to be followed"),
    ({"size": 10**4}, "pairs", "values of a state, which are too many to be followed"),
])
def test_a_world_that_is_too_large_or_empty_is_one_clear_line(
    values: dict[str, Any], protocol: str, expected: str, tmp_path: Path
) -> None:
    own = {"own": "State(Int, Int)", "picked": "State(Int)", "pairs": "State(Int, Int, Bool)"}.get(protocol)
    if own:
        zero = "z3.BoolVal(True)" if "Bool" in own else "s.n == 0" if protocol == "picked" else "s.n(0) == 0"
        (tmp_path / "mine.py").write_text(FILE + f"""
class Mine(System):
    n = {own}
    def init(self, s): return [{zero}]
    @action(k=Int)
    def go(self, s, k): return Step(True)
    def invariant(self, s): return self.safety(s)
    def safety(self, s): return {{"fine": z3.BoolVal(True)}}
""")
        protocol = str(tmp_path / "mine.py")
    event = line(0, "look") if "length" in values else line(0, "close") if "workers" in values else line(0, "go", k=0)
    lines = numbered([line(0, "begin", **values), event])
    (tmp_path / "log").write_text("".join(json.dumps(each) + "\n" for each in lines))
    command = [sys.executable, "-m", "kvproof", "validate", str(tmp_path / "log"), "--protocol", protocol]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 2, done.stdout + done.stderr
    assert expected in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert len(done.stderr) < 1000


def test_a_rank_or_a_number_that_nothing_can_have_is_one_clear_line(tmp_path: Path) -> None:
    assert "rank 1000000000000 has recorded events in a world of 2 ranks" in misused(
        tmp_path, [*begins(2, 1), told(10**12, length=1), *everybody([10**12], "enter_exchange")])
    for field in ("rank", "seq", "step"):
        (tmp_path / "log").write_text(json.dumps({"rank": 0, "seq": 0, "event": "look", field: 10**30}) + "\n")
        with pytest.raises(UsageError, match=f"{field} is 1000000000000000000000000000000, which is no natural"):
            judged_file(tmp_path / "log")


def judged_file(path: Path) -> None:
    from kvproof.validate import validate

    validate(path)


COUNT = itertools.count()
"""For Z3 there is one enumeration of each name in a process."""
TYPED = FILE + """
Colour, RED, GREEN = enum("COLOUR", "red", "green")
class Mine(System):
    colours = Rigid(Int, Colour)
    pairs = Rigid(Rank, Int, Int)
    drawn = State(Rank, Int)
    shown = State(Colour)
    lit = State(Bool)
    def init(self, s): return [z3.Not(s.lit)]
    @action(r=Rank, k=Int)
    def draw(self, s, r, k): return Step(True, drawn=put(s.drawn, r, k))
    @action(c=Colour)
    def paint(self, s, c): return Step(True, shown=c, lit=z3.BoolVal(True))
    def invariant(self, s): return self.safety(s)
    def safety(self, s): return {"fine": z3.BoolVal(True)}
"""
WORLD = {"ranks": 2, "size": 1, "colours": ["red", "green"], "pairs": [[0, 0], [7, -7]]}


@pytest.mark.parametrize(("event", "values", "expected"), [
    ("draw", {"k": True}, "draw has k = true; expected a whole number"),
    ("draw", {"k": 1.0}, "draw has k = 1.0; expected a whole number"),
    ("draw", {"k": None}, "draw has k = null; expected a whole number"),
    ("draw", {"r": 1, "k": 0}, "draw has r = 1, which is who recorded it: rank 0"),
    ("draw", {"k": 1, "drawn": True}, "draw has drawn = true; expected a whole number"),
    ("draw", {"k": 1, "lit": 0}, "draw has lit = 0; expected true or false"),
    ("paint", {"c": "blue"}, 'paint has c = "blue"; expected one of "red", "green"'),
    ("paint", {"c": 0}, 'paint has c = 0; expected one of "red", "green"'),
    ("paint", {"shown": None}, 'paint has shown = null; expected one of "red", "green"'),
])
def test_a_value_is_of_the_kind_that_it_stands_for(
    event: str, values: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(TYPED.replace("COLOUR", f"Colour{next(COUNT)}"))
    lines = [line(0, "begin", **WORLD), line(0, event, **values)]
    assert f"log:2: {expected}" in misused(tmp_path, lines, str(tmp_path / "mine.py"))


@pytest.mark.parametrize(("values", "expected"), [
    ({"colours": ["red"]}, 'has colours = ["red"]; expected a list, one value for each argument from 0 on (2)'),
    ({"colours": ["red"] * 3}, "expected a list, one value for each argument from 0 on (2)"),
    ({"colours": ["red", "blue"]}, 'has "blue" for colours; expected one of "red", "green"'),
    ({"pairs": [1]}, "has pairs = [1]; expected a list of a list, one value for each argument from 0 on (2 of 2)"),
    ({"pairs": [[1, 2], 3]}, "expected a list of a list, one value for each argument from 0 on (2 of 2)"),
    ({"pairs": [[1, 2], [3, True]]}, "has true for pairs; expected a whole number"),
    ({"shown": ["red"]}, 'has shown = ["red"]; expected one of "red", "green"'),
    ({"ranks": True}, "has ranks = True; expected a natural number"),
])
def test_what_begin_gives_is_of_the_shape_that_it_has(values: dict[str, Any], expected: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(TYPED.replace("COLOUR", f"Colour{next(COUNT)}"))
    lines = [line(0, "begin", **WORLD | values), line(0, "draw", r=0, k=1, drawn=1)]
    assert expected in misused(tmp_path, lines, str(tmp_path / "mine.py"))


def test_values_of_the_right_kind_are_taken(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(TYPED.replace("COLOUR", f"Colour{next(COUNT)}"))
    lines = [line(0, "begin", **WORLD), line(0, "draw", r=0, k=1, drawn=1), line(1, "paint", c="green", lit=True)]
    assert judged(tmp_path / "log", numbered(lines), str(tmp_path / "mine.py")).verdict == "accepted"


@pytest.mark.parametrize(("symbol", "action", "expected"), [
    ("n = State(Int)", "begin", "an action is called `begin`, as the event that says what the world is"),
    ("n = State(z3.RealSort())", "go", "n is about Reals, which a log cannot hold"),
    ("size = State(Int)", "go", "size is the name of a symbol and of what `begin` says of the world"),
    ("k = State(Int)", "go", "k is both a symbol and a pick of go"),
])
def test_a_system_that_no_log_can_be_held_against_is_told(
    symbol: str, action: str, expected: str, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(FILE + f"""
class Mine(System):
    {symbol}
    def init(self, s): return [z3.BoolVal(True)]
    @action(k=Int)
    def {action}(self, s, k): return Step(z3.BoolVal(False))
    def invariant(self, s): return self.safety(s)
    def safety(self, s): return {{"fine": z3.BoolVal(True)}}
""")
    lines = [line(0, action, k=0), line(0, "look")]
    assert f"Mine: {expected}" in misused(tmp_path, lines, str(tmp_path / "mine.py"))
