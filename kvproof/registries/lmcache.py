"""LMCache's own registry: every remote connector that it finds in its package, by the scheme of its address.

It is imported in a process of its own only, because it imports LMCache.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator

PACKAGE = "lmcache.v1.storage_backend.connector"
_PLUGIN = "plugin://"


def connectors() -> Iterator[str]:
    """Yield the scheme of each adapter, as LMCache discovers them: the subclasses in modules called *_adapter.

    An adapter without a scheme of its own goes by its module's name, and so does a module that cannot be imported
    here: a connector must not be overlooked because its library is missing.
    """
    # LMCache needs `transformers` for two names only, for which our adapters' base has a stand-in.
    importlib.import_module("kvproof.connectors.lmcache_remote")
    package = importlib.import_module(PACKAGE)
    for found in pkgutil.iter_modules(package.__path__):
        if not found.name.endswith("_adapter"):
            continue
        name = found.name.removesuffix("_adapter")
        try:
            module = importlib.import_module(f"{PACKAGE}.{found.name}")
        except Exception:
            yield name
            continue
        for _, adapter in inspect.getmembers(module, inspect.isclass):
            if issubclass(adapter, package.ConnectorAdapter) and not inspect.isabstract(adapter):
                yield _scheme(adapter) or name


def _scheme(adapter: type) -> str:
    try:
        schema = str(adapter().schema)
    except Exception:
        return ""
    return schema.removeprefix(_PLUGIN).partition("://")[0]
