"""Every fault of a server, by one name: `from kvproof.faults import server_faults`."""

from __future__ import annotations

from kvproof.faults.server_connections import ConnectedClient, Kicked, PasswordChanged, Paused, clients
from kvproof.faults.server_fault import DEADLINE, Report, ServerFault, Unsupported
from kvproof.faults.server_keys import Evicted, Flushed, OutOfMemory, subsets, used_memory
from kvproof.faults.server_process import Killed, Later, Stopped, later

FAULTS: tuple[type[ServerFault], ...] = (
    Evicted, Flushed, OutOfMemory, PasswordChanged, Kicked, Paused, Killed, Stopped,
)

__all__ = [
    "DEADLINE", "FAULTS", "ConnectedClient", "Evicted", "Flushed", "Kicked", "Killed", "Later", "OutOfMemory",
    "PasswordChanged", "Paused", "Report", "ServerFault", "Stopped", "Unsupported", "clients", "later", "subsets",
    "used_memory",
]
