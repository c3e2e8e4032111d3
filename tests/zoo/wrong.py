"""What every wrong connector of the zoo says of itself."""

from __future__ import annotations

from typing import ClassVar

from tests.zoo.honest import Honest


class Wrong(Honest):
    """Honest but for one thing, which a real connector did; its docstring names the public report."""

    rule: ClassVar[str]
    """The rule that has to catch it."""
    breaks: ClassVar[frozenset[str]]
    """Every rule that it really breaks."""
