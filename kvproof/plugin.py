"""The pytest plugin: fixtures for anybody's tests, and the contract as items for those who name a connector.

It does nothing unless it is asked to, and imports nothing of kvproof's own before that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from kvproof.connectors.adapter import Adapter
    from kvproof.faults.endpoint import Proxy
    from kvproof.faults.fault import Fault
    from kvproof.faults.servers import Server
    from kvproof.rig import Rig
    from kvproof.runner.forks import Forks


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add our options; every one of them begins with --kvproof-."""
    group = parser.getgroup("kvproof", "the contract on connectors: pytest --pyargs kvproof.rules")
    globs: list[str] = []
    group.addoption("--kvproof-connector", action="append", default=globs, metavar="NAME",
                    help="check this connector: NAME, NAME==VERSION or module:Class; may be repeated")
    group.addoption("--kvproof-server", metavar="WHERE", help="valkey (default), fakeredis or redis://HOST:PORT")
    group.addoption("--kvproof-device", choices=("cpu", "cuda"), default="cpu", help="where buffers live")
    group.addoption("--kvproof-deadline", type=float, default=5.0, metavar="SECONDS",
                    help="the longest deadline that an adapter may declare (default: 5)")
    group.addoption("--kvproof-known", metavar="PATH", help="what is known to fail: a TOML file or a directory of them")
    for what in ("rule", "fault", "read"):
        group.addoption(f"--kvproof-{what}", action="append", default=globs, metavar="GLOB",
                        help=f"only cells of such a {what}; may be repeated")
    group.addoption("--kvproof-registry", metavar="WHERE",
                    help="fail unless each connector of a registry is checked or exempted: lmcache or module:callable")
    group.addoption("--kvproof-exempt", action="append", default=globs, metavar="FILE",
                    help="names that need no check, with reasons: a TOML file, or lmcache for the one that we ship")


def pytest_configure(config: pytest.Config) -> None:
    """Bring in what was asked for, and nothing else."""
    if config.option.kvproof_connector:
        from kvproof.gate import Gate

        config.pluginmanager.register(Gate(config), "kvproof_gate")
    if config.option.kvproof_registry and not hasattr(config, "workerinput"):
        from kvproof.registries.demand import Demand

        config.pluginmanager.register(Demand(config), "kvproof_registry")


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


@pytest.fixture(scope="session")
def kvproof_forks() -> Iterator[Forks]:
    """Keep the fork servers from which the runners of all tests come."""
    from kvproof.runner.forks import Forks

    with Forks() as forks:
        yield forks


@pytest.fixture
def kvproof_connector(kvproof_valkey: Server, kvproof_forks: Forks) -> Iterator[Callable[..., Rig]]:
    """Return ``open(connector, *faults, **place)``: a connector in a runner behind a proxy with these faults armed.

    connector: a name, "module:Class", or the adapter's class, which the runner imports by its name. place: fields of
    `kvproof.connectors.adapter.Place`. What comes back is a `kvproof.rig.Rig` on this test's `kvproof_valkey`: its
    `put` and `read` make calls, its `proxy` has the wire log. All are closed at the test's end.
    """
    from kvproof import connectors
    from kvproof.rig import Ground, described

    with ExitStack() as stack:

        def open_(connector: str | type[Adapter], *schedule: Fault, **place: object) -> Rig:
            name = connector if isinstance(connector, str) else f"{connector.__module__}:{connector.__qualname__}"
            found = connectors.find(name)
            ground = Ground(found, described(found, kvproof_forks), kvproof_valkey, kvproof_forks)
            return stack.enter_context(ground.rig(ground.at("test", **place), schedule))

        yield open_
