"""A server that a test may disturb, and the clients that feel it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kvproof.faults import servers
from kvproof.faults.servers import Server
from tests.feeling import CLIENTS, IMPATIENCE, Felt, fill
from tests.waiting import until


@pytest.fixture(scope="module")
def disturbed() -> Iterator[Server]:
    """A server that every test leaves as it found it, but for its keys."""
    with servers.valkey() as server:
        yield server


@pytest.fixture(params=CLIENTS)
def felt(request: pytest.FixtureRequest, disturbed: Server) -> Iterator[Felt]:
    """A client that has stored k."""
    with Felt(request.param, disturbed) as client:
        assert client.set("k", b"v") == "ok"
        yield client


@pytest.fixture(params=CLIENTS)
def impatient(request: pytest.FixtureRequest, disturbed: Server) -> Iterator[Felt]:
    """A client that gives up soon, on a server that has k."""
    fill(disturbed, "k")
    with Felt(request.param, disturbed, patience=IMPATIENCE) as client:
        until(lambda: client.get("k") == "hit", "the first answer")
        yield client
