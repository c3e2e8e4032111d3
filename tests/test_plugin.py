"""The pytest plugin, in a project that is not ours: its fixtures work, and without them it does nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from _pytest.fixtures import FixtureFunctionDefinition

USERS = '''
import redis
from kvproof.faults.families import Nil, Silence


def test_a_miss_is_a_miss(kvproof_proxy, kvproof_valkey):
    endpoint = kvproof_proxy(Nil(command="GET", key="k"))
    with kvproof_valkey.connect() as truth:
        truth.command("SET", "k", "v")
    with redis.Redis(endpoint.host, endpoint.port) as client, endpoint.call():
        assert client.get("k") is None
    assert endpoint.felt() == (True,)


def test_two_proxies(kvproof_proxy):
    silent, passing = kvproof_proxy(Silence(command="ACCEPT")), kvproof_proxy()
    with redis.Redis(passing.host, passing.port) as client:
        assert client.ping()
    assert silent.port != passing.port


def test_a_connector_behind_a_fault(kvproof_connector):
    rig = kvproof_connector("reference", Nil(command="GET", match=2), timeout=0.5)
    rig.put(("c1", 1))
    assert rig.read("get", "c1", [("c1", 1)]).own([("c1", 1)])
    assert rig.read("get", "c1", [("c1", 1)]).outcome == "miss"
    assert [event.command for event in rig.proxy.log() if event.direction == "request"].count("GET") == 2
    assert rig.place.timeout == 0.5


def test_a_class_of_mine(kvproof_connector):
    from mine import Mine
    rig = kvproof_connector(Mine)
    rig.put(("c1", 1))
    assert rig.read("get", "c2", [("c1", 1)]).outcome == "miss"
'''
MINE = '''
from kvproof.connectors.reference import Reference


class Mine(Reference):
    """One by its class."""
'''
INERT = '''
import sys


def test_nothing_was_imported():
    assert "kvproof.plugin" in sys.modules
    assert not {"trio", "z3", "hypothesis", "redis", "kvproof.faults.endpoint"} & set(sys.modules)
'''


def run(tmp_path: Path, text: str, **environment: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "test_users.py").write_text(text)
    return subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_users.py"],
                          cwd=tmp_path, capture_output=True, text=True, timeout=120, env={**os.environ, **environment})


def test_a_users_tests_get_a_proxy_a_server_and_a_connector(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    done = run(tmp_path, USERS)
    assert "4 passed" in done.stdout, done.stdout + done.stderr


def test_it_is_inert_unless_asked(tmp_path: Path) -> None:
    alone = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "kvproof.plugin"}
    done = run(tmp_path, INERT, **alone)
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_every_name_of_ours_says_so() -> None:
    from kvproof import plugin

    ours = [name for name, value in vars(plugin).items() if isinstance(value, FixtureFunctionDefinition)]
    assert sorted(ours) == ["kvproof_connector", "kvproof_forks", "kvproof_proxy", "kvproof_valkey"]
    hooks = [name for name in vars(plugin) if name.startswith("pytest_")]
    assert hooks == ["pytest_addoption", "pytest_configure"], "whatever else is hooked belongs to what was asked for"
    parser = pytest.Parser(_ispytest=True)
    plugin.pytest_addoption(parser)
    options = [name for group in parser._groups for option in group.options for name in option.names()]
    assert options
    assert all(name.startswith("--kvproof-") for name in options), options
