"""The views of a trace: what they show, that nothing overlaps, and that whatever a trace says is only text there."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from dataclasses import dataclass, replace
from html.parser import HTMLParser
from itertools import combinations, pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

from kvproof.models.trace import Taken, Trace
from kvproof.spec.judge import judge
from kvproof.traces import mermaid, svg
from kvproof.traces.as_test import module
from kvproof.traces.lanes import lanes
from kvproof.traces.page import page
from kvproof.traces.text import text
from tests import recorded

HOSTILE = '<script>alert("1")</script>&amp;\x1b[2J\x00]]>\'; end\n%%{init}\ud800 <img src=//x onerror=1>'
NAMESPACE = "{http://www.w3.org/2000/svg}"


def long(steps: int, ranks: int, seed: int = 0) -> Trace:
    """A trace that is no run of anything: many ranks, actions and collectives, labels of any length."""
    draw = random.Random(seed)
    taken = []
    for _ in range(steps):
        action = draw.choice(["look", "enter_exchange", "leave_exchange", "enter_broadcast", "leave_broadcast",
                              "a_very_long_name_of_an_action_" * draw.randint(1, 3)])
        picks = {f"p{index}": draw.randint(0, 10**6) for index in range(draw.randint(0, 3))}
        rank = draw.choice([None, *range(ranks)])
        taken.append(Taken(action, picks if rank is None else {"r": rank, **picks}, rank))
    states = [{f"symbol{index}": draw.randint(0, 9) for index in range(9)} for _ in range(steps + 1)]
    return Trace("load", "Load", ranks, 1, {}, tuple(states), tuple(taken))


def hostile() -> Trace:
    states = tuple({HOSTILE: value, "set": frozenset({HOSTILE})} for value in (HOSTILE, 1, 2))
    actions = (Taken(f"enter_{HOSTILE}", {HOSTILE: 1, "q": HOSTILE}, 1), Taken(HOSTILE, {}, None))
    return Trace(HOSTILE, HOSTILE, 2, 1, {f"{HOSTILE} rigid": HOSTILE}, states, actions, HOSTILE, HOSTILE, "mutant", 0,
                 {HOSTILE: HOSTILE}, HOSTILE, HOSTILE, HOSTILE, HOSTILE)


@dataclass(frozen=True)
class Box:
    """Where a text lies."""

    text: str
    left: float
    right: float
    top: float
    bottom: float

    def overlaps(self, other: Box) -> bool:
        across = self.left < other.right and other.left < self.right
        return across and self.top < other.bottom and other.top < self.bottom


def boxes(drawing: str) -> tuple[Box, list[Box]]:
    """The whole drawing and each text in it, as wide as a monospaced face of 12 pixels makes it."""
    root = ElementTree.fromstring(drawing)
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    found = []
    for each in root.iter(f"{NAMESPACE}text"):
        x, y, said = float(each.attrib["x"]), float(each.attrib["y"]), each.text or ""
        found.append(Box(said, x, x + 7.23 * len(said), y - 11, y + 3))
    return Box("", 0, width, 0, height), found


def overlapping(drawing: str) -> list[tuple[str, str]]:
    whole, texts = boxes(drawing)
    outside = [(each.text, "the edge") for each in texts
               if each.left < whole.left or each.right > whole.right or each.bottom > whole.bottom]
    return outside + [(one.text, other.text) for one, other in combinations(texts, 2) if one.overlaps(other)]


@pytest.mark.parametrize("ranks", [1, 3, 8])
@pytest.mark.parametrize("steps", [0, 1, 7, 120])
def test_no_label_of_a_diagram_overlaps_another_or_leaves_it(steps: int, ranks: int) -> None:
    drawing = svg.diagram(long(steps, ranks, seed=steps + ranks))
    assert len(boxes(drawing)[1]) >= steps + ranks
    assert overlapping(drawing) == []


def test_labels_that_overlap_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(svg, "ROW", 8)
    assert overlapping(svg.diagram(long(7, 3)))
    monkeypatch.undo()
    monkeypatch.setattr(svg, "LETTER", 3.0)
    assert overlapping(svg.diagram(long(7, 3)))


def test_a_diagram_has_a_lane_a_rank_and_each_action_on_its_ranks_lane() -> None:
    trace = recorded.early_return()
    root = ElementTree.fromstring(svg.diagram(trace))
    [first, second] = [float(each.attrib["x1"]) for each in root.iter(f"{NAMESPACE}line")
                       if each.attrib["class"] == "kv-lane"]
    marks = [float(each.attrib["cx"]) for each in root.iter(f"{NAMESPACE}circle")]
    assert marks == [second, first]
    said = [each.text for each in root.iter(f"{NAMESPACE}text")]
    assert said[1:] == ["exchange 1, 1 in it", "rank 0", "rank 1", "what changed", "enter_exchange", "entered(1) = 1",
                        "go", "gone(0) = true"]
    kinds = [each.attrib["class"] for each in root.iter(f"{NAMESPACE}rect")]
    assert kinds == ["kv-page", "kv-band", "kv-stuck"], "one collective, and one rank that stays in it"


def test_a_collective_lies_across_the_lanes_from_its_first_entry_to_its_last_leaving() -> None:
    trace = recorded.witness()
    drawn = lanes(trace)
    assert [(each.name, len(each.entered), len(each.left)) for each in drawn.collectives] == [
        ("exchange 1", 2, 2), ("broadcast 1", 2, 2)]
    root = ElementTree.fromstring(svg.diagram(trace))
    bands = [each for each in root.iter(f"{NAMESPACE}rect") if each.attrib["class"] == "kv-band"]
    xs = [float(each.attrib["cx"]) for each in root.iter(f"{NAMESPACE}circle")]
    ys = [float(each.attrib["cy"]) for each in root.iter(f"{NAMESPACE}circle")]
    for band, each in zip(bands, drawn.collectives, strict=True):
        left, top = float(band.attrib["x"]), float(band.attrib["y"])
        right, bottom = left + float(band.attrib["width"]), top + float(band.attrib["height"])
        assert left < min(xs)
        assert max(xs) < right
        inside = [number for number, y in enumerate(ys) if top < y < bottom]
        assert inside == list(range(min(each.entered.values()), max(each.left.values()) + 1))
    assert sum(each.attrib["class"] == "kv-wait" for each in root.iter(f"{NAMESPACE}rect")) == 4


def test_an_action_that_is_nobodys_has_a_lane_of_its_own() -> None:
    trace = Trace("ledger", "Ledger", 1, 1, {}, ({"n": 0}, {"n": 1}), (Taken("tick", {"o": 0}),))
    assert lanes(trace).names == ("rank 0", "no rank")
    assert lanes(trace).marks[0].lane == 1
    assert lanes(trace).marks[0].label == "tick(o=0)"


def test_mermaid_says_who_waits() -> None:
    assert mermaid.diagram(recorded.early_return()) == (
        "sequenceDiagram\n"
        "    accTitle: load.no-skip, mutant early-return#58; a run of EarlyReturn in load\n"
        "    participant r0 as rank 0\n"
        "    participant r1 as rank 1\n"
        "    Note over r1: 1. enter_exchange\n"
        "    activate r1\n"
        "    Note over r0: 2. go\n"
        "    Note over r1: waits in exchange 1\n")


def test_a_rank_of_a_mermaid_diagram_is_never_deactivated_before_it_is_active() -> None:
    for trace in (recorded.witness(), *(long(120, 4, seed) for seed in range(5))):
        active: dict[str, int] = {}
        for line in mermaid.diagram(trace).splitlines():
            verb, _, rank = line.strip().partition(" ")
            active[rank] = active.get(rank, 0) + {"activate": 1, "deactivate": -1}.get(verb, 0)
            assert active[rank] >= 0, line


def test_whatever_a_trace_says_is_only_text() -> None:
    trace = hostile()
    assert Trace.from_itf(trace.to_itf()) == trace
    root = ElementTree.fromstring(svg.diagram(trace))
    tags = {each.tag.removeprefix(NAMESPACE) for each in root.iter()}
    assert tags <= {"svg", "title", "style", "rect", "line", "circle", "text"}
    judged = judge(recorded.early_return())
    whole = page(trace, judged)
    assert "<script" not in whole
    assert "<img" not in whole
    assert "\x1b" not in text(trace)
    assert len(mermaid.diagram(trace).splitlines()) == 1 + 1 + 3 + 3 + 1, "a line was broken"
    for line in mermaid.diagram(trace).splitlines()[1:]:
        assert re.fullmatch(r"\s+(accTitle:|participant|Note over|activate)(?:[\w .,:()=-]|#\d+;)*", line), line
    for view in (text(trace), svg.diagram(trace), whole):
        view.encode()


def test_views_need_nothing_from_elsewhere_and_are_readable_in_the_dark() -> None:
    trace = recorded.early_return()
    for view in (svg.diagram(trace), page(trace, judge(trace))):
        assert not re.findall(r"(?:\bsrc=|href|url\(|@import|<script|<link|foreignObject)", view)
        assert set(re.findall(r"https?://[^\"' <]+", view)) <= {"http://www.w3.org/2000/svg"}
        assert "prefers-color-scheme: dark" in view


@pytest.mark.parametrize("dark", [False, True])
def test_text_stands_out_from_its_ground(dark: bool) -> None:
    light, _, night = svg._STYLE.partition("@media")
    style = night if dark else light

    def colour(of: str) -> str:
        found = re.search(rf"{re.escape(of)} {{ fill: (#\w{{6}})", style)
        assert found, of
        return found[1]

    for each in ("text.kv", ".kv .kv-quiet"):
        ratio = contrast(colour(each), colour(".kv-page"))
        assert ratio >= 4.5, f"{each}: {ratio:.1f}"


def contrast(one: str, other: str) -> float:
    """The ratio of WCAG 2."""
    def light(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    bright, dim = sorted((light(one), light(other)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


class Table(HTMLParser):
    """The rows of the last table of a page, and every list item that says that something is false."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.false: list[str] = []
        self.open: list[str] = []
        self.here = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.here = ""
        if tag == "table":
            self.rows = []
        elif tag == "tr":
            self.rows.append([])
        self.open.append(dict(attrs).get("class") or "")

    def handle_endtag(self, tag: str) -> None:
        if tag in ("th", "td"):
            self.rows[-1].append(self.here)
        elif tag == "li" and self.here and self.open and self.open[-1] == "false":
            self.false.append(self.here)
        self.open = self.open[:-1]

    def handle_data(self, data: str) -> None:
        self.here += data


def read(whole: str) -> Table:
    table = Table()
    table.feed(whole)
    return table


def test_the_page_of_a_mutants_trace_marks_the_claim_that_fails_and_no_other() -> None:
    trace = recorded.early_return()
    table = read(page(trace, judge(trace)))
    assert table.rows[0] == ["formula", "0", "1", "2"]
    assert len(table.rows) == 1 + 19
    marked = [row for row in table.rows[1:] if set(row[1:]) != {"true"}]
    assert marked == [["the claim no-skip", "true", "true", "false"]]
    [said] = table.false
    assert said.startswith("the claim no-skip is false in state 2: it fails for (r = rank 0, q = rank 1), where ")


def test_the_page_marks_the_conjunct_of_the_invariant_that_breaks_first() -> None:
    trace = recorded.of_mutant("load.agree", "own-failure")
    table = read(page(trace, judge(trace)))
    marked = {row[0]: row[1:].index("false") for row in table.rows[1:] if "false" in row}
    last = len(trace.states) - 1
    assert marked["the claim agree"] == marked["the invariant agree"] == last
    assert marked["the invariant at most"] <= last
    assert any("the claim agree is false" in said and "rank 0" in said for said in table.false)


def test_the_page_of_a_witness_marks_nothing_and_that_of_no_run_says_so() -> None:
    trace = recorded.witness()
    assert read(page(trace, judge(trace))).false == []
    assert "a run of Load, each step allowed; it\nreaches what the claim speaks of." in page(trace, judge(trace))
    wrong = recorded.changed(recorded.early_return(), 2, "entered", (0,), 1)
    whole = page(wrong, judge(wrong))
    assert "Not a run of EarlyReturn: refused at step 2: after go(r=0), entered(0) is 1, and would be 0" in whole


def test_every_state_of_a_page_says_what_changed() -> None:
    trace = recorded.witness()
    whole = page(trace, judge(trace))
    for before, after in pairwise(trace.states):
        assert before != after
    assert whole.count("<li>loaded(") == 1
    assert "loaded(0,0): false -&gt; true" in whole or "loaded(1,0): false -&gt; true" in whole


def test_a_page_and_a_diagram_are_written_by_the_command(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(recorded.early_return().to_itf())
    for view, name, begins in (("--svg", "a.svg", "<svg "), ("--html", "a.html", "<!doctype html>")):
        command = [sys.executable, "-m", "kvproof.cli", "trace", str(path), view, str(tmp_path / name)]
        assert subprocess.run(command, timeout=60).returncode == 0
        assert (tmp_path / name).read_text().startswith(begins)


def test_a_page_and_a_diagram_are_written_at_once_and_text_is_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(recorded.early_return().to_itf())
    views = ["--svg", str(tmp_path / "a.svg"), "--html", str(tmp_path / "a.html")]
    command = [sys.executable, "-m", "kvproof", "trace", str(path), *views]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert (tmp_path / "a.svg").read_text().startswith("<svg ")
    assert (tmp_path / "a.html").read_text().startswith("<!doctype html>")


def test_a_trace_says_what_the_mutant_does_wrong_and_what_came_of_it() -> None:
    trace = recorded.early_return()
    assert Trace.from_itf(trace.to_itf()).mistake == "return on the rank's own miss"
    told = ("mistake: return on the rank's own miss\nobserved: a rank has returned, and the one that waits in the "
            "collective which it never enters waits for ever\n")
    assert told in text(trace)
    assert "<th scope=\"row\">mistake</th><td>return on the rank&#39;s own miss</td>" in page(trace, judge(trace))


def test_who_asks_for_the_trace_of_an_obligation_is_told_what_writes_it() -> None:
    command = [sys.executable, "-m", "kvproof", "trace", "load.no-skip"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr.endswith("; `kvproof prove load.no-skip --traces DIR` writes the traces of an obligation\n")


STRANGE = """
from kvproof.spec.system import Step, System, action
from kvproof.spec.theory import Bool, State, all_of

class Strange(System):
    def init(self, s): return [getattr(s, NAME) == 0]
    def invariant(self, s): return {}
    def go(self, s): return Step(True, **{NAME: getattr(s, NAME) + 1})
    go = action()(go)
    def safety(self, s): return {"few": getattr(s, NAME) < 0}

NAME = "\\x1b[2Jx\\nfake line"
from kvproof.spec.theory import Int
setattr(Strange, NAME, State(Int))
getattr(Strange, NAME).__set_name__(Strange, NAME)
"""


def told(trace: Trace, folder: Path, *arguments: str) -> str:
    """Return what the command says of a trace, which has to be one line or a view, and never a traceback."""
    path = folder / "trace.json"
    path.write_text(trace.to_itf())
    command = [sys.executable, "-m", "kvproof.cli", *(each.replace("TRACE", str(path)) for each in arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert "Traceback" not in done.stderr
    assert done.returncode in (1, 2) or "--pytest" in arguments
    said = (done.stdout + done.stderr).removesuffix("\n")
    assert said.isprintable(), said
    return said


def test_a_verdict_is_one_printable_line_whatever_the_names(tmp_path: Path) -> None:
    (tmp_path / "strange.py").write_text(STRANGE)
    name, check = "\x1b[2Jx\nfake line", ("trace", "TRACE", "--check", "--svg", "/dev/null")
    trace = Trace("strange.py", "Strange", 1, 1, {}, ({name: 0}, {name: 7}), (Taken("go"),))
    assert "after go(),  [2Jx fake line is 7" in told(trace, tmp_path, *check)
    trace = replace(recorded.early_return(), taken=(Taken("enter\ud800", {"r": 1}, 1), Taken("go", {"r": 0}, 0)))
    assert "there is no action enter " in told(trace, tmp_path, *check)
    said = told(trace, tmp_path, "replay", "TRACE", "--pytest", str(tmp_path / "test_it.py"))
    assert "it is refused at step 1: there is no action enter " in said


@pytest.mark.parametrize("arguments", [
    ("trace", "TRACE", "--check", "--svg", "/dev/null"), ("trace", "TRACE", "--html", "/dev/null"),
    ("replay", "TRACE", "--pytest", "/dev/null"),
])
@pytest.mark.parametrize("system", ["\x1b[31mred.py", "a" * 5000 + ".py", "\x1b[31mred"])
def test_a_system_that_is_not_there_is_one_printable_line(
    system: str, arguments: tuple[str, ...], tmp_path: Path
) -> None:
    said = told(replace(recorded.early_return(), system=system), tmp_path, *arguments)
    assert len(said) < 500
    assert "trace is of" in said


def test_a_terminal_that_cannot_show_a_character_shows_its_number(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(replace(recorded.early_return(), expected="für alle").to_itf())
    done = subprocess.run([sys.executable, "-m", "kvproof", "trace", str(path)], capture_output=True, text=True,
                          timeout=60, env={"PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stderr) == (0, "")
    assert "f\\xfcr alle" in done.stdout


def test_a_test_is_named_in_ascii_and_a_diagram_holds_nothing_else(tmp_path: Path) -> None:
    trace = replace(recorded.early_return(), claim="", mutant="m²é", theory="EarlyReturn", role="")
    compile(module(trace, tmp_path)[1], "test", "exec")
    assert module(trace, tmp_path)[1].isascii()
    assert mermaid.diagram(replace(trace, claim="ü²")).isascii()


def test_a_world_of_another_size_is_drawn_as_well() -> None:
    trace = replace(recorded.early_return(), ranks=4)
    assert lanes(trace).names == ("rank 0", "rank 1", "rank 2", "rank 3")
