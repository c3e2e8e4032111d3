"""The pytest plugin: fixtures for anybody's tests. It does nothing unless one of them is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from kvproof.faults.endpoint import Proxy
    from kvproof.faults.fault import Fault
    from kvproof.faults.servers import Server


@pytest.fixture
def kvproof_valkey() -> Iterator[Server]:
    """Start a valkey-server of its own on a free loopback port: `host`, `port`, `connect()` for the truth."""
    from kvproof.faults import servers

    with servers.valkey() as server:
        yield server


@pytest.fixture
def kvproof_proxy(request: pytest.FixtureRequest) -> Iterator[Callable[..., Proxy]]:
    """Return ``open(*faults, upstream=...)``, which puts a proxy with these faults armed in front of a server.

    upstream: as `kvproof.faults.proxy` takes it; when it is left out, a server of this test (`kvproof_valkey`). All
    proxies of a test are closed at its end.
    """
    from kvproof import faults

    with ExitStack() as stack:

        def open_(*schedule: Fault, upstream: tuple[str, int] | str | None = None) -> Proxy:
            where = upstream if upstream is not None else request.getfixturevalue("kvproof_valkey").address
            opened.append(stack.enter_context(faults.proxy(where, schedule)))
            return opened[-1]

        opened: list[Proxy] = []
        yield open_
        for endpoint in opened:
            # pytest shows this with a test that fails, and only then.
            marks = ", ".join(map(str, endpoint.marks()))
            print(f"the proxy at {endpoint.host}:{endpoint.port}: {marks or 'no faults'}")
            print("\n".join(f"  {event}" for event in endpoint.log()[-40:]))
