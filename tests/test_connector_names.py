"""Which connectors a name means, what is said when there is none, and environments beside."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from kvproof import connectors
from kvproof.connectors import environments
from kvproof.errors import NotInstalled, UsageError


def wheel(folder: Path, name: str, version: str) -> None:
    """Write the smallest wheel that pip installs."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}/__init__.py": f"__version__ = {version!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nRequires-Dist: not-there\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for path, text in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(path, text)


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let environments beside live in a folder of this test, and let pip see no index."""
    monkeypatch.setenv("KVPROOF_ENVIRONMENTS", str(tmp_path / "environments"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("name", [
    "reference", "reference+nil-get", "redis-py", "redis-py-asyncio", "valkey-py", "valkey-glide-sync", "coredis",
])
def test_a_built_in_name_says_what_it_is(name: str) -> None:
    found = connectors.find(name)
    assert found.name == name
    assert found.environment is None
    assert found.version, f"{name} has no version"
    assert found.bug == ("nil-get" if "+" in name else None)


def test_finding_imports_no_connector() -> None:
    code = (
        "import sys; from kvproof import connectors\n"
        "for name in connectors.names():\n"
        "    try: connectors.find(name)\n"
        "    except connectors.NotInstalled: pass\n"
        "print(sorted(m for m in sys.modules\n"
        "    if m.split('.')[0] in ('torch', 'redis', 'lmcache', 'trio', 'glide_sync', 'valkey', 'coredis')\n"
        "    or m.startswith('kvproof.connectors.') and m != 'kvproof.connectors.environments'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.strip() == "[]", f"looking names up imported {done.stdout}"


@pytest.mark.parametrize(("asked", "said"), [
    ("lmcache-rsep", "the nearest are lmcache-resp"),
    ("reference+nil", "reference+nil-get"),
    ("redis-py+nil-get", "no connector is called"),
    ("zzz", "known are reference"),
    ("no.such.module:Class", "no module 'no.such.module'"),
    ("kvproof.errors:a b", "not of the form module:Class"),
    ("reference==2", "has no other version"),
    ("redis-py==../../etc", "is not a version"),
])
def test_a_name_that_does_not_exist_is_a_usage_error(asked: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        connectors.find(asked)
    assert said in str(caught.value), f"{asked}: expected {said!r} in {caught.value}"


def test_what_is_not_installed_comes_with_the_commands(monkeypatch: pytest.MonkeyPatch, beside: Path) -> None:
    monkeypatch.setattr(environments, "installed_version", lambda distribution, where=None: None)
    with pytest.raises(NotInstalled, match=re.escape("pip install --no-deps lmcache==0.5.6")):
        connectors.find("lmcache-resp")
    with pytest.raises(NotInstalled, match=re.escape("kvproof connectors --install redis-py-asyncio==4.5.3")):
        connectors.find("redis-py-asyncio==4.5.3")


def test_a_class_of_ones_own_is_found_without_importing_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "mine"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('imported')\n")
    (package / "cache.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.chdir(tmp_path)
    found = connectors.find("mine.cache:Cache")
    assert (found.target, found.distribution) == ("mine.cache:Cache", "mine")


def test_a_version_beside_is_installed_once_and_found(beside: Path) -> None:
    wheel(beside, "redis", "4.5.3")
    directory = connectors.install("redis-py-asyncio==4.5.3")
    found = connectors.find("redis-py-asyncio==4.5.3")
    assert (found.version, found.environment) == ("4.5.3", directory)
    (beside / "redis-4.5.3-py3-none-any.whl").unlink()
    assert connectors.install("redis-py==4.5.3") == directory, "a second connector of the distribution shares it"


def test_a_failed_install_shows_pips_exit_code_and_words_and_leaves_nothing(beside: Path) -> None:
    with pytest.raises(NotInstalled) as caught:
        connectors.install("redis-py==0.0.9")
    said = str(caught.value)
    assert "installing redis==0.0.9: pip exited with 1" in said, said
    assert "No matching distribution found" in said, said
    assert "\n" not in said
    assert list(environments.root().iterdir()) == []
