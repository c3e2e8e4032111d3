"""The gate on a registry: no connector in it that is neither checked nor exempted with a reason."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest

from kvproof import connectors, registries
from kvproof.errors import KvproofError
from kvproof.rig import described
from kvproof.runner.forks import Forks


class Demand:
    """The plugin that pytest has while a registry is looked through."""

    def __init__(self, config: pytest.Config) -> None:
        """Note what was asked."""
        self.where: str = config.option.kvproof_registry
        self.files: list[str] = config.option.kvproof_exempt
        self.named: list[str] = config.option.kvproof_connector

    def pytest_sessionstart(self) -> None:
        """End the session before it begins, with one line for each connector that nobody answers for."""
        try:
            found = registries.names(self.where)
            exempt = {name: reason for file in self.files for name, reason in registries.exempt(file).items()}
            wrong = complaints(self.where, found, set(checked(self.where, self.named)), exempt)
        except KvproofError as error:
            raise pytest.UsageError(str(error)) from error
        if wrong:
            raise pytest.UsageError(*wrong)


def checked(where: str, named: Iterable[str]) -> Iterator[str]:
    """Yield the names that are answered for: those with an adapter of ours, and what --kvproof-connector says.

    A class that is named as module:Class goes by the name that it declares.
    """
    yield from registries.ADAPTERS.get(where, ())
    for name in named:
        base = name.partition("==")[0]
        yield base
        if ":" in base:
            with Forks() as forks:
                yield described(connectors.find(base), forks).name


def complaints(where: str, found: Iterable[str], answered: set[str], exempt: dict[str, str]) -> list[str]:
    """Return what is wrong, in the order of the registry, then of the exemptions."""
    there = list(found)
    unchecked = [f"registry {where}: {name} is neither checked nor exempted; name it with --kvproof-connector, or give "
                 f"the reason why not in a file with --kvproof-exempt"
                 for name in there if name not in answered and name not in exempt]
    gone = [f"registry {where}: {name} is exempted, and there is no such connector any more; remove the entry"
            for name in exempt if name not in there]
    return unchecked + gone
