"""The file that a log is in: lines that are cut off, that are none, and what stands before them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kvproof import report
from kvproof.errors import UsageError
from kvproof.validate import validate
from tests.logs import Lines, a_step, line, numbered, requests

RIGHT = requests("send", "read", "give_back")
WRONG = requests("send", "send", "read", "give_back")
GARBAGE = b'{"rank": 0, "seq": 4, "event": "give_b'


def written(path: Path, lines: Lines, end: bytes = b"\n") -> Path:
    """Write a log whose last line ends like this."""
    path.write_bytes(b"\n".join(json.dumps(each).encode() for each in numbered(lines)) + end)
    return path


def misused(path: Path, protocol: str = "ownership") -> str:
    with pytest.raises(UsageError) as raised:
        validate(path, protocol)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kvproof", "validate", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_last_line_without_a_line_break_is_a_line(tmp_path: Path) -> None:
    found = validate(written(tmp_path / "log", WRONG, b""), "ownership")
    assert (found.verdict, found.line and found.line.number, found.cut) == ("rejected", 4, False)
    assert validate(written(tmp_path / "log", RIGHT, b""), "ownership").events == 3


def test_a_last_line_that_was_cut_off_is_left_out_and_said_to_be(tmp_path: Path) -> None:
    for lines, verdict in ((RIGHT, "accepted"), (WRONG, "rejected"), (RIGHT[:1], "accepted so far")):
        found = validate(written(tmp_path / "log", lines, b"\n" + GARBAGE), "ownership")
        assert (found.verdict, found.cut) == (verdict, True)
        assert report.judgement(found).endswith("\nthe last line is cut off, and was left out\n")
    assert "cut off" not in report.judgement(validate(written(tmp_path / "log", RIGHT), "ownership"))


@pytest.mark.parametrize("last", [
    b'{"rank": 0, "seq": 4, "event": "give_back"} {}', b'{"rank": 0, "seq": 4, "event": "read"}}', b"\0\0", b"give",
])
def test_a_last_line_that_is_more_than_cut_off_is_no_event(last: bytes, tmp_path: Path) -> None:
    assert "log:4: no JSON" in misused(written(tmp_path / "log", RIGHT, b"\n" + last))


def test_nothing_but_a_line_that_was_cut_off_is_no_log(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(GARBAGE)
    assert "there is no event in it" in misused(tmp_path / "log")


@pytest.mark.parametrize("last", [
    GARBAGE, b"[1]", b"hello", b'{"rank": 0, "seq": 4, "event": "fly"}',
    b'{"rank": 0, "seq": 4, "event": "read", "values": {"request": "x"}}',
])
def test_what_is_no_event_hides_no_violation_before_it(last: bytes, tmp_path: Path) -> None:
    found = validate(written(tmp_path / "log", WRONG, b"\n" + last + b"\n"), "ownership")
    assert (found.verdict, found.line and found.line.number) == ("rejected", 4)
    assert "log:5: " in misused(written(tmp_path / "log", [*RIGHT, RIGHT[0]], b"\n" + last + b"\n"))


def test_what_is_recorded_after_a_line_that_is_no_event_counts_as_recorded(tmp_path: Path) -> None:
    lines = numbered([*a_step(2, 0)[:3], line(0, "expire"), line(1, "die")])
    texts = [json.dumps(each) for each in lines]
    (tmp_path / "log").write_text("\n".join([*texts[:3], "hello", *texts[3:]]) + "\n")
    assert "log:4: no JSON" in misused(tmp_path / "log", "load")


@pytest.mark.parametrize(("text", "expected"), [
    ('{"rank": 0, "rank": 1, "seq": 0, "event": "send"}', "no JSON ('rank' comes twice in one object)"),
    ('{"rank": 0, "seq": 0, "event": "read", "values": {"request": 0, "request": 1}}', "'request' comes twice"),
    ('{"rank": 0, "seq": 0, "event": "read", "values": {"request": NaN}}', "NaN is no number of JSON"),
    ('{"rank": 0, "seq": 0, "event": "read", "values": {"request": -Infinity}}', "-Infinity is no number of JSON"),
    ('{"rank": 0, "seq": 0, "event": "read", "values": {"a": ' + "[" * 100_000, "(it is too deep)"),
    ('{"rank": 0, "seq": 0, "event": "read", "values": {"request": ' + "[" * 900 + "]" * 900 + "}}", "has request"),
    ('{"rank": 0, "seq": 0, "event": "read", "values": {"request": ' + "9" * 5000 + "}}", "no JSON"),
    ('{"rank": true, "seq": 0, "event": "send"}', "rank is True, which is no natural number"),
    ('{"rank": 0, "seq": 0.0, "event": "send"}', "seq is 0.0, which is no natural number"),
    ('{"rank": 0, "seq": 0, "step": null, "event": "send"}', "step is None, which is no natural number"),
    ("\ufeff{}", "no JSON"),
])
def test_a_line_that_is_not_plain_is_one_clear_line(text: str, expected: str, tmp_path: Path) -> None:
    (tmp_path / "log").write_text(text + "\n")
    assert expected in misused(tmp_path / "log")
    done = run(str(tmp_path / "log"), "--protocol", "ownership")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1, done.stderr[-500:]
    assert len(done.stderr) < 1000


def test_bytes_that_are_no_text_are_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b'{"rank": 0, "seq": 0, "event": "\xff"}\n')
    assert "log:1: no JSON" in misused(tmp_path / "log")


def test_the_judgement_is_not_written_over_what_was_read(tmp_path: Path) -> None:
    log = written(tmp_path / "log", RIGHT)
    (tmp_path / "link").symlink_to(log)
    before = log.read_bytes()
    for name in ("log", "link"):
        done = run(str(log), "--protocol", "ownership", "--json", str(tmp_path / name))
        assert (done.returncode, log.read_bytes()) == (2, before)
        assert "would overwrite" in done.stderr
    done = run(str(log), "--protocol", "ownership", "--json", str(tmp_path / "judgement"))
    assert (done.returncode, json.loads((tmp_path / "judgement").read_text())["cut"]) == (0, False)
