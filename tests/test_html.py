"""The page of results: every cell once, whatever a connector said is only text, nothing from elsewhere, bounded."""

from __future__ import annotations

import fnmatch
import json
import random
import re
import shlex
import time
import tomllib
from collections import Counter
from collections.abc import Sequence
from html.parser import HTMLParser
from itertools import combinations
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from kvproof.errors import UsageError
from kvproof.pages import fields, sequence
from kvproof.pages.report import page, write
from kvproof.pages.text import lines
from kvproof.pages.wire import rows
from kvproof.results import CellRow, Complaint, ObligationRow, ReplayRow, Results, Where

HERE = Where(1, "cpu", "valkey 9.1.2")
HOSTILE = '</script><script>alert("1")</script>&amp;<!--\x1b[2J\x00\u202e]]>\' onload=x \ud800 <img src=//x onerror=1>'
VOID = {"meta", "input", "br", "img", "link", "hr"}
KEY = "kvproof-c@1@0@{}@bfloat16"
STACK = ['"/lib/python3.11/threading.py", line 327 in wait', '"/site-packages/client/parser.py", line 192 in read',
         '"/kvproof/connectors/c.py", line 7 in read']
WIRE = [
    "connection 1 open", "connection 1 request HELLO 22 bytes", "connection 1 reply HELLO 216 bytes",
    "connection 1 request CLIENT 9 bytes", "connection 1 reply CLIENT 5 bytes",
    f"connection 1 request SET {KEY.format('a0c1')} 4190 bytes", f"connection 1 reply SET {KEY.format('a0c1')} 5 bytes",
    f"connection 2 request GET {KEY.format('b0d1')} 85 bytes",
    f"connection 2 reply GET {KEY.format('b0d1')} attribute inserted",
    f"connection 2 reply GET {KEY.format('b0d1')} 5 bytes null",
    "connection 2 reply PING released by go", "call returned",
    f"connection 1 close GET {KEY.format('a0c1')} by client 1700 bytes (closed)", "connection 1 open", "no such line",
]


def cell(number: int = 0, verdict: str = "pass", **changed: Any) -> CellRow:
    usual: dict[str, Any] = {
        "connector": "c", "version": "1.2", "where": HERE, "rule": "no-stale-hit", "fault": f"truncate:{number}@GET",
        "read": "get", "verdict": verdict, "seconds": 0.1, "explain": "" if verdict == "pass" else "so it was"}
    return CellRow(**{**usual, **changed})


def evidence(**more: Any) -> dict[str, Any]:
    return {"schedule": '[{"fault": "drip"}]', "steps": ["put a0c1: stored", "get a0c1: hit"], "wire": WIRE, **more}


def obligation(name: str = "load.agree", verdict: str = "proved", text: str = "all agree") -> ObligationRow:
    mutant = {"id": text, "verdict": "refuted", "says": text, "consequence": text, "trace": [text]}
    return ObligationRow(name, text, text, "FAU", verdict, False, 0.5, text, [text], 7, 0.2, [text], [text], [mutant],
                         {"name": "cvc5", "version": "1.2", "queries": 7, "unknown": []})


def document(cells: Sequence[CellRow] = (), **more: Any) -> dict[str, Any]:
    """A document as it is when it was written and read again."""
    read: dict[str, Any] = json.loads(json.dumps(Results(cells=list(cells), **more).document()))
    return read


class Page(HTMLParser):
    """A page that was read: its elements, each with what it stands in, and its text without script and style."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[tuple[str, dict[str, str]]] = []
        self.elements: list[tuple[str, dict[str, str], list[tuple[str, dict[str, str]]]]] = []
        self.text, self.declared = "", ""
        self.feed(text)
        self.close()
        assert self.open == [], "every element is closed"

    def handle_decl(self, decl: str) -> None:
        self.declared = decl

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.elements.append((tag, given, list(self.open)))
        if tag not in VOID:
            self.open.append((tag, given))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert [each for each, _ in self.open[-1:]] == [tag], f"{tag} ends within {self.open[-1:]}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1][0] not in ("script", "style"):
            self.text += data

    def cells(self) -> Counter[str]:
        return Counter(given["data-cell"] for _, given, _ in self.elements if "data-cell" in given)


def test_every_cell_is_there_once_in_its_field_and_every_link_leads_somewhere() -> None:
    draw = random.Random(1)
    verdicts = ["pass", "fail", "hang", "crash", "leak", "not-felt", "unsupported", "error", "never heard of"]
    cells = [cell(number, draw.choice(verdicts), connector=draw.choice("abc"), explain=draw.choice(["so", "not so"]),
                  rule=draw.choice(["no-stale-hit", "recovers", "*", "a rule to come"]), known=draw.random() < 0.2,
                  rate=draw.choice([None, 0.333])) for number in range(300)]
    read = Page(page([document(cells)]))
    assert read.cells() == Counter({f"1-{number}": 1 for number in range(1, 301)})
    for _, given, within in read.elements:
        if "data-cell" in given:
            row = cells[int(given["data-cell"].partition("-")[2]) - 1]
            [field] = [outer for _, outer in within if outer.get("class") == "field"]
            assert field["data-find"].startswith(f"{row.connector} {row.rule} "), (field, row)
            assert given["data-kind"] == fields.kind_of(row.verdict, row.known, row.rate)
    ids = Counter(given["id"] for _, given, _ in read.elements if "id" in given)
    assert set(ids.values()) == {1}
    links = {given["href"] for tag, given, _ in read.elements if tag == "a"}
    assert len(links) == 12
    assert links <= {f"#{name}" for name in ids}


def test_the_page_needs_nothing_from_elsewhere_and_runs_no_script_but_its_own() -> None:
    text = page([document([cell(1, "hang", evidence=evidence(stack=STACK))], obligations=[obligation()])])
    read = Page(text)
    assert read.declared == "doctype html"
    for tag, given, _ in read.elements:
        assert tag not in ("link", "img", "iframe", "object", "base"), tag
        assert not {name for name in given if name.startswith("on")}, given
        assert given.get("href", "#").startswith("#"), given
        assert "src" not in given, given
    assert sum(tag == "script" for tag, _, _ in read.elements) == 1
    [policy] = [given["content"] for tag, given, _ in read.elements if "http-equiv" in given]
    assert re.fullmatch(r"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-[\w+/=]{44}'", policy)
    assert "url(" not in text
    assert "@import" not in text


def test_whatever_third_parties_say_is_only_text() -> None:
    plain = Page(page([document([cell(1, "hang", evidence=evidence(stack=["x"], output="x", other={"x": "x"}))],
                                obligations=[obligation(text="x")], complaints=[Complaint("x", "x", "x")],
                                replays=[ReplayRow("x", "x", "x", HERE, "absent", 1, "x", masked="x",
                                                   evidence=[{"name": "x", "verdict": "x", "explain": "x"}])])]))
    there = evidence(stack=[HOSTILE], output=f"{HOSTILE}\n" * 3, other={HOSTILE: HOSTILE})
    there = {**there, "wire": [*WIRE, HOSTILE, f"connection 1 reply GET {HOSTILE} {HOSTILE}"], "steps": [HOSTILE],
             "schedule": HOSTILE, HOSTILE: HOSTILE}
    where = Where(1, HOSTILE, HOSTILE)
    row = cell(1, "hang", connector=HOSTILE, version=HOSTILE, where=where, rule=HOSTILE, fault=HOSTILE, read=HOSTILE,
               explain=HOSTILE, masked=HOSTILE, witness=HOSTILE, evidence=there)
    cells = [row, cell(2, HOSTILE, fault=HOSTILE), cell(3, fault=HOSTILE), cell(4, "unsupported", explain=HOSTILE)]
    text = page([document(
        cells, obligations=[obligation(HOSTILE, "refuted", HOSTILE)], complaints=[Complaint(HOSTILE, HOSTILE, HOSTILE)],
        replays=[ReplayRow(HOSTILE, HOSTILE, HOSTILE, where, "absent", 1, HOSTILE, masked=HOSTILE,
                           evidence=[{"name": HOSTILE, "verdict": HOSTILE, "explain": HOSTILE}, {"name": [HOSTILE]}])],
        versions={HOSTILE: HOSTILE, "kvproof": HOSTILE})])
    read = Page(text)
    assert {tag for tag, _, _ in read.elements} <= {tag for tag, _, _ in plain.elements}
    assert sum(tag == "script" for tag, _, _ in read.elements) == 1
    assert not {name for _, given, _ in read.elements for name in given if name.startswith("on")}
    assert text.count("</script>") == 1
    assert "<!--" not in text
    assert not set(text) & set("\x00\x1b\u202e\ud800")
    assert read.text.count('<script>alert("1")</script>') > 20, "it is shown as it is"
    text.encode()


@pytest.mark.parametrize("said", [
    "x" * 5_000_000, "\n" * 5_000_000, ["y"] * 100_000, '"' * 5_000_000, {"a": ["<"] * 10**5}],
    ids=["one line", "line breaks", "a list", "quotes", "an object"])
def test_megabytes_of_output_take_little_room(said: object) -> None:
    there = dict.fromkeys(("output", "stack", "wire", "steps", "schedule", "anything"), said)
    text = page([document([cell(1, "fail", explain=str(said), fault=str(said)[:10**6], evidence=there)])])
    assert len(text.encode()) < 2_000_000
    assert Page(text).cells() == {"1-1": 1}


def test_of_a_long_text_the_end_is_shown_and_that_more_was_there() -> None:
    assert lines("a\nb\n") == ["a", "b"]
    assert lines("\n".join(map(str, range(500))), 3) == ["… what came before is left out", "497", "498", "499"]
    assert lines(["a\nb", 7]) == ["a b", "7"]
    assert lines("") == []
    assert lines("z" * 1000, 1) == ["… what came before is left out", "z" * 400]


@pytest.mark.parametrize("verdict", ["fail", "pass"])
def test_two_thousand_cells_stay_small_and_are_quick(verdict: str) -> None:
    cells = [cell(number, verdict, explain=f"{chr(97 + number % 26)} went wrong", evidence=evidence(stack=[]))
             for number in range(2000)]
    given = document(cells)
    page([document()])
    begun = time.process_time()
    text = page([given])
    assert time.process_time() - begun < 5
    assert len(text.encode()) < 5_000_000
    assert len(Page(text).cells()) == 2000


def test_when_there_is_no_room_each_cause_still_shows_one_cell_with_its_evidence(
        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvproof.pages.report.EVIDENCE", 20_000)
    cells = [cell(number, "fail", explain="left" if number < 50 else "right", evidence=evidence())
             for number in range(60)]
    read = Page(page([document(cells)]))
    drawn = {next(outer["data-cell"] for _, outer in within if "data-cell" in outer)
             for tag, given, within in read.elements if tag == "svg"}
    assert {"1-1", "1-51"} <= drawn
    assert len(drawn) < 10
    assert read.text.count("Its evidence is in the results") == 60 - len(drawn)


def test_cells_of_one_cause_are_one_finding_and_other_causes_are_others() -> None:
    stuck = evidence(stack=STACK)
    cells = [cell(1, "fail", explain="get of a0c1 was a hit after 0.5 s (truncate:1@GET)"),
             cell(2, "fail", explain="get of b1d2 was a hit after 12 s (truncate:2@GET)"),
             cell(3, "fail", explain="another thing"),
             cell(4, "hang", explain="no answer", evidence=stuck),
             cell(5, "hang", explain="not back", evidence=stuck, rule="recovers"),
             cell(6, "hang", explain="no answer", known=True, evidence=stuck),
             cell(7, "fail", explain="another thing", rate=0.5),
             cell(8, "not-felt", explain="another thing"), cell(9)]
    found = fields.matrix(fields_of([document(cells)]), ["recovers", "no-stale-hit"])
    assert found.rules == ["recovers", "no-stale-hit"]
    first = found.fields[found.columns[0], "no-stale-hit"]
    assert [(group.kind, len(group.cells)) for group in first.groups] == [
        ("finding", 2), ("finding", 1), ("finding", 1), ("intermittent", 1), ("inconclusive", 1), ("known", 1)]
    assert first.kinds == ["finding", "intermittent", "inconclusive", "known", "pass"]
    assert ("intermittent", "fail", 1, "50%") in first.counts
    [hang] = [cause for cause in fields.causes(found, ("finding",)) if cause.group.verdict == "hang"]
    assert (hang.count, [field.rule for field, _ in hang.fields]) == (2, ["recovers", "no-stale-hit"])
    assert hang.group.place == "parser.py:192 (read)", "not where anything may wait"


def fields_of(documents: Sequence[dict[str, Any]]) -> Any:
    from kvproof.pages.documents import read

    return read(documents)


@pytest.mark.parametrize(("verdict", "kind"), [
    ("not-felt", "inconclusive"), ("error", "inconclusive"), ("unknown", "inconclusive"), ("not-run", "inconclusive"),
    ("unsupported", "neutral"), ("pass", "pass"), ("fail", "finding"), ("what nobody has heard of", "finding")])
def test_what_could_not_tell_never_looks_like_a_pass(verdict: str, kind: str) -> None:
    assert fields.kind_of(verdict) == kind
    read = Page(page([document([cell(1, verdict)])]))
    [field] = [given for tag, given, _ in read.elements if tag == "td" and given.get("class") not in (None, "long")]
    assert field["class"] == kind
    assert (fields.letter_of(verdict) == "✓") == (verdict == "pass")
    row = ReplayRow("nil-get", "c", "1", HERE, "absent", 1.0, "so", inconclusive=1)
    marked = Page(page([document(replays=[row])]))
    assert [given["data-kind"] for tag, given, _ in marked.elements if tag == "tr" and "data-kind" in given] == [
        "inconclusive"]


def test_two_runs_stand_side_by_side_and_what_changed_is_marked() -> None:
    first = document([cell(1, "fail"), cell(2), cell(3, connector="d")], seed=41, obligations=[obligation()])
    second = document([cell(1, version="1.3"), cell(2, version="1.3")], seed=42,
                      obligations=[obligation(), obligation("load.whole")])
    text = page([first, second])
    read = Page(text)
    assert read.cells() == Counter({"1-1": 1, "1-2": 1, "1-3": 1, "2-1": 1, "2-2": 1})
    heads = re.findall(r'<th scope="col">(\w+)<div class="quiet">run (\d)', text)
    assert heads == [("c", "1"), ("c", "2"), ("d", "1")]
    assert read.text.count("≠ run 1: fail") == 1
    assert "seed 41" in read.text
    assert "seed 42" in read.text
    assert read.text.count("load.agree\n") + read.text.count("load.agreerun 1, 2") == 1, "what is alike stands once"


def test_the_command_tries_that_cell_and_no_other() -> None:
    fault = "none:it's [odd]* $HOME"
    [shown] = fields.matrix(fields_of([document([cell(1, "fail", fault=fault)])]), ()).ordered()[0].cells
    words = shlex.split(shown.replay)
    assert words[:6] == ["kvproof", "check", "-c", "c", "--rule", "no-stale-hit"]
    assert words[6::2] == ["--fault", "--read"]
    assert fnmatch.fnmatchcase(fault, words[7])
    assert not fnmatch.fnmatchcase("none:it's o $HOME", words[7])
    usual = fields.Shown("1-1", cell(1, "fail", fault="drip:slow@GET"))
    assert usual.replay == "kvproof check -c c --rule no-stale-hit --fault 'drip:slow@GET' --read 'get'"


def test_a_wire_log_is_taken_apart_again() -> None:
    assert [(row.kind, row.connection, row.label, row.did) for row in rows(WIRE)] == [
        ("open", 1, "connection 1 opened", ""), ("fold", 1, "HELLO, CLIENT", ""),
        ("request", 1, "SET a0c1 · 4,190 B", ""), ("reply", 1, "SET a0c1 · 5 B", ""),
        ("request", 2, "GET b0d1 · 85 B", ""), ("struck", 2, "reply GET b0d1", "attribute inserted"),
        ("reply", 2, "GET b0d1 · null", ""), ("struck", 2, "reply PING", "released by go"),
        ("call", 0, "the call returned", ""), ("close", 1, "GET a0c1", "closed by client (closed)"),
        ("next", 0, "another process, behind a proxy of its own", ""), ("open", 1, "connection 1 opened", ""),
        ("note", 0, "no such line", "")]
    assert rows([]) == []
    assert len(rows([f"connection 1 request GET k{number} 9 bytes" for number in range(900)])) == 121


@pytest.mark.parametrize("connections", [1, 3, 40])
def test_no_label_of_a_diagram_overlaps_another_or_leaves_it(connections: int) -> None:
    draw = random.Random(connections)
    log = []
    for _ in range(100):
        number, key = draw.randint(1, connections), "k" * draw.randint(1, 90)
        log.append(draw.choice([
            f"connection {number} open", f"connection {number} request GET {key} {draw.randint(1, 10**9)} bytes",
            f"connection {number} reply GET {key} {'done ' * draw.randint(1, 9)}".strip(), "note " * 60,
            f"connection {number} close GET {key} by proxy ({'why ' * 20})", "call returned"]))
    root = ElementTree.fromstring(sequence.diagram(log))
    width = float(root.attrib["width"])
    boxes = []
    for text in root.iter("text"):
        wide = 7.23 * len(text.text or "")
        left = float(text.attrib["x"]) - (wide / 2 if text.attrib.get("text-anchor") == "middle" else 0)
        boxes.append((left, left + wide, float(text.attrib["y"]), text.text))
        assert left >= 0, text.text
        assert left + wide <= width, text.text
    for one, other in combinations(boxes, 2):
        assert not (one[0] < other[1] and other[0] < one[1] and abs(one[2] - other[2]) < 12), (one, other)


def test_a_document_without_rows_says_so() -> None:
    read = Page(page([document()]))
    assert "nothing was run" in read.text
    assert "exit code 3" in read.text
    assert read.cells() == Counter()


@pytest.mark.parametrize(("given", "said"), [
    ([], "no results were given"),
    ([[]], "it is list"),
    ([{}], "its schema is null"),
    ([{"schema": "kvproof.results/9"}], "its schema is kvproof.results/9"),
    ([{**document(), "cells": 7}], "cells is 7, expected list"),
    ([{**document(), "cells": [7]}], "cells[0] is int"),
    ([document(), {**document(), "cells": [{}]}], "results document 2: cells[0]: there is no connector"),
    ([{**document(), "seconds": float("nan")}], "seconds is NaN"),
    ([{**document(), "seed": True}], "seed is true"),
    ([document([cell(rate="half")])], "rate is half, expected float | None"),
    ([document([cell(where={"ranks": 1})])], "cells[0].where: there is no device"),
    ([document(replays=[ReplayRow("b", "c", "1", HERE, "absent", 1, "", evidence=[7])])], "evidence is [7]"),  # type: ignore[list-item]  # wrong on purpose
])
def test_what_is_no_results_is_refused_in_one_line(given: list[Any], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        page(given)
    assert said in str(caught.value)
    assert re.search(r"; give a file that kvproof wrote with --json$|; expected at least one", str(caught.value))


def test_a_field_that_this_version_does_not_know_is_left_out() -> None:
    given = document([cell(1, "fail")])
    given["cells"][0]["new"] = 1
    assert Page(page([given])).cells() == {"1-1": 1}


def test_it_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    given = document([cell(1, "fail")])
    write(tmp_path / "a.html", [given])
    assert (tmp_path / "a.html").read_text() == page([given])
    with pytest.raises(UsageError, match="cannot write"):
        write(tmp_path / "nowhere" / "a.html", [given])


def test_the_wheel_holds_every_file_of_the_page() -> None:
    root = Path(__file__).parents[1]
    globs = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["kvproof"]
    there = [path.relative_to(root / "kvproof").as_posix() for path in (root / "kvproof" / "pages").iterdir()
             if path.suffix not in (".py", "") and path.is_file()]
    assert len(there) == 4
    assert all(any(fnmatch.fnmatchcase(name, glob) for glob in globs) for name in there)


def test_a_rule_over_worlds_says_what_it_says_of_worlds() -> None:
    of_world = "Load everything again once the disturbance is gone"
    of_client = "Once a disturbance is gone the same connector"
    world, client = (Results(cells=[cell(rule="recovers", fault="nil@first", world=each)]) for each in (True, False))
    assert (of_world in page([world.document()]), of_client in page([world.document()])) == (True, False)
    assert of_client in page([client.document()])
