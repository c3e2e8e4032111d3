"""What goes wrong: the RESP fault proxy, servers started and disturbed, gates that force a schedule.

``with faults.proxy(upstream, schedule) as endpoint:`` puts a proxy in front of a server; the faults of a schedule are
in `kvproof.faults.families`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvproof.faults.endpoint import proxy as proxy

__all__ = ["proxy"]


def __getattr__(name: str) -> Any:
    if name == "families":
        import kvproof.faults.families

        return kvproof.faults.families
    if name == "proxy":
        from kvproof.faults.endpoint import proxy

        return proxy
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
