"""A library that starts CUDA when it is imported, as PyTorch knows it: a process forked after that is a bad fork."""

from __future__ import annotations

import os
import sys
import types

_importer = os.getpid()
torch = sys.modules["torch"] = types.ModuleType("torch")
torch.cuda = types.SimpleNamespace(_is_in_bad_fork=lambda: os.getpid() != _importer)  # type: ignore[attr-defined]  # a module


def use() -> None:
    """Use CUDA; raises RuntimeError in a process that was forked from the one that started it."""
    if torch.cuda._is_in_bad_fork():
        raise RuntimeError("Cannot re-initialize CUDA in forked subprocess")
