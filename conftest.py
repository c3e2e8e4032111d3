"""What all tests share: a server, the nightly switch, how Hypothesis searches, and no test without a deadline."""

from __future__ import annotations

import faulthandler
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from kvproof.faults import servers
from kvproof.faults.servers import Server

ROOT = Path(__file__).parent
TEST_DEADLINE = 240.0
"""Seconds after which a test that hangs shows its stacks and ends the run."""

EXAMPLES = 100
"""How many examples a Hypothesis test tries before a merge; ten times as many at night."""

# On a machine that is busy an example may take any time, which says nothing about the code.
settings.register_profile(
    "premerge", max_examples=EXAMPLES, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile(
    "nightly", settings.get_profile("premerge"), max_examples=10 * EXAMPLES, derandomize=False, print_blob=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--kvproof-nightly", action="store_true", help="also run what repeats or soaks")


# Where kvproof is installed from a checkout, a run of its contract in another project loads this file too late for the
# option to exist.
def pytest_configure(config: pytest.Config) -> None:
    # Who is started in the background of a script has SIGINT ignored, and so would have all that tests interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    settings.load_profile("nightly" if config.getoption("--kvproof-nightly", False) else "premerge")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--kvproof-nightly", False):
        return
    for item in items:
        if item.get_closest_marker("nightly"):
            item.add_marker(pytest.mark.skip(reason="nightly: run with --kvproof-nightly (make nightly)"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    nightly = item.config.getoption("--kvproof-nightly", False)
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
