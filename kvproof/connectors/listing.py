"""What is installed and what it can do, asked in runners."""

from __future__ import annotations

from dataclasses import dataclass

from kvproof import connectors
from kvproof.errors import KvproofError, NotInstalled
from kvproof.runner import Returned
from kvproof.runner.forks import Forks

_DESCRIBE = 10.0


@dataclass(frozen=True, slots=True)
class Entry:
    """One connector: its version if it is installed, and what its adapter declares; `problem` says what is amiss."""

    name: str
    version: str | None
    reads: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()
    truth: str = ""
    problem: str = ""


def entries() -> list[Entry]:
    """Return every connector that is known by name, asked in a runner for what it declares."""
    with Forks() as forks:
        return [_entry(name, forks) for name in [*connectors.names(), *connectors.PINNED] if "+" not in name]


def _entry(name: str, forks: Forks) -> Entry:
    try:
        connector = connectors.find(name)
    except NotInstalled as error:
        return Entry(name, None, problem=str(error))
    try:
        with forks.runner(connector) as runner:
            where = "kvproof.ranks.inside" if connector.ranks else "kvproof.runner.calls"
            answer = runner.call(f"{where}:describe", _DESCRIBE)
    except KvproofError as error:
        return Entry(name, connector.version, problem=str(error))
    if not isinstance(answer, Returned):
        return Entry(name, connector.version, problem=f"cannot be asked what it can do: {answer}")
    said = answer.value
    return Entry(
        name,
        connector.version,
        tuple(read["name"] for read in said["loads" if connector.ranks else "reads"]),
        tuple(said["devices"]),
        ("ranks",) if connector.ranks else tuple(said["capabilities"]),
        "resp" if connector.ranks else said["truth"],
    )
