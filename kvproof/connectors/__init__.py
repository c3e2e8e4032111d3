"""Which connectors there are, by name, and whether they are installed: without importing any of them."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import metadata
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from kvproof import __version__
from kvproof.connectors import environments
from kvproof.errors import NotInstalled, UsageError

GROUP = "kvproof.connectors"
"""The entry-point group under which other distributions register adapters."""

PINNED = ("redis-py==4.5.3", "redis-py-asyncio==4.5.3")
"""Versions in environments beside that a whole run covers as well: the last with a historic bug, in both clients."""

BUGS = ("lost-completion", "nil-get", "worker-key", "cancel-cross-talk")
"""The historic bugs that `reference+BUG` switches on."""

MISTAKES = (
    "early-return", "empty-list", "buffer-full", "exception", "lonely-timeout", "own-failure", "lookups", "subgroup",
    "not-compared", "own-extras", "waits-for-all", "uses-what-it-has", "maximum", "count", "owns-nothing",
    "past-the-hole", "own-key")
"""The mistakes that `sharded-reference+MISTAKE` makes, as the mutants of the proofs do."""


@dataclass(frozen=True, slots=True)
class Connector:
    """A connector that is installed.

    name: as it was asked for. target: "module:Class" of its adapter; with a `bug`, "module:function" of what returns
    the class for that bug. distribution, version: what is under test and which version is installed. environment:
    the directory that a runner puts before everything else on its path, None for this Python. install: the exact
    commands that install it, on one line. ranks: it has ranks, and is tried as a world of them.
    """

    name: str
    target: str
    distribution: str
    version: str
    install: str
    environment: Path | None = None
    bug: str | None = None
    ranks: bool = False

    @property
    def adapter(self) -> str:
        """What `runner.child.adapter_class` makes the adapter's class from, in a runner."""
        return f"{self.target}({self.bug})" if self.bug else self.target


@dataclass(frozen=True, slots=True)
class _Builtin:
    target: str
    distribution: str
    needs: tuple[str, ...]
    install: str
    ranks: bool = False


_LMCACHE = "pip install torch==2.13.0 && pip install 'kvproof[lmcache]' && pip install --no-deps lmcache==0.5.6"
_REFERENCE = _Builtin("kvproof.connectors.reference:Reference", "kvproof", (), "pip install kvproof")
_SHARDED = _Builtin(
    "kvproof.connectors.sharded_reference:ShardedReference", "kvproof", ("torch",),
    "pip install torch==2.13.0 && pip install kvproof", ranks=True)
_FAULTY = {
    "reference": ("kvproof.connectors.reference_bugs:faulty", BUGS),
    "sharded-reference": ("kvproof.connectors.sharded_mistakes:mistaken", MISTAKES),
}
"""What is right but for a bug that can be switched on: what makes the class of it, and the bugs."""
_BUILTIN = {
    "reference": _REFERENCE,
    "sharded-reference": _SHARDED,
    "lmcache-resp": _Builtin(
        "kvproof.connectors.lmcache_resp:LMCacheResp", "lmcache", ("torch", "lmcache"), _LMCACHE),
    "lmcache-redis": _Builtin(
        "kvproof.connectors.lmcache_redis:LMCacheRedis", "lmcache", ("torch", "redis", "lmcache"), _LMCACHE),
    "lmcache-valkey": _Builtin(
        "kvproof.connectors.lmcache_valkey:LMCacheValkey", "lmcache", ("torch", "glide_sync", "lmcache"),
        f"{_LMCACHE} && pip install valkey-glide-sync==2.6.0"),
    "lmcache-engine-resp": _Builtin(
        "kvproof.connectors.lmcache_engine:LMCacheEngineResp", "lmcache", ("torch", "lmcache"), _LMCACHE),
    "lmcache-engine-redis": _Builtin(
        "kvproof.connectors.lmcache_engine:LMCacheEngineRedis", "lmcache", ("torch", "redis", "lmcache"), _LMCACHE),
    "lmcache-engine-valkey": _Builtin(
        "kvproof.connectors.lmcache_engine:LMCacheEngineValkey", "lmcache", ("torch", "glide_sync", "lmcache"),
        f"{_LMCACHE} && pip install valkey-glide-sync==2.6.0"),
    "lmcache-l2-resp": _Builtin(
        "kvproof.connectors.lmcache_l2_resp:LMCacheL2Resp", "lmcache", ("torch", "lmcache"), _LMCACHE),
    "lmcache-ranks": _Builtin(
        "kvproof.connectors.lmcache_ranks:LMCacheRanks", "lmcache", ("torch", "redis", "glide_sync", "lmcache"),
        f"{_LMCACHE} && pip install valkey-glide-sync==2.6.0", ranks=True),
    "lmcache-fs": _Builtin(
        "kvproof.connectors.lmcache_fs:LMCacheFS", "lmcache", ("torch", "aiofiles", "lmcache"), _LMCACHE),
    "redis-py": _Builtin("kvproof.connectors.redis_py:RedisPy", "redis", ("redis",), "pip install redis==8.1.0"),
    "redis-py-asyncio": _Builtin(
        "kvproof.connectors.redis_py_asyncio:RedisPyAsyncio", "redis", ("redis",), "pip install redis==8.1.0"),
    "valkey-py": _Builtin("kvproof.connectors.valkey_py:ValkeyPy", "valkey", ("valkey",), "pip install valkey==6.2.0"),
    "valkey-glide-sync": _Builtin(
        "kvproof.connectors.valkey_glide_sync:ValkeyGlideSync", "valkey-glide-sync", ("glide_sync",),
        "pip install valkey-glide-sync==2.6.0"),
    "coredis": _Builtin(
        "kvproof.connectors.coredis_client:Coredis", "coredis", ("coredis",), "pip install coredis==6.9.0"),
}


_ON_CUDA = {f"lmcache-{kind}": f"lmcache-engine-{kind}" for kind in ("resp", "redis", "valkey")}


def for_device(name: str, device: str) -> str:
    """Return the name of the connector that begins and ends on `device`: LMCache reaches a GPU through its engine."""
    base, _, version = name.partition("==")
    if device == "cuda" and base in _ON_CUDA:
        return f"{_ON_CUDA[base]}=={version}" if version else _ON_CUDA[base]
    return name


def names() -> list[str]:
    """Return every name that `find` knows: built-in ones, then those that other distributions registered."""
    faulty = (f"{plain}+{bug}" for plain, (_, bugs) in _FAULTY.items() for bug in bugs)
    return [*_BUILTIN, *faulty, *sorted(_registered())]


def selection(device: str) -> list[str]:
    """Return what a whole run covers on `device`: each client by one adapter, and versions with a historic bug."""
    ranked = {name for name in names() if name.partition("+")[0] in of_ranks()}
    apart = {*_ON_CUDA.values(), *ranked}
    return [*dict.fromkeys(for_device(name, device) for name in names() if name not in apart), *PINNED]


def of_ranks() -> list[str]:
    """Return the built-in connectors that have ranks, of which a whole run covers a world of two."""
    return [name for name, builtin in _BUILTIN.items() if builtin.ranks]


def find(name: str) -> Connector:
    """Return the connector that `name` means: NAME, NAME==VERSION (an environment beside) or "module:Class".

    Nothing of the connector is imported. Raises UsageError for a name that does not exist, with the nearest that
    do, and NotInstalled with the commands that install it.
    """
    base, _, version = name.partition("==")
    if ":" in base:
        return _explicit(name, version)
    plain, _, bug = base.partition("+")
    if bug:
        return _faulty(name, plain, bug, version)
    if base in _BUILTIN:
        builtin = _BUILTIN[base]
    elif base in (registered := _registered()):
        builtin = registered[base]
    else:
        raise UsageError(f"no connector is called {base!r}{_nearest(base)}")
    return _beside(name, builtin, version) if version else _here(name, builtin)


def install(name: str) -> Path:
    """Install NAME==VERSION beside and return its directory.

    Raises UsageError for what is not of that form or no connector, and NotInstalled when pip fails.
    """
    base, _, version = name.partition("==")
    if not version or base.startswith("reference"):
        raise UsageError(f"cannot install {name!r} beside; write NAME==VERSION, for example redis-py-asyncio==4.5.3")
    known = _BUILTIN.get(base) or _registered().get(base)
    if known is None:
        raise UsageError(f"no connector is called {base!r}{_nearest(base)}")
    return environments.install(known.distribution, version)


def _here(name: str, builtin: _Builtin) -> Connector:
    missing = [module for module in builtin.needs if _spec(module) is None]
    version = environments.installed_version(builtin.distribution)
    if builtin.distribution == "kvproof":
        version = __version__
    if missing or version is None:
        what = f" (no module {', '.join(missing)})" if missing else f" (no distribution {builtin.distribution})"
        raise NotInstalled(f"{name} is not installed{what}; install it with: {builtin.install}")
    return Connector(name, builtin.target, builtin.distribution, version, builtin.install, ranks=builtin.ranks)


def _beside(name: str, builtin: _Builtin, version: str) -> Connector:
    if builtin.distribution == "kvproof":
        raise UsageError(f"{name}: the reference connector is part of kvproof and has no other version")
    directory = environments.path(builtin.distribution, version)
    if environments.installed_version(builtin.distribution) == version:
        return _here(name, builtin)
    install = f"kvproof connectors --install {name}"
    found = environments.installed_version(builtin.distribution, directory)
    if found is None:
        raise NotInstalled(f"{name} is not installed; install it with: {install}")
    missing = [module for module in builtin.needs if _spec(module, [str(directory), *sys.path]) is None]
    if missing:
        raise NotInstalled(f"{name} needs {', '.join(missing)}; install it with: {builtin.install} && {install}")
    return Connector(name, builtin.target, builtin.distribution, found, install, environment=directory)


def _faulty(name: str, plain: str, bug: str, version: str) -> Connector:
    target, bugs = _FAULTY.get(plain, ("", ()))
    if bug not in bugs or version:
        raise UsageError(f"no connector is called {name!r}{_nearest(name)}")
    right = _here(plain, _BUILTIN[plain])
    return replace(right, name=name, target=target, bug=bug)


def _explicit(name: str, version: str) -> Connector:
    module, _, attribute = name.partition(":")
    if version or not attribute.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
        raise UsageError(f"{name!r} is not of the form module:Class")
    top = module.partition(".")[0]
    if _spec(module, [*sys.path, str(Path.cwd())]) is None:
        raise UsageError(f"{name}: there is no module {module!r} on the path or in {Path.cwd()}")
    owner = next(iter(metadata.packages_distributions().get(top, ())), "")
    found = environments.installed_version(owner) if owner else None
    return Connector(name, name, owner or top, found or "unknown", "")


def _registered() -> dict[str, _Builtin]:
    return {
        point.name: _Builtin(point.value, point.dist.name, (), f"pip install {point.dist.name}")
        for point in metadata.entry_points(group=GROUP) if point.dist is not None
    }


def _spec(module: str, path: list[str] | None = None) -> ModuleSpec | None:
    """Find a module without importing its parents, which `importlib.util.find_spec` would do."""
    found, search = None, path
    for name in _growing(module):
        found = PathFinder.find_spec(name, search)
        if found is None:
            return None
        search = list(found.submodule_search_locations or ())
    return found


def _growing(module: str) -> Iterator[str]:
    parts = module.split(".")
    for count in range(1, len(parts) + 1):
        yield ".".join(parts[:count])


def _nearest(name: str) -> str:
    close = difflib.get_close_matches(name, names(), n=3, cutoff=0.4)
    # The reference connectors' mistakes, which are many, are there for whoever knows of them.
    known = close or [each for each in names() if "+" not in each]
    return f"; {'the nearest are' if close else 'known are'} {', '.join(known)}, or name one as module:Class"
