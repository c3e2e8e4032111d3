"""What a start ran with, seen from outside: its Pythons and what they have, the system, and the image."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from kvproof.canary.tree import Tree

_PYTHON = re.compile(r"python[\d.]*")
_PYTHONS = 4
"""Pythons that are asked at most."""
_ASKED = 20.0
"""Seconds that one has to answer."""
_SAYS = """
import json, platform
from importlib import metadata
found = {each.metadata["Name"]: each.version for each in metadata.distributions() if each.metadata["Name"]}
print(json.dumps({"python": platform.python_version(), "distributions": found}))
"""


def setting(trees: Iterable[Tree]) -> dict[str, Any]:
    """Return the Pythons that these commands ran, by path, each with its distributions; the system, and the image."""
    image = os.environ.get("KVPROOF_IMAGE", "")
    if not image and any(Path(mark).exists() for mark in ("/.dockerenv", "/run/.containerenv")):
        image = "a container; KVPROOF_IMAGE may name its image"
    return {"system": platform.platform(), "release": _release(), "image": image,
            "pythons": {path: _asked(path) for path in _pythons(trees)}}


def _release() -> str:
    try:
        text = Path("/etc/os-release").read_text()
    except OSError:
        return ""
    return dict(line.partition("=")[::2] for line in text.splitlines() if "=" in line).get(
        "PRETTY_NAME", "").strip('"')


def _pythons(trees: Iterable[Tree]) -> list[str]:
    """Return the interpreters that were run, in the order in which they were; each as it was named, so a venv's own."""
    found = dict.fromkeys(process.program for tree in trees for process in tree.processes.values()
                          if _PYTHON.fullmatch(os.path.basename(process.program)))
    return list(found)[:_PYTHONS]


def _asked(path: str) -> Mapping[str, Any]:
    """Ask a Python what it has; what went wrong where it does not say."""
    try:
        done = subprocess.run([path, "-I", "-c", _SAYS], capture_output=True, text=True, timeout=_ASKED, check=False,
                              stdin=subprocess.DEVNULL)
        found: dict[str, Any] = json.loads(done.stdout)
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        return {"says": f"it does not say what it has: {type(error).__name__}"}
    return found
