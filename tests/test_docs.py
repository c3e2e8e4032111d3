"""What the README and the docs show is true: every command runs, and the adapter of 40 lines works."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from kvproof.ranks.disturbances import MENU
from kvproof.ranks.rules import RULES
from kvproof.spec import library

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SHOWN = re.compile(r"^```console\n((?:[^`].*\n)*)```\n\n((?:    .*\n)+)", re.MULTILINE)
"""Commands, and right below them what the last one shows."""
SECONDS = re.compile(r" \d+\.\d s$", re.MULTILINE)
"""How long something took, which is never the same."""
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
ELSEWHERE = {"kvproof run --only proofs --only replays": "test_replays.py runs it and asserts every verdict"}
"""Commands that another test runs, and which."""


def blocks(page: Path, language: str) -> list[str]:
    return [text for kind, text in BLOCK.findall(page.read_text()) if kind == language]


def commands(page: Path) -> list[str]:
    lines = [line for block in blocks(page, "console") for line in block.splitlines() if line.startswith("$ ")]
    return [command for line in lines if (command := line.removeprefix("$ ")) not in ELSEWHERE]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the Python that the pages show in it, and the TOML that has a name."""
    place = tmp_path_factory.mktemp("user")
    for page in PAGES:
        for block in blocks(page, "python"):
            name = re.match(r'"""(\w+\.py):', block)
            assert name, f"{page.name} shows Python that says no file name in its first line"
            (place / name[1]).write_text(block)
        for block in blocks(page, "toml"):
            if name := re.match(r"# (\w+\.toml):", block):
                (place / name[1]).write_text(block)
    return place


def test_there_is_something_to_run() -> None:
    assert sum(len(commands(page)) for page in PAGES) >= 8


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)], ids=lambda page: page.name)
def test_the_commands_that_a_page_shows_work_in_this_order(page: Path, directory: Path) -> None:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    text = page.read_text()
    for shown in commands(page):
        command, _, code = shown.partition("   # exit ")
        words = shlex.split(command)
        assert words[0] in ("kvproof", "python"), f"{page.name} shows {command!r}, which this test cannot run"
        done = subprocess.run(words, cwd=directory, env=environment, capture_output=True, text=True, timeout=200)
        assert done.returncode == int(code or 0), f"{page.name}: {command}\n{done.stdout}{done.stderr}"
        screens = {block.splitlines()[-1].removeprefix("$ "): screen for block, screen in SHOWN.findall(text)}
        if shown in screens:
            said, shows = (SECONDS.sub(" _ s", text).split() for text in (screens[shown], done.stdout))
            assert said == shows, f"{page.name}: {command} shows\n{done.stdout}"


def test_the_adapter_of_40_lines_has_40_lines() -> None:
    [adapter] = [block for block in blocks(ROOT / "README.md", "python") if "class MyCache" in block]
    code = [line for line in adapter.splitlines() if line.strip()]
    assert len(code) <= 50, f"{len(code)} lines"


def test_make_targets_that_are_shown_exist() -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for page in PAGES:
        for target in re.findall(r"`make ([a-z-]+)", page.read_text()):
            assert target in targets, f"{page.name} shows make {target}"


def test_the_screen_in_the_readme_is_of_this_version() -> None:
    from kvproof import __version__

    [screen] = [block for block in blocks(ROOT / "README.md", "console") if block.startswith("$ kvproof run")]
    assert re.search(rf"^reference +{re.escape(__version__)} +absent", screen, re.MULTILINE), screen
    assert "exit code 0: all as expected" in screen
    ours = library.obligations()
    limits, mutants = sum(each.limit for each in ours), sum(len(each.mutants) for each in ours)
    said = f"Proof obligations: {len(ours) - limits} proved, {limits} limits, {mutants} mutants refuted"
    assert said in screen, f"the README's screen is old; now it is: {said}"


def test_every_verdict_and_link_in_the_readme_exists() -> None:
    text = (ROOT / "README.md").read_text()
    for path in re.findall(r"`((?:docs|kvproof|tests|models|faults|spec|bench)/[\w./*-]*)`", text):
        assert list(ROOT.glob(path.rstrip("/"))), f"README names {path}, which is not there"


def test_the_page_about_ranks_names_every_rule_and_disturbance() -> None:
    text = (ROOT / "docs" / "testing-ranks.md").read_text()
    missing = [each for each in (*RULES, *(entry.id for entry in MENU)) if f"`{each}`" not in text]
    assert missing == []
