"""Somebody else's package, as the docs show it: built, installed beside kvproof in a new environment, checked there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "testing-your-connector.md").read_text()
LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "*.egg-info", "tests", "wheels")
TWO_RULES = ("--kvproof-rule", "miss-is-miss", "--kvproof-rule", "key-per-rank")


def shown(begins: str) -> str:
    """Return the block of the page that begins so."""
    return next(text for text in re.findall(r"^```\w+\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
                if text.startswith(begins))


def run(*words: str | Path, cwd: Path) -> str:
    """Run a command without this checkout on its path, and return what it said."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTEST_PLUGINS")}
    done = subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, f"{' '.join(map(str, words))}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """A new environment with both wheels in it; what they need is borrowed from this one."""
    theirs, ours, wheels = tmp_path / "acme", tmp_path / "kvproof", tmp_path / "wheels"
    theirs.mkdir()
    (theirs / "acme_cache.py").write_text(shown('"""acme_cache.py:'))
    (theirs / "pyproject.toml").write_text(shown("[project]"))
    shutil.copytree(ROOT, ours, symlinks=True, ignore=LEFT_OUT)
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
    run(*pip, "wheel", "--no-index", "--no-deps", "--no-build-isolation", "-w", wheels, theirs, ours, cwd=tmp_path)
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv", cwd=tmp_path)
    made = tmp_path / "venv" / "bin" / "python"
    run(*pip, "--python", made, "install", "--no-index", "--no-deps", *sorted(wheels.iterdir()), cwd=tmp_path)
    site = run(made, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path).strip()
    # Only directories stand in it, so that an editable kvproof over there stays there.
    Path(site, "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return made


def test_a_package_of_somebody_elses_is_checked_by_its_name(python: Path, tmp_path: Path) -> None:
    assert str(tmp_path) in run(python, "-c", "import kvproof; print(kvproof.__file__)", cwd=tmp_path)
    gate = (python, "-m", "pytest", "-p", "no:cacheprovider", "--pyargs", "kvproof.rules", *TWO_RULES)
    said = run(*gate, "--kvproof-connector", "acme-cache", "-v", cwd=tmp_path)
    assert re.search(r"kvproof: acme-cache 1\.0 on valkey \S+: \d+ cells", said), said
    for rule in TWO_RULES[1::2]:
        assert re.search(rf"kvproof\.rules::{rule}\[\S+-get\] PASSED|PASSED.*kvproof\.rules::{rule}\[", said), said
    assert re.search(r"=+ \d+ passed in", said), said
