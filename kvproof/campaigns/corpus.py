"""A shared corpus: cases that were worth keeping, and findings, so that machines and people have them in common.

It is a directory, or a Redis or Valkey of its own; never the server under test. An entry is a JSON object, named by
its own hash, so that the same one from two machines is one. Hypothesis's database lies beside it: `hypothesis` gives
it, so that what a property test of one's own has found is in the same place.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from kvproof.errors import KvproofError, UsageError
from kvproof.faults.raw_resp import RawResp, ReplyError

_PREFIX = "kvproof:corpus:"
_PATIENCE = 5.0


class CorpusFailed(KvproofError):
    """The corpus cannot be reached; a campaign says so and goes on without it."""


class Corpus(Protocol):
    """Entries by name."""

    def names(self) -> set[str]:
        """Return the names of all entries."""

    def get(self, name: str) -> dict[str, Any] | None:
        """Return an entry; None where it is gone, or is none."""

    def put(self, entry: Mapping[str, Any]) -> str:
        """Add an entry, and return its name."""


def opened(where: str, server: str | None = None) -> Corpus:
    """Return the corpus at a directory or redis://HOST:PORT[/PASSWORD...]; raises UsageError.

    server: the address of the server under test, which the corpus may not be.
    """
    if not where.startswith(("redis://", "valkey://")):
        if "://" in where or not where:
            raise UsageError(f"--corpus {where}: expected a directory, or redis://HOST:PORT")
        return Directory(Path(where))
    try:
        found = urlsplit(where)
        host, port = found.hostname or "127.0.0.1", found.port or 6379
    except ValueError:
        raise UsageError(f"--corpus {where}: expected redis://HOST:PORT") from None
    if server and "://" in server and (urlsplit(server).hostname, urlsplit(server).port or 6379) == (host, port):
        raise UsageError(f"--corpus {where} is the server under test, which is disturbed and emptied; name another")
    corpus = Remote(host, port, found.password)
    try:
        corpus.names()
    except CorpusFailed as error:
        raise UsageError(f"--corpus {where}: {error}; start it, or leave --corpus out") from error
    return corpus


class Directory:
    """A directory with a file an entry."""

    def __init__(self, path: Path) -> None:
        """Make it where it is not there; raises UsageError."""
        self._path = path / "cases"
        try:
            self._path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"--corpus {path}: {error.strerror}; name a directory that can be made") from error

    def names(self) -> set[str]:
        """See `Corpus`."""
        try:
            return {name.removesuffix(".json") for name in os.listdir(self._path) if name.endswith(".json")}
        except OSError as error:
            raise CorpusFailed(f"{self._path}: {error.strerror}") from error

    def get(self, name: str) -> dict[str, Any] | None:
        """See `Corpus`."""
        try:
            return _entry((self._path / f"{name}.json").read_bytes())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise CorpusFailed(f"{self._path}: {error.strerror}") from error

    def put(self, entry: Mapping[str, Any]) -> str:
        """See `Corpus`."""
        name, data = _named(entry)
        partial = self._path / f".{name}.{os.getpid()}"
        try:
            partial.write_bytes(data)
            partial.rename(self._path / f"{name}.json")
        except OSError as error:
            raise CorpusFailed(f"{self._path}: {error.strerror}") from error
        return name


class Remote:
    """A Redis or Valkey with a string an entry."""

    def __init__(self, host: str, port: int, password: str | None) -> None:
        """Take note of the address; a connection is made for each call."""
        self._host, self._port, self._password = host, port, password

    def names(self) -> set[str]:
        """See `Corpus`."""
        return {key.removeprefix(_PREFIX) for key in self._with(lambda raw: raw.keys(_PREFIX))}

    def get(self, name: str) -> dict[str, Any] | None:
        """See `Corpus`."""
        data = self._with(lambda raw: raw.get(_PREFIX + name))
        return _entry(data) if data is not None else None

    def put(self, entry: Mapping[str, Any]) -> str:
        """See `Corpus`."""
        name, data = _named(entry)
        self._with(lambda raw: raw.command("SET", _PREFIX + name, data))
        return name

    def _with(self, call: Any) -> Any:
        try:
            with RawResp.connect(self._host, self._port, password=self._password, timeout=_PATIENCE) as raw:
                return call(raw)
        except (OSError, EOFError, ReplyError) as error:
            raise CorpusFailed(f"{self._host}:{self._port} does not serve it: {error}") from error


def _named(entry: Mapping[str, Any]) -> tuple[str, bytes]:
    data = json.dumps(entry, sort_keys=True).encode()
    return blake2b(data, digest_size=12).hexdigest(), data


def _entry(data: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(data)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def hypothesis(where: str) -> Any:
    """Return Hypothesis's example database beside the corpus: settings(database=hypothesis("corpus")).

    For a directory it is a directory of it, for a server keys of their own there (Hypothesis needs redis-py for that).
    """
    from hypothesis.database import DirectoryBasedExampleDatabase

    if "://" not in where:
        return DirectoryBasedExampleDatabase(Path(where) / "hypothesis")
    from datetime import timedelta

    from hypothesis.extra import redis as extra

    # Hypothesis wants a client of the library that it has imported itself; nothing here is under test.
    client = vars(extra)["Redis"].from_url(where.replace("valkey://", "redis://", 1))
    return extra.RedisExampleDatabase(client, expire_after=timedelta(days=90), key_prefix=b"kvproof:hypothesis:")
