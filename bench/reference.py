"""How fast `reference` reads one chunk through a synchronous call, against a bare `recv_into` loop.

Run it by itself: ``python bench/reference.py``. It starts a valkey-server of its own and exits with 1 when the
median of the interleaved reads falls below 0.9 of the bare loop's rate.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import sys
import time
from collections.abc import Callable

from kvproof.connectors.adapter import Endpoint, Hit, Place, Read
from kvproof.connectors.reference import Reference
from kvproof.faults.servers import valkey
from kvproof.models.resp import encode_command

CHUNK = 256 * 48_400
"""Bytes in one chunk: 256 tokens of 48.4 KB (facts: 1)."""
FLOOR = 0.9


class Bare:
    """The least that can do the same: send, receive the header, then the payload straight into the caller's buffer."""

    def __init__(self, endpoint: Endpoint, key: str, buffer: memoryview) -> None:
        """Connect."""
        self._socket = socket.create_connection((endpoint.host, endpoint.port))
        self._request = encode_command("GET", key)
        self._header = b"$%d\r\n" % len(buffer)
        self._scratch = memoryview(bytearray(len(self._header)))
        self.buffer = buffer

    def read(self) -> None:
        """GET once."""
        self._socket.sendall(self._request)
        self._fill(self._scratch)
        assert self._scratch == self._header
        self._fill(self.buffer)
        self._fill(self._scratch[:2])

    def _fill(self, view: memoryview) -> None:
        received = 0
        while received < len(view):
            received += self._socket.recv_into(view[received:])

    def close(self) -> None:
        """Disconnect."""
        self._socket.close()


def seconds(call: Callable[[], object]) -> float:
    """Return how long one call takes."""
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def measure(size: int, rounds: int) -> tuple[list[float], list[float]]:
    """Return the seconds of each read by the bare loop and by `reference`, interleaved, first alternating."""
    with valkey() as server:
        endpoint = Endpoint(server.host, server.port)
        place = Place(endpoint, size)
        key, payload, buffer = place.key("00"), memoryview(os.urandom(size)), memoryview(bytearray(size))
        read = Read("get")
        reference, bare = Reference(place), Bare(endpoint, key.format(), buffer)
        try:
            assert reference.put([(key, payload)]) == [Hit()]

            def through_reference() -> None:
                assert reference.read(read, [(key, buffer)]) == [Hit()]

            contestants = [bare.read, through_reference]
            times: list[list[float]] = [[], []]
            for turn in range(rounds + 3):
                for index in (0, 1) if turn % 2 else (1, 0):
                    times[index].append(seconds(contestants[index]))
            assert buffer == payload, "the chunk that was read is not the one that was stored"
            return times[0][3:], times[1][3:]
        finally:
            bare.close()
            reference.close()


def main() -> int:
    """Print both medians and their ratio; return 1 below the floor."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--bytes", type=int, default=CHUNK)
    options = parser.parse_args()
    bare, reference = (statistics.median(times) for times in measure(options.bytes, options.rounds))
    ratio = bare / reference
    print(f"{options.bytes} bytes, median of {options.rounds} interleaved: bare {bare * 1e3:.2f} ms, "
          f"reference {reference * 1e3:.2f} ms, ratio {ratio:.2f} (at least {FLOOR} wanted)")
    return 0 if ratio >= FLOOR else 1


if __name__ == "__main__":
    sys.exit(main())
