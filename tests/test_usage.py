"""Wrong usage of the command line is one clear line on standard error, and exit code 2."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvproof.cli import main
from kvproof.errors import UsageError
from kvproof.results import check_writable


@pytest.mark.parametrize(("words", "says"), [
    ([], "COMMAND"),
    (["chekc"], "'chekc'"),
    (["check", "-c"], "expected one argument; see kvproof check --help"),
    (["check", "-c", "reference", "--sede", "1"], "--sede 1"),
    (["plan", "--size", "much"], "got 'much'"),
    (["canary", "--factor", "A"], "name the command"),
    (["canary", "--factor", "A", "--", "true"], "--factor A: expected NAME=a,b"),
    (["check", "-c", "no\nsuch"], r"'no\nsuch'"),
])
def test_wrong_usage_is_one_line(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code: object = main(words)
    except SystemExit as end:
        code = end.code
    said = capsys.readouterr()
    assert code == 2
    assert said.out == ""
    assert said.err.startswith("kvproof: ")
    assert said.err.count("\n") == 1, said.err
    assert says in said.err


def test_two_things_are_not_written_to_one_file(tmp_path: Path) -> None:
    check_writable(tmp_path / "a.json", None, tmp_path / "a.html", None)
    for one, other in (("a", "a"), ("a", f"../{tmp_path.name}/a")):
        with pytest.raises(UsageError, match="two things"):
            check_writable(tmp_path / one, None, tmp_path / other)
    with pytest.raises(UsageError, match="two things"):
        check_writable(Path("-"), Path("-"))
