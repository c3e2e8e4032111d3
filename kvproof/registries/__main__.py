"""Ask a registry for its names, in a process of its own: ``python -m kvproof.registries MODULE:CALLABLE FILE``."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path


def main(target: str, file: str) -> int:
    """Write the names as JSON into a file, since whoever is imported may print; return the exit code."""
    module, _, attribute = target.partition(":")
    try:
        if not module or not attribute:
            raise ValueError(f"{target!r} is not of that form")
        found = [str(name) for name in getattr(importlib.import_module(module), attribute)()]
    except Exception as error:
        print(f"{type(error).__name__}: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    Path(file).write_text(json.dumps(list(dict.fromkeys(found))))
    return 0


sys.exit(main(*sys.argv[1:]))
