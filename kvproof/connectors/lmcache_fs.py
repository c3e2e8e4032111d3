"""The adapter for LMCache's file system connector (fs://): one file a chunk in a directory."""

from __future__ import annotations

from typing import ClassVar

from kvproof.connectors.adapter import Place
from kvproof.connectors.lmcache_remote import LMCacheRemote
from kvproof.models.chunks import ChunkKey


class LMCacheFS(LMCacheRemote):
    """RemoteBackend over FSConnector in `place.directory`; nothing is asked of a server."""

    name = "lmcache-fs"
    truth = "directory"
    preload: ClassVar[tuple[str, ...]] = (
        "kvproof.connectors.lmcache_fs", "lmcache.v1.storage_backend.connector.fs_connector")
    suffixes = (".data",)

    def __init__(self, place: Place) -> None:
        """Open the backend; raises ValueError without a directory, which LMCache would take for the root."""
        if not place.directory:
            raise ValueError("lmcache-fs needs a directory of its own (Place.directory)")
        super().__init__(place)

    def wire_keys(self, key: ChunkKey) -> tuple[str, ...]:
        """Return the name of the file that holds this chunk; FSConnector writes its key with "-SEP-" for "/"."""
        return tuple(name.replace("/", "-SEP-") for name in super().wire_keys(key))

    def url(self) -> str:
        """See `LMCacheRemote.url`; LMCache demands a host and a port and ignores both."""
        return f"fs://localhost:0{self.place.directory}"

    def hint(self) -> str:
        """See `LMCacheRemote.hint`."""
        return f" (which it does not need; it was to use the directory {self.place.directory})"
