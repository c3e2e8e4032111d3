"""Environments beside: another version of a connector's distribution in a directory of its own, never in the user's."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from importlib import metadata
from pathlib import Path

from kvproof.errors import NotInstalled, UsageError

VARIABLE = "KVPROOF_ENVIRONMENTS"
"""The environment variable that names the directory of all environments beside."""

ALONE = frozenset({"lmcache", "redis"})
"""Distributions installed without what they depend on: LMCache asks for CUDA packages that a CPU does not need, and
redis-py needs nothing from Python 3.11 on."""


def root() -> Path:
    """Return the directory of all environments: KVPROOF_ENVIRONMENTS, this Python's share, or the user's."""
    chosen = os.environ.get(VARIABLE)
    if chosen:
        return Path(chosen)
    shared = Path(sys.prefix, "share", "kvproof", "environments")
    if _writable(shared):
        return shared
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share", "kvproof", "environments")


def path(distribution: str, version: str) -> Path:
    """Return where this version of a distribution is or would be; extension modules are one Python's own.

    Raises UsageError for a name or version that could not be one, since both become part of a path.
    """
    for what, text in (("distribution", distribution), ("version", version)):
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._!+-]*", text):
            raise UsageError(f"{text!r} is not a {what}; write NAME==VERSION, for example redis-py-asyncio==4.5.3")
    tag = f"{sys.implementation.name}{sys.version_info.major}{sys.version_info.minor}"
    return root() / f"{distribution}-{version}-{tag}"


def installed_version(distribution: str, where: Path | None = None) -> str | None:
    """Return the installed version of a distribution, in an environment beside or in this Python; None if absent."""
    if where is None:
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            return None
    found = next(iter(metadata.distributions(name=distribution, path=[str(where)])), None)
    return found.version if found is not None else None


def install(distribution: str, version: str, *, deadline: float = 600.0) -> Path:
    """Install a version beside with pip, unless it is there already, and return its directory.

    pip fills a temporary directory that is renamed at the end, so that a directory which exists is complete. Raises
    NotInstalled with pip's exit code and the end of its output; `deadline` is in seconds.
    """
    target = path(distribution, version)
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        _pip(distribution, version, scratch, deadline)
        scratch.chmod(0o755)
        try:
            scratch.rename(target)
        except OSError:
            if not target.is_dir():
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


def _pip(distribution: str, version: str, target: Path, deadline: float) -> None:
    wanted = f"{distribution}=={version}"
    command = [sys.executable, "-m", "pip", "install", "--no-input", "--disable-pip-version-check", "--quiet",
               "--target", str(target), *(["--no-deps"] if distribution in ALONE else []), wanted]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=deadline, check=False)
    except subprocess.TimeoutExpired as error:
        raise NotInstalled(f"installing {wanted} had not finished after {deadline:g} s") from error
    if done.returncode:
        lines = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        end = " / ".join(textwrap.shorten(line, 200) for line in lines[-3:])
        raise NotInstalled(f"installing {wanted}: pip exited with {done.returncode}: {end}")


def _writable(directory: Path) -> bool:
    """Say whether the directory could be written, or made in the nearest parent that exists."""
    while not directory.exists():
        directory = directory.parent
    return os.access(directory, os.W_OK)
