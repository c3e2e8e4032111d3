"""Clients given to the gate search inside a runner: LMCache's RESPClient, and the reference connector's client."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from kvproof.connectors.loop_thread import LoopThread
from kvproof.connectors.reference_client import Client
from kvproof.faults.gate_search import Callback, search
from kvproof.models.client import Found
from kvproof.runner.child import Session


def resp_client(session: Session, key: str) -> dict[str, Any]:
    """Search `exists_sync` of LMCache's RESPClient and the callback by which its loop reads completions."""
    place = session.connector.place
    kind = type(session.connector.client)  # type: ignore[attr-defined]  # the adapter's, which only a runner imports

    def make() -> Any:
        async def opened(loop: asyncio.AbstractEventLoop) -> Any:
            return kind(place.endpoint.host, place.endpoint.port, 1, loop)

        thread = LoopThread("searched")
        return thread.call(opened(thread.loop), 5.0)

    # Nothing is closed: the runner ends with all of them.
    return search(
        make, lambda client: client.exists_sync(key), Callback(kind, "_on_ready"),
        judge=lambda client, found, _: None if found is True else f"a key that is there: {found!r}",
    ).as_data()


def reference_client(session: Session, key: str) -> dict[str, Any]:
    """Search `exists` of the reference connector's client and the callback that hands completions out."""
    place = replace(session.connector.place, timeout=5.0)
    kind = session.connector.client_class  # type: ignore[attr-defined]  # Reference's

    return search(
        lambda: kind(place), lambda client: client.exists(key), Callback(Client, "_drain"),
        judge=lambda client, found, _: None if found == Found() else f"a key that is there: {found!r}",
        close=lambda client: client.close(), at_once=24,
    ).as_data()
