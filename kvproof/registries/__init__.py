"""Registries of connectors that others keep: what is in one, asked in a process of its own, and what needs no check."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from kvproof.errors import UsageError

CALLABLES = {"lmcache": "kvproof.registries.lmcache:connectors"}
"""The registries that we know, by name: what returns their names."""
ADAPTERS = {
    "lmcache": {"resp": "lmcache-resp", "redis": "lmcache-redis", "valkey": "lmcache-valkey"},
}
"""What of them kvproof has an adapter for, by the name in the registry."""
SHIPPED = Path(__file__).parent
_DEADLINE = 120.0


def names(where: str) -> list[str]:
    """Return the names in a registry: one that we know, or "module:callable", which returns an iterable of them.

    The registry is imported in a process of its own, whatever that prints. Raises UsageError with its last words when
    that does not work.
    """
    with tempfile.NamedTemporaryFile(prefix="kvproof-registry-") as answer:
        try:
            done = subprocess.run(
                [sys.executable, "-m", "kvproof.registries", CALLABLES.get(where, where), answer.name],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=_DEADLINE)
        except subprocess.TimeoutExpired as error:
            raise UsageError(f"registry {where}: it was not read within {_DEADLINE:g} s") from error
        if done.returncode:
            said = (done.stderr.strip() or "no word").splitlines()[-1]
            raise UsageError(f"registry {where}: {said}; expected {', '.join(CALLABLES)} or module:callable")
        return [str(name) for name in json.loads(Path(answer.name).read_bytes())]


def exempt(file: str) -> dict[str, str]:
    """Return the reason of each name in a file of exemptions, or in the one that we ship for a registry.

    Raises UsageError, in one line, for a file that cannot be read and for an entry without a reason.
    """
    path = SHIPPED / f"{file}.toml" if file in CALLABLES else Path(file)
    try:
        document = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"exemptions {path}: {error}; expected a TOML file with [[exempt]] entries") from error
    entries = document.get("exempt", [])
    if set(document) - {"exempt"} or not isinstance(entries, list):
        raise UsageError(f"exemptions {path}: expected nothing but [[exempt]] entries, each with a name and a reason")
    found: dict[str, str] = {}
    for number, entry in enumerate(entries, 1):
        if not isinstance(entry, dict) or set(entry) - {"name", "reason"} or not isinstance(entry.get("name"), str):
            raise UsageError(f"exemptions {path}, [[exempt]] {number}: expected a name and a reason, got {entry!r}")
        if not isinstance(entry.get("reason"), str) or not entry["reason"].strip():
            raise UsageError(f"exemptions {path}: {entry['name']!r} has no reason; say why it is not checked")
        found[entry["name"]] = entry["reason"]
    return found
