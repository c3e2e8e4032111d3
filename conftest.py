"""What all tests share: a server, the nightly switch, and no test without a deadline."""

from __future__ import annotations

import faulthandler
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvproof.faults import servers
from kvproof.faults.servers import Server

ROOT = Path(__file__).parent
TEST_DEADLINE = 240.0
"""Seconds after which a test that hangs shows its stacks and ends the run."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--kvproof-nightly", action="store_true", help="also run what repeats or soaks")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--kvproof-nightly"):
        return
    for item in items:
        if item.get_closest_marker("nightly"):
            item.add_marker(pytest.mark.skip(reason="nightly: run with --kvproof-nightly (make nightly)"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    nightly = item.get_closest_marker("nightly") is not None
    faulthandler.dump_traceback_later(TEST_DEADLINE * (10 if nightly else 1), exit=True)
    try:
        return (yield)  # type: ignore[return-value]  # what pytest's wrapper protocol asks for
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A real valkey-server for every test that does not disturb it."""
    with servers.valkey() as started:
        yield started
